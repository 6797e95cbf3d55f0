"""The family of layouts that suits drawn batches best, by a bound that no plan of theirs beats."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from ...cost_models.arrays import Array
from .area_bound import area_bound
from .batch_plan import descending
from .costs import GroupCosts
from .ledger_costs import Family, Priced, ledger_costs
from .packing import Batch


def bound_s(lengths: Array, costs: GroupCosts) -> float:
    """Seconds of a step that no plan of a batch beats."""
    order = descending(lengths)
    batch = Batch(lengths[order], costs.seconds(lengths[order]), costs)
    return costs.once_s + costs.least_micro_batches(lengths) * costs.micro_batch_s + area_bound(batch)[0]


def best_family(priced: Priced, able: Iterable[Family], batches: Sequence[Array]) -> tuple[Family, GroupCosts]:
    """The family with the least bound over the batches, of those that hold their documents, and its costs."""
    costs = [(family, costs) for family in able if (costs := ledger_costs(priced, family))]
    return min(costs, key=lambda pair: sum(bound_s(lengths, pair[1]) for lengths in batches))
