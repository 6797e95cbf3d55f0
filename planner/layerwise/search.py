"""Search for one strategy per layer, embedding and head, with a proven gap.

Given p stages and m micro-batches, variables x_i in K (strategies, space.py) for every item i: embedding, layers,
head, in the order of the model, the layers of a stage as even as possible. With a(x) = tp x cp of a strategy:

    minimise   step(S_1, .., S_p) + tied(x_head)                                    `Pipeline.step_s`
    S_s      = sum over items of stage s of sums(s, i, x_i)                         `Prices.seconds`
               + resharding(a(x_(i-1)), a(x_i)) in the column `steady`, also        `Prices.resharding_s`
               from the stage before
    such that, for every stage s,
               (sum of resident(s, i, x_i) + max of transient(s, i, x_i)) (1 + reserve)
               + context + communicators of the a(x_i) of the stage <= memory       `Instance.pieces`, `outside_bytes`
               (sum of at_end(s, i, x_i)) (1 + reserve) + context + communicators <= memory, on the embedding's stage
               x_embedding = x_head where they are one matrix                       `_tied_edges`

Each p and m is an open problem with a bound (bounds.py). The search works on the one with the least bound, until no
bound is below the best plan so far:

1. it is cut into parts: the plans of each single tp x cp, and those that mix some; where embedding and head are one
   matrix, one part per strategy of that matrix;
2. a pipeline is solved stage by stage, which is exact if the slowest stage also has the most work once per step;
3. a part that is still open goes through the dynamic program (labels.py): for plans just above its bound, then for
   slower ones. The first plan that it finds is the best of the part, and close to the bound few labels are left.

One stage is exact. For pipelines the dynamic program stops after a number of labels; then the bound stands, and the gap
is the distance from it to the plan. Labels miss one case: a step is not always longer for a slower stage (m < 2, data
parallelism hides behind it). There, a dropped label could have won, by less than the seconds that hide.
"""

from __future__ import annotations

import heapq
import itertools
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace

import numpy as np

from ...cost_models.layerwise.costs import REDUCE
from ...cost_models.quantities.stages import EMBEDDING, HEAD
from ...cost_models.rates.rates import Rates
from ..space.tree import Space
from .bounds import Bounds
from .labels import Labels, LabelSearchResult
from .space import Instance, Pieces, instances

TIE = 1e-9  # relative: a plan that gains less is no better
_LIMIT = 256  # labels of one kind
_MOST_LABELS = 600_000  # of one stage; a tenth of them of a whole pipeline
_FIRST_STEP = 1e-4  # relative: how far above its bound a part is searched at first
_LONGER = 2.0  # how many times farther it is searched after that
_ROOM = 1e6  # cycles: room enough to hide anything
_LEAST_ONCE = 1e-3  # share of the work once per step that stages beside the slowest are charged


@dataclass(frozen=True)
class Assignment:
    """A plan."""

    instance: Instance  # its numbers of stages and of micro-batches
    rows: tuple[int, ...]  # strategies (rows of `instance.prices`) of embedding, layers and head, in this order
    step_s: float  # seconds of a step


@dataclass
class LayerwiseOutcome:
    """The result of a search."""

    best: Assignment | None = None  # None: no plan fits
    uniform: Assignment | None = None  # the best plan with one strategy; None: none fits
    lower_bound_s: float = np.inf  # seconds: no plan of the space takes less
    instances: int = 0  # pairs of a number of stages and a number of micro-batches
    strategies: int = 0  # of all of them
    solved: int = 0  # parts of the space that a bound alone did not settle
    stopped: str | None = None  # why it ended early

    @property
    def gap(self) -> float:
        return max(0.0, 1.0 - self.lower_bound_s / self.best.step_s) if self.best else 0.0

    def offer(self, instance: Instance, rows: tuple[int, ...], step_s: float) -> None:
        if self.best is None or step_s < self.best.step_s * (1.0 - TIE):
            self.best = Assignment(instance, rows, step_s)

    @property
    def threshold(self) -> float:
        """Seconds that a plan must stay below to be better than the best."""
        return self.best.step_s * (1.0 - TIE) if self.best is not None else np.inf


