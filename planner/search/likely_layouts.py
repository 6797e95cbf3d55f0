"""Layouts that were the best under other techniques: the best of them that a search allows limits it at once."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

import numpy as np

from ...cost_models import build_ledger
from ...cost_models.layouts import Layout, Layouts
from ...cost_models.quantities.tables import index_keys
from ...cost_models.step import step
from ..space.tree import Columns, allowed, select
from .top_k import TIE

if TYPE_CHECKING:
    from .exhaustive import Search


def limited(search: Search, likely: Sequence[Layout]) -> float:
    """The incumbent of a search, or the best value of these layouts where that is less; ties are within it.

    likely: layouts of its model, batch and GPUs.
    """
    if not likely:
        return search.incumbent
    space, columns = search.space, Layouts.of(likely).columns
    legal = allowed(space.rules, columns, search.problem) & space.has_options(columns)
    best = _least_value(search, select(columns, legal)) if legal.any() else np.inf
    return min(search.incumbent, best * (1 + 2 * TIE))


def _least_value(search: Search, columns: Columns) -> float:
    keys, key = index_keys(columns)
    tables = search.known.of(search.problem, keys)
    ledger = build_ledger.build(search.problem, tables, Layouts(columns), key)
    estimate = step.price(ledger, search.rates)
    fits = (estimate.device_bytes <= search.memory_bytes) & (estimate.host_bytes <= search.host_bytes)
    value = estimate.device_bytes if search.objective == "memory" else estimate.step_s
    return float(np.where(fits, value, np.inf).min())
