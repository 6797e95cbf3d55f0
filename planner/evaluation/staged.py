"""The step of one layout, operation by operation: its pipeline in the event simulator, with the costs of the tables.

The costs are those that `step.price` reads (operations x rates), so that the closed form and the simulation of a layout
can be compared.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from functools import cached_property, partial

import numpy as np

from ...cost_models import build_ledger
from ...cost_models.arrays import Array
from ...cost_models.layouts import SCHEDULES, Layout, Layouts
from ...cost_models.quantities import tables
from ...cost_models.quantities.device_memory import DeviceMemory
from ...cost_models.quantities.exchanges import Op
from ...cost_models.quantities.gradients import accumulated_bytes, reductions
from ...cost_models.quantities.groups import Groups
from ...cost_models.quantities.ledger import Ledger
from ...cost_models.quantities.stages import (
    EXTRA_KINDS,
    Partition,
    Splits,
    chunk_devices,
    chunk_rows,
    chunk_sizes,
    on_devices,
    redone_rows,
)
from ...cost_models.quantities.tables import Tables, index_keys
from ...cost_models.rates import collectives
from ...cost_models.rates.kernel_seconds import keep_kernel_seconds, kernel_seconds
from ...cost_models.rates.rates import COMPONENTS
from ...cost_models.schedules import simulator
from ...cost_models.schedules.simulator import Costs, Schedule, Timeline
from ...cost_models.step import stage_messages, stage_seconds, step, stragglers
from ...cost_models.step.data_parallel import in_pieces, of_whole_weights_s
from ...cost_models.step.per_pass_overhead import beside_s
from ...cost_models.step.step import Estimate
from ...cost_models.step.vocabulary_seconds import vocabulary_beside_s
from ..document.plan import layout_id, own_stages
from ..request.resolve import Resolved
from . import vocabulary_passes
from .network import Network

# A schedule of more operations than this is not simulated: it would take seconds.
MOST_OPERATIONS = 1 << 22
# Terms of a step (step.TERMS) that are in the makespan of the simulator, or a factor on all others. A simulated step
# adds every other term to the makespan, with its seconds of the closed form.
SIMULATED_TERMS = frozenset({*COMPONENTS, "accumulate", "fsdp", "resharding", "vocabulary", "bubble", "pp", "dp",
                             "optimizer", "offload", "stragglers"})  # fmt: skip


def chunks_per_stage(layout: Layout) -> int:
    return layout.vpp if layout.pp > 1 else 1


def devices_of(layout: Layout) -> list[int]:
    """Device of each chunk, in the order of the model."""
    return chunk_devices(layout.pp, chunks_per_stage(layout), SCHEDULES[layout.schedule])


def one_by_one(batch: Ledger) -> Ledger:
    """The ledger of one layout on single devices: row k holds one layer of kind k, the last row holds nothing."""
    kinds = batch.splits.counts.shape[2]
    counts = np.vstack([np.eye(kinds), np.zeros(kinds)])[:, None]
    one = np.ones((kinds + 1, 1))
    splits = Splits(counts, np.zeros_like(one), one, counts[:, 0])
    rows = np.zeros(kinds + 1, dtype=np.int64)
    return replace(batch, layouts=batch.layouts.take(rows), key=batch.key[rows], code=batch.code[rows], splits=splits,
                   split=np.arange(kinds + 1))  # fmt: skip


def even_partition(resolved: Resolved, layout: Layout) -> Partition:
    """The stages of a layout that names no others: as even as possible."""
    return Partition(tuple(chunk_sizes(resolved.model.num_layers, len(devices_of(layout)))))


@dataclass(frozen=True)
class Staged:
    """A layout with its stages, priced: profile j of `batch` is device j."""

    resolved: Resolved
    layout: Layout
    partition: Partition
    batch: Ledger
    estimate: Estimate
    simulate: bool = False

    @classmethod
    def of(
        cls, resolved: Resolved, layout: Layout, partition: Partition | None = None, *, simulate: bool = False
    ) -> Staged:
        """partition: None for stages as even as possible; simulate: whether `step_s` is that of the simulator."""
        columns = Layouts.of([layout])
        keys, _ = index_keys(columns)
        return cls._priced(resolved, layout, partition, tables.build(resolved.problem, keys), simulate)

    def split(self, partition: Partition | None) -> Staged:
        """The same layout with other stages."""
        return self._priced(self.resolved, self.layout, partition, self.batch.tables, self.simulate)

    @classmethod
    def _priced(
        cls, resolved: Resolved, layout: Layout, partition: Partition | None, priced: Tables, simulate: bool
    ) -> Staged:
        partition, columns = partition or even_partition(resolved, layout), Layouts.of([layout])
        batch = build_ledger.build(resolved.problem, priced, columns, np.zeros(1, dtype=np.int64), partition)
        return cls(resolved, layout, partition, batch, step.price(batch, resolved.rates, detail=True), simulate)

    @cached_property
    def own(self) -> Partition | None:
        """Its stages, where they are not those of the layout."""
        return own_stages(self.layout, self.partition)

    @property
    def id(self) -> str:
        return layout_id(self.layout, self.own)

    @cached_property
    def devices(self) -> list[int]:
        return devices_of(self.layout)

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
        ends = (problem.pattern, problem.num_kinds, problem.edges)
        how = (layout.pp, chunks_per_stage(layout), self.schedule_name)
        rows = chunk_rows(*ends, *how, self.partition.sizes)
        if self.batch.vocabulary is not None:  # embedding and head are chunks of their own (vocabulary_passes.py)
            rows[:, -EXTRA_KINDS:] = 0.0
        return rows

    @cached_property
    def redone(self) -> Array:
        """[chunk, kind] layers under recompute; of n layers per stage an average share of each chunk."""
        problem, layout = self.resolved.problem, self.layout
        if self.partition.redone is not None:
            return redone_rows(problem.pattern, problem.num_kinds, problem.edges, self.partition)
        if not layout.recompute_layers:
            return self.rows
        layers = on_devices(self.rows[:, :-EXTRA_KINDS].sum(axis=1), self.devices)
        share = np.minimum(layout.recompute_layers / np.maximum(layers, 1.0), 1.0)[self.devices]
        return np.asarray(share[:, None] * self.rows)

    @property
    def num_micro_batches(self) -> int:
        return round(float(self.batch.m[0]))

    @property
    def num_operations(self) -> int:
        return 2 * self.num_micro_batches * len(self.devices)

    @cached_property
    def schedule(self) -> Schedule:
        pp, vpp = self.layout.pp, chunks_per_stage(self.layout)
        if self.batch.vocabulary is not None:
            return vocabulary_passes.schedule_of(self, self.batch.vocabulary)
        return simulator.make(self.schedule_name, pp, self.num_micro_batches, vpp)

    @cached_property
    def costs(self) -> Costs:
        """Of the schedule: stage sums of the tables, message seconds, data-parallel collectives."""
        batch, stack, rates = self.batch, self.resolved.stack, self.resolved.rates
        key, code = int(batch.key[0]), batch.codes[int(batch.code[0])]
        quantities, seconds = batch.tables, kernel_seconds(batch.tables, rates)
        rows, redone, devices = self.rows, self.redone, np.array(self.devices)
        forward, weight = rows @ seconds.forward_s[:, key], rows @ seconds.weight_s[:, key]
        backward = rows @ seconds.backward_s[:, key] + redone @ seconds.recompute_s(*code).sum(axis=1)[:, key]
        beside = beside_s(batch, rates)[:, devices, 0] / np.bincount(devices)[devices]
        forward, backward = forward + beside[0], backward + beside[1]
        # What is neither computed nor sent goes with the backward pass: most of it are gradients that are added up.
        added = rows @ accumulated_bytes(one_by_one(batch), 0)[: rows.shape[1]]
        of_device = np.bincount(devices, added)[devices]
        equal = 1.0 / np.bincount(devices)[devices]
        part = np.divide(added, of_device, out=equal, where=of_device > 0)
        exposed = stage_seconds.exposed_s(batch, rates)[devices, 0] * part
        dropped = (quantities.saved(0, 0) - quantities.saved(*code))[:, key]
        activations = rows @ quantities.saved(0, 0)[:, key] - redone @ dropped
        hops, links = (tuple(map(tuple, each.tolist())) for each in self._messages_s)
        reduce_s, gather_s = _data_parallel(self.resolved, batch, rows)
        memory = DeviceMemory(batch)
        held = [memory.buffers(j) for j in range(batch.num_profiles)]
        static = [sum(float(x[0]) for name, x in one.items() if name != "activations") for one in held]
        costs = Costs(
            forward_s=tuple(forward.tolist()), weight_s=tuple(weight.tolist()),
            input_s=tuple((np.maximum(backward - weight, 0.0) + exposed).tolist()),
            forward_hop_s=hops[0], backward_hop_s=hops[1], forward_link_s=links[0], backward_link_s=links[1],
            reduce_s=tuple(reduce_s.tolist()), gather_s=tuple(gather_s.tolist()),
            buckets=round(float(reductions(batch)[0][0])), gather_overlap=min(stack.dp_gather_overlap, 1.0),
            overlap=min(stack.dp_overlap, 1.0), static_bytes=tuple(static),
            optimizer_s=(float(self.estimate.terms["optimizer"][0]),) * self.layout.pp,
            activation_bytes=tuple(activations.tolist()),
            stash_bytes=tuple((rows @ quantities.wgrad_stash[:, key]).tolist()),
        )  # fmt: skip
        if batch.vocabulary is None:
            return costs
        return vocabulary_passes.costs_of(self, batch.vocabulary, costs, partial(_data_parallel, self.resolved, batch))

    @property
    def _messages_s(self) -> tuple[Array, Array]:
        """[2, chunk] seconds of the messages that bring its input and its gradient; how long they keep a link busy."""
        devices, resolved = self.devices, self.resolved
        if resolved.nodes is None:
            hop_s = float(stage_messages.hop_s(self.batch, resolved.rates)[0])
            link_s = float(stage_messages.link_s(self.batch, resolved.rates)[0])
            return np.full((2, len(devices)), hop_s), np.full((2, len(devices)), link_s)
        bw = Network(resolved.cluster).between_stages(self.layout, resolved.nodes)
        before, after = (np.clip(np.arange(len(devices)) + by, 0, len(devices) - 1) for by in (-1, 1))
        here = np.array(devices)
        of_message = np.array([bw[here[before], here], bw[here[after], here]])
        network, out = resolved.network or {}, np.zeros((2, 2, len(devices)))
        for one in np.unique(of_message).tolist():
            rates = resolved.rates.on_network({**network, "pp": one})
            seconds = [float(each(self.batch, rates)[0]) for each in (stage_messages.hop_s, stage_messages.link_s)]
            out[:, of_message == one] = np.array(seconds)[:, None]
        return out[0], out[1]

    @cached_property
    def timeline(self) -> Timeline:
        return simulator.simulate(self.schedule, self.costs)

    @property
    def is_simulated(self) -> bool:
        """Whether `step_s` is simulated: a pipeline of not too many operations, on links that are alike or on nodes
        that are known, trained as usual; of techniques the simulator knows vocabulary parallelism. Else it is the
        closed form."""
        known = len(self.resolved.workload.techniques) <= (self.batch.vocabulary is not None)
        usual = known and (self.resolved.cluster.links is None or self.resolved.nodes is not None)
        return self.simulate and usual and self.layout.pp > 1 and self.num_operations <= MOST_OPERATIONS

    @cached_property
    def step_s(self) -> float:
        """Seconds of a step."""
        if not self.is_simulated:
            return self.closed_s
        beside_s = sum(self._beside_makespan_s.values())
        return (self.timeline.makespan_s + beside_s) * (1.0 + stragglers.straggler_share(self.batch))

    @cached_property
    def terms(self) -> dict[str, float]:
        """Seconds of each term (step.TERMS); they sum to `step_s`. Of a simulation: messages and collectives are what
        they add to the makespan, and the bubble is what the makespan without them is beyond the slowest device."""
        terms = {name: float(seconds[0]) for name, seconds in self.estimate.terms.items()}
        if not self.is_simulated:
            return terms
        alone = replace(self.costs, reduce_s=(), gather_s=(), optimizer_s=())
        silent = replace(alone, forward_hop_s=(), backward_hop_s=(), forward_link_s=(), backward_link_s=())
        with_messages, without = (simulator.simulate(self.schedule, costs).makespan_s for costs in (alone, silent))
        terms["pp"] = max(with_messages - without, 0.0)
        terms["dp"] = max(self.timeline.makespan_s - with_messages - terms["optimizer"], 0.0)
        for name, seconds in self._beside_makespan_s.items():
            terms[name] = seconds + (terms[name] if name in SIMULATED_TERMS else 0.0)
        share = stragglers.straggler_share(self.batch)
        terms["stragglers"] = self.step_s * share / (1.0 + share)
        if self.batch.vocabulary is not None:  # waiting for it is part of the bubble
            beside_s = vocabulary_beside_s(self.batch, self.resolved.rates)
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
        return {name: float(s[0]) for name, s in step.once_terms(self.batch, self.resolved.rates).items()}

    @cached_property
    def _contention_s(self) -> float:
        """What hidden data-parallel communication slows compute by, as the closed form charges it; not simulated."""
        rates = self.resolved.rates
        without = replace(rates, stack=replace(rates.stack, contention=0.0))
        # Of kernels, whose tensor-parallel traffic contends too, the seconds stay.
        shown, _ = step.step_terms(self.batch, keep_kernel_seconds(self.batch.tables, rates, without))
        return max(float(self.estimate.terms["dp"][0] - shown["dp"][0]), 0.0)

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


def _seconds(resolved: Resolved, group: str, op: Op, size: int, stride: int, num_bytes: Array, calls: float) -> Array:
    """[chunk] seconds of a collective of `num_bytes` in `calls` pieces, in a kind of group (rates.GROUPS)."""
    levels = resolved.rates.levels_of(group)
    curve = collectives.curve(resolved.rates.collectives, levels, op, np.array([size]), np.array([stride]))
    return in_pieces(curve, num_bytes, np.array(calls))


def _data_parallel(resolved: Resolved, batch: Ledger, rows: Array) -> tuple[Array, Array]:
    """[chunk] seconds to reduce the gradients and to gather the weights of each chunk, as in `step`."""
    states = resolved.problem.state_bytes
    reduce_s, gather_s = np.zeros((2, len(rows)))
    per_chunk = int(batch.layouts["pp"][0]) / len(rows)
    parts: list[tuple[str, Groups]] = [("trained_dense", batch.dense_groups), ("trained_experts", batch.expert_groups)]
    for (name, groups), prefix, total in zip(parts[: 1 + resolved.model.is_moe], ("", "expert_"), reductions(batch),
                                             strict=False):  # fmt: skip
        calls = max(float(total[0]) * per_chunk, 1.0) if total[0] else 0.0
        trained = rows @ batch.tables.parameters[name][:, int(batch.key[0])]
        shard, stride = int(groups.shard[0]), int(groups.shard_stride[0])
        gradient, weight = trained * states.gradient, trained * states.weight
        if batch.states.reduces_once[0]:
            reduce_s += _seconds(resolved, f"{prefix}shard", "reduce_scatter", shard, stride, gradient, calls)
        copies = int(groups.replicate[0]), int(groups.replicate_stride[0])
        reduce_s += _seconds(resolved, f"{prefix}replicate", "all_reduce", *copies, gradient / shard, calls)
        if batch.states.gathers_once[0]:
            one_by_one = resolved.stack.dp_gather == "broadcasts"
            op: Op = "broadcast" if one_by_one else "all_gather"
            pieces = float(shard) if one_by_one else calls
            gather_s += _seconds(resolved, f"{prefix}shard", op, shard, stride, weight, pieces)
    return reduce_s + float(of_whole_weights_s(batch, resolved.rates)[0]) * per_chunk, gather_s
