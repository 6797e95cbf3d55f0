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

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import numpy as np

from ....cost_models.arrays import Array, Ints
from ....errors import NoFeasibleLayoutError
from .base import Scheme, SchemeStep, Subject
from .equal_work import packs_of_equal_work
from .pipelines import Shape

_MOST_GPUS = 2048  # the time of the proposal grows with their square
_ORDERS = 50  # of the documents of a batch, that are tried; as in `dynamic_pulp`
_BINS = 12  # of lengths in the proposal; assumed
_MORE = 20  # numbers of micro-batches that are tried beyond the least; assumed, in place of the integer program


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


def propose(work: Work, num_gpus: int) -> tuple[Array, list[Proposal]]:
    """([n, bin] least seconds of n GPUs for the bins below, [bin] the pipelines of all GPUs that have them)."""
    num_bins = work.sums.shape[1]
    least = np.full((num_gpus + 1, num_bins + 1), np.inf)
    least[:, 0] = 0.0
    chosen = np.zeros((num_gpus + 1, num_bins + 1, 4), dtype=np.int64)  # shape, number, and the GPUs and bins before
    for end in range(1, num_bins + 1):
        for first, gpus, shape, seconds in _spans(work, end):
            for num in range(1, num_gpus // gpus + 1):
                step_s = np.maximum(least[: -num * gpus, first], seconds / num)
                better = np.flatnonzero(step_s < least[num * gpus :, end])
                if len(better):
                    n = better + num * gpus
                    least[n, end] = step_s[better]
                    chosen[n, end] = np.stack(np.broadcast_arrays(shape, num, better, first), axis=-1)
        fastest = least[:, end] == np.minimum.accumulate(least[:, end])
        fewer = np.maximum.accumulate(np.where(fastest, np.arange(num_gpus + 1), 0))
        least[:, end], chosen[:, end] = least[fewer, end], chosen[fewer, end]  # GPUs that gain nothing stay free
    return least, [_traced(chosen, num_gpus, end) for end in range(num_bins + 1)]


def _spans(work: Work, end: int) -> Iterator[tuple[int, int, int, float]]:
    """(first bin, GPUs, shape, seconds) of one pipeline for the bins below `end`: the fastest shape of so many GPUs."""
    for first in range(end):
        spans = [(work.between(shape, first, end), shape) for shape in range(len(work.gpus))]
        for gpus in sorted(set(work.gpus)):
            seconds, shape = min(span for span in spans if work.gpus[span[1]] == gpus)
            if seconds < np.inf:
                yield first, gpus, shape, seconds


def _traced(chosen: Ints, num_gpus: int, end: int) -> Proposal:
    """The pipelines of `num_gpus` GPUs for the bins below `end`; none where no pipelines hold them."""
    out: Proposal = ()
    while end and chosen[num_gpus, end, 1]:
        shape, num, num_gpus, end = chosen[num_gpus, end].tolist()
        out = ((shape, num), *out)
    return out


def assign(lengths: Array, pipelines: Sequence[Shape], seed: int = 0) -> list[list[int]]:
    """Documents [k] of each pipeline: the best of 50 random orders. Each document goes where it would end first: the
    longest pipeline grows least there."""
    seconds = np.stack([shape.costs.seconds(lengths)[:, 0] for shape in pipelines], axis=1)
    able = np.isfinite(seconds)
    own_s, few = np.where(able, seconds, 0.0), able.sum(axis=1)
    fill = np.array([shape.costs.fill for shape in pipelines])
    drawn = (np.random.default_rng((seed, number)).permutation(len(lengths)) for number in range(_ORDERS))
    orders = np.stack([order[np.argsort(few[order], kind="stable")] for order in drawn])
    rows, at = np.arange(_ORDERS), np.zeros(orders.shape, dtype=np.int64)
    sums, longest = np.zeros((_ORDERS, len(pipelines))), np.zeros((_ORDERS, len(pipelines)))
    for place, k in enumerate(orders.T):
        after = np.where(able[k], sums + own_s[k] + fill * np.maximum(longest, own_s[k]), np.inf)
        at[:, place] = chosen = after.argmin(axis=1)
        sums[rows, chosen] += own_s[k, chosen]
        longest[rows, chosen] = np.maximum(longest[rows, chosen], own_s[k, chosen])
    best = int((sums + fill * longest).max(axis=1).argmin())
    return [orders[best, at[best] == pipeline].tolist() for pipeline in range(len(pipelines))]


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
    if num_gpus > _MOST_GPUS:
        raise NoFeasibleLayoutError(f"its proposal is searched for up to {_MOST_GPUS:,} GPUs, these are {num_gpus:,}")
    held = max((shape.costs.rank_tokens for shape in pool), default=0)
    if held < subject.longest:
        raise NoFeasibleLayoutError(f"no pipeline holds a document of {subject.longest:,} tokens: at most {held:,}")
    edges = _edges(subject.longest)
    chosen = propose(usual_work(subject, pool, edges), num_gpus)[1]
    proposals = {end: tuple(pool[shape] for shape, num in chosen[end] for _ in range(num))
                 for end in range(1, len(chosen)) if chosen[end]}  # fmt: skip
    steps = list[SchemeStep]()
    for lengths in subject.batches:
        able = dict.fromkeys(pipelines for end, pipelines in proposals.items() if edges[end - 1] >= lengths.max())
        steps.append(min((step(lengths, pipelines) for pipelines in able), key=lambda each: each.step_s))
    words = ", ".join(f"{num} x {pool[shape].words}" for shape, num in chosen[-1])
    return f"{words} for the longest", steps


SCHEME = Scheme(name="hydraulis", source="lhy101/Hydraulis 4489487", basis="code", rule="a pipeline per document",
                run=_run)  # fmt: skip
