"""Exact search: best-first branch and bound over the tree of choices.

A node fixes the choices of the levels above (`space.LEVELS`). Its bound is the step time (and memory) that nothing
below can beat (`lower_bounds.bound`; for a mesh alone `_mesh_bounds`). Nodes are expanded in the order of their bounds,
all arrays, until no bound beats the k-th best layout found. Every layout is counted once: ruled out, dominated, out of
memory by bound, bounded away, or priced.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import cached_property

import numpy as np

from ...cost_models import build_ledger
from ...cost_models.arrays import Array, Ints, Mask
from ...cost_models.layouts import Layout, Layouts
from ...cost_models.problem import Problem
from ...cost_models.quantities import ledger
from ...cost_models.quantities.device_memory import DeviceMemory
from ...cost_models.quantities.stages import EXTRA_KINDS
from ...cost_models.quantities.tables import Tables, build, index_keys
from ...cost_models.rates.kernel_seconds import KernelSeconds, kernel_seconds
from ...cost_models.rates.rates import Rates
from ...cost_models.schedule_kinds import INTERLEAVED, SPLITS_BACKWARD
from ...cost_models.step import lower_bounds, reserved_memory, step
from ...cost_models.techniques.registry import fill_by_layers, keep_weights
from ..space.counting import LayoutCounts, recompute_category
from ..space.tree import RECOMPUTE_FIELDS, Columns, Count, Space, allowed, cross, grow, select
from .dominance import dominated_recomputes
from .top_k import TIE, TopK
from .warm_start import WARM_START_FROM, plain_part

Progress = Callable[[Count, float], None]

_ROWS = 1 << 15  # rows per batch: the working arrays of one stay in the cache
_KEYS = 1 << 13  # shard keys per table
_FIRST_MESHES = 24  # meshes in the first batch; each further one is twice as large


@dataclass
class SearchOutcome:
    """What a search found, and the proof: `lower_bound` is below every layout that was not priced."""

    top: TopK
    count: Count
    lower_bound: float
    stopped: str | None = None


class Search:
    """One search. `memory_bytes`: what a GPU has; `host_bytes`: its share of host memory; `objective`: `step` minimises
    seconds, `memory` bytes; `should_stop` cuts it; only what beats `incumbent` is looked for; `family`: see Found.
    `piloted`: whether large spaces are searched in their plain part first (warm_start.py)."""

    piloted = True
    any_split = False  # of the layers over stages: then the mean stage bounds what they hold

    def __init__(
        self, space: Space, rates: Rates, *, memory_bytes: float, host_bytes: float = np.inf, top: int = 1,
        objective: str = "step", progress: Progress | None = None, should_stop: Callable[[], bool] | None = None,
        incumbent: float = np.inf, family: tuple[str, ...] = (),
    ) -> None:  # fmt: skip
        self.space, self.rates, self.problem = space, rates, space.problem
        self.memory_bytes, self.host_bytes, self.objective = memory_bytes, host_bytes, objective
        self.count, self.top = Count(), TopK(top, family)
        self.progress, self.should_stop, self.incumbent = progress, should_stop, incumbent
        self.stopped: str | None = None
        self.open_bound = np.inf  # least bound of what an interrupted search left
        self.ahead: list[tuple[float, str, Layout]] = []  # what the pilot found

    @property
    def threshold(self) -> float:
        return min(self.top.threshold, self.incumbent)

    def run(self) -> SearchOutcome:
        """Search the whole space; Ctrl-C keeps the best so far and says so."""
        try:
            meshes = self.space.meshes(self.count)
            if len(meshes["tp"]):
                self.census = LayoutCounts(self.space, meshes, dominated_recomputes(self.space, self.rates))
                self.census.tally(self.count)
                if self.piloted and self.count.total > WARM_START_FROM:
                    self._fly_ahead()
                self._descend(meshes)
        except KeyboardInterrupt:
            self.stopped = "interrupted"
        if self.stopped:
            rows = {row[1]: row for row in (*self.top.rows, *self.ahead)}.values()
            self.top.rows = sorted(rows, key=lambda row: row[:2])[: self.top.limit]
        self.count.unvisited = self.count.total - self.count.accounted
        best = self.top.rows[0][0] if self.top.rows else np.inf
        bound = best if self.stopped is None else min(best, self.open_bound)
        return SearchOutcome(self.top, self.count, bound, self.stopped)

    def _fly_ahead(self) -> None:
        """`incumbent` from the plain part of the space; what it found counts once more in the search of the whole."""
        pilot = Search(
            plain_part(self.space), self.rates, memory_bytes=self.memory_bytes, host_bytes=self.host_bytes,
            top=self.top.limit, objective=self.objective, should_stop=self.should_stop, incumbent=self.incumbent,
            family=self.top.family,
        )  # fmt: skip
        pilot.piloted, self.open_bound = False, 0.0
        outcome = pilot.run()
        self.ahead, self.incumbent = outcome.top.rows, pilot.threshold
        if outcome.stopped == "interrupted":
            raise KeyboardInterrupt

    def _descend(self, meshes: Columns) -> None:
        seconds, needed = self._mesh_bounds(meshes)
        bounds = needed if self.objective == "memory" else seconds
        too_big = needed > self.memory_bytes
        self.count.out_of_memory += int(self.census.weight[too_big].sum())
        order = np.flatnonzero(~too_big)
        order = order[np.argsort(bounds[order], kind="stable")]
        start, size = 0, _FIRST_MESHES
        while start < len(order):
            batch = order[start : start + size]
            self.open_bound = float(bounds[batch[0]])
            if bounds[batch[0]] > self.threshold:
                self.count.bounded += int(self.census.weight[order[start:]].sum())
                break
            alive = self._worth(seconds[batch], needed[batch], meshes, batch)
            self.count.bounded += int(self.census.weight[batch[~alive]].sum())
            self._expand_meshes(select(meshes, batch[alive]), self.census.signature[batch[alive]])
            start, size = start + size, min(2 * size, 1024)
            if self._interrupted():
                break
        self.open_bound = np.inf if self.stopped is None else self.open_bound

    def _interrupted(self) -> bool:
        if self.progress is not None:
            self.progress(self.count, self.top.rows[0][0] if self.top.rows else np.inf)
        if self.should_stop is not None and self.should_stop():
            self.stopped = "time limit"
        return self.stopped is not None

    def _worth(self, seconds: Array, needed: Array, columns: Columns, rows: Ints) -> Mask:
        """[row] whether something below these `rows` of `columns`, with these bounds, may enter the list."""
        value = needed if self.objective == "memory" else seconds
        return np.asarray(value <= np.minimum(self.top.thresholds(columns, rows), self.incumbent))

    def _mesh_bounds(self, meshes: Columns) -> tuple[Array, Array]:
        """[mesh] seconds and bytes that no layout on the mesh beats.

        Seconds: the mean device's forward and backward, m times, and the part of the fill that even the deepest
        interleaving keeps (none where a zero-bubble schedule passes): m*mean <= m*max, and the rest only adds.
        Bytes: the mean device's states fully sharded, and the buffers that no choice below removes.
        """
        keys, index = index_keys(meshes)
        totals = build_ledger.build_totals(self.problem)
        work, fills, states, fixed = (np.empty(len(keys["tp"])) for _ in range(4))
        for start in range(0, len(work), _KEYS):
            part = slice(start, start + _KEYS)
            tables = build(self.problem, {name: column[part] for name, column in keys.items()})
            work[part], fills[part] = self._work(totals, kernel_seconds(tables, self.rates))
            states[part] = totals @ (tables.parameters["dense"] + tables.parameters["experts"])
            fixed[part] = tables.workspace.min(axis=0)  # the fullest stage has layers of some kind
        overheads = self.rates.overheads
        least = states[index] / (meshes["pp"] * meshes["dp"] * meshes["cp"] * meshes["tp"]) * self._least_state_bytes
        needed = (least + fixed[index]) * (1 + overheads.reserve_share) + overheads.context_bytes
        return self._mesh_seconds(meshes, work[index], fills[index]), needed

    def _work(self, totals: Array, kernels: KernelSeconds) -> tuple[Array, Array]:
        """[key] seconds of a micro-batch in the whole model, and in what fills a pipeline of it."""
        seconds = kernels.forward_s + kernels.backward_s
        filling = totals.copy()
        if fill_by_layers(self.problem.workload.techniques):
            filling[-EXTRA_KINDS:] = 0.0
        return totals @ seconds, filling @ seconds

    def _mesh_seconds(self, meshes: Columns, work: Array, fills: Array) -> Array:
        """[mesh] the seconds of `_mesh_bounds`; work, fills: [mesh] those of `_work`."""
        pp = meshes["pp"].astype(np.float64)
        m = self.problem.workload.global_batch / (meshes["dp"] * meshes["micro_batch"])
        passing = self.census.num_schedules[self.census.signature]
        without_bubble = passing[:, SPLITS_BACKWARD].any(axis=1)  # W may fill all of it
        deepest = np.where(passing[:, INTERLEAVED].any(axis=1), self.problem.model.num_layers // meshes["pp"], 1)
        fill = self._share_of_fill(np.where(without_bubble, 0.0, 1.0 / deepest)) * (fills - fills / pp)
        return np.asarray(m * work / pp + fill)

    def _share_of_fill(self, evenly: Array) -> Array:
        """[mesh] part of a micro-batch's time on the other devices that filling the pipeline takes, at least."""
        return evenly

    @cached_property
    def _least_state_bytes(self) -> float:
        # A parameter that does not train keeps only its weight; sharding divides by at most tp x cp x dp.
        states = self.problem.state_bytes
        return min(states.weight, states.frozen_weight) if keep_weights(self.problem.workload.techniques) else 0.0

    def _expand_meshes(self, meshes: Columns, signature: Ints) -> None:
        """Schedules for each mesh, then recomputes, states and shards."""
        keys, index = index_keys(meshes)
        for start in range(0, len(keys["tp"]), _KEYS):
            chosen = (index >= start) & (index < start + _KEYS)
            tables = build(self.problem, {n: c[start : start + _KEYS] for n, c in keys.items()})
            part = {**select(meshes, chosen), "_key": index[chosen] - start, "_signature": signature[chosen]}
            self._expand(tables, part, 0)

    def _expand(self, tables: Tables, nodes: Columns, level: int) -> None:
        """Cross `nodes` with the options of `level`, price or bound the children, go on with those worth it."""
        if level == 1:
            nodes = {**nodes, "_node": np.arange(len(nodes["tp"]))}
        for pp in np.unique(nodes[_GROUPED_BY[level]]).tolist() if level < 2 else [0]:
            group = select(nodes, nodes[_GROUPED_BY[level]] == pp) if level < 2 else nodes
            for children in self._children(group, level, pp):
                if level == 3:
                    self._price(tables, children)
                else:
                    self._bound(tables, children, level)

    def _children(self, group: Columns, level: int, pp: int) -> list[Columns]:
        if level == 0:
            options = [(group, self.space.schedules(pp))]
        elif level == 1:
            recomputes = self.space.recomputes(pp)
            options = [(group, select(recomputes, ~self.census.dominated_mask(recomputes)))]
        elif level == 2:
            alone = group["dp"] * group["cp"] == 1
            options = [(select(group, alone == one), self.space.states(1 if one else 2)) for one in (True, False)]
        else:
            options = [self._shards(group)]
        rules = self.census.level_rules[("schedule", "recompute", "joint", "state")[level]]
        out = []
        for rows, choices in options:
            if not len(rows["tp"]):
                continue
            columns = cross(rows, choices) if choices else rows
            out.append(select(columns, allowed(rules, columns, self.problem)) if rules else columns)
        return out

    def _shards(self, group: Columns) -> tuple[Columns, Columns]:
        """Every size of the shard group for each row: rows repeat by their number of options."""
        code = group["dp"] << 34 | group["cp"] << 2 | group["zero"]
        distinct, inverse = np.unique(code, return_inverse=True)
        options = [self.space.shards(int(c >> 34), int(c >> 2 & 0xFFFFFFFF), int(c & 3)) for c in distinct]
        columns = grow(group, "shard", options, inverse)
        return columns, {}

    def _relaxed(self, columns: Columns, level: int) -> Columns:
        """`columns` with the choices below `level` at the value that no other beats in any term of the bound."""
        free: Columns = {"shard": columns["dp"]}
        if level < 1:
            free |= {name: np.zeros_like(columns["tp"]) for name in RECOMPUTE_FIELDS}
        if level < 2:
            mode = recompute_category(columns) if level else slice(None)
            at = (columns["_signature"], columns["schedule"], mode)
            zero, offload = (states[at].astype(np.int64) for states in self.census.loosest_states)
            if not level:  # in any recompute mode
                zero, offload = zero.max(axis=1), np.bitwise_or.reduce(offload, axis=1)
            free |= {"zero": zero, "offload": offload}
        return {**columns, **free}

    def _bounds(self, tables: Tables, rows: Columns, level: int) -> tuple[Array, Array]:
        """[row] seconds and bytes that nothing below the rows beats. Of what does not fit no seconds are asked: inf."""
        relaxed = self._relaxed(rows, level)
        batch = build_ledger.build(self.problem, tables, Layouts(relaxed), rows["_key"])
        if level == 0:
            seconds, needed = lower_bounds.bound(batch, self.rates, states_known=False, memory=False)
            return seconds, reserved_memory.least_bytes(batch, self.rates) if self.objective == "memory" else needed
        needed = reserved_memory.fullest_stage(DeviceMemory(batch), self.rates, gathered=level == 2)[0]
        seconds, fits = np.full(len(needed), np.inf), np.flatnonzero(needed <= self.memory_bytes)
        if 2 * len(fits) > len(needed):
            return lower_bounds.bound(batch, self.rates, states_known=level == 2, memory=False)[0], needed
        if len(fits):
            batch = build_ledger.build(self.problem, tables, Layouts(select(relaxed, fits)), rows["_key"][fits])
            seconds[fits] = lower_bounds.bound(batch, self.rates, states_known=level == 2, memory=False)[0]
        return seconds, needed

    def _states_fit(self, tables: Tables, nodes: Columns) -> Mask:
        """[node] whether its states alone fit, divided and offloaded as far as any choice below does."""
        layouts = Layouts(self._relaxed(nodes, 0))
        batch = build_ledger.build(self.problem, tables, layouts, nodes["_key"], mean=self.any_split)
        return np.asarray(reserved_memory.least_bytes(batch, self.rates) <= self.memory_bytes)

    def _too_big(self, tables: Tables, children: Columns) -> Mask:
        """[child] whether it recomputes some layers in full, and not even with all of them would it fit: activations
        never take more where more layers are recomputed. `_node`: which children share all but the recompute."""
        some = children["recompute_layers"] > 0
        nodes, first = np.unique(children["_node"][some], return_index=True)
        if not len(nodes):
            return some
        whole = select(children, np.flatnonzero(some)[first])
        free = {**self._relaxed(whole, 0), "recompute": whole["recompute"]}
        batch = build_ledger.build(self.problem, tables, Layouts(free), whole["_key"])
        needed = reserved_memory.fullest_stage(DeviceMemory(batch), self.rates, gathered=False)[0]
        out = np.zeros(int(children["_node"].max()) + 1, dtype=bool)
        out[nodes] = needed * (1 - TIE) > self.memory_bytes
        return np.asarray(some & out[children["_node"]])

    def _bound(self, tables: Tables, children: Columns, level: int) -> None:
        """Bound children in batches, drop those that cannot win or fit, and expand the rest best first."""
        seconds, needed = np.full((2, len(children["tp"])), np.inf)
        open_rows = np.flatnonzero(~self._too_big(tables, children)) if level == 1 else np.arange(len(seconds))
        for start in range(0, len(open_rows), _ROWS):
            part = open_rows[start : start + _ROWS]
            seconds[part], needed[part] = self._bounds(tables, select(children, part), level)
        weight = self._weight(children, level)
        too_big = needed > self.memory_bytes
        self.count.out_of_memory += int(weight[too_big].sum())
        value = needed if self.objective == "memory" else seconds
        order = np.flatnonzero(~too_big)
        order = order[np.argsort(value[order], kind="stable")]
        start, size = 0, _FIRST_ROWS[level]
        while start < len(order):
            batch_rows = order[start : start + size]
            if value[batch_rows[0]] > self.threshold:
                self.count.bounded += int(weight[order[start:]].sum())
                return
            alive = batch_rows[self._worth(seconds[batch_rows], needed[batch_rows], children, batch_rows)]
            self.count.bounded += int(weight[batch_rows].sum() - weight[alive].sum())
            if level == 0 and len(alive):
                fits = self._states_fit(tables, select(children, alive))
                self.count.out_of_memory += int(weight[alive[~fits]].sum())
                alive = alive[fits]
            if len(alive):
                self._expand(tables, select(children, alive), level + 1)
            start, size = start + size, min(4 * size, _MOST_ROWS[level])

    def _weight(self, columns: Columns, level: int) -> Ints:
        """Layouts that grow from each node, by the census."""
        census, signature = self.census, columns["_signature"]
        if level == 2:
            return np.asarray(census.num_shards[signature, columns["zero"]])
        states = census.num_states[signature, columns["schedule"]]
        if level == 1:
            return np.asarray(states[np.arange(len(signature)), recompute_category(columns)])
        return np.asarray((states * census.num_recomputes[signature]).sum(axis=1))

    def _price(self, tables: Tables, columns: Columns) -> None:
        for start in range(0, len(columns["tp"]), _ROWS):
            part = slice(start, start + _ROWS)
            layouts = Layouts({name: column[part] for name, column in columns.items()})
            batch = build_ledger.build(self.problem, tables, layouts, columns["_key"][part])
            estimate = step.price(batch, self.rates)
            fits = (estimate.device_bytes <= self.memory_bytes) & (estimate.host_bytes <= self.host_bytes)
            self.count.out_of_memory += int((~fits).sum())
            self.count.priced += int(fits.sum())
            self._offer(estimate, fits, layouts)

    def _offer(self, estimate: step.Estimate, fits: Mask, layouts: Layouts) -> None:
        """Put what fits on the list, if it is good enough."""
        value = estimate.device_bytes if self.objective == "memory" else estimate.step_s
        self.top.offer(np.where(fits, value, np.inf), layouts)


_GROUPED_BY = ("pp", "pp")
# Nodes expanded at once per level: few at first, so that a good layout is found early and prunes the rest.
_FIRST_ROWS = (64, 128, 512)
_MOST_ROWS = (2048, 8192, 16384)


def price_layouts(problem: Problem, rates: Rates, layouts: Layouts) -> tuple[ledger.Ledger, step.Estimate]:
    """Price single layouts in detail, by the same path as the search."""
    keys, index = index_keys(layouts)
    batch = build_ledger.build(problem, build(problem, keys), layouts, index)
    return batch, step.price(batch, rates, detail=True)
