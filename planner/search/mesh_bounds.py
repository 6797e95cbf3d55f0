"""Bounds of a mesh alone, before its schedule is chosen.

A bound costs a few products per shard key, and a search has thousands of keys for millions of meshes. Every mesh is
therefore bounded at the start, and the search begins with the most promising ones.
"""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from functools import cached_property

import numpy as np

from ...cost_models import build_ledger
from ...cost_models.arrays import Array, Ints
from ...cost_models.problem import Problem
from ...cost_models.quantities.stages import EXTRA_KINDS
from ...cost_models.quantities.tables import index_keys
from ...cost_models.rates.kernel_seconds import KernelSeconds, kernel_seconds
from ...cost_models.rates.rates import Rates
from ...cost_models.schedule_kinds import INTERLEAVED, SPLITS_BACKWARD
from ...cost_models.step.stragglers import straggler_share_of
from ...cost_models.techniques.registry import fill_by_layers, keep_weights, least_work
from ..space.counting import LayoutCounts
from ..space.tree import Columns, select
from .known_tables import KnownTables
from .limits import ShouldStop, stop_if_late

KEYS = 1 << 14  # shard keys per table: few calls for millions of keys, within tens of megabytes


@dataclass(frozen=True)
class MeshBounds:
    """Bounds of the meshes of `counts`. any_split: the bounds also hold for any division of layers over stages."""

    counts: LayoutCounts
    rates: Rates
    any_split: bool = False
    known: KnownTables = field(default_factory=KnownTables)  # shared with other searches

    @property
    def _problem(self) -> Problem:
        return self.counts.space.problem

    def bounds(
        self, meshes: Columns, should_stop: ShouldStop | None = None, limit_s: float = np.inf
    ) -> tuple[Array, Array]:  # fmt: skip
        """[mesh] lower bounds on seconds and bytes of layouts on the mesh. Raises TimeLimitError if `should_stop()`.

        Seconds: see `seconds`. Bytes: the states of the mean device, sharded over all ranks, and the buffers that no
        choice below removes. The fullest device holds at least as much as the mean one. limit_s: meshes above it may
        get a weaker bound. All meshes are first bounded without fields of switches, which needs few keys, and those
        within the limit then by their own key.
        """
        if not np.isfinite(limit_s):
            return self._by_key(meshes, np.arange(len(meshes["tp"])), self.rates, should_stop)
        # Overlapped expert messages never add time. Graphs remove launches and add copies.
        without = {"ep_overlap": np.ones_like(meshes["tp"]), "cuda_graphs": np.zeros_like(meshes["tp"])}
        idle_host = self.known.rates(
            replace(self.rates, stack=replace(self.rates.stack, host_s_per_kernel=0.0), latency_s={}))
        seconds, needed = self._by_key({**meshes, **without}, np.arange(len(meshes["tp"])), idle_host, should_stop)
        near = np.flatnonzero(seconds <= limit_s)
        seconds[near] = self._by_key(select(meshes, near), near, self.rates, should_stop)[0]
        return seconds, needed

    def _by_key(
        self, meshes: Columns, rows: Ints, rates: Rates, should_stop: ShouldStop | None
    ) -> tuple[Array, Array]:  # fmt: skip
        """The bounds of the meshes in `rows`."""
        # Offload does not reduce these seconds and bytes.
        keys, index = index_keys({**meshes, "offload_modules": np.zeros_like(meshes["offload_modules"])})
        totals = build_ledger.build_totals(self._problem)
        work_s, filling_s, states, fixed_bytes = (np.empty(len(keys["tp"])) for _ in range(4))
        for start in range(0, len(work_s), KEYS):
            stop_if_late(should_stop)
            part = slice(start, start + KEYS)
            tables = self.known.of(self._problem, {name: column[part] for name, column in keys.items()})
            work_s[part], filling_s[part] = self.work(totals, kernel_seconds(tables, rates))
            states[part] = totals @ (tables.parameters["dense"] + tables.parameters["experts"])
            fixed_bytes[part] = tables.workspace.min(axis=0)  # the fullest stage has layers of some kind
        overheads = rates.overheads
        ranks = meshes["pp"] * meshes["dp"] * meshes["cp"] * meshes["tp"]
        least_bytes = states[index] / ranks * self._least_state_bytes + fixed_bytes[index]
        needed = least_bytes * (1 + overheads.reserve_share) + overheads.context_bytes
        return self.seconds(meshes, work_s[index], filling_s[index], rows), needed

    def work(self, totals: Array, kernels: KernelSeconds) -> tuple[Array, Array]:
        """[key] seconds of a micro-batch in the whole model, and in the layers that fill a pipeline."""
        seconds = kernels.forward_s + kernels.backward_s
        filling = totals.copy()
        if fill_by_layers(self._problem.workload.techniques):
            filling[-EXTRA_KINDS:] = 0.0  # embedding and head are spread over all stages
        return totals @ seconds, filling @ seconds

    def seconds(self, meshes: Columns, work_s: Array, filling_s: Array, rows: Ints | slice = slice(None)) -> Array:
        """[mesh] lower bound on the seconds of layouts on the mesh.

        work_s, filling_s: [mesh] results of `work`. rows: indices of these meshes.

        The slowest device computes at least as long as the mean one, for each of m micro-batches. A pipeline is filled
        once more by the part of a micro-batch on the other devices, in chunks no shorter than those of the deepest
        interleaving. There is no such part where a schedule that splits the backward pass is legal (its W may fill all
        of it), where stages may be of any size (those that fill may be empty), or where micro-batches skip some. Slow
        GPUs make all of it longer. All other terms only add. Given stages are of any size.
        """
        pp = meshes["pp"].astype(np.float64)
        left = least_work(self._problem.workload.techniques)
        m = left * self._problem.workload.global_batch / (meshes["dp"] * meshes["micro_batch"])
        schedules = self.counts.num_schedules  # it has few distinct rows
        row = schedules.row[self.counts.signature[rows]]
        any_size = self.any_split or self._problem.stages is not None
        without_bubble = np.asarray(schedules.table[:, SPLITS_BACKWARD].any(axis=1))[row] | any_size | (left < 1)
        interleaves = np.asarray(schedules.table[:, INTERLEAVED].any(axis=1))[row]
        deepest = np.maximum(self._problem.most_chunks // meshes["pp"], 1)
        chunks = np.where(interleaves, deepest, 1)
        fill_s = np.where(without_bubble, 0.0, 1.0 / chunks) * (filling_s - filling_s / pp)
        stragglers = straggler_share_of(self._problem.stack, self._problem.num_gpus)
        return np.asarray((m * work_s / pp + fill_s) * (1.0 + stragglers))

    @cached_property
    def _least_state_bytes(self) -> float:
        """Bytes per parameter that stay on the GPUs together under any sharding and offload."""
        # A frozen parameter keeps only its weight. Sharding divides by at most tp x cp x dp.
        states = self._problem.state_bytes
        copies = states.quantised_copy if states.replaces_weight else states.weight
        least = min(states.weight, states.frozen_weight, copies)
        return least if keep_weights(self._problem.workload.techniques) else 0.0
