"""The plan of a batch with a degree for every sequence, and a proven bound on all such plans.

For each number of micro-batches the search tries makespans: the longest one, C, out of a grid and of the seconds at
which the area bound changes, and the others equal, by bisection, each with the packing rule (packing.py). Makespans
near the optimum of the relaxation (relaxation.py) come next, then its numbers of groups and others beside them
(shapes.py). A small batch is solved exactly instead (exact.py).
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field

import numpy as np

from ...cost_models.arrays import Array
from . import exact
from .area_bound import area_bound, area_s, least_makespan_s
from .batch_plan import BatchPlan, Group, batch_plan, descending
from .costs import GroupCosts
from .one_degree import adaptive
from .packing import Batch, pack
from .relaxation import Guide, relaxed
from .shapes import Climb

GOOD_GAP = 0.02  # relative: no further bound or plan is sought
_WIDE_GAP = 0.03  # relative: a second bound is sought
_MORE = 3  # numbers of micro-batches that are tried, from the least
_STEP = 1.03  # of the grid of longest makespans
_WIDEST = 1.6  # the grid ends at so many times the area bound
_NEAR = (1.0, 1.01, 1.02, 1.04, 1.06, 1.08)  # factors on the longest makespan of the relaxation
_EXACTNESS = 0.002  # relative: of the bisection, and the least gain that is looked for


@dataclass(frozen=True)
class BatchResult:
    """The best plan of a batch and what was proven."""

    plan: BatchPlan
    bound_s: float  # seconds of a step that no plan beats

    @property
    def gap(self) -> float:
        """Relative to the step of the plan."""
        return max(0.0, 1.0 - self.bound_s / self.plan.step_s)


def best_plan(lengths: Array, costs: GroupCosts) -> BatchResult:
    """The plan of a batch of `lengths` [k] tokens: never slower than the best one with a single degree.

    Sequences of one length have nothing to gain from degrees that differ: their plan is that of a single degree.
    """
    single = adaptive(lengths, costs)
    order = descending(lengths)
    batch = Batch(lengths[order], costs.seconds(lengths[order]), costs)
    if lengths.min() == lengths.max():
        fixed_s = costs.once_s + costs.least_micro_batches(lengths) * costs.micro_batch_s
        return BatchResult(single, min(fixed_s + area_bound(batch)[0], single.step_s))
    if exact.is_small(batch):
        found, bound_s = exact.best_groups(batch)
    else:
        search = _Search(batch, single.step_s)
        search.run()
        found, bound_s = search.found, search.bound_s
    if not found:
        return BatchResult(single, min(bound_s, single.step_s))
    numbered = [[Group(group.degree, tuple(order[list(group.sequences)].tolist())) for group in groups]
                for groups in found]  # fmt: skip
    plan = batch_plan(numbered, lengths, costs)
    plan = plan if plan.step_s < single.step_s * (1 - 1e-9) else single
    return BatchResult(plan, min(bound_s, plan.step_s))


@dataclass
class _Search:
    """The best packing so far, of a batch that a plan of `step_s` seconds trains."""

    batch: Batch
    step_s: float  # the least so far
    found: list[list[Group]] = field(default_factory=list)
    bound_s: float = 0.0

    def run(self) -> None:
        least = self.batch.costs.least_micro_batches(self.batch.lengths)
        area, steps = area_bound(self.batch)
        for num in range(least, least + _MORE):
            self._try_all(num, [*self._grid(num, area), *steps[steps >= area / num].tolist()])
        bound_s = min(self._bounds(least, area))
        self.bound_s = min(bound_s, self.step_s)

    def _bounds(self, least: int, area: float) -> Iterator[float]:
        """Bounds on the steps of `least` micro-batches and more, one number after another; plans are sought, too."""
        for num in range(least, least + _MORE):
            if num > least and (more_s := self._bound_of_more(num, area)) >= self.step_s * (1 - GOOD_GAP):
                yield more_s
                return
            yield self._bound(num, area)
        yield self._bound_of_more(least + _MORE, area)

    def _bound(self, num: int, area: float) -> float:
        """Seconds of a step that no plan with `num` micro-batches beats."""
        fixed_s, near_s = self._fixed_s(num), tuple[float, ...]()
        bound_s = fixed_s + area
        for gap in (GOOD_GAP, _WIDE_GAP):  # a wide one is worth a second program, with narrow classes
            if bound_s < self.step_s * (1 - gap):
                relaxed_s, guide = relaxed(self.batch, num, self.step_s - fixed_s, near_s)
                bound_s = max(bound_s, fixed_s + relaxed_s)
                if guide is not None:
                    self._follow(num, guide, bound_s)
                    near_s = guide.limits
        return bound_s

    def _bound_of_more(self, num: int, area: float) -> float:
        """Seconds of a step that no plan with `num` or more micro-batches beats."""
        fixed_s, extra_s = self._fixed_s(num), self.batch.costs.micro_batch_s
        if fixed_s + area >= self.step_s * (1 - GOOD_GAP) or not extra_s:
            return fixed_s + area
        return fixed_s + max(area, relaxed(self.batch, num, self.step_s - fixed_s, extra_s=extra_s)[0])

    def _follow(self, num: int, guide: Guide, bound_s: float) -> None:
        """Try the makespans of a relaxation, then its groups and others beside them."""
        self._try_all(num, [guide.limits[0] * factor for factor in _NEAR])
        fixed_s = self._fixed_s(num)
        climb = Climb(self.batch, self.step_s - fixed_s, bound_s / (1 - GOOD_GAP) - fixed_s)
        climb.run(guide.shape, guide.limits)
        if climb.found:
            self.step_s, self.found = fixed_s + climb.best_s, climb.found

    def _fixed_s(self, num: int) -> float:
        return self.batch.costs.once_s + num * self.batch.costs.micro_batch_s

    def _grid(self, num: int, area: float) -> list[float]:
        first = max(least_makespan_s(self.batch), area / num)
        count = max(1, int(np.log(max(_WIDEST * area / first, _STEP)) / np.log(_STEP)))
        return [first * _STEP**n for n in range(count + 1)]

    def _try_all(self, num: int, longest: Iterable[float]) -> None:
        """Try longest makespans, the most promising first."""
        for least_s, longest_s in sorted({(max(s, area_s(self.batch, s)), s) for s in longest}):
            if self._fixed_s(num) + least_s < self.step_s * (1 - _EXACTNESS):
                self._bisect(num, longest_s, max(least_s - longest_s, 0.0) / max(num - 1, 1))

    def _bisect(self, num: int, longest_s: float, low: float) -> None:
        """The least makespan of the other micro-batches beside a longest one; first one that would be a gain."""
        if num == 1:
            self._try([longest_s])
            return
        spare = self.step_s * (1 - _EXACTNESS) - self._fixed_s(num) - longest_s
        high = min(longest_s, spare / (num - 1))
        if high < low or not self._try([longest_s, *[high] * (num - 1)]):
            return
        while high - low > _EXACTNESS * self.step_s:
            middle = (low + high) / 2
            if self._try([longest_s, *[middle] * (num - 1)]):
                high = middle
            else:
                low = middle

    def _try(self, limits: list[float]) -> bool:
        packed = pack(self.batch, limits)
        if packed is not None and self._fixed_s(len(limits)) + packed[0] < self.step_s:
            self.step_s, self.found = self._fixed_s(len(limits)) + packed[0], packed[1]
        return packed is not None
