"""Cuts nodes that cannot fit. Nodes that share states or activations are bounded together before single nodes."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from ...cost_models import build_ledger
from ...cost_models.arrays import Ints, Mask, group_rows
from ...cost_models.layouts import Layouts
from ...cost_models.quantities.device_memory import DeviceMemory
from ...cost_models.quantities.ledger import Ledger
from ...cost_models.quantities.tables import Tables
from ...cost_models.rates.rates import Rates
from ...cost_models.step import reserved_memory
from ..space.tree import Columns, cross, select
from .branching import ACTIVATIONS_ON_HOST, Branching, alike
from .top_k import TIE

_STAY = 1 - TIE  # bytes are summed in another order here than in the bound of a single node


@dataclass(frozen=True)
class MemoryCuts:
    """Cuts of a search by memory. any_split: see Search."""

    branching: Branching
    tables: Tables
    rates: Rates
    memory_bytes: float
    any_split: bool

    def _ledger(self, columns: Columns, key: Ints, *, mean: bool = False) -> Ledger:
        problem = self.branching.counts.space.problem
        return build_ledger.build(problem, self.tables, Layouts(columns), key, mean=mean, alike=alike(columns))

    def may_fit(self, nodes: Columns) -> Mask:
        """[node of level 0] whether it may fit, with some recomputation and with the smallest states below it."""
        ledger = self._ledger(self.branching.relaxed(nodes, 0), nodes["_key"], mean=self.any_split)
        if self.any_split:  # only states are linear in the layers, as in lower_bounds.bound
            return np.asarray(reserved_memory.least_bytes(ledger, self.rates) <= self.memory_bytes)
        memory = DeviceMemory(ledger, any_recompute=True)
        needed = reserved_memory.fullest_stage(memory, self.rates, gathered=False)[0]
        if any(self.branching.counts.space.switches.get("offload_layers", ())):
            # Offloaded layers leave the GPU without recomputation, so only states certainly stay.
            states = reserved_memory.least_bytes(ledger, self.rates)
            needed = np.where(nodes["pp"] == 1, states, needed)
        return np.asarray(needed * _STAY <= self.memory_bytes)

    def some_recomputed_too_big(self, children: Columns) -> Mask:
        """[child] whether it recomputes some layers in full and would not fit even with all of them recomputed.

        More recomputed layers never take more activation bytes unless modules are offloaded, because a recomputed layer
        keeps its input. One layout per node (`_node`: children that differ only in recomputation) therefore decides for
        all numbers of recomputed layers.
        """
        some = np.logical_and(children["recompute_layers"] > 0, children["offload_modules"] == 0)
        rows = np.flatnonzero(some)
        if not len(rows):
            return np.asarray(some)
        whole = select(children, rows[group_rows((children["_node"][rows],))[0]])
        free = {**self.branching.relaxed(whole, 0), "recompute": whole["recompute"]}
        memory = DeviceMemory(self._ledger(free, whole["_key"]))
        needed = reserved_memory.fullest_stage(memory, self.rates, gathered=False)[0]
        out = np.zeros(int(children["_node"].max()) + 1, dtype=bool)
        out[whole["_node"]] = needed * _STAY > self.memory_bytes
        return np.asarray(some & out[children["_node"]])

    def states_fit(self, nodes: Columns, options: Columns) -> Mask:
        """[node of level 1, state] whether its states and activations fit together, without gather buffers.

        States do not depend on recomputation, and activations do not depend on the ZeRO stage or on optimizer offload.
        Both are computed once for all pairs that share them (`_node`: of level 0) and added per pair.
        """
        first, node = group_rows((nodes["_node"],))
        with_states = self._memory(cross(select(nodes, first), options))
        moved = (options["offload"] & ACTIVATIONS_ON_HOST) // ACTIVATIONS_ON_HOST
        places = {"zero": np.zeros(2, np.int64), "offload": np.array([0, ACTIVATIONS_ON_HOST])}
        with_activations = self._memory(cross(nodes, places))
        most = np.zeros((len(node), len(moved)))
        for j in range(with_states.ledger.num_profiles):
            states = reserved_memory.reserved_states(with_states, self.rates, j).reshape(len(first), -1)
            beside = reserved_memory.reserved_beside(with_activations, self.rates, j, gathered=False).reshape(-1, 2)
            np.maximum(most, states[node] + beside[:, moved], out=most)
        fixed = reserved_memory.fixed_bytes(with_activations.ledger, self.rates)[::2, None]
        return np.asarray((most + fixed) * _STAY <= self.memory_bytes)

    def _memory(self, columns: Columns) -> DeviceMemory:
        return DeviceMemory(self._ledger(self.branching.relaxed(columns, 2), columns["_key"]))
