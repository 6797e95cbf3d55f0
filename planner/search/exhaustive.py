"""Exact search: best-first branch and bound over the tree of choices.

A node fixes the choices of the levels above (`branching.py`). Its bounds are below the step time and the bytes of all
its descendants (`lower_bounds.bound`; for a mesh alone `mesh_bounds.py`). A node is cut if no descendant fits, or if
none is better than the k-th best known layout. Nodes are expanded in the order of their bounds. Good layouts therefore
come early, the k-th best value falls quickly, and the first bound above it cuts all later nodes.

Nodes are rows of arrays and are expanded in batches, because one numpy operation on thousands of nodes costs little
more than on one. Every layout is counted once: ruled out, dominated, out of memory by bound, bounded away, or priced.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import cached_property

import numpy as np

from ...cost_models import build_ledger
from ...cost_models.arrays import Array, Ints, Mask
from ...cost_models.layouts import Layout, Layouts
from ...cost_models.quantities.ledger import Ledger
from ...cost_models.quantities.tables import Tables
from ...cost_models.rates.rates import Rates
from ...cost_models.step import step
from ..space.counting import LayoutCounts
from ..space.tree import Columns, Count, Space, joined, select
from .branching import LEAVES, Branching, alike
from .known_tables import KnownTables
from .likely_layouts import limited
from .limits import Progress, ShouldStop, TimeLimitError, stop_if_late
from .memory_cuts import MemoryCuts
from .mesh_bounds import MeshBounds
from .node_bounds import NodeBounds
from .outcome import SearchOutcome
from .roots import Roots, Start
from .tables_ahead import TablesAhead
from .top_k import TopK
from .warm_start import WARM_START_FROM, plain_part

ROWS = 1 << 16  # rows per batch, so that the working arrays stay within tens of megabytes
# Meshes, and nodes per level, that are expanded at once. Few at first, so that a good layout is found early and cuts
# the rest. Later more, because the order matters less and numpy's call overhead should stay small.
_FIRST_MESHES, _MOST_MESHES = 512, 8192
_FIRST_ROWS = (1024, 512, 2048)
_MOST_ROWS = (4096, 16384, 32768)
_JOINED = 4096  # nodes with which children of several kinds are bounded together


class Search:
    """One search.

    memory_bytes, host_bytes: memory of a GPU, and its share of host memory. top: number of layouts to list. objective:
    `step` minimises seconds, `memory` bytes. should_stop: stops the search. incumbent: only better values are
    searched. family, window: see TopK. start: of another search of the same meshes. tally: whether `count` has the
    exclusions of each rule; with `start` and without `tally` it counts only layouts that pass all rules. known: tables
    that other searches share. likely: layouts of the same model, of which the best limits the search.
    """

    warm_starts = True  # whether a large space is searched in its plain part first (warm_start.py)
    first_meshes, first_rows = _FIRST_MESHES, _FIRST_ROWS  # see there
    two_objectives = False  # whether bytes count beside seconds
    any_split = False  # stages may have any layers; the mean stage then bounds their bytes

    def __init__(
        self, space: Space, rates: Rates, *, memory_bytes: float, host_bytes: float = np.inf, top: int = 1,
        objective: str = "step", progress: Progress | None = None, should_stop: ShouldStop | None = None,
        incumbent: float = np.inf, family: tuple[str, ...] = (), start: Start | None = None,
        tally: bool = True, window: float = 0.0, known: KnownTables | None = None, likely: Sequence[Layout] = (),
    ) -> None:  # fmt: skip
        self.space = space
        self.problem = space.problem
        self.known = known or KnownTables()
        self.rates = self.known.rates(rates)
        self.memory_bytes = memory_bytes
        self.host_bytes = host_bytes
        self.objective = objective
        self.progress = progress
        self.should_stop = should_stop
        self.incumbent, self.likely = incumbent, likely
        self.top = TopK(top, family, window)
        self.count = Count()
        self.start, self.tally = start, tally
        self.has_expanded = False  # a batch of meshes
        # From its first mesh on. Most nodes within the limit are then expanded, whatever is found: in large batches.
        self.is_limited = False
        self.stopped: str | None = None
        self.open_bound = np.inf  # smallest bound of the nodes that a stopped search left
        self.warm_rows: list[tuple[float, str, Layout]] = []  # result of the warm start

    @property
    def threshold(self) -> float:
        return min(self.top.threshold, self.incumbent)

    @property
    def _limit(self) -> ShouldStop | None:
        """`should_stop`, once a layout is known or the first batch of meshes has none."""
        return self.should_stop if self.top.rows or self.warm_rows or self.has_expanded else None

    @cached_property
    def _node_bounds(self) -> NodeBounds:
        in_bytes = self.objective == "memory"
        return NodeBounds(self.branching, self.rates, self.memory_bytes, in_bytes, in_bytes or self.two_objectives)

    def run(self) -> SearchOutcome:
        """Search the whole space. Ctrl-C keeps the best so far and sets `stopped`."""
        try:
            if self.start is not None:
                self.branching = Branching(self.start.counts)
                self.count.total = int(self.start.counts.weight.sum())
                self._descend(self.start.roots)
            else:
                self._search_whole()
        except KeyboardInterrupt:
            self.stopped = "interrupted"
        except TimeLimitError:
            self.stopped = "time limit"
        if self.stopped:
            rows = {row[1]: row for row in (*self.top.rows, *self.warm_rows)}
            self.top.rows = sorted(rows.values(), key=lambda row: row[:2])[: self.top.limit]
        self.count.unvisited = self.count.total - self.count.accounted
        best = self.top.rows[0][0] if self.top.rows else np.inf
        bound = best if self.stopped is None else min(best, self.open_bound)
        return SearchOutcome(self.top, self.count, bound, self.stopped, self.start)

    def _search_whole(self) -> None:
        meshes = self.space.meshes(self.count if self.tally else Count())
        if not len(meshes["tp"]):
            return
        counts = LayoutCounts(self.space, meshes, self.known.dominated(self.space, self.rates))
        if self.tally:
            counts.tally(self.count)
        self.count.total = self.count.total or int(counts.weight.sum())
        self.branching = Branching(counts)
        self._limit_by_likely()
        if self.warm_starts and self.count.total > WARM_START_FROM:
            self._warm_start()
        self.start = Start(counts, *self._mesh_bounds(meshes))
        self._descend(self.start.roots)

    def _limit_by_likely(self) -> None:
        self.incumbent = limited(self, self.likely)

    def _warm_start(self) -> None:
        """Set `incumbent` from the plain part of the space. The search of the whole counts its layouts again."""
        plain = Search(
            plain_part(self.space), self.rates, memory_bytes=self.memory_bytes, host_bytes=self.host_bytes,
            top=self.top.limit, objective=self.objective, should_stop=self.should_stop, incumbent=self.incumbent,
            family=self.top.family, tally=False, window=self.top.window, known=self.known,
        )  # fmt: skip
        plain.warm_starts = False
        self.open_bound = 0.0  # if it stops here, nothing is proven about the whole space
        outcome = plain.run()
        self.warm_rows, self.incumbent = outcome.top.rows, plain.threshold
        if outcome.stopped == "interrupted":
            raise KeyboardInterrupt
        stop_if_late(self._limit)

    def _descend(self, roots: Roots) -> None:
        """Expand meshes in the order of their bounds, until no bound beats the list."""
        bounds = roots.needed if self.objective == "memory" else roots.seconds
        order = np.flatnonzero(roots.needed <= self.memory_bytes)
        self.count.out_of_memory += int(roots.weight.sum() - roots.weight[order].sum())
        order = order[np.argsort(bounds[order], kind="stable")]
        self.is_limited = bool(np.isfinite(self.threshold))
        size = _MOST_MESHES if self.is_limited else self.first_meshes
        start, ahead = 0, TablesAhead(self.problem, roots.meshes, order, self.known)
        ordered = bounds[order]
        while start < len(order):
            batch = order[start : start + size]
            self.open_bound = float(ordered[start])
            if ordered[start] > self.threshold:  # and so are all later bounds
                self.count.bounded += int(roots.weight[order[start:]].sum())
                break
            alive = self._worth(roots.seconds[batch], roots.needed[batch], roots.meshes, batch)
            self.count.bounded += int(roots.weight[batch[~alive]].sum())
            tables, keys = ahead.of(start, start + len(batch), self._known_end(ordered))
            rows = {"_key": keys[alive], "_signature": roots.signature[batch[alive]]}
            self._expand(tables, {**select(roots.meshes, batch[alive]), **rows}, 0)
            self.has_expanded = True
            start, size = start + size, min(2 * size, _MOST_MESHES)
            if self.progress is not None:
                self.progress(self.count, self.top.rows[0][0] if self.top.rows else np.inf)
            stop_if_late(self._limit)
        self.open_bound = np.inf

    def _known_end(self, ordered: Array) -> int:
        """The largest number of meshes with these bounds that the search expands; unknown before the list is full."""
        limit = self.threshold
        return int(np.searchsorted(ordered, limit, side="right")) if np.isfinite(limit) else 0

    def _worth(self, seconds: Array, needed: Array, columns: Columns, rows: Ints) -> Mask:
        """[row] whether a descendant of these `rows` of `columns`, with these bounds, may enter the list."""
        value = needed if self.objective == "memory" else seconds
        return np.asarray(value <= np.minimum(self.top.thresholds(columns, rows), self.incumbent))

    def _mesh_bounds(self, meshes: Columns) -> tuple[Array, Array]:
        """[mesh] lower bounds on seconds and bytes of layouts on the mesh."""
        limit_s = np.inf if self.objective == "memory" else self.incumbent
        return MeshBounds(self.branching.counts, self.rates, self.any_split, self.known).bounds(
            meshes, self._limit, limit_s)

    def _expand(self, tables: Tables, nodes: Columns, level: int) -> None:
        """Cross `nodes` with the options of `level`, price or bound the children, and expand promising ones."""
        if level == 1:
            nodes = {**nodes, "_node": np.arange(len(nodes["tp"]))}
        keep = self._cuts(tables).states_fit if level == 2 and not self.any_split else None
        absent = 0 if keep is None else int(self.branching.num_below(nodes, 1).sum())
        for children in joined(self.branching.children(nodes, level, keep), _JOINED if self.is_limited else 1):
            absent -= 0 if keep is None else int(self.branching.num_below(children, level).sum())
            if level == LEAVES:
                self._price(tables, children)
            else:
                self._bound(tables, children, level)
        self.count.out_of_memory += absent  # layouts without a child do not fit

    def _bounds(self, tables: Tables, rows: Columns, level: int) -> tuple[Array, Array]:
        """[row] lower bounds on seconds and bytes of descendants."""
        return self._node_bounds.of(tables, rows, level, self.threshold)

    def _ledger(self, tables: Tables, columns: Columns, key: Ints) -> Ledger:
        return build_ledger.build(self.problem, tables, Layouts(columns), key, alike=alike(columns))

    def _cuts(self, tables: Tables) -> MemoryCuts:
        return MemoryCuts(self.branching, tables, self.rates, self.memory_bytes, self.any_split)

    def _bound(self, tables: Tables, children: Columns, level: int) -> None:
        """Bound children in batches, drop those that cannot win or fit, and expand the rest best first."""
        seconds, needed = np.full((2, len(children["tp"])), np.inf)
        known = self._cuts(tables).some_recomputed_too_big(children) if level == 1 else np.zeros(len(seconds), bool)
        open_rows = np.flatnonzero(~known)
        for start in range(0, len(open_rows), ROWS):
            stop_if_late(self._limit)
            part = open_rows[start : start + ROWS] if known.any() else slice(start, start + ROWS)  # a view of columns
            seconds[part], needed[part] = self._bounds(tables, select(children, part), level)
        weight = self.branching.num_below(children, level)
        too_big = needed > self.memory_bytes
        self.count.out_of_memory += int(weight[too_big].sum())
        value = needed if self.objective == "memory" else seconds
        order = np.flatnonzero(~too_big)
        order = order[np.argsort(value[order], kind="stable")]  # stable: ties keep one order on every machine
        start, size = 0, self.first_rows[level]
        while start < len(order):
            stop_if_late(self._limit)
            batch_rows = order[start : start + size]
            if value[batch_rows[0]] > self.threshold:  # and so are all later rows
                self.count.bounded += int(weight[order[start:]].sum())
                return
            alive = batch_rows[self._worth(seconds[batch_rows], needed[batch_rows], children, batch_rows)]
            self.count.bounded += int(weight[batch_rows].sum() - weight[alive].sum())
            if level == 0 and len(alive):  # the bound had no bytes here: compute them for the few that remain
                fits = self._cuts(tables).may_fit(select(children, alive))
                self.count.out_of_memory += int(weight[alive[~fits]].sum())
                alive = alive[fits]
            if len(alive):
                self._expand(tables, select(children, alive), level + 1)
            start, size = start + size, min(4 * size, _MOST_ROWS[level])

    def _price(self, tables: Tables, columns: Columns) -> None:
        """Price whole layouts in batches, and offer those that fit to the list."""
        for start in range(0, len(columns["tp"]), ROWS):
            part = {name: column[start : start + ROWS] for name, column in columns.items()}
            estimate = self._estimate(tables, part)
            if estimate is None:
                continue
            fits = (estimate.device_bytes <= self.memory_bytes) & (estimate.host_bytes <= self.host_bytes)
            self.count.out_of_memory += int((~fits).sum())
            self.count.priced += int(fits.sum())
            self._offer(estimate, fits, estimate.ledger.layouts)

    def _estimate(self, tables: Tables, part: Columns) -> step.Estimate | None:
        """The price of the layouts that are fast enough, of all where the least bytes are sought; None without any."""
        batch = self._ledger(tables, part, part["_key"])
        if self.objective == "memory":
            return step.Estimate(batch, self.rates, {}, np.zeros(len(batch.layouts), dtype=np.int64))
        terms, slowest = step.step_terms(batch, self.rates)
        fast = np.flatnonzero(np.asarray(sum(terms.values())) <= self.threshold)
        if len(fast) < len(slowest):  # bytes of too slow layouts are not needed
            self.count.bounded += len(slowest) - len(fast)
            if not len(fast):
                return None
            batch = self._ledger(tables, select(part, fast), part["_key"][fast])
            terms, slowest = {name: term[fast] for name, term in terms.items()}, slowest[fast]
        return step.Estimate(batch, self.rates, terms, slowest)

    def _offer(self, estimate: step.Estimate, fits: Mask, layouts: Layouts) -> None:
        """Offer the layouts that fit to the list."""
        value = estimate.device_bytes if self.objective == "memory" else estimate.step_s
        self.top.offer(np.where(fits, value, np.inf), layouts)

