"""The search of pipelines whose layers may be divided in any way: which could beat the best layout so far?

The tree is that of `exhaustive.Search`. Its bounds are those of the mean stage (`lower_bounds.bound`, any_split): the
slowest stage of a partition takes at least the mean of all. The tree ends at ZeRO stage and offload. A node stands for
all shard sizes, unless states are scattered for every micro-batch, where the size matters for every cycle.
"""

from __future__ import annotations

from dataclasses import replace

import numpy as np
from numpy.typing import NDArray

from ...cost_models import build_ledger
from ...cost_models.arrays import Array, Mask
from ...cost_models.layouts import OFFLOADS, Layouts
from ...cost_models.problem import Problem
from ...cost_models.quantities.tables import Tables
from ...cost_models.step import lower_bounds
from ..search.exhaustive import Search
from ..space.rules import Columns as Fields
from ..space.rules import Rule
from ..space.tree import Columns, Space, allowed, select

_OFFLOADS_ACTIVATIONS = [OFFLOADS.index("act"), OFFLOADS.index("opt+act")]


def splittable(space: Space) -> Space:
    """The layouts that the integer program knows: pipelines that offload no activations and fix no number of recomputed
    layers. Of ZeRO stages that are equal in a pipeline (`whole_in_pipeline`), only the first is listed."""

    def pipeline(x: Fields, problem: Problem) -> Mask:
        return np.asarray(x["pp"] > 1)

    def no_recompute_count(x: Fields, problem: Problem) -> Mask:
        return np.asarray(x["recompute_layers"] == 0)

    def activations_stay(x: Fields, problem: Problem) -> Mask:
        return ~np.isin(x["offload"], _OFFLOADS_ACTIVATIONS)

    def modules_stay(x: Fields, problem: Problem) -> Mask:
        return np.asarray(x["offload_modules"] == 0)

    def distinct(x: Fields, problem: Problem) -> Mask:
        return np.asarray((x["zero"] <= 1) | (not problem.stack.is_fsdp2))

    more = {"pp": pipeline, "recompute_layers": no_recompute_count, "offload": activations_stay,
            "offload_modules": modules_stay, "zero": distinct}  # fmt: skip
    rules = tuple(Rule(f"splittable: {field}", (field,), allows, "") for field, allows in more.items())
    return replace(space, rules=space.rules + rules)


class AnySplit(Search):
    """Finds the nodes with the least bounds. Each row of its outcome is (bound, id, layout with one shard group)."""

    warm_starts = False
    any_split = True

    def _bounds(self, tables: Tables, rows: Columns, level: int) -> tuple[Array, Array]:
        relaxed = self.branching.relaxed(rows, level) if level < 3 else rows
        return self._of_mean(tables, relaxed, rows["_key"], level)

    def _of_mean(self, tables: Tables, columns: Columns, key: NDArray[np.int64], level: int) -> tuple[Array, Array]:
        ledger = build_ledger.build(self.problem, tables, Layouts(columns), key, mean=True)
        return lower_bounds.bound(ledger, self.rates, states_known=level >= 2, shards_known=level == 3,
                          memory=level > 0, any_split=True)  # fmt: skip

    def _expand(self, tables: Tables, nodes: Columns, level: int) -> None:
        if level < 3:
            super()._expand(tables, nodes, level)
            return
        rules = [rule for rule in self.branching.counts.level_rules["state"] if "shard" not in rule.fields]
        nodes = select(nodes, allowed(rules, nodes, self.problem))
        scattered = nodes["zero"] >= 2
        self._offer_bounds(tables, self.branching.relaxed(select(nodes, ~scattered), 2), 2)
        if scattered.any():
            self._offer_bounds(tables, self.branching.shards(select(nodes, scattered)), 3)

    def _offer_bounds(self, tables: Tables, nodes: Columns, level: int) -> None:
        if not len(nodes["tp"]):
            return
        seconds, needed = self._bounds(tables, nodes, level)
        worth = (seconds <= self.threshold) & (needed <= self.memory_bytes)
        self.top.offer(np.where(worth, seconds, np.inf), Layouts(nodes))
