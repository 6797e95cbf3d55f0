"""A batch of layouts as quantities: layers per stage, micro-batches in flight, bytes per buffer, collective calls.

No bandwidth, efficiency or fitted constant appears here. Arrays over the batch are [n]; per stage profile (stages.py)
they are lists over J of [n].
"""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import dataclass
from functools import cached_property

import numpy as np
from numpy.typing import NDArray

from ..arrays import Array, Ints
from ..layouts import OFFLOADS, SCHEDULES, V_SCHEDULES, Layouts
from ..problem import Problem
from .exchanges import PLAIN, Exchanges
from .groups import Groups
from .memory import flat_buffer_bytes
from .moments import IN_EMBEDDING, IN_LAYER, IN_W, TRANSIENT, memory_moments, number_of_moments
from .operations import activation_bytes, cast_bytes
from .resident import resident_bytes, splits_backward
from .stages import Splits
from .stores import Store
from .tables import Tables
from .traffic import StateTraffic
from .vocabulary import Vocabulary

# Megatron-LM DistributedDataParallelConfig: gradients are reduced in buckets of max(40M, 1M x dp) parameters.
BUCKET_PARAMETERS, BUCKET_PARAMETERS_PER_RANK = 40e6, 1e6

# The optimizer on the host: an fp32 gradient beside the states, and half as much again in pinned buffers (DeepSpeed's
# estimators, runtime/zero/stage3.py: 16-18 bytes x 1.5).
HOST_GRADIENT_BYTES, HOST_BUFFER_FACTOR = 4.0, 1.5

LASTING = ("weights", "gradients", "optimizer", "activations")
BUFFERS = (*LASTING, *TRANSIENT)




