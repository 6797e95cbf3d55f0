"""Nodes of the search tree: their children, relaxed choices for bounds, and counts of descendant layouts.

A node is a row of columns: the fields that are chosen, `_key` (its shard key in the tables) and `_signature` (its row
in the layout counts). Level 0 adds the schedule to a mesh, 1 recomputation, 2 ZeRO stage and offload, 3 the size of the
shard group. Levels that divide work and bytes most come first, so that the bound of a node high in the tree is already
close to the price of its descendants. The last levels have many options with small differences.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass

import numpy as np

from ...cost_models.arrays import Ints, Mask, group_rows
from ...cost_models.layouts import OFFLOADS, OPEN_STATES
from ..space.counting import LayoutCounts, recompute_category
from ..space.tree import RECOMPUTE_FIELDS, SHARD_FIELDS, STATE_FIELDS, Columns, allowed, cross, grow, paired, select

Keep = Callable[[Columns, Columns], Mask]  # (nodes, options) -> [node, option]
ACTIVATIONS_ON_HOST = OFFLOADS.index("act")  # a bit of the codes of OFFLOADS
LEAVES = 3  # the level whose nodes are whole layouts
_RULES_OF_LEVEL = ("schedule", "recompute", "joint", "state")  # keys of LayoutCounts.level_rules


def alike(columns: Columns) -> tuple[Ints, Ints] | None:
    """Groups (`group_rows`) of the rows below a node of level 0 that differ in recomputation only; None above."""
    if "_node" not in columns:
        return None
    return group_rows([columns[name] for name in ("_node", *STATE_FIELDS, *SHARD_FIELDS)])


@dataclass(frozen=True)
class Branching:
    """The branching of nodes. counts: the counts of the root meshes."""

    counts: LayoutCounts

    def children(self, nodes: Columns, level: int, keep: Keep | None = None) -> Iterator[Columns]:
        """The legal children of `nodes` at `level`, in parts that are formed on demand.

        keep: (nodes, states) -> mask of the pairs to form.
        """
        rules = self.counts.level_rules[_RULES_OF_LEVEL[level]]
        for part in self._crossed(nodes, level, keep):
            yield select(part, allowed(rules, part, self.counts.space.problem)) if rules else part

    def _crossed(self, nodes: Columns, level: int, keep: Keep | None) -> Iterator[Columns]:
        """Every option of `level` for every node, before rules.

        Options depend on a mesh through pp only, and states on whether there are ranks to shard over. Nodes with equal
        options are crossed together.
        """
        if not len(nodes["tp"]):
            return
        if level == LEAVES:
            yield self.shards(nodes)
            return
        for rows, options in self._states(nodes) if level == 2 else self._by_pp(nodes, level):
            if len(rows["tp"]):
                yield cross(rows, options) if keep is None else paired(rows, options, keep(rows, options))

    def _by_pp(self, nodes: Columns, level: int) -> Iterator[tuple[Columns, Columns]]:
        """(nodes of one pp, their schedules or recomputations)."""
        space = self.counts.space
        for pp in np.unique(nodes["pp"]).tolist():
            options = space.schedules(pp) if level == 0 else space.recomputes(pp)
            if level == 1:
                options = select(options, ~self.counts.dominated_mask(options))
            yield select(nodes, nodes["pp"] == pp), options

    def _states(self, nodes: Columns) -> Iterator[tuple[Columns, Columns]]:
        """(nodes, their states), starting with nodes without ranks to shard over."""
        space, alone = self.counts.space, nodes["dp"] * nodes["cp"] == 1
        yield select(nodes, alone), space.states(1)
        yield select(nodes, ~alone), space.states(2)

    def shards(self, nodes: Columns) -> Columns:
        """Every size of the shard group for each node. Rows repeat by their number of options."""
        depends = [nodes[name] for name in ("dp", "cp", "zero")]
        first, index = group_rows(depends)
        space = self.counts.space
        values = zip(*(column[first].tolist() for column in depends), strict=True)
        options = [space.shards(*some) for some in values]
        return grow(nodes, "shard", options, index)

    def relaxed(self, nodes: Columns, level: int) -> Columns:
        """`nodes` with the choices below `level` set to the best value for each term of a bound.

        Such a layout may be illegal. Each field is optimal by itself, so the bound stays below every descendant. No
        recomputation is the fastest, and bytes are not compared while it is open. The largest shard group, the highest
        ZeRO stage and all offloads that pass with the schedule (`loosest_states`) hold the fewest bytes, where those
        that another choice saves are left out (OPEN_STATES).
        """
        free: Columns = {"shard": nodes["dp"]}
        if level < 1:
            free |= {name: np.zeros_like(nodes["tp"]) for name in RECOMPUTE_FIELDS}
        if level < 2:
            mode = recompute_category(nodes) if level else slice(None)
            at = (nodes["_signature"], nodes["schedule"], mode)
            zero, offload = (states.at(*at) for states in self.counts.loosest_states)
            if not level:  # in any recompute mode
                zero, offload = zero.max(axis=1), np.bitwise_or.reduce(offload, axis=1)
            free |= {"zero": zero, "offload": offload, OPEN_STATES: np.ones_like(nodes["tp"])}
        return {**nodes, **free}

    def num_below(self, nodes: Columns, level: int) -> Ints:
        """[node] number of legal layouts below each node of `level`, without forming them, to count cut nodes."""
        counts, signature = self.counts, nodes["_signature"]
        if level == 2:
            return np.asarray(counts.num_shards.at(signature, nodes["zero"]))
        states = counts.num_states.at(signature, nodes["schedule"])
        if level == 1:
            return np.asarray(states[np.arange(len(signature)), recompute_category(nodes)])
        return np.asarray((states * counts.num_recomputes.at(signature)).sum(axis=1))
