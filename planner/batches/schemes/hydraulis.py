"""Hydraulis: pipelines of unlike shape side by side, and a pipeline for every document.

Li et al., lhy101/Hydraulis at 4489487. Two programs:

- **Proposal** (`strategy_proposal` there): which pipelines stand side by side. Let t[n][s] be the seconds in which n
  GPUs at best train the documents of a usual batch of up to s tokens. d pipelines of shape k, with g_k GPUs each, take
  those between s - l and s: t[n][s] = min over k, l, d of max(t[n - d g_k][s - l], work_k(s - l, s) / d). The work has
  the bubble of its longest document.
- **Assignment** (`dynamic_pulp` there), for each batch: the best of 50 random orders of the documents. Those that only
  the pipelines for the longest hold come first, then each document goes where the longest pipeline grows least.

A proposal is made for every longest document, and a batch takes the fastest of those that hold its own: Hydraulis
changes pipelines between steps. It then packs the documents of a pipeline into micro-batches by an integer program of
half a second; here the longest comes first, to the micro-batch with the least work that has room, for each number of
them. Documents are not split over ranks: it has no context parallelism.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from ....cost_models.arrays import Array, Ints
from ....errors import NoFeasibleLayoutError
from .base import Scheme, SchemeStep, Subject
from .equal_work import packs_of_equal_work
from .pipelines import Shape

_ORDERS = 50  # of the documents of a batch, that are tried
_BINS = 12  # of lengths in the proposal
_MORE = 20  # numbers of micro-batches that are tried beyond the least


@dataclass(frozen=True, eq=False)
class Work:
    """Seconds that each shape needs for the documents of each bin of a usual batch."""

    sums: Array  # [shape, bin] seconds of all documents
    longest: Array  # [shape, bin] seconds of the longest document; inf where the shape does not hold it
    fill: Array  # [shape] as in GroupCosts
    gpus: tuple[int, ...]  # [shape]

    def between(self, shape: int, first: int, end: int) -> float:
        """Seconds of the documents of the bins from `first` up to `end`, with the bubble of the longest."""
        longest = self.longest[shape, first:end].max()
        return float(self.sums[shape, first:end].sum() + self.fill[shape] * longest) if longest < np.inf else np.inf


Proposal = tuple[tuple[int, int], ...]  # (shape, number of pipelines)


def propose(work: Work, num_gpus: int) -> tuple[Array, list[list[Proposal]]]:
    """([n, bin] least seconds of n GPUs for the bins below, [n][bin] the pipelines that have them)."""
    num_bins = work.sums.shape[1]
    least = np.full((num_gpus + 1, num_bins + 1), np.inf)
    least[:, 0] = 0.0
    chosen: list[list[Proposal]] = [[()] * (num_bins + 1) for _ in range(num_gpus + 1)]
    spans = [(shape, first, end, work.between(shape, first, end)) for shape in range(len(work.gpus))
             for end in range(1, num_bins + 1) for first in range(end)]  # fmt: skip
    spans = [span for span in spans if span[3] < np.inf]
    spans.sort(key=lambda span: span[2])
    for n in range(1, num_gpus + 1):
        least[n], chosen[n] = least[n - 1], list(chosen[n - 1])
        for shape, first, end, seconds in spans:
            for num in range(1, n // work.gpus[shape] + 1):
                before = n - num * work.gpus[shape]
                step_s = max(least[before, first], seconds / num)
                if step_s < least[n, end]:
                    least[n, end] = step_s
                    chosen[n][end] = (*chosen[before][first], (shape, num))
    return least, chosen


def assign(lengths: Array, pipelines: Sequence[Shape], seed: int = 0) -> list[list[int]]:
    """Documents [k] of each pipeline: the best of 50 random orders."""
    seconds = np.stack([shape.costs.seconds(lengths)[:, 0] for shape in pipelines], axis=1)
    fill = np.array([shape.costs.fill for shape in pipelines])
    best, best_s = list[list[int]](), np.inf
    for number in range(_ORDERS):
        order = np.random.default_rng((seed, number)).permutation(len(lengths))
        few = np.isfinite(seconds[order]).sum(axis=1)
        members, step_s = _greedy(order[np.argsort(few, kind="stable")], seconds, fill)
        if step_s < best_s:
            best, best_s = members, step_s
    return best


def _greedy(order: Ints, seconds: Array, fill: Array) -> tuple[list[list[int]], float]:
    """Each document goes where the longest pipeline grows least; of equal ones to the one with the least work."""
    count = seconds.shape[1]
    sums, longest = np.zeros(count), np.zeros(count)
    members: list[list[int]] = [[] for _ in range(count)]
    for k in order.tolist():
        able = np.isfinite(seconds[k])
        own_s = np.where(able, seconds[k], 0.0)
        after = np.where(able, sums + own_s + fill * np.maximum(longest, own_s), np.inf)
        at = int(np.lexsort((after, np.maximum(after, (sums + fill * longest).max())))[0])
        sums[at] += seconds[k, at]
        longest[at] = max(longest[at], seconds[k, at])
        members[at].append(k)
    return members, float((sums + fill * longest).max())


def pipeline_s(lengths: Array, shape: Shape) -> tuple[float, int]:
    """Seconds of a pipeline for documents [k], and its micro-batches."""
    if not len(lengths):
        return 0.0, 0
    seconds = shape.costs.seconds(lengths)[:, 0]
    room = shape.costs.rank_tokens
    least, best = max(1, int(np.ceil(lengths.sum() / room))), (np.inf, 0)
    for num in range(least, min(least + _MORE, len(lengths)) + 1):
        packs = packs_of_equal_work(lengths, seconds, room, num)
        if packs is not None:
            busy = [shape.costs.micro_batch_s + float(seconds[pack].sum()) for pack in packs if pack]
            best = min(best, (shape.step_s(busy), num))
    return best


def step(lengths: Array, pipelines: Sequence[Shape]) -> SchemeStep:
    """A step of a batch: it ends with the slowest pipeline."""
    ended = [pipeline_s(lengths[members], shape)
             for members, shape in zip(assign(lengths, pipelines), pipelines, strict=True)]  # fmt: skip
    return SchemeStep(max(seconds for seconds, _ in ended), (1,), float(np.mean([num for _, num in ended])))


def usual_work(subject: Subject, pool: Sequence[Shape], edges: Array) -> Work:
    """The documents of all batches, per batch, by the bins that end at `edges` [bin] tokens."""
    lengths = np.concatenate(list(subject.batches))
    bins = np.searchsorted(edges, lengths)
    sums, longest = np.zeros((len(pool), len(edges))), np.zeros((len(pool), len(edges)))
    for at, shape in enumerate(pool):
        launch_s = shape.costs.micro_batch_s / shape.costs.rank_tokens  # of a token, in full micro-batches
        seconds = shape.costs.seconds(lengths)[:, 0] + launch_s * lengths
        np.add.at(sums[at], bins, seconds / len(subject.batches))
        np.maximum.at(longest[at], bins, seconds)
        longest[at, -1] = max(longest[at, -1], shape.costs.seconds(edges[-1:])[0, 0])
    return Work(sums, longest, np.array([shape.costs.fill for shape in pool]), tuple(shape.num_gpus for shape in pool))


def _edges(longest: int) -> Array:
    """Ends of the bins of lengths, each twice the one before."""
    return np.array([max(1.0, longest / 2.0**at) for at in reversed(range(_BINS))])


def _run(subject: Subject) -> tuple[str, Sequence[SchemeStep]]:
    pool, num_gpus = subject.shapes, subject.priced.problem.num_gpus
    held = max((shape.costs.rank_tokens for shape in pool), default=0)
    if held < subject.longest:
        raise NoFeasibleLayoutError(f"no pipeline holds a document of {subject.longest:,} tokens: at most {held:,}")
    edges = _edges(subject.longest)
    chosen = propose(usual_work(subject, pool, edges), num_gpus)[1][num_gpus]
    proposals = {end: tuple(pool[shape] for shape, num in chosen[end] for _ in range(num))
                 for end in range(1, len(chosen)) if chosen[end]}  # fmt: skip
    steps = list[SchemeStep]()
    for lengths in subject.batches:
        able = dict.fromkeys(pipelines for end, pipelines in proposals.items() if edges[end - 1] >= lengths.max())
        steps.append(min((step(lengths, pipelines) for pipelines in able), key=lambda each: each.step_s))
    words = ", ".join(f"{num} x {pool[shape].words}" for shape, num in chosen[-1])
    return f"{words} for the longest", steps


SCHEME = Scheme(name="hydraulis", source="lhy101/Hydraulis 4489487", rule="a pipeline per document", run=_run)
