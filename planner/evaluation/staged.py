"""One layout with its stages, priced by the closed form or with its pipeline in the event simulator."""

from __future__ import annotations

from dataclasses import dataclass, replace
from functools import cached_property

import numpy as np

from ...cost_models import build_ledger
from ...cost_models.arrays import Array, Ints
from ...cost_models.layouts import SCHEDULES, Layout, Layouts
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
from ...cost_models.rates.layer_seconds import COMPONENTS
from ...cost_models.schedules import simulator
from ...cost_models.schedules.simulator import Costs, Schedule, Timeline
from ...cost_models.step import step, stragglers
from ...cost_models.step.data_parallel import exposed_dp_s
from ...cost_models.step.stage_seconds import StageSeconds, stage_seconds
from ...cost_models.step.step import Estimate
from ...cost_models.step.vocabulary_seconds import vocabulary_overhead_s
from ..document.partitions import custom_partition, layout_id
from ..request.resolve import Resolved
from . import simulator_costs, vocabulary_passes

# A schedule of more operations than this is not simulated: it would take seconds.
MOST_OPERATIONS = 1 << 22
# Terms of a step (step.TERMS) that are in the makespan of the simulator, or a factor on all others. A simulated step
# adds every other term to the makespan, with its seconds of the closed form.
SIMULATED_TERMS = frozenset({*COMPONENTS, "accumulate", "fsdp", "resharding", "vocabulary", "bubble", "pp", "dp",
                             "optimizer", "offload", "stragglers"})  # fmt: skip


def even_partition(resolved: Resolved, layout: Layout) -> Partition:
    """The stages of a layout that names no others: those of the request, else as even as possible."""
    return Partition(resolved.problem.chunk_sizes(len(devices_of(layout))))


