"""Bytes of every buffer on a device at its peak, and what it keeps on the host."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property

import numpy as np

from ..arrays import Array
from ..schedule_kinds import SPLITS_BACKWARD
from . import optimizer_on_host
from .activations import Activations
from .ledger import Ledger
from .memory import flat_buffer_bytes
from .moments import (
    IN_EMBEDDING,
    IN_LAYER,
    IN_W,
    TRANSIENT,
    add_layer,
    memory_moments,
    moments_beside_layer,
    number_of_moments,
    unscattered_bytes,
)
from .offloads import Offloads, offloads_of
from .resident import resident_bytes
from .tower_memory import saved_by_tower
from .weight_bytes import adapter_bytes, stored_bytes, weight_bytes
from .whole_matrices import optimizer_bytes

LASTING = ("weights", "gradients", "optimizer", "activations")
BUFFERS = (*LASTING, *TRANSIENT)

_THERE = np.array([[1.0], [0.0]])  # of the two chunks of a V, the one that has a stage behind it


@dataclass(frozen=True, eq=False)
class DeviceMemory:
    """The memory of the devices of a ledger's layouts; a device stands for all with its stage profile."""

    ledger: Ledger
    # Of layouts that recompute nothing: what no recomputation of theirs holds less than. Fewer bytes saved never need
    # more, and what a layer recomputes only adds.
    any_recompute: bool = False

    @cached_property
    def of_micro_batch(self) -> Activations:
        """Activations of one micro-batch."""
        return Activations(self.ledger, self.any_recompute)

    @cached_property
    def offloads(self) -> Offloads | None:
        """Tensors that layers or modules send to the host, None without."""
        return None if self.any_recompute else offloads_of(self.ledger)  # the least that is saved is without them

    def buffers(self, j: int, *, gathered: bool = True) -> dict[str, Array]:
        """Bytes of every buffer (BUFFERS) on the device of profile j at its peak: [n] each. `gathered`: count that one
        and the flat copies, which come only with sharded states: without them more shards never need more.

        What comes and goes is that of the fullest moment (moments.py).
        """
        return {**self.states(j), **self.beside_states(j, gathered=gathered)}

    def beside_states(self, j: int, *, gathered: bool = True) -> dict[str, Array]:
        """The buffers that are not states, of those of `buffers`: [n] bytes each."""
        passing = self._beside_by_moment(j, gathered)
        fullest = np.argmax(sum(passing.values()), axis=0)
        pick = np.arange(len(self.ledger.layouts))
        return {name: by_moment[fullest, pick] for name, by_moment in passing.items()}

    def beside_states_bytes(self, j: int, *, gathered: bool = True) -> Array:
        """[n] their sum."""
        by_moment = self.ledger.once(lambda unlike: DeviceMemory(unlike).beside_layer_bytes(j, gathered))
        layer = self.workspace(j) + (unscattered_bytes(self.of_micro_batch, j) if gathered else 0.0)
        add_layer(self.ledger, j, by_moment, layer)
        by_moment += self._resident_by_moment(j)
        return np.asarray(by_moment.max(axis=0))

    def beside_layer_bytes(self, j: int, gathered: bool) -> Array:
        """[moment, n] bytes of what comes and goes but for the workspace of a layer."""
        passing = moments_beside_layer(self.ledger, j, gathered=gathered)
        return np.asarray(sum(passing.values()) + self._flat(j, gathered))

    def _beside_by_moment(self, j: int, gathered: bool) -> dict[str, Array]:
        """[moment, n] bytes of each of them."""
        return {**self._transient(j, gathered), "activations": self._resident_by_moment(j)}

    def _resident_by_moment(self, j: int) -> Array:
        """[moment, n] bytes of activations."""
        ledger, (after_f, after_i) = self.ledger, self.activations(j)
        # A split backward pass may be fullest in an I: stashes of other micro-batches lie beside the activations in
        # flight, and the layer that is differentiated has not made its own stash yet.
        in_i = after_i - self.late_bytes
        last = self._beside_embedding(j, after_f, after_i)
        resident = [after_f, after_f, np.maximum(after_f, in_i), after_i, last, after_f]
        return np.array(resident[: number_of_moments(ledger.problem)])

    def with_separate_graphs(self, j: int) -> dict[str, Array]:
        """As `buffers`, with the outputs that CUDA graphs keep per micro-batch among the bytes of graphs, not among the
        activations: for people, who want to see the cost of graphs."""
        buffers, held = self.buffers(j), self.of_micro_batch
        outputs, saved = held.graph_outputs[j], held.saved[j]
        share = np.divide(outputs, saved, out=np.zeros_like(outputs), where=saved > outputs)
        kept = buffers["activations"] * share
        return {**buffers, "activations": buffers["activations"] - kept, "graphs": buffers["graphs"] + kept}

    def _beside_embedding(self, j: int, after_f: Array, after_i: Array) -> Array:
        """[n] bytes of activations when the gradient of the embedding is made: those of its micro-batch are gone, but
        for what waits for W."""
        ledger = self.ledger
        gone = self.offloads.gone[j] if self.offloads is not None else 0.0
        others = np.maximum(after_f - (self.of_micro_batch.saved[j] - gone) / ledger.chunks, 0.0)
        others = others + saved_by_tower(self.of_micro_batch, j)
        return np.asarray(np.where(SPLITS_BACKWARD[ledger.layouts["schedule"]], after_i, others))

    def moments(self, j: int, *, gathered: bool = True) -> dict[str, Array]:
        """[moment, n] bytes of every buffer of TRANSIENT (`memory_moments`)."""
        return memory_moments(self.of_micro_batch, j, self.workspace(j), gathered=gathered)

    def _transient(self, j: int, gathered: bool) -> dict[str, Array]:
        """[moment, n] bytes of what comes and goes (moments.TRANSIENT), as `buffers` counts it."""
        passing = self.moments(j, gathered=gathered)
        return {**passing, "workspace": passing["workspace"] + self._flat(j, gathered)}

    def _flat(self, j: int, gathered: bool) -> Array | float:
        """[n] bytes of flat copies, which count with what is `gathered`."""
        ledger = self.ledger
        # DeepSpeed flattens gradients and casts them before its update, which makes copies of a whole buffer.
        if not gathered or ledger.problem.stack.flat_buffers == "none":
            return 0.0
        stack, states = ledger.problem.stack, ledger.problem.state_bytes
        flat = flat_buffer_bytes(stack, states, np.add(*ledger.trained[j]), ledger.updated[j])
        return np.where((ledger.layouts["zero"] > 0) & ~ledger.states.away, flat, 0.0)

    @cached_property
    def late_bytes(self) -> Array:
        """[n] what a layer whose I runs does not hold yet of what it does after it: it still has what it saved, and not
        yet what its W needs."""
        ledger = self.ledger
        stash, saved = ledger.per_kind(ledger.tables.wgrad_stash), self.of_micro_batch.per_kind
        layers = [kind for kind in ledger.kinds if kind < ledger.problem.num_kinds]
        return np.asarray(np.max([np.zeros(len(ledger.layouts)), *(stash[k] - saved[k] for k in layers)], axis=0))

    def transient_bytes(self, j: int, late_bytes: Array) -> Array:
        """[3, n] bytes of what comes and goes on the device of profile j, at its most beside the activations that are
        there after an F, at its most beside those after an I, and in the backward pass of the embedding."""
        by_moment = np.sum(list(self._transient(j, True).values()), axis=0)
        after_f = np.delete(by_moment, (IN_W, IN_EMBEDDING), axis=0).max(axis=0)
        after_i = np.max([by_moment[IN_W], by_moment[IN_LAYER] - late_bytes, by_moment[IN_EMBEDDING]], axis=0)
        return np.array([after_f, after_i, by_moment[IN_EMBEDDING]])

    def states_bytes(self, j: int) -> Array:
        """[n] the sum of `states`."""
        return self.ledger.once(lambda unlike: np.asarray(sum(DeviceMemory(unlike).states(j).values())))

    def states(self, j: int) -> dict[str, Array]:
        """Bytes of weights, gradients and optimizer states on the device of profile j: [n] each."""
        ledger = self.ledger
        states, zero = ledger.problem.state_bytes, ledger.layouts["zero"]
        trained_dense, trained_experts = ledger.trained[j]
        # Some stacks sum whole gradients over the micro-batches of a step and scatter them only once.
        divided = (zero >= 2) & ~ledger.states.whole_gradients
        gradient_shards = ledger.state_sharers(ledger.exchanges.gradients_over, divided)
        weights = weight_bytes(ledger, j)
        # The shards stay beside what was gathered; masters count as such. Lower stages have no shards.
        if not ledger.problem.stack.master_weights and not ledger.states.open:
            weights = weights + ((zero == 3) & ledger.states.whole_in_pipeline) * ledger.updated[j] * states.weight
        gradient = trained_dense / gradient_shards[0] + trained_experts / gradient_shards[1]
        gradient = gradient * np.where(divided, states.gradient, ledger.states.whole_gradient_bytes)
        optimizer = np.where(ledger.states.away, 0.0, optimizer_bytes(ledger, j))
        copies = np.where(ledger.states.away, 0.0, ledger.updated[j] * states.master_gradient)
        return {
            "weights": weights + adapter_bytes(ledger, j),
            "gradients": np.where(ledger.states.stores_optimizer | ledger.states.sums_on_host, 0.0, gradient) + copies,
            "optimizer": optimizer + self._traffic_bytes(j),
        }

    def _traffic_bytes(self, j: int) -> Array:
        """[n] bytes that the traffic of states needs beside the optimizer's, on the GPU."""
        ledger = self.ledger
        most: Array | float = 0.0
        for traffic in ledger.traffic:
            most = np.maximum(most, traffic.on_gpu)
        return np.asarray(ledger.updated[j] * most)

    @cached_property
    def _resident_by_profile(self) -> dict[int, Array]:
        """Results of `resident` so far, by profile: the memory of both GPU and host needs them."""
        return {}

    def resident(self, j: int, device: Array | None = None) -> Array:
        """[2, n] bytes of activations after an F and after an I (resident.resident_bytes). The device of this profile
        that holds most counts: the first, but where the wgrad stash is larger than what waits for I."""
        if device is not None:
            return self._resident_on(j, device, None)
        if j not in self._resident_by_profile:
            self._resident_by_profile[j] = self._resident_on(j, None, None)
        return self._resident_by_profile[j]

    def _resident_on(self, j: int, device: Array | None, offloads: Offloads | None) -> Array:
        """offloads: without what these send."""
        ledger = self.ledger
        x, splits = ledger.layouts, ledger.splits
        splits_some = bool(SPLITS_BACKWARD[x["schedule"]].any())
        more = ledger.vocabulary.barriers if ledger.vocabulary is not None else 0

        def on(at: Array) -> Array:
            output = np.where(at < x["pp"] - 1, ledger.saved_output, 0.0)
            at = at - more  # as many micro-batches as a stage that is so many further to the front
            back = self.of_micro_batch.saved_back[j] if splits_some else 0.0
            whole = self.of_micro_batch.saved[j]
            if offloads is not None:
                back, whole = back - (offloads.gone_back[j] if splits_some else 0.0), whole - offloads.gone[j]
            saved = np.array([whole + output - back, back + np.zeros_like(output)])
            stash = self.of_micro_batch.wgrad_stash[j] + output * _THERE if splits_some else saved
            return resident_bytes(x["schedule"], x["pp"], x["vpp"], ledger.m, at, saved, stash)

        # 1F1B holds most on the first device of a profile; with a wgrad stash the last one may hold more, as W waits
        # longer there. Both ends of the range bound all devices between them.
        first = on(splits.first[:, j][ledger.split] if device is None else device)
        if not splits_some or device is not None or splits.last is None:
            return first
        last = on(splits.last[:, j][ledger.split])
        return np.minimum(first, last) if splits.is_bound else np.maximum(first, last)

    def activations(self, j: int, device: Array | None = None) -> Array:
        """[2, n] of `resident` on the GPU: where activations are offloaded, those of one layer, or of two where one
        moves while the other is computed. Of layers that are recomputed, `workspace` has what they make again."""
        ledger = self.ledger
        resident = self.resident(j, device)
        if self.offloads is not None:
            left = self._resident_on(j, device, self.offloads)
            resident = np.minimum(resident, left + self.offloads.beside(j))
        if not ledger.states.offloads_activations.any():
            return resident
        # Copies to the host free a layer's activations behind it. Overlapped copies need a second buffer in flight.
        buffers = 2 if ledger.problem.stack.offload_overlap > 0 else 1
        uniform = ledger.on_profile(j, self.of_micro_batch.per_kind)
        here = buffers * uniform / np.maximum(ledger.layers[j], 1.0)
        return np.asarray(np.where(ledger.states.offloads_activations, np.minimum(resident, here), resident))

    def host_bytes(self, j: int, device: Array | None = None) -> Array:
        """[n] bytes that a GPU of profile j keeps on the host: states of the model, activations of other layers."""
        ledger, store = self.ledger, self.ledger.store
        on_host = ledger.updated[j] * max(traffic.on_host for traffic in ledger.traffic)
        per_parameter = optimizer_on_host.bytes_per_parameter(ledger.problem)
        if store is not None:
            on_host = on_host + store.pinned_bytes
            if store.on_host:
                models = 1 + ledger.problem.workload.has_second_weights
                on_host = on_host + models * stored_bytes(ledger, j)
                on_host = on_host + ledger.updated[j] * per_parameter * store.optimizer
        if not ledger.layouts["offload"].any() and self.offloads is None:
            return on_host
        states = np.where(ledger.states.offloads_optimizer, ledger.updated[j] * per_parameter, 0.0)
        moved = self.resident(j, device).max(axis=0) - self.activations(j, device).max(axis=0)
        if self.offloads is not None:  # with the copies of what stays on the GPU all the same, or is sent twice
            gone, sent = self.offloads.gone[j], self.offloads.sent[j]
            copies = np.divide(sent, gone, out=np.ones_like(gone), where=(sent > 0) & (gone > 0))
            moved = moved * copies + np.where(gone > 0, 0.0, sent)
        if ledger.far is not None:  # DRAM has what the cards do not
            there = ledger.far.optimizer * states + ledger.far.activations * moved
            moved = moved - np.minimum(there, ledger.far.capacity_bytes)
        return np.asarray(on_host + states + moved)

    def workspace(self, j: int) -> Array:
        """[n] bytes of the widest product's gradients, and of what one layer recomputes. It does so when the layers of
        its chunk that are not recomputed, which come last, have let go of theirs; in a split backward pass they keep as
        much for their W."""
        ledger = self.ledger
        recomputed = self._recomputed_bytes
        if self.of_micro_batch.recomputes_some_layers:
            dropped = self.of_micro_batch.saved_and_dropped[1]
            if self.offloads is not None:
                some = ledger.layouts["recompute_layers"] > 0
                dropped = {kind: row - np.where(some, self.offloads.modules_of_layer[kind], 0.0)
                           for kind, row in dropped.items()}  # fmt: skip
            of_chunk = ledger.on_profile(j, dropped) / ledger.chunks
            here = ledger.recomputed(j, dropped)
            # The layers that keep their activations come last in a chunk, so the backward pass frees these before it
            # recomputes. A layer on the host holds nothing here that it could free.
            keeps = SPLITS_BACKWARD[ledger.layouts["schedule"]] & (here > 0)
            let_go = np.where(keeps | ledger.states.offloads_activations, 0.0, of_chunk - here)
            recomputed = np.maximum(recomputed - np.maximum(let_go, 0.0), 0.0)
        return ledger.largest(j, self._widest + recomputed)

    @cached_property
    def _widest(self) -> Array:
        """[kind of layer, n] bytes of the widest product's gradients."""
        ledger = self.ledger
        return ledger.tables.workspace[:, ledger.key]

    @cached_property
    def _recomputed_bytes(self) -> Array:
        """[kind of layer, n] bytes of what a layer recomputes."""
        ledger = self.ledger
        layers, table = range(ledger.problem.num_kinds), ledger.tables.working_by_code
        return np.array(list(table.look_up(layers, ledger.codes, ledger.code, ledger.key).values()))
