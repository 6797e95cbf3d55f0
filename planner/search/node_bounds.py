"""Lower bounds on seconds and bytes of the descendants of search nodes."""

from __future__ import annotations

from dataclasses import dataclass, field

import numpy as np

from ...cost_models import build_ledger
from ...cost_models.arrays import Array, Ints
from ...cost_models.layouts import Layouts
from ...cost_models.quantities.device_memory import DeviceMemory
from ...cost_models.quantities.ledger import Ledger
from ...cost_models.quantities.tables import Tables
from ...cost_models.rates.rates import Rates
from ...cost_models.step import lower_bounds, reserved_memory
from ..space.tree import Columns, select
from .branching import ACTIVATIONS_ON_HOST, LEAVES, Branching, alike
from .exchange_bounds import CutShares, ExchangeBounds

_LATE = 0.2  # weight of the last batch in the moving average of cut rows


@dataclass(eq=False)
class NodeBounds:
    """Bounds of the nodes of `branching`, level by level.

    memory_bytes: of a GPU. in_bytes: whether the search minimises bytes. bytes_count: whether fewer bytes make a layout
    better, alone or beside seconds.
    """

    branching: Branching
    rates: Rates
    memory_bytes: float
    in_bytes: bool
    bytes_count: bool
    # [level, which] moving average of the share of rows cut by seconds and by bytes.
    _cut_share: Array = field(default_factory=lambda: np.zeros((LEAVES, 2)))
    _exchange_cuts: CutShares = field(default_factory=CutShares)

    def of(self, tables: Tables, nodes: Columns, level: int, limit: float) -> tuple[Array, Array]:
        """[node] seconds and bytes. limit: values above it cannot win.

        Bytes depend mostly on recomputation, so they are compared from level 1 on. A node of level 1 that has room for
        its activations needs no copies to the host. Without room all its layouts make them, and most are slow.
        """
        relaxed, key = self.branching.relaxed(nodes, level), nodes["_key"]
        if level == 0:
            ledger = self._ledger(tables, relaxed, key)
            if self.in_bytes:
                return np.full(len(key), np.inf), reserved_memory.least_bytes(ledger, self.rates)
            needed = reserved_memory.fixed_bytes(ledger, self.rates)
            return self._seconds(ledger, level, limit, placed=False), needed
        may_move = relaxed["offload"] & ACTIVATIONS_ON_HOST
        if level == 2 or self.bytes_count or not may_move.any():
            return self._of_rows(tables, relaxed, key, level, limit)
        on_gpu = {**relaxed, "offload": relaxed["offload"] - may_move}
        seconds, needed = self._of_rows(tables, on_gpu, key, level, limit, placed=True)
        moved = np.flatnonzero((may_move > 0) & (needed > self.memory_bytes))
        if len(moved):
            seconds[moved], needed[moved] = self._of_rows(tables, select(relaxed, moved), key[moved], level, limit,
                                                          placed=True)  # fmt: skip
        return seconds, needed

    def _of_rows(
        self, tables: Tables, relaxed: Columns, key: Ints, level: int, limit: float, *, placed: bool = False
    ) -> tuple[Array, Array]:  # fmt: skip
        """[row] seconds and bytes. placed: `offload` of the rows tells where activations are.

        The bound that has cut more rows of the level is computed first; seconds are, where rows are placed. For rows
        that it cuts the other is left out: bytes are then 0, seconds infinite. Where the least bytes are sought, no
        seconds are computed.
        """
        known = np.array([np.full(len(key), np.inf), np.zeros(len(key))])
        limits, cut = (limit, self.memory_bytes), self._cut_share[level]
        seconds_first = placed or (cut[0] >= cut[1] and not self.in_bytes)
        batch, remaining = self._ledger(tables, relaxed, key), np.arange(len(key))
        for which in (1,) if self.in_bytes else (0, 1) if seconds_first else (1, 0):
            if not len(remaining):
                break
            if 2 * len(remaining) > len(key):
                remaining = np.arange(len(key))
            else:
                batch = self._ledger(tables, select(relaxed, remaining), key[remaining])
            if which == 0:
                known[0, remaining] = self._seconds(batch, level, limit, placed=placed)
            else:
                memory = DeviceMemory(batch)
                known[1, remaining] = reserved_memory.fullest_stage(memory, self.rates, gathered=level == 2)[0]
            below = known[which, remaining] <= limits[which]
            cut[which] += _LATE * (1 - below.mean() - cut[which])
            remaining = remaining[below]
        return known[0], known[1]

    def _seconds(self, batch: Ledger, level: int, limit: float, *, placed: bool) -> Array:
        """[row] seconds. Rows whose compute alone is above the limit get no other bound."""
        known = level == 2
        seconds = lower_bounds.least_cycles_s(batch, self.rates, states_known=known, moves=placed)
        near = np.flatnonzero(seconds <= limit)
        if not len(near):
            return seconds
        if len(near) < len(seconds):
            batch = build_ledger.rows_of(batch, near)
        bound_s, _ = lower_bounds.bound(batch, self.rates, states_known=known, moves=placed, memory=False)
        seconds[near] = self._raised(bound_s, batch, level, limit)
        return seconds

    def _raised(self, seconds: Array, batch: Ledger, level: int, limit: float) -> Array:
        exchanges = ExchangeBounds(self.branching, self.rates, self.memory_bytes, limit, self._exchange_cuts)
        return np.maximum(seconds, exchanges.raised(seconds, batch, level))

    def _ledger(self, tables: Tables, columns: Columns, key: Ints) -> Ledger:
        problem = self.branching.counts.space.problem
        return build_ledger.build(problem, tables, Layouts(columns), key, alike=alike(columns))
