"""The family of layouts that suits drawn batches best: for one degree by its plans, for unlike degrees by a bound that
no plan of theirs beats."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass

from ...cost_models.arrays import Array
from . import one_degree
from .area_bound import area_bound
from .batch_plan import BatchPlan, descending
from .costs import GroupCosts
from .ledger_costs import Family
from .packing import Batch

Candidate = tuple[Family, GroupCosts]  # layouts that differ in the degree of a group alone


@dataclass(frozen=True)
class FamilyPlans:
    """A plan per batch, and the layouts that they belong to."""

    family: Family
    costs: GroupCosts
    plans: tuple[BatchPlan, ...]

    @property
    def total_s(self) -> float:
        return sum(plan.step_s for plan in self.plans)


def bound_s(lengths: Array, costs: GroupCosts) -> float:
    """Seconds of a step that no plan of a batch beats."""
    order = descending(lengths)
    batch = Batch(lengths[order], costs.seconds(lengths[order]), costs)
    return costs.once_s + costs.least_micro_batches(lengths) * costs.micro_batch_s + area_bound(batch)[0]


def least_bound(candidates: Iterable[Candidate], batches: Sequence[Array]) -> Candidate:
    """The family with the least bound over the batches."""
    return min(candidates, key=lambda candidate: sum(bound_s(lengths, candidate[1]) for lengths in batches))


def best_static(candidates: Iterable[Candidate], batches: Sequence[Array], longest: float) -> FamilyPlans:
    """The family and the degree for all batches with the shortest steps. longest: tokens of the longest document that a
    run may meet."""
    return min((plans for family, costs in candidates for plans in _static(family, costs, batches, longest)),
               key=lambda plans: plans.total_s)  # fmt: skip


def _static(family: Family, costs: GroupCosts, batches: Sequence[Array], longest: float) -> Iterator[FamilyPlans]:
    for degree in costs.degrees[costs.degrees >= one_degree.least_degree(longest, costs)].tolist():
        plans = [one_degree.with_degree(lengths, costs, degree) for lengths in batches]
        yield FamilyPlans(family, costs, tuple(plan for plan in plans if plan is not None))


def best_adaptive(candidates: Iterable[Candidate], batches: Sequence[Array]) -> FamilyPlans:
    """The family with the shortest steps where each batch has the degree that suits it."""
    plans = (FamilyPlans(family, costs, tuple(one_degree.adaptive(lengths, costs) for lengths in batches))
             for family, costs in candidates)  # fmt: skip
    return min(plans, key=lambda each: each.total_s)
