"""The search once more, for pipelines whose layers may be split in any way: what could beat the best layout found?

The tree is that of `exhaustive.Search`, its bounds those of mean stages (`lower_bounds.bound`, any_split), which no
split of the layers beats. It goes down to ZeRO stage and offload; a node stands for all shard sizes, unless states are
scattered for every micro-batch, where the size decides; and where stages may choose how many layers they recompute, a
layout with full recompute stands for all such choices.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from ...cost_models import build_ledger
from ...cost_models.arrays import Array, Mask
from ...cost_models.layouts import OFFLOADS, RECOMPUTE_MODES, Layouts
from ...cost_models.problem import Problem
from ...cost_models.quantities.tables import Tables
from ...cost_models.step import lower_bounds
from ..search.exhaustive import Search
from ..space.rules import Columns as Fields
from ..space.rules import Rule
from ..space.tree import Columns, Space, allowed, select

_FULL, _NONE = RECOMPUTE_MODES.index("full"), RECOMPUTE_MODES.index("none")
_HELD_BACK = [OFFLOADS.index("act"), OFFLOADS.index("opt+act")]


def splittable(space: Space) -> Space:
    """The layouts that `partition_ilp` can split: pipelines; activations stay; no count of recomputed layers given. Of
    ZeRO stages that are alike in a pipeline (Ledger.whole_in_pipeline) the first."""

    def pipeline(x: Fields, problem: Problem) -> Mask:
        return np.asarray(x["pp"] > 1)

    def whole(x: Fields, problem: Problem) -> Mask:
        return np.asarray(x["recompute_layers"] == 0)

    def stays(x: Fields, problem: Problem) -> Mask:
        return ~np.isin(x["offload"], _HELD_BACK)

    def distinct(x: Fields, problem: Problem) -> Mask:
        return np.asarray((x["zero"] <= 1) | (not problem.stack.is_fsdp2))

    more = (("pp", pipeline), ("recompute_layers", whole), ("offload", stays), ("zero", distinct))
    rules = tuple(Rule(f"splittable: {field}", (field,), allows, "") for field, allows in more)
    return Space(space.problem, space.rules + rules)


class AnySplit(Search):
    """Finds the nodes with the least bounds: `found` lists (bound, id, layout with one shard group), at most `top`."""

    piloted = recompute_apart = False
    any_split = True

    def _share_of_fill(self, evenly: Array) -> Array:
        return np.zeros_like(evenly)

    def _bounds(self, tables: Tables, rows: Columns, level: int) -> tuple[Array, Array]:
        relaxed = self._relaxed(rows, level) if level < 3 else rows
        seconds, needed = self._of_mean(tables, relaxed, rows["_key"], level)
        full = np.flatnonzero(relaxed["recompute"] == _FULL) if self.recompute_apart and level > 0 else np.empty(0)
        if len(full):
            some = {name: column[full] for name, column in relaxed.items()}
            some["recompute"] = np.full(len(full), _NONE)
            seconds[full], _ = self._of_mean(tables, some, rows["_key"][full], level)
        return seconds, needed

    def _of_mean(self, tables: Tables, columns: Columns, key: NDArray[np.int64], level: int) -> tuple[Array, Array]:
        batch = build_ledger.build(self.problem, tables, Layouts(columns), key, mean=True)
        return lower_bounds.bound(batch, self.rates, states_known=level >= 2, shards_known=level == 3,
                          memory=level > 0, any_split=True)  # fmt: skip

    def _expand(self, tables: Tables, nodes: Columns, level: int) -> None:
        if level < 3:
            super()._expand(tables, nodes, level)
            return
        rules = [rule for rule in self.census.level_rules["state"] if "shard" not in rule.fields]
        nodes = select(nodes, allowed(rules, nodes, self.problem))
        scattered = nodes["zero"] >= 2
        self._offer_bounds(tables, self._relaxed(select(nodes, ~scattered), 2), 2)
        if scattered.any():
            self._offer_bounds(tables, self._shards(select(nodes, scattered))[0], 3)

    def _offer_bounds(self, tables: Tables, nodes: Columns, level: int) -> None:
        if not len(nodes["tp"]):
            return
        seconds, needed = self._bounds(tables, nodes, level)
        worth = (seconds <= self.threshold) & (needed <= self.memory_bytes)
        self.top.offer(np.where(worth, seconds, np.inf), Layouts(nodes))
