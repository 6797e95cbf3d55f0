"""Prices of single layouts, by the same path as a search."""

from __future__ import annotations

from ...cost_models import build_ledger
from ...cost_models.layouts import Layouts
from ...cost_models.problem import Problem
from ...cost_models.quantities.ledger import Ledger
from ...cost_models.quantities.tables import build, index_keys
from ...cost_models.rates.rates import Rates
from ...cost_models.step import step


def price_layouts(problem: Problem, rates: Rates, layouts: Layouts) -> tuple[Ledger, step.Estimate]:
    """The ledger and the step of every layout, in detail."""
    keys, index = index_keys(layouts)
    batch = build_ledger.build(problem, build(problem, keys), layouts, index)
    return batch, step.price(batch, rates, detail=True)
