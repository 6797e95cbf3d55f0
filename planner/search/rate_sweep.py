"""Searches of one space under many rates, for studies of hardware. Results independent of rates are computed once.

The tree and its bounds are those of `exhaustive`. Legality and memory of nodes follow from quantities. A node is
therefore formed once, at the first search that reaches it, and kept if a descendant may fit. A search computes only the
seconds of the kept nodes, level by level, under its own rates. Its limit is the price of layouts that were best
elsewhere, because similar rates have similar answers. The result equals that of a separate search.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

import numpy as np
from numpy.typing import NDArray

from ...cost_models import build_ledger
from ...cost_models.arrays import Array, Ints
from ...cost_models.layouts import Layout, Layouts
from ...cost_models.quantities.device_memory import DeviceMemory
from ...cost_models.quantities.tables import Tables, build, index_keys
from ...cost_models.rates.kernel_seconds import kernel_seconds
from ...cost_models.rates.rates import Rates
from ...cost_models.step import lower_bounds, reserved_memory, step
from ...errors import NoFeasibleLayoutError
from ..space.counting import LayoutCounts
from ..space.tree import LEVELS, Columns, Space, select
from .branching import LEAVES, Branching
from .dominance import dominated_recomputes
from .exhaustive import ROWS, Search
from .mesh_bounds import MeshBounds
from .pricing import price_layouts
from .top_k import TIE, TopK

_FIRST = 4096  # nodes expanded first, so that the limit falls early


@dataclass
class _Level:
    """The nodes of one level that were formed so far."""

    fields: Columns  # [node] the fields that this level chooses
    parent: Ints = field(default_factory=lambda: np.empty(0, dtype=np.int64))  # [node] row in the level above
    needed: Array = field(default_factory=lambda: np.empty(0))  # [node] lower bound on the bytes of descendants
    first: Ints = field(default_factory=lambda: np.empty(0, dtype=np.int64))  # [node above] first child; -1: not formed
    number: Ints = field(default_factory=lambda: np.empty(0, dtype=np.int64))  # [node above] children; -1: not formed

    def known(self, parents: Ints) -> NDArray[np.bool_]:
        """[parent] whether its children are formed. `parents` may be newer than this level."""
        if len(self.first) <= (most := int(parents.max(initial=-1))):
            more = np.full(most + 1 - len(self.first), -1)
            self.first, self.number = np.concatenate([self.first, more]), np.concatenate([self.number, 0 * more])
        return np.asarray(self.first[parents] >= 0)

    def add(self, parents: Ints, columns: Columns, needed: Array) -> None:
        """The children of `parents`: `columns`, whose `_parent` is the index of the parent."""
        order = np.argsort(columns["_parent"], kind="stable")
        of = columns["_parent"][order]
        self.first[parents] = len(self.parent) + np.searchsorted(of, parents)
        self.number[parents] = np.searchsorted(of, parents, side="right") - np.searchsorted(of, parents)
        self.parent, self.needed = np.concatenate([self.parent, of]), np.concatenate([self.needed, needed[order]])
        self.fields = {name: np.concatenate([column, columns[name][order]]) for name, column in self.fields.items()}

    def under(self, parents: Ints) -> Ints:
        """The children of `parents`, all of which are formed."""
        number = self.number[parents]
        within = np.arange(int(number.sum())) - np.repeat(np.cumsum(number) - number, number)
        return np.asarray(np.repeat(self.first[parents], number) + within)


class RateSweep(Search):
    """Searches of `space` for the fastest layout.

    memory_bytes: the largest of all searches. rates: of any search; all agree in the rates that memory depends on
    (Rates.overheads).
    """

    def __init__(self, space: Space, rates: Rates, *, memory_bytes: float, host_bytes: float) -> None:
        super().__init__(space, rates, memory_bytes=memory_bytes, host_bytes=host_bytes)
        self.most_bytes, self.winners = memory_bytes, list[Layout]()
        self.hopeless = 0.0  # the largest memory that was too small
        meshes = space.meshes(self.count)
        if not len(meshes["tp"]):
            return
        counts = LayoutCounts(space, meshes, dominated_recomputes(space, rates))
        counts.tally(self.count)
        self.branching = Branching(counts)
        keys, index = index_keys(meshes)
        self.tables: Tables = build(self.problem, keys)
        self.totals = build_ledger.build_totals(self.problem)
        self.meshes = {**meshes, "_key": index, "_signature": counts.signature}
        self.levels = [_Level({name: np.empty(0, dtype=np.int64) for name in names}) for names in LEVELS[1:]]

    def best(
        self, rates: Rates, *, memory_bytes: float, incumbent: float = np.inf,
        should_stop: Callable[[], bool] | None = None,
    ) -> Layout:  # fmt: skip
        """The layout that `Search` with the same limits finds.

        Raises NoFeasibleLayoutError without one, and KeyboardInterrupt if `should_stop()`.
        """
        if self.count.total == sum(self.count.ruled_out.values()):
            raise NoFeasibleLayoutError("no layout is legal")
        if memory_bytes <= self.hopeless:
            raise NoFeasibleLayoutError("no layout fits")
        self.rates, self.memory_bytes, self.should_stop = rates, memory_bytes, should_stop
        own = self._least_of(self.winners) * (1 + 2 * TIE)
        self.incumbent = min(incumbent, own)
        if not np.isfinite(self.incumbent):
            top = self._from_nothing()
        else:
            self.top = TopK(1)
            self._search()
            top = self.top
        if not top.rows and incumbent < own:  # it may be that of a layout outside of the space
            return self.best(rates, memory_bytes=memory_bytes, should_stop=should_stop)
        if not top.rows:
            self.hopeless = memory_bytes
            raise NoFeasibleLayoutError("no layout fits")
        best = top.rows[0][2]
        self.winners += [] if best in self.winners else [best]
        return best

    def _least_of(self, layouts: Sequence[Layout]) -> float:
        """Seconds of the fastest of them that fits."""
        if not layouts:
            return np.inf
        estimate = price_layouts(self.problem, self.rates, Layouts.of(list(layouts)))[1]
        fits = (estimate.device_bytes <= self.memory_bytes) & (estimate.host_bytes <= self.host_bytes)
        return float(np.where(fits, estimate.step_s, np.inf).min())

    def _from_nothing(self) -> TopK:
        search = Search(self.space, self.rates, memory_bytes=self.memory_bytes, host_bytes=self.host_bytes)
        search.should_stop = self.should_stop
        outcome = search.run()
        if outcome.stopped:
            raise KeyboardInterrupt
        return outcome.top

    def _search(self) -> None:
        bounds, key = MeshBounds(self.branching.counts, self.rates), self.meshes["_key"]
        work_s, filling_s = bounds.work(self.totals, kernel_seconds(self.tables, self.rates))
        seconds = bounds.seconds(self.meshes, work_s[key], filling_s[key])
        self._follow(0, np.arange(len(seconds)), seconds)

    def _follow(self, level: int, parents: Ints, seconds: Array) -> None:
        """The children of `parents`, nodes above `level` with these bounds, that may enter the list."""
        order = np.argsort(seconds, kind="stable")
        for part in (order[:_FIRST], order[_FIRST:]):
            rows = part[seconds[part] <= self.threshold]
            if len(rows):
                self._expand_known(level, parents[rows])

    def _expand_known(self, level: int, parents: Ints) -> None:
        if self.should_stop is not None and self.should_stop():
            raise KeyboardInterrupt
        nodes = self._under(level, parents)
        seconds = np.empty(len(nodes))
        for start in range(0, len(nodes), ROWS):
            part = slice(start, start + ROWS)
            layouts, seconds[part] = self._seconds(level, self._columns(level + 1, nodes[part]))
            if level == LEAVES:
                self.top.offer(np.where(seconds[part] <= self.threshold, seconds[part], np.inf), layouts)
        if level < LEAVES:
            self._follow(level + 1, nodes, seconds)

    def _under(self, level: int, parents: Ints) -> Ints:
        """The nodes of `level` below `parents` that may fit."""
        nodes_here = self.levels[level]
        new = parents[~nodes_here.known(parents)]
        if len(new):
            nodes_here.add(new, *self._formed(level, new))
        nodes = nodes_here.under(parents)
        nodes = nodes[nodes_here.needed[nodes] <= self.memory_bytes]
        if level == LEAVES or not len(nodes):
            return nodes
        below = self.levels[level + 1]
        return nodes[~below.known(nodes) | (below.number[nodes] > 0)]

    def _columns(self, depth: int, nodes: Ints) -> Columns:
        """All fields of nodes `depth` levels below the meshes."""
        if depth == 0:
            return select(self.meshes, nodes)
        nodes_here = self.levels[depth - 1]
        return {**self._columns(depth - 1, nodes_here.parent[nodes]), **select(nodes_here.fields, nodes)}

    def _formed(self, level: int, parents: Ints) -> tuple[Columns, Array]:
        """The children of `parents` that may fit the largest memory, and the bytes that they need at least."""
        group = {**self._columns(level, parents), "_parent": parents}
        parts = list(self.branching.children(group, level))
        columns = {name: np.concatenate([part[name] for part in parts]) for name in parts[0]}
        needed = np.concatenate([self._needed(level, {name: column[start : start + ROWS] for name, column
                                                      in columns.items()})
                                 for start in range(0, max(len(columns["tp"]), 1), ROWS)])  # fmt: skip
        fits = needed <= self.most_bytes
        return select(columns, fits), needed[fits]

    def _needed(self, level: int, columns: Columns) -> Array:
        """[row] lower bound on the bytes of descendants; infinite where host memory is too small."""
        if level == 0 or not len(columns["tp"]):
            return np.zeros(len(columns["tp"]))
        relaxed = columns if level == LEAVES else self.branching.relaxed(columns, level)
        batch = build_ledger.build(self.problem, self.tables, Layouts(relaxed), columns["_key"])
        memory = DeviceMemory(batch)
        needed = reserved_memory.fullest_stage(memory, self.rates, gathered=level > 1)[0]
        if level < LEAVES:
            return needed
        on_host = np.max([memory.host_bytes(j) for j in range(batch.num_profiles)], axis=0)
        return np.where(on_host <= self.host_bytes, needed, np.inf)

    def _seconds(self, level: int, columns: Columns) -> tuple[Layouts, Array]:
        """[row] seconds of a layout, or a lower bound for descendants."""
        layouts = Layouts(columns if level == LEAVES else self.branching.relaxed(columns, level))
        batch = build_ledger.build(self.problem, self.tables, layouts, columns["_key"])
        if level == LEAVES:
            return layouts, np.asarray(sum(step.step_terms(batch, self.rates)[0].values()))
        return layouts, lower_bounds.bound(batch, self.rates, states_known=level == 2, memory=False)[0]
