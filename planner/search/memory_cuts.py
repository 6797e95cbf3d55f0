"""Nodes that cannot fit, found from what they share with others before each is bounded by itself."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from ...cost_models import build_ledger
from ...cost_models.arrays import Array, Ints, Mask
from ...cost_models.layouts import Layouts
from ...cost_models.quantities.device_memory import DeviceMemory
from ...cost_models.quantities.ledger import Ledger
from ...cost_models.quantities.tables import Tables
from ...cost_models.rates.rates import Rates
from ...cost_models.step import reserved_memory
from ..space.tree import STATE_FIELDS, Columns, select
from .branching import Branching
from .top_k import TIE

_STAY = 1 - TIE  # bytes are summed in other orders here than where a node is bounded by itself


@dataclass(frozen=True)
class MemoryCuts:
    """What a search cuts by memory. any_split: of the layers over stages, see Search."""

    branching: Branching
    tables: Tables
    rates: Rates
    memory_bytes: float
    any_split: bool

    def _ledger(self, columns: Columns, key: Ints, *, mean: bool = False) -> Ledger:
        problem = self.branching.counts.space.problem
        return build_ledger.build(problem, self.tables, Layouts(columns), key, mean=mean)

    def may_fit(self, nodes: Columns) -> Mask:
        """[node of level 0] whether it fits under some recomputation, with states divided and offloaded as far as any
        choice below does."""
        ledger = self._ledger(self.branching.relaxed(nodes, 0), nodes["_key"], mean=self.any_split)
        if self.any_split:  # only states are linear in the layers, as in lower_bounds.bound
            return np.asarray(reserved_memory.least_bytes(ledger, self.rates) <= self.memory_bytes)
        memory = DeviceMemory(ledger, any_recompute=True)
        needed = reserved_memory.fullest_stage(memory, self.rates, gathered=False)[0]
        return np.asarray(needed * _STAY <= self.memory_bytes)

    def too_big(self, children: Columns, level: int) -> Mask:
        """[child of `level`] whether it is known not to fit."""
        if level == 1:
            return self._some_recomputed(children)
        if level == 2 and not self.any_split:
            return self._states_beside_activations(children)
        return np.zeros(len(children["tp"]), dtype=bool)

    def _some_recomputed(self, children: Columns) -> Mask:
        """[child] whether it recomputes some layers in full, and would not fit even if it recomputed all of them.

        Activations never take more bytes where more layers are recomputed. So one layout per node (`_node`: children
        that share all but the recomputation) answers for every number of recomputed layers, of which there are many.
        """
        some = children["recompute_layers"] > 0
        nodes, first = np.unique(children["_node"][some], return_index=True)
        if not len(nodes):
            return some
        whole = select(children, np.flatnonzero(some)[first])
        free = {**self.branching.relaxed(whole, 0), "recompute": whole["recompute"]}
        memory = DeviceMemory(self._ledger(free, whole["_key"]))
        needed = reserved_memory.fullest_stage(memory, self.rates, gathered=False)[0]
        out = np.zeros(int(children["_node"].max()) + 1, dtype=bool)
        out[nodes] = needed * _STAY > self.memory_bytes
        return np.asarray(some & out[children["_node"]])

    def _states_beside_activations(self, children: Columns) -> Mask:
        """[child] whether its states and its activations do not fit together, without buffers of gathered states.

        States depend on no recomputation, and activations on no ZeRO stage and on no place of the optimizer. So both
        are worked out once for all children that share them (`_node`, `_row`: those of one node above level 1, and
        above this one), and only added up for each.
        """
        moved = {**{name: children[name] for name in STATE_FIELDS}, "zero": np.zeros_like(children["zero"]),
                 "offload": children["offload"] >> 1}  # fmt: skip
        one, of_states = _distinct(children["_node"], [children[name] for name in STATE_FIELDS])
        other, of_activations = _distinct(children["_row"], list(moved.values()))
        with_states, with_activations = (
            DeviceMemory(self._ledger(self.branching.relaxed(part, 2), part["_key"]))
            for part in (select(children, one), select(children, other))
        )
        most = np.zeros(len(of_states))
        for j in range(with_states.ledger.num_profiles):
            states = reserved_memory.reserved_states(with_states, self.rates, j)
            beside = reserved_memory.reserved_beside(with_activations, self.rates, j, gathered=False)
            most = np.maximum(most, states[of_states] + beside[of_activations])
        fixed: Array = reserved_memory.fixed_bytes(with_activations.ledger, self.rates)
        return np.asarray((most + fixed[of_activations]) * _STAY > self.memory_bytes)


def _distinct(first: Ints, others: Sequence[Ints]) -> tuple[Ints, Ints]:
    """One row of each combination of values (small, from 0), and [row] the place of its combination among them."""
    code = first
    for column in others:
        code = code * (int(column.max(initial=0)) + 1) + column
    row_of = np.full(int(code.max(initial=0)) + 1, -1)
    row_of[code] = np.arange(len(code))
    known = row_of >= 0
    return row_of[known], (np.cumsum(known) - 1)[code]
