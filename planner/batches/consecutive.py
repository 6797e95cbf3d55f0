"""Micro-batches of consecutive lengths, each with groups of unlike degrees: the division of FlexSP.

Wang et al., arXiv:2412.01523, sections 4.2 and 4.3, and the solver in AFDWang/Hetu-Galvatron, branch flexsp. A batch
sorted by length is cut into M consecutive parts whose largest has the fewest tokens. M goes from the least number that
memory allows to four more, and the fastest is taken. FlexSP counts each sequence as the longest of its bucket of
lengths. A part has 16 buckets with the least padding, or more where their padding would fill over half of the memory
that is left. The makespan of a part is found by bisection with the packing rule (packing.py), in place of FlexSP's
integer program.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from ...cost_models.arrays import Array, Ints
from .area_bound import area_s, least_makespan_s
from .batch_plan import BatchPlan, Group, batch_plan, descending
from .costs import GroupCosts
from .one_degree import adaptive
from .packing import Batch, pack

_MORE = 4  # numbers of micro-batches that are tried beyond the least; as in FlexSP
_EXACTNESS = 0.002  # relative, of the bisections
_WIDER = 1.2  # of makespans that are tried before the bisection
BUCKETS = 16  # of lengths in a micro-batch, the fewest of FlexSP


def consecutive_plan(lengths: Array, costs: GroupCosts, buckets: int = 0) -> BatchPlan:
    """The plan of a batch of `lengths` [k] tokens; that of one degree where it is faster, as FlexSP starts from it.

    buckets: the fewest of a micro-batch; 0: each sequence counts with its own length.
    """
    best, order = adaptive(lengths, costs), descending(lengths)
    least = costs.least_micro_batches(lengths)
    for num in range(least, least + _MORE + 1):
        fixed_s = costs.once_s + num * costs.micro_batch_s
        parts = [(part, _Counted.of(lengths[part], costs, buckets)) for part in _cut(order, lengths, num)]
        if fixed_s + sum(counted.least_s for _, counted in parts) >= best.step_s:
            continue
        groups = [counted.groups(part) for part, counted in parts]
        whole = [side_by_side for side_by_side in groups if side_by_side is not None]
        if len(whole) == len(parts):
            best = min(best, batch_plan(whole, lengths, costs), key=lambda plan: plan.step_s)
    return best


def _cut(order: Ints, lengths: Array, num: int) -> list[Ints]:
    """`order` in at most `num` consecutive parts, whose largest has the fewest tokens."""
    sums = np.cumsum(lengths[order])
    low, high = float(max(lengths.max(), sums[-1] / num)), float(sums[-1])
    while high - low > _EXACTNESS * low:
        middle = (low + high) / 2
        if len(_ends(sums, middle)) <= num:
            high = middle
        else:
            low = middle
    return np.split(order, _ends(sums, high)[:-1])


def _ends(sums: Array, most: float) -> list[int]:
    """Ends of the parts that hold at most `most` tokens, each as long as it can be."""
    ends, before = list[int](), 0.0
    while not ends or ends[-1] < len(sums):
        ends.append(int(np.searchsorted(sums, before + most, side="right")))
        before = float(sums[ends[-1] - 1])
    return ends


def _counted(lengths: Array, costs: GroupCosts, buckets: int) -> Array:
    """[k] tokens that descending `lengths` [k] count as."""
    room = costs.rank_tokens * costs.num_ranks
    tokens = float(lengths.sum())
    for number in range(buckets, len(lengths)) if buckets else ():
        counted = bucketed(lengths, number)
        if counted.sum() <= (tokens + room) / 2:
            return counted
    return lengths


def bucketed(lengths: Array, number: int) -> Array:
    """[k] the longest of the bucket of each of descending `lengths` [k], in `number` buckets with the least padding."""
    values, counts = np.unique(-lengths, return_counts=True)
    values = -values  # descending
    number = min(number, len(values))
    before = np.concatenate([[0], np.cumsum(counts)])
    # [first, end] tokens of the values from `first` up to `end`, counted as the longest of them.
    spans = np.where(np.arange(len(values))[:, None] < np.arange(len(values) + 1),
                     values[:, None] * (before[None, :] - before[:-1, None]), np.inf)  # fmt: skip
    best, choices = spans[0], []
    for _ in range(number - 1):
        sums = best[:-1, None] + spans
        sums[0] = spans[0]
        choices.append(sums.argmin(axis=0))
        best = sums.min(axis=0)
    end, bounds = len(values), np.empty(len(values))
    for choice in reversed(choices):
        first = int(choice[end])
        bounds[first:end], end = values[first], first
    bounds[:end] = values[0]
    return np.repeat(bounds, counts)


@dataclass(frozen=True)
class _Counted:
    """A part with the tokens that its sequences count as."""

    batch: Batch
    least_s: float  # that no groups beat

    @classmethod
    def of(cls, lengths: Array, costs: GroupCosts, buckets: int) -> _Counted:
        """The groups of descending `lengths` [k]."""
        counted = _counted(lengths, costs, buckets)
        batch = Batch(counted, costs.seconds(counted), costs)
        return cls(batch, max(least_makespan_s(batch), area_s(batch, np.inf)))

    def groups(self, part: Ints) -> list[Group] | None:
        """Groups of the sequences `part` [k] in one micro-batch; None where they do not fit side by side."""
        low = high = self.least_s
        most = float(self.batch.seconds[:, -1].sum())
        while (packed := pack(self.batch, [high])) is None:
            if high > most:
                return None
            low, high = high, high * _WIDER
        while high - low > _EXACTNESS * low:
            middle = (low + high) / 2
            if (tried := pack(self.batch, [middle])) is not None:
                high, packed = middle, tried
            else:
                low = middle
        return [Group(group.degree, tuple(part[list(group.sequences)].tolist())) for group in packed[1][0]]