@dataclass(frozen=True)
class Ledger:
    """Quantities of a batch. `key`, `code`, `split`: row -> shard key, recompute code, split. `traffic`: of the phases
    of training, whose shares sum to 1. `exchanges`: of sharded states, per micro-batch; `store`: what
    of them is elsewhere; `vocabulary`: how embedding and head are over all stages, where they are."""

    problem: Problem
    tables: Tables
    layouts: Layouts
    key: Ints
    codes: tuple[tuple[int, int], ...]
    code: Ints
    splits: Splits
    split: Ints
    traffic: tuple[StateTraffic, ...]
    exchanges: Exchanges = PLAIN
    store: Store | None = None
    vocabulary: Vocabulary | None = None

    @cached_property
    def m(self) -> Array:
        """[n] micro-batches per pipeline and step: B / (dp x micro batch)."""
        return np.asarray(
            self.problem.workload.global_batch / (self.layouts["dp"] * self.layouts["micro_batch"]), dtype=np.float64
        )

    @property
    def num_profiles(self) -> int:
        return int(self.splits.first.shape[1])

    @cached_property
    def kinds(self) -> tuple[int, ...]:
        """Kinds that occur at all (there is mostly no MTP projection)."""
        return tuple(k for k in range(self.splits.counts.shape[2]) if self.splits.counts[:, :, k].any())

    @cached_property
    def counts(self) -> list[dict[int, Array]]:
        """Per profile: kind -> [n] layers of that kind on the device."""
        return [self._of_split(self.splits.counts, j) for j in range(self.num_profiles)]

    def _of_split(self, counts: Array, j: int) -> dict[int, Array]:
        """Kind -> [n] of [split, J, kind] counts those of profile j."""
        return {k: counts[:, j, k][self.split] for k in self.kinds}

    @cached_property
    def back(self) -> list[dict[int, Array]]:
        """Per profile: kind -> [n] what of `counts` is on the chunk that a V comes back through; {} without a V."""
        if self.splits.back is None:
            return [{}] * self.num_profiles
        return [self._of_split(self.splits.back, j) for j in range(self.num_profiles)]

    @cached_property
    def totals(self) -> dict[int, Array]:
        """Kind -> [n] layers of that kind over all devices."""
        return {k: self.splits.total[:, k][self.split] for k in self.kinds}

    @cached_property
    def layers(self) -> list[Array]:
        """Per profile: [n] decoder layers on the device."""
        return [self.splits.layers[:, j][self.split] for j in range(self.num_profiles)]

    def over_profiles(self, rows: Array) -> Array:
        """Sum over all devices of the pipeline of a [J, n] quantity: [n]."""
        return np.asarray(sum(self.splits.devices[:, j][self.split] * rows[j] for j in range(self.num_profiles)))

    def redone(self, j: int, rows: dict[int, Array]) -> Array:
        """Sum over the layers of profile j that are under recompute: [n]. All of them; n of them, of average kind; or
        those that the split names."""
        if self.splits.redone is not None:
            return _weighted(self._of_split(self.splits.redone, j), rows)
        return self._first_layers(self.counts[j], rows, self.layouts["recompute_layers"])

    def _redone_back(self, j: int, rows: dict[int, Array]) -> Array:
        """The same of the chunk that comes back through a V: what is left of n layers for it."""
        if self.splits.redone_back is not None:
            return _weighted(self._of_split(self.splits.redone_back, j), rows)
        wanted, back = self.layouts["recompute_layers"], self.back[j]
        before = self.layers[j] - _layers(back, self.problem.num_kinds)
        left = np.where((wanted > 0) & (wanted <= before), -1, np.where(wanted > 0, wanted - before, 0))
        return self._first_layers(back, rows, left)

    def _first_layers(self, counts: dict[int, Array], rows: dict[int, Array], wanted: Array) -> Array:
        """[n] sum over so many layers of these, of average kind; 0: all of them, -1: none."""
        total = _weighted(counts, rows)
        if not wanted.any():
            return total
        layers = np.maximum(_layers(counts, self.problem.num_kinds), 1.0)
        return np.asarray(np.where(wanted != 0, np.clip(wanted / layers, 0.0, 1.0), 1.0) * total)

    def per_kind(self, table: Array) -> dict[int, Array]:
        """Rows of a [kind, key] table for the batch: kind -> [n]."""
        return {k: table[k][self.key] for k in self.kinds}

    def per_code(self, tables: Array) -> dict[int, Array]:
        """Rows of a [code, kind, key] table: kind -> [n]."""
        return {k: tables[:, k].ravel()[self._of_code] for k in self.kinds}

    @cached_property
    def _of_code(self) -> Ints:
        """[n] place of a row in a [code, key] table: one look-up takes half the time of one by code and key."""
        return self.code * self.tables.num_keys + self.key

    def on_profile(self, j: int, rows: dict[int, Array]) -> Array:
        """Sum over the kinds of profile j: [n]."""
        return _weighted(self.counts[j], rows)

    def over_devices(self, rows: dict[int, Array]) -> Array:
        """Sum over all devices of the pipeline: [n]."""
        return _weighted(self.totals, rows)

    @cached_property
    def dense_groups(self) -> Groups:
        return Groups.dense(self.layouts)

    @cached_property
    def expert_groups(self) -> Groups:
        return Groups.experts(self.layouts)

    @cached_property
    def trained(self) -> list[tuple[Array, Array]]:
        """Per profile: trained (dense, expert) parameters of a rank before ZeRO."""
        dense = self.per_kind(self.tables.parameters["trained_dense"])
        experts = self.per_kind(self.tables.parameters["trained_experts"])
        has_experts = self.problem.model.is_moe
        zero = np.zeros(len(self.layouts))
        return [
            (self.on_profile(j, dense), self.on_profile(j, experts) if has_experts else zero)
            for j in range(self.num_profiles)
        ]

    @cached_property
    def updated(self) -> list[Array]:
        """Per profile: parameters a rank's optimizer steps over."""
        dense, experts = self.dense_groups.shard, self.expert_groups.shard
        return [d / dense + e / experts for d, e in self.trained]

    @cached_property
    def reductions(self) -> tuple[Array, Array]:
        """[n] calls in which the gradients of the fullest stage are reduced: dense, of experts (StackSpec.reduces)."""
        x = self.layouts
        if self.problem.stack.reduces == "buckets":
            size = np.maximum(BUCKET_PARAMETERS, BUCKET_PARAMETERS_PER_RANK * x["dp"])
            largest = np.max([dense + experts for dense, experts in self.trained], axis=0)
            buckets = np.asarray(np.maximum(np.ceil(largest / size), 1.0))
            return buckets, buckets
        moe = [k for k, variant in enumerate(self.problem.variants) if self.problem.model.kinds[variant.kind].is_moe]
        experts = self._most_parts(moe)
        # Experts that every rank has whole are reduced with the other weights of their layer.
        apart = (x["tp"] > 1) | (x["ep"] * x["etp"] > 1)
        return self._most_parts() + np.where(x["tp"] > 1, self.whole_parts, 0.0), np.where(apart, experts, 0.0)

    def _most_parts(self, kinds: Collection[int] | None = None) -> Array:
        """[n] layers and ends of the model, of these kinds, on the stage that has most of them."""
        each = [sum((counts[k] for k in self.kinds if kinds is None or k in kinds), np.zeros(len(self.layouts)))
                for counts in self.counts]  # fmt: skip
        return np.asarray(np.max(each, axis=0))

    @cached_property
    def whole_parts(self) -> Array:
        """[n] of them, those with trained weights that tp does not split."""
        return self._most_parts(np.flatnonzero(self.tables.parameters["trained_whole"].any(axis=1)).tolist())

    @cached_property
    def trained_whole(self) -> Array:
        """[n] trained parameters of the fullest stage that tp does not split."""
        rows = self.per_kind(self.tables.parameters["trained_whole"])
        return np.asarray(np.max([self.on_profile(j, rows) for j in range(self.num_profiles)], axis=0))

    @cached_property
    def offloads_optimizer(self) -> NDArray[np.bool_]:
        return np.isin(self.layouts["offload"], (OFFLOADS.index("opt"), OFFLOADS.index("opt+act")))

    @property
    def stores_optimizer(self) -> bool:
        return self.store is not None and self.store.optimizer

    @cached_property
    def away(self) -> NDArray[np.bool_]:
        """[n] the optimizer's states are not on the GPU."""
        return np.asarray(self.offloads_optimizer | self.stores_optimizer)

    @cached_property
    def offloads_activations(self) -> NDArray[np.bool_]:
        return np.isin(self.layouts["offload"], (OFFLOADS.index("act"), OFFLOADS.index("opt+act")))

    @cached_property
    def saved_tables(self) -> Array:
        """[code, kind, key] bytes saved per micro-batch."""
        return np.array([self.tables.saved(mode, modules) for mode, modules in self.codes])

    @cached_property
    def saved(self) -> list[Array]:
        """Per profile: bytes of activations per micro-batch."""
        rows = self.per_code(self.saved_tables)
        if not self._redoes_some:
            return [self.on_profile(j, rows) for j in range(self.num_profiles)]
        kept, dropped = self._kept_and_dropped
        return [self.on_profile(j, kept) - self.redone(j, dropped) for j in range(self.num_profiles)]

    @cached_property
    def saved_back(self) -> list[Array]:
        """Per profile: what of `saved` is on the chunk that a V comes back through."""
        rows = self.per_code(self.saved_tables)
        if not self._redoes_some:
            return [_weighted(counts, rows) for counts in self.back]
        kept, dropped = self._kept_and_dropped
        return [_weighted(counts, kept) - self._redone_back(j, dropped) for j, counts in enumerate(self.back)]

    @property
    def _redoes_some(self) -> bool:
        """Whether any row recomputes some layers of a stage and others not."""
        return self.splits.redone is not None or bool(self.layouts["recompute_layers"].any())

    @cached_property
    def _kept_and_dropped(self) -> tuple[dict[int, Array], dict[int, Array]]:
        """Kind -> [n] bytes that a layer saves, and how much less under recompute."""
        rows, kept = self.per_code(self.saved_tables), self.per_kind(self.tables.saved(0, 0))
        return kept, {kind: kept[kind] - row for kind, row in rows.items()}

    @cached_property
    def waiting(self) -> list[Array]:
        """Per profile: [2, n] bytes of a micro-batch that wait for its W, of schedules that split the backward pass: on
        the chunk that a V comes back through, and on all others."""
        rows = self.per_kind(self.tables.wgrad_stash)
        back = [_weighted(counts, rows) + np.zeros(len(self.layouts)) for counts in self.back]
        return [np.array([self.on_profile(j, rows) - back[j], back[j]]) for j in range(self.num_profiles)]

    def memory(self, j: int, *, gathered: bool = True) -> dict[str, Array]:
        """Bytes of every buffer (BUFFERS) on the device of profile j at its peak: [n] each. `gathered`: count that one
        and the flat copies, which come only with sharded states: without them more shards never need more.

        What comes and goes is that of the fullest moment (moments.py).
        """
        passing, (after_f, after_i) = self._passing(j, gathered), self._activations(j)
        in_i = after_i - self.late_bytes
        last = self._beside_embedding(j, after_f, after_i)
        held = [after_f, after_f, np.maximum(after_f, in_i), after_i, last, after_f]
        passing["activations"] = np.array(held[: number_of_moments(self.problem)])
        fullest = np.argmax(np.sum(list(passing.values()), axis=0), axis=0)
        pick = np.arange(len(self.layouts))
        return {**self.states(j), **{name: each[fullest, pick] for name, each in passing.items()}}

    def _beside_embedding(self, j: int, after_f: Array, after_i: Array) -> Array:
        """[n] bytes of activations when the gradient of the embedding is made: those of its micro-batch are gone, but
        for what waits for W."""
        others = np.maximum(after_f - self.saved[j] / self.chunks, 0.0)
        return np.asarray(np.where(splits_backward(self.layouts["schedule"]), after_i, others))

    def _passing(self, j: int, gathered: bool) -> dict[str, Array]:
        """[moment, n] bytes of what comes and goes (liveness.TRANSIENT), as `memory` counts it."""
        passing, (trained_dense, trained_experts) = memory_moments(self, j), self.trained[j]
        if gathered:
            stack, states = self.problem.stack, self.problem.state_bytes
            flat = flat_buffer_bytes(stack, states, trained_dense + trained_experts, self.updated[j])
            passing["workspace"] = passing["workspace"] + np.where((self.layouts["zero"] > 0) & ~self.away, flat, 0.0)
        else:
            passing["gathered"] = np.zeros_like(passing["gathered"])
        return passing

    @cached_property
    def late_bytes(self) -> Array:
        """[n] what a layer whose I runs does not hold yet of what it does after it: it still has what it saved, and not
        yet what its W needs."""
        layers = slice(self.problem.num_kinds)
        more = (self.tables.wgrad_stash[layers] - self.saved_tables[:, layers]).max(axis=1)[self.code, self.key]
        return np.asarray(np.maximum(more, 0.0))

    def passing_bytes(self, j: int, late_bytes: Array) -> Array:
        """[3, n] bytes of what comes and goes on the device of profile j, at its most beside the activations that are
        there after an F, at its most beside those after an I, and in the backward pass of the embedding."""
        each = np.sum(list(self._passing(j, True).values()), axis=0)
        after_f = np.delete(each, (IN_W, IN_EMBEDDING), axis=0).max(axis=0)
        after_i = np.max([each[IN_W], each[IN_LAYER] - late_bytes, each[IN_EMBEDDING]], axis=0)
        return np.array([after_f, after_i, each[IN_EMBEDDING]])

    def states(self, j: int) -> dict[str, Array]:
        """Bytes of weights, gradients and optimizer states on the device of profile j: [n] each."""
        states, zero, (trained_dense, trained_experts) = self.problem.state_bytes, self.layouts["zero"], self.trained[j]
        scattered = ~self.whole_in_pipeline
        gradient_shards = self._sharers(self.exchanges.gradients_over, (zero >= 2) & ~self.whole_gradients)
        weights = self._weights(j)
        if not self.problem.stack.master_weights:  # what is whole was gathered from shards; else those are the masters
            weights = weights + np.where((zero == 3) & ~scattered, self.updated[j] * states.weight, 0.0)
        adapters = 0.0 if self.problem.workload.lora is None else trained_dense * states.weight
        gradient = trained_dense / gradient_shards[0] + trained_experts / gradient_shards[1]
        return {
            "weights": weights + adapters,
            "gradients": np.where(self.stores_optimizer, 0.0, gradient * states.gradient),
            "optimizer": np.where(self.away, 0.0, self.updated[j] * states.optimizer) + self._kept(j),
        }

    def _sharers(self, reach: int | None, divided: NDArray[np.bool_]) -> list[Ints]:
        """[n] ranks over which a state of the dense parameters, and of experts, is divided where it is."""
        per_node = self.problem.gpus_per_node
        return [np.where(divided, groups.within(reach, per_node), 1)
                for groups in (self.dense_groups, self.expert_groups)]  # fmt: skip

    def _weights(self, j: int) -> Array:
        """[n] bytes of all weights on the device of profile j, with the second copy that a technique keeps."""
        divided = (self.layouts["zero"] == 3) & ~self.whole_in_pipeline
        plan = self.exchanges
        names = ("dense_bytes", "experts_bytes")[: 1 + self.problem.model.is_moe]
        total: Array | float = 0.0
        for part, name in enumerate(names):
            whole = self.on_profile(j, self.per_kind(self.tables.parameters[name]))
            if self.store is None or not self.store.weights:
                total = total + whole / self._sharers(plan.weights_over, divided)[part]
            if plan.copied_over is not None:
                total = total + np.where(divided, whole / self._sharers(plan.copied_over, divided)[part], 0.0)
        return np.asarray(total + np.zeros(len(self.layouts)))

    def _kept(self, j: int) -> Array:
        """[n] bytes that the traffic of states needs beside the optimizer's, on the GPU."""
        most: Array | float = 0.0
        for each in self.traffic:
            most = np.maximum(most, each.kept)
        return np.asarray(self.updated[j] * most)

    def accumulated_bytes(self, j: int, *, scattered: bool = True) -> Array:
        """[n] bytes per micro-batch of adding its gradients to the sum: it is read and written, and the gradient of a
        product that does not add by itself is written and read before. None if there is one micro-batch. Without
        `scattered` as if no ZeRO stage divided them."""
        return self._accumulated(*self.trained[j], scattered)

    def accumulated_per_kind(self) -> dict[int, Array]:
        """Kind -> [n] the same bytes of one layer of that kind."""
        dense = self.per_kind(self.tables.parameters["trained_dense"])
        experts = self.per_kind(self.tables.parameters["trained_experts"])
        return {kind: self._accumulated(dense[kind], experts[kind], True) for kind in self.kinds}

    def _accumulated(self, dense: Array, experts: Array, scattered: bool) -> Array:
        divided = scattered & (self.layouts["zero"] >= 2) & ~self.whole_gradients
        sharers = self._sharers(self.exchanges.gradients_over, divided)
        summed = dense / sharers[0] + experts / sharers[1]
        moved = 2 * self.problem.state_bytes.gradient * summed
        if not self.problem.stack.fused_accumulation:
            whole = np.where(divided, 0.0, dense + experts)  # what is scattered was written by its collective
            moved = moved + 2 * activation_bytes(self.problem.workload) * whole
        return np.asarray(np.where(self.m > 1, moved, 0.0))

    def cast_bytes(self, j: int) -> Array:
        """[n] bytes per step of quantising a rank's weights, where that is kept over the micro-batches."""
        stack, layers = self.problem.stack, self.problem.num_kinds
        if not (self.problem.workload.is_quantised and stack.caches_fp8_weights):
            return np.zeros(len(self.layouts))
        matrices = self.tables.parameters["dense"] + self.tables.parameters["experts"]
        rows = {kind: row for kind, row in self.per_kind(matrices).items() if kind < layers}
        return cast_bytes(self.problem.workload, stack) * _weighted({kind: self.counts[j][kind] for kind in rows}, rows)

    @cached_property
    def whole_in_pipeline(self) -> NDArray[np.bool_]:
        """[n] weights and gradients stay whole through the step, whatever the ZeRO stage (StackSpec.sharded_states)."""
        return np.asarray((self.layouts["pp"] > 1) & self.problem.stack.is_fsdp2)

    @cached_property
    def whole_gradients(self) -> NDArray[np.bool_]:
        """[n] gradients stay whole over the micro-batches of a step, whatever the ZeRO stage."""
        no_sync = self.problem.stack.sharded_states == "fsdp2-no-sync"
        return np.asarray(self.whole_in_pipeline | ((self.m > 1) & no_sync))

    @cached_property
    def reduces_once(self) -> NDArray[np.bool_]:
        """[n] gradients are scattered once per step, not for every micro-batch."""
        zero = self.layouts["zero"]
        return np.asarray((zero == 1) | ((zero >= 2) & self.whole_gradients))

    @cached_property
    def gathers_once(self) -> NDArray[np.bool_]:
        """[n] weights are gathered once per step, after the update."""
        zero, zero_2 = self.layouts["zero"], not self.problem.stack.is_fsdp2
        return np.asarray((zero == 1) | ((zero >= 2) & self.whole_in_pipeline) | ((zero == 2) & zero_2))

    @cached_property
    def _held_by(self) -> dict[int, Array]:
        """What `_held` has found so far, by profile: both the GPU's and the host's memory ask for it."""
        return {}

    def _held(self, j: int, device: Array | None = None) -> Array:
        """[2, n] bytes of activations after an F and after an I (stages.held_bytes). Of the devices with this profile,
        those of the one that holds most: the first, but where what waits for W is more than what waits for I."""
        if device is not None:
            return self._held_on(j, device)
        if j not in self._held_by:
            self._held_by[j] = self._held_on(j, None)
        return self._held_by[j]

    def _held_on(self, j: int, device: Array | None) -> Array:
        x, splits = self.layouts, self.splits
        apart = bool(splits_backward(x["schedule"]).any())
        more = self.vocabulary.barriers if self.vocabulary is not None else 0

        def on(at: Array) -> Array:
            output = np.where(at < x["pp"] - 1, self.kept_output, 0.0)
            at = at - more  # as many micro-batches as a stage that is so many further to the front
            back = self.saved_back[j] if apart else 0.0
            kept = np.array([self.saved[j] + output - back, back + np.zeros_like(output)])
            waiting = self.waiting[j] + output * _THERE if apart else kept
            return resident_bytes(x["schedule"], x["pp"], x["vpp"], self.m, at, kept, waiting)

        held = on(splits.first[:, j][self.split] if device is None else device)
        if not apart or device is not None or splits.last is None:
            return held
        other = on(splits.last[:, j][self.split])
        return np.minimum(held, other) if splits.least else np.maximum(held, other)

    @cached_property
    def kept_output(self) -> Array:
        """[n] bytes of what a stage hands on, per micro-batch in flight: DeepSpeed's pipeline keeps it as it keeps what
        a stage takes (pipe/engine.py, pipe_buffers); Megatron-LM frees it (deallocate_output_tensor)."""
        if self.problem.stack.flat_buffers != "deepspeed":
            return np.zeros(len(self.layouts))
        return np.asarray(self.tables.operations[0].input_bytes + np.zeros(self.tables.num_keys))[self.key]

    def _activations(self, j: int, device: Array | None = None) -> Array:
        """The same on the GPU; where activations are offloaded, those of one layer, or of two where one moves while the
        other is computed. If only some layers are recomputed, of these: what they make again is in `workspace`."""
        held = self._held(j, device)
        if not self.offloads_activations.any():
            return held
        buffers = 2 if self.problem.stack.offload_overlap > 0 else 1
        alike = self.on_profile(j, self.per_code(self.saved_tables))
        here = buffers * alike / np.maximum(self.layers[j], 1.0)
        return np.asarray(np.where(self.offloads_activations, np.minimum(held, here), held))

    def host_bytes(self, j: int, device: Array | None = None) -> Array:
        """[n] bytes that a GPU of profile j keeps on the host: optimizer states, activations of other layers."""
        kept = self.updated[j] * max(each.kept_on_host for each in self.traffic)
        kept = kept + (0.0 if self.store is None else self.store.pinned_bytes)
        if not self.layouts["offload"].any():
            return kept
        per_parameter = (self.problem.state_bytes.optimizer + HOST_GRADIENT_BYTES) * HOST_BUFFER_FACTOR
        states = np.where(self.offloads_optimizer, self.updated[j] * per_parameter, 0.0)
        moved = self._held(j, device).max(axis=0) - self._activations(j, device).max(axis=0)
        return np.asarray(kept + states + moved)

    def activations_on(self, j: int, row: int, device: int) -> float:
        """Bytes of activations of one layout on device `device`, whose layers are those of profile j."""
        return float(self._activations(j, np.full(len(self.layouts), float(device)))[:, row].max())

    def workspace(self, j: int) -> Array:
        """[n] bytes of the widest product's gradients, and of what one layer recomputes. It does so when the layers of
        its chunk that are not recomputed, which come last, have let go of theirs; in a split backward pass they keep as
        much for their W."""
        redone = self._remade
        if self._redoes_some:
            dropped = self._kept_and_dropped[1]
            of_chunk = self.on_profile(j, dropped) / self.chunks
            here = self.redone(j, dropped)
            # What is on the host holds nothing here that it could let go of.
            nothing = (splits_backward(self.layouts["schedule"]) & (here > 0)) | self.offloads_activations
            let_go = np.where(nothing, 0.0, of_chunk - here)
            redone = np.maximum(redone - np.maximum(let_go, 0.0), 0.0)
        return self.largest(j, self._widest + redone)

    @cached_property
    def _widest(self) -> Array:
        """[kind of layer, n] bytes of the widest product's gradients."""
        return self.tables.workspace[:, self.key]

    @cached_property
    def _remade(self) -> Array:
        """[kind of layer, n] bytes of what a layer recomputes."""
        tables = np.array([self.tables.working(mode, modules) for mode, modules in self.codes])
        return np.array([tables[:, kind].ravel()[self._of_code] for kind in range(self.problem.num_kinds)])

    def largest(self, j: int, rows: Array) -> Array:
        """[n] the most of [kind of layer, n] bytes of a layer, of the kinds on the device of profile j; 0 without."""
        most = np.zeros(rows.shape[1])
        for kind in set(self.kinds).intersection(range(len(rows))):
            most = np.maximum(most, rows[kind] * (self.counts[j][kind] > 0))
        return most

    @cached_property
    def chunks(self) -> Ints:
        """[n] chunks of a stage."""
        x = self.layouts
        of_pipeline = np.where(np.isin(x["schedule"], [SCHEDULES.index(name) for name in V_SCHEDULES]), 2, x["vpp"])
        return np.where(x["pp"] > 1, of_pipeline, 1)

    @cached_property
    def communicators(self) -> Array:
        """[n] process groups with buffers of their own."""
        x = self.layouts
        return np.asarray(sum((x[name] > 1).astype(np.float64) for name in ("tp", "cp", "pp", "dp", "ep", "etp")))


_THERE = np.array([[1.0], [0.0]])  # of the two chunks of a V, the one that has a stage behind it


def _layers(counts: dict[int, Array], num_kinds: int) -> Array:
    """[n] layers among these."""
    return np.asarray(sum((count for kind, count in counts.items() if kind < num_kinds), start=np.zeros(1)))


def _weighted(counts: dict[int, Array], rows: dict[int, Array]) -> Array:
    total: Array | float = 0.0
    for kind, count in counts.items():
        total = total + count * rows[kind]
    return np.asarray(total)