@dataclass
class _Open:
    """A part of the space that may hold a better plan."""

    bounds: Bounds
    bound_s: float  # no plan of the part takes less
    whole: bool = True  # not cut into parts yet
    by_stages: bool = False  # solved stage by stage
    step: float = _FIRST_STEP  # relative: how far above the bound to search next


def search(
    space: Space, rates: Rates, memory_bytes: float, *, should_stop: Callable[[], bool] = lambda: False,
    limit: int = _LIMIT,
) -> LayerwiseOutcome:  # fmt: skip
    """The best plan of every number of stages and of micro-batches. Ctrl-C keeps the best so far."""
    out = LayerwiseOutcome()
    heap = list[tuple[float, int, _Open]]()
    number = itertools.count()
    settled_s = np.inf
    try:
        for instance in instances(space, rates, memory_bytes):
            out.instances += 1
            out.strategies += len(instance.rows)
            _offer_uniform(out, instance, memory_bytes)
            bounds = Bounds(instance)
            if bounds.fits:
                heapq.heappush(heap, (bounds.step_s, next(number), _Open(bounds, bounds.step_s)))
        while heap and heap[0][0] < out.threshold:
            if should_stop():
                out.stopped = "time limit"
                break
            parts, least_s = _worked_on(out, heap[0][2], limit)
            heapq.heappop(heap)
            settled_s = min(settled_s, least_s)
            for part in parts:
                heapq.heappush(heap, (part.bound_s, next(number), part))
    except KeyboardInterrupt:
        out.stopped = "interrupted"
    best_s = out.best.step_s if out.best is not None else np.inf
    out.lower_bound_s = min(best_s, settled_s, heap[0][0] if heap else np.inf)
    return out


def _offer_uniform(out: LayerwiseOutcome, instance: Instance, memory_bytes: float) -> None:
    step_s, device_bytes = instance.uniform()
    step_s = np.where(device_bytes <= memory_bytes, step_s, np.inf)
    at = int(step_s.argmin())
    if np.isfinite(step_s[at]) and (out.uniform is None or step_s[at] < out.uniform.step_s):
        rows = (int(instance.rows[at]),) * (instance.prices.problem.model.num_layers + 2)
        out.uniform = Assignment(instance, rows, float(step_s[at]))
        out.offer(instance, rows, float(step_s[at]))


