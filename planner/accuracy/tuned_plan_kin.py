"""Other recipes with the switch that a tuned plan lacks most, which explain a large ratio."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import TYPE_CHECKING

from ...cost_models.layouts import Layout, parse

if TYPE_CHECKING:
    from .tuned_plan_outcome import PlanOutcome

# Dispatchers that send a token once per node.
_ONCE = ("deepep", "hybridep")


def with_kin(plans: Sequence[PlanOutcome]) -> list[PlanOutcome]:
    """The outcomes, each with its kin: of the plans for the same model that have what its best layout gains most by,
    the first on the same GPU, else on another."""
    return [replace(plan, kin=_kin(plan, plans)) for plan in plans]


def _kin(plan: PlanOutcome, plans: Sequence[PlanOutcome]) -> str | None:
    able = [other for other in plans if other.model == plan.model and _has(other, plan)]
    on_same = (other for other in able if other.gpu == plan.gpu)
    first = next(on_same, next(iter(able), None))
    return None if first is None else first.id


def _has(other: PlanOutcome, plan: PlanOutcome) -> bool:
    """Whether a plan has the switch that another gains most by."""
    if plan.gains is None or other.layout is None or plan.best_layout is None:
        return False
    theirs, best = _layout(other.layout), _layout(plan.best_layout)
    return {
        "software": other.dispatcher in _ONCE and plan.dispatcher not in _ONCE,
        "ep_overlap": theirs.ep_overlap == best.ep_overlap,
        "cuda_graphs": theirs.cuda_graphs == best.cuda_graphs,
        "layout": False,
    }[plan.gains.largest]


def _layout(name: str) -> Layout:
    """The layout of an id, without the mark of stages of its own."""
    return parse(name.partition("-x")[0])
