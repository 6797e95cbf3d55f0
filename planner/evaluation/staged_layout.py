"""One layout with its stages, priced by the closed form."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property
from typing import Self

import numpy as np

from ...cost_models import build_ledger
from ...cost_models.arrays import Array, Ints
from ...cost_models.layouts import Layout, Layouts
from ...cost_models.quantities import tables
from ...cost_models.quantities.ledger import Ledger
from ...cost_models.quantities.stages import (
    EMBEDDING,
    EXTRA_KINDS,
    Partition,
    chunk_rows,
    chunks_per_stage,
    devices_of,
    is_folded,
    on_devices,
    recomputed_rows,
)
from ...cost_models.quantities.tables import Tables, index_keys
from ...cost_models.rates.kernel_seconds import kernel_seconds
from ...cost_models.step import step
from ...cost_models.step.stage_seconds import StageSeconds, stage_seconds
from ...cost_models.step.step import Estimate
from ..document.partitions import custom_partition, layout_id
from ..request.resolve import Resolved


def even_partition(resolved: Resolved, layout: Layout) -> Partition:
    """The stages of a layout that names no others: those of the request, else as even as possible."""
    return Partition(resolved.problem.chunk_sizes(len(devices_of(layout))))


@dataclass(frozen=True)
class StagedLayout:
    """A layout with its stages, priced by the closed form."""

    resolved: Resolved  # the request
    layout: Layout
    partition: Partition  # layers of each chunk
    ledger: Ledger  # one row; profile j is device j
    estimate: Estimate  # the closed form, with compute by component
    simulate: bool = False  # whether `step_s` is that of the simulator, where it knows the layout

    @classmethod
    def of(
        cls, resolved: Resolved, layout: Layout, partition: Partition | None = None, *, simulate: bool = False,
        known: Tables | None = None,
    ) -> Self:  # fmt: skip
        """partition: None for stages as even as possible; simulate: whether `step_s` is that of the simulator; known:
        tables that may have its shard key, of other layouts of the request."""
        keys, _ = index_keys(Layouts.of([layout]))
        if known is None or not (same := np.all([of == keys[name] for name, of in known.keys.items()], axis=0)).any():
            known, same = tables.build(resolved.problem, keys), np.ones(1, dtype=bool)
        return cls._priced(resolved, layout, partition, known, np.flatnonzero(same), simulate)

    def split(self, partition: Partition | None) -> Self:
        """The same layout with other stages, out of the same tables."""
        return self._priced(self.resolved, self.layout, partition, self.ledger.tables, self.ledger.key, self.simulate)

    @classmethod
    def _priced(
        cls, resolved: Resolved, layout: Layout, partition: Partition | None, of_shards: Tables, key: Ints,
        simulate: bool,
    ) -> Self:  # fmt: skip
        partition = partition or even_partition(resolved, layout)
        ledger = build_ledger.build(resolved.problem, of_shards, Layouts.of([layout]), key, partition)
        return cls(resolved, layout, partition, ledger, step.price(ledger, resolved.rates, detail=True), simulate)

    @cached_property
    def custom_partition(self) -> Partition | None:
        """Its partition, where that is not the one of the layout."""
        return custom_partition(self.layout, self.partition)

    @property
    def id(self) -> str:
        return layout_id(self.layout, self.custom_partition)

    @cached_property
    def devices(self) -> list[int]:
        return devices_of(self.layout)

    @property
    def key(self) -> int:
        """Index of its shard key in the tables."""
        return int(self.ledger.key[0])

    @property
    def recompute_code(self) -> tuple[int, int]:
        """Its recompute mode and modules, as `KernelSeconds.recompute_s` and `Tables.saved` take them."""
        return self.ledger.codes[int(self.ledger.code[0])]

    @property
    def peak_flops_per_s(self) -> float:
        """Dense peak of all GPUs together: the denominator of MFU."""
        return self.resolved.rates.peak_flops_per_s * self.resolved.cluster.num_gpus

    def gpu_of(self, device: int) -> str:
        """The GPU of a pipeline stage."""
        return self.resolved.cluster.gpu.name

    @cached_property
    def rows(self) -> Array:
        """[chunk, kind] layers of each chunk, with embedding, head and MTP."""
        problem, layout = self.resolved.problem, self.layout
        rows = chunk_rows(problem.pattern, problem.num_kinds, problem.edges, layout.pp, chunks_per_stage(layout),
                          is_folded(layout), self.partition.sizes)  # fmt: skip
        if self.ledger.vocabulary is not None:  # embedding and head are other chunks (vocabulary_passes.py)
            rows[:, -EXTRA_KINDS:] = 0.0
        return rows

    @cached_property
    def recomputed(self) -> Array:
        """[chunk, kind] layers under recompute. Where a layout recomputes n layers per stage, all chunks of a stage
        have the same share, and a vision tower is recomputed whole."""
        problem, layout = self.resolved.problem, self.layout
        if self.partition.recomputed is not None:
            return recomputed_rows(problem.pattern, problem.num_kinds, problem.edges, self.partition)
        if not layout.recompute_layers:
            return self.rows
        layers = on_devices(self.rows[:, :-EXTRA_KINDS].sum(axis=1), self.devices)
        share = np.minimum(layout.recompute_layers / np.maximum(layers, 1.0), 1.0)[self.devices]
        rows = np.asarray(share[:, None] * self.rows)
        rows[:, EMBEDDING] = self.rows[:, EMBEDDING]
        return rows

    @property
    def mean_layer_s(self) -> float:
        """Seconds of a micro-batch on the mean layer: forward, backward and recomputation."""
        kernels, key = kernel_seconds(self.ledger.tables, self.resolved.rates), self.key
        layers, recomputed = self.rows.sum(axis=0), self.recomputed.sum(axis=0)
        recompute_s = kernels.recompute_s(*self.recompute_code).sum(axis=1)[:, key]
        seconds = layers * (kernels.forward_s + kernels.backward_s)[:, key] + recomputed * recompute_s
        return float(seconds[:-EXTRA_KINDS].sum() / layers[:-EXTRA_KINDS].sum())

    @property
    def num_micro_batches(self) -> int:
        return round(float(self.ledger.m[0]))

    @cached_property
    def stage(self) -> StageSeconds:
        """Seconds of a micro-batch on each device, by the closed form."""
        return stage_seconds(self.ledger, self.resolved.rates)

    @property
    def closed_s(self) -> float:
        """Seconds of a step by the closed form."""
        return float(self.estimate.step_s[0])

    @property
    def device_bytes(self) -> float:
        """Bytes of the fullest GPU."""
        return float(self.estimate.device_bytes[0])

    @property
    def host_bytes(self) -> float:
        """Bytes that the GPU with most of them keeps in host memory."""
        return float(self.estimate.host_bytes[0])