def _worked_on(out: LayerwiseOutcome, part: _Open, limit: int) -> tuple[list[_Open], float]:
    """The parts of `part` that are still open, and seconds that no plan of its settled parts beats."""
    if part.whole:
        return [_Open(b, max(b.step_s, part.bound_s), whole=False) for b in _parts(part.bounds) if b.fits], np.inf
    if part.bounds.pipe.pp > 1 and not part.by_stages:
        out.solved += 1
        bound_s = _stage_by_stage(out, part.bounds, limit)
        return [replace(part, bound_s=max(part.bound_s, bound_s), by_stages=True)], np.inf
    out.solved += part.step == _FIRST_STEP and part.bounds.pipe.pp == 1
    threshold = min(part.bound_s * (1.0 + part.step), out.threshold)
    result = _below(part.bounds, threshold, limit, _MOST_LABELS // (10 if part.bounds.pipe.pp > 1 else 1))
    if result.rows is not None:
        out.offer(part.bounds.instance, result.rows, result.step_s)
        return [], result.lower_bound_s
    if result.lower_bound_s < threshold:  # given up, or labels were dropped
        return [], max(result.lower_bound_s, part.bound_s)
    return [replace(part, bound_s=threshold, step=part.step * _LONGER)], np.inf


def _below(bounds: Bounds, threshold: float, limit: int, most: int) -> LabelSearchResult:
    """The best plan below `threshold`: first what is left of the options, which makes the bounds tighter."""
    for _ in range(2):
        if bounds.step_s >= threshold:
            return LabelSearchResult(None, np.inf, threshold)
        bounds = bounds.again(threshold)
    if bounds.step_s >= threshold:
        return LabelSearchResult(None, np.inf, threshold)
    return Labels(bounds, threshold, limit, most).run()


def _parts(bounds: Bounds) -> Iterator[Bounds]:
    """The same plans in parts."""
    for instance in bounds.instance.parts():
        part = Bounds(instance)
        yield from _tied_edges(part) if instance.ties_edges and part.fits else [part]


def _tied_edges(bounds: Bounds) -> Iterator[Bounds]:
    """One part for every strategy of the embedding, which the head shares."""
    for row in bounds.pieces[0][EMBEDDING].rows:
        pieces = [dict(of_stage) for of_stage in bounds.pieces]
        for stage, item in ((0, EMBEDDING), (-1, HEAD)):
            pieces[stage][item] = pieces[stage][item].take(pieces[stage][item].rows == row)
        yield Bounds(bounds.instance, pieces)


def _stage_by_stage(out: LayerwiseOutcome, bounds: Bounds, limit: int) -> float:
    """Solve every stage by itself and offer the plan that they make; seconds that no plan takes less than.

    (m - 1) max c + sum c + max d >= sum of (w_s c_s + v_s d_s), w_s = 1 and m for the slowest, sum of v_s = 1; what is
    done once hides at most behind the greatest share of a cycle (`Bounds.compute_shares`).
    """
    pipe, instance = bounds.pipe, bounds.instance
    slowest, stages = int(bounds.cycle_s.argmax()), range(pipe.pp)
    total, rows = 0.0, list[int]()
    slack_s = out.threshold / (1.0 + pipe.straggler_share) - bounds.step_s / (1.0 + pipe.straggler_share)
    for s in stages:
        weight = pipe.m if s == slowest else 1.0
        once = 1.0 - _LEAST_ONCE if s == slowest else _LEAST_ONCE / (pipe.pp - 1)
        shares = bounds.compute_shares if s == slowest and bounds.may_hide else np.full(2, _ROOM)
        alone = replace(pipe, m=weight, hop_s=0.0, link_s=0.0, calls=pipe.calls[s : s + 1], straggler_share=0.0,
                        shares=shares)  # fmt: skip
        scaled = {item: _scaled(p, once) for item, p in bounds.pieces[s].items()}
        stage = Bounds(replace(instance, mixed=False), [scaled], items=[bounds.items[s]], pipe=alone)
        result = _least_of(stage, stage.step_s + slack_s, limit)
        if result.rows is None:  # this stage alone takes more than the best plan leaves it, or it was given up
            longer = result.lower_bound_s >= stage.step_s + slack_s
            return out.threshold if longer else bounds.step_s
        slack_s -= max(result.lower_bound_s - stage.step_s, 0.0)
        total += result.lower_bound_s
        rows += result.rows
    plan = tuple(rows)
    out.offer(instance, plan, instance.step_s(plan))
    least = total + bounds.least_hops_s + bounds.once_terms_s
    return max(bounds.step_s, least * (1.0 + pipe.straggler_share))


def _scaled(pieces: Pieces, once: float) -> Pieces:
    sums = pieces.sums.copy()
    sums[:, REDUCE:] *= once
    return replace(pieces, sums=sums, once_terms_s=np.zeros_like(pieces.once_terms_s))


def _least_of(bounds: Bounds, most_s: float, limit: int) -> LabelSearchResult:
    """The best plan of one stage, if it takes less than most_s."""
    step, bound_s = _FIRST_STEP, bounds.step_s
    while bound_s < most_s:
        threshold = min(bounds.step_s * (1.0 + step), most_s)
        result = _below(bounds, threshold, limit, _MOST_LABELS)
        if result.rows is not None or result.lower_bound_s < threshold:
            return result
        step, bound_s = step * _LONGER, threshold
    return LabelSearchResult(None, np.inf, most_s)


__all__ = ["Assignment", "LayerwiseOutcome", "search"]
