"""ByteScale: hybrid data parallelism (arXiv:2502.21231), without its offload of activations.

A document takes as many ranks as it needs, ceil(s / room of a rank), not a power of two, and none shorter than that
room communicates: short ones are packed up to it. Ranks meet once in a step, when gradients are summed, so each trains
its micro-batches without a wait for others, and those with light ones train more of them. Packs have equal work. What
takes most comes first, to the ranks that are free first. Weights stay whole (ZeRO-1): a gather in every micro-batch
would make ranks wait. The rule here is simplified: it follows summaries of the paper, which has no public code.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import numpy as np

from ....cost_models.arrays import Array
from ..costs import GroupCosts
from ..family_choice import Candidate
from ..policy import Step
from .base import Scheme, SchemeStep, Subject, words_of
from .equal_work import packs_of_equal_work

_MORE = 8  # numbers of packs that are tried beyond the least, up to two more for each rank; assumed


@dataclass(frozen=True)
class MicroBatch:
    """Documents that `num_ranks` ranks train together."""

    num_ranks: int
    seconds: float


def long_ones(lengths: Array, costs: GroupCosts) -> list[MicroBatch]:
    """Documents that need more than one rank."""
    needs = [(length, int(np.ceil(length / costs.rank_tokens))) for length in lengths.tolist()]
    return [MicroBatch(num, costs.micro_batch_s + sequence_s(length, num, costs)) for length, num in needs if num > 1]


def packs(lengths: Array, costs: GroupCosts) -> Iterator[list[MicroBatch]]:
    """Documents of one rank [k] in packs, for several numbers of these."""
    if not len(lengths):
        yield []
        return
    alone_s = costs.seconds(lengths)[:, 0]
    least = int(np.ceil(lengths.sum() / costs.rank_tokens))
    for more in range(_MORE + 1):
        num = least + 2 * more * costs.num_ranks // _MORE
        while (packed := packs_of_equal_work(lengths, alone_s, costs.rank_tokens, num)) is None:
            num += 1
        yield [MicroBatch(1, costs.micro_batch_s + float(alone_s[pack].sum())) for pack in packed if pack]


def sequence_s(length: float, num_ranks: int, costs: GroupCosts) -> float:
    """Seconds of a document on any number of ranks: its rank-seconds lie between those of the powers of two."""
    token_s = [float(np.interp(length, costs.grid, column)) for column in costs.token_s.T]
    rank_s = np.interp(np.log2(num_ranks), np.log2(costs.degrees), np.array(token_s) * costs.degrees)
    return float(rank_s) * length / num_ranks


def step(lengths: Array, costs: GroupCosts) -> SchemeStep:
    """A step without a wait between micro-batches."""
    wide = long_ones(lengths, costs)
    steps = (_scheduled([*wide, *narrow], costs) for narrow in packs(lengths[lengths <= costs.rank_tokens], costs))
    return min(steps, key=lambda each: each.step_s)


def _scheduled(micro_batches: list[MicroBatch], costs: GroupCosts) -> SchemeStep:
    """The widest first, of equal ones the longest, each on the ranks that are free first."""
    free = np.zeros(costs.num_ranks)
    for each in sorted(micro_batches, key=lambda each: (-each.num_ranks, -each.seconds)):
        ranks = np.argsort(free, kind="stable")[: each.num_ranks]
        free[ranks] = free[ranks].max() + each.seconds
    degrees = tuple(sorted({each.num_ranks for each in micro_batches}))
    count = sum(each.num_ranks for each in micro_batches) / costs.num_ranks
    return SchemeStep(costs.once_s + float(free.max()), degrees, count)


def _steps(candidate: Candidate, batches: Sequence[Array]) -> list[SchemeStep]:
    return [step(lengths, candidate[1]) for lengths in batches]


def _run(subject: Subject) -> tuple[str, Sequence[Step]]:
    (family, _), steps = subject.fastest(subject.candidates("ring", zero=1), _steps)
    return words_of(family), steps


SCHEME = Scheme(name="bytescale", source="arXiv:2502.21231", basis="summary", rule="one per document", run=_run)