@dataclass(frozen=True)
class Staged:
    """A layout with its stages, priced."""

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
    ) -> Staged:  # fmt: skip
        """partition: None for stages as even as possible; simulate: whether `step_s` is that of the simulator; known:
        tables that may have its shard key, of other layouts of the request."""
        keys, _ = index_keys(Layouts.of([layout]))
        if known is None or not (same := np.all([of == keys[name] for name, of in known.keys.items()], axis=0)).any():
            known, same = tables.build(resolved.problem, keys), np.ones(1, dtype=bool)
        return cls._priced(resolved, layout, partition, known, np.flatnonzero(same), simulate)

    def split(self, partition: Partition | None) -> Staged:
        """The same layout with other stages, out of the same tables."""
        return self._priced(self.resolved, self.layout, partition, self.ledger.tables, self.ledger.key, self.simulate)

    @classmethod
    def _priced(
        cls, resolved: Resolved, layout: Layout, partition: Partition | None, of_shards: Tables, key: Ints,
        simulate: bool,
    ) -> Staged:  # fmt: skip
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

    @property
    def schedule_name(self) -> str:
        return SCHEDULES[self.layout.schedule] if self.layout.pp > 1 else "1f1b"

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

    @property
    def num_operations(self) -> int:
        return 2 * self.num_micro_batches * len(self.devices)

    @cached_property
    def schedule(self) -> Schedule:
        if self.ledger.vocabulary is not None:
            return vocabulary_passes.schedule_of(self, self.ledger.vocabulary)
        chunks = chunks_per_stage(self.layout)
        return simulator.make(self.schedule_name, self.layout.pp, self.num_micro_batches, chunks)

    @cached_property
    def stage(self) -> StageSeconds:
        """Seconds of a micro-batch on each device, by the closed form."""
        return stage_seconds(self.ledger, self.resolved.rates)

    @cached_property
    def costs(self) -> Costs:
        """Seconds of every operation of the schedule."""
        return simulator_costs.costs_of(self)

    @cached_property
    def _run(self) -> Timeline:
        """The simulated step without bytes, which take as long to work out as the run."""
        return simulator.simulate(self.schedule, replace(self.costs, unhidden_s=self._unhidden_s))

    @cached_property
    def timeline(self) -> Timeline:
        """The simulated step, with its memory over time."""
        return replace(self._run, costs=simulator_costs.with_bytes(self, self._run.costs))

    @property
    def is_simulated(self) -> bool:
        """Whether `step_s` is simulated. Else it is the closed form: for a layout without a pipeline or with too many
        operations, for links that differ while the nodes of the stages are unknown, and for all techniques but
        vocabulary parallelism, which is the only one that the simulator knows."""
        techniques_known = len(self.resolved.workload.techniques) <= (self.ledger.vocabulary is not None)
        links_known = self.resolved.cluster.links is None or self.resolved.nodes is not None
        small_enough = self.layout.pp > 1 and self.num_operations <= MOST_OPERATIONS
        return self.simulate and techniques_known and links_known and small_enough

    @cached_property
    def step_s(self) -> float:
        """Seconds of a step."""
        if not self.is_simulated:
            return self.closed_s
        beside_s = sum(self._beside_makespan_s.values())
        return (self._run.makespan_s + beside_s) * (1.0 + stragglers.straggler_share(self.ledger))

    @cached_property
    def terms(self) -> dict[str, float]:
        """Seconds of each term (step.TERMS); they sum to `step_s`. In a simulated step, messages and collectives are
        the seconds that they add to the makespan. The bubble is the remainder: the time that the slowest device is idle
        in a pipeline without messages."""
        terms = {name: float(seconds[0]) for name, seconds in self.estimate.terms.items()}
        if not self.is_simulated:
            return terms
        pipeline = replace(self.costs, reduce_s=(), gather_s=(), optimizer_s=())
        compute = replace(pipeline, forward_hop_s=(), backward_hop_s=(), forward_link_s=(), backward_link_s=())
        pipeline_s, compute_s = (simulator.simulate(self.schedule, costs).makespan_s for costs in (pipeline, compute))
        terms["pp"] = max(pipeline_s - compute_s, 0.0)
        terms["optimizer"] = max(self.costs.optimizer_s)
        terms["dp"] = max(self._run.makespan_s - pipeline_s - terms["optimizer"], 0.0)
        for name, seconds in self._beside_makespan_s.items():
            terms[name] = seconds + (terms[name] if name in SIMULATED_TERMS else 0.0)
        share = stragglers.straggler_share(self.ledger)
        terms["stragglers"] = self.step_s * share / (1.0 + share)
        if self.ledger.vocabulary is not None:  # waiting for it is part of the bubble
            beside_s = vocabulary_overhead_s(self.ledger, self.resolved.rates)
            terms["vocabulary"] = self.num_micro_batches * float(beside_s[0])
        terms["bubble"] = 0.0
        terms["bubble"] = max(self.step_s - sum(terms.values()), 0.0)
        return terms

    @property
    def _beside_makespan_s(self) -> dict[str, float]:
        """Seconds of each term that a simulated step has beside the makespan."""
        terms = self.estimate.terms
        beside_s = {name: float(seconds[0]) for name, seconds in terms.items() if name not in SIMULATED_TERMS}
        return {**beside_s, **self.once_terms, "dp": self._contention_s}

    @cached_property
    def once_terms(self) -> dict[str, float]:
        """Seconds of each of step.ONCE_TERMS."""
        return {name: float(s[0]) for name, s in step.once_terms(self.ledger, self.resolved.rates).items()}

    @cached_property
    def _contention_s(self) -> float:
        """Seconds by which hidden data-parallel communication slows compute, as the closed form has them: the simulator
        runs hidden traffic for free."""
        ledger, rates, slowest = self.estimate.ledger, self.estimate.rates, self.estimate.slowest
        # Over islands the estimate has some of the stages only.
        stage = self.stage if ledger is self.ledger else stage_seconds(ledger, rates)
        passes = stage.forward[slowest, 0], stage.backward[slowest, 0], stage.used[:, slowest, 0]
        without = replace(rates, stack=replace(rates.stack, contention=0.0))
        with_s, without_s = (exposed_dp_s(ledger, of, *passes) for of in (rates, without))
        return float(with_s[0] - without_s[0])

    @cached_property
    def _unhidden_s(self) -> tuple[float, ...]:
        """[device] seconds of data-parallel communication that the stack hides behind nothing."""
        shares = simulator_costs.hiding_shares(self.resolved.stack)
        shown_s = np.zeros(len(self.schedule.first) - 1)
        for share, seconds in zip(shares, (self.costs.gather_s, self.costs.reduce_s), strict=True):
            np.add.at(shown_s, self.schedule.device, (1.0 / share - 1.0) * np.array(seconds))
        return tuple(shown_s.tolist())

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
