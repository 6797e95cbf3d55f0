"""The problem of dividing the layers of a layout over the chunks of its pipeline, as numbers that are linear in it.

Layers are in runs of equal ones, in the order of the model. A partition is n: [..., chunk, run] layers on each chunk,
and q: [..., chunk, run] how many of these are recomputed. Seconds and bytes are linear in both, so the functions here
take fractions too, and many partitions at once. A path through the schedule is a chain of passes that wait for one
another; the schedule has a fixed order, so a pipeline takes as long as its longest path.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from ...cost_models.arrays import Array
from ...cost_models.schedules import simulator
from ...cost_models.schedules.critical_path import Path, longest_paths
from ...cost_models.schedules.simulator import Costs, Schedule

GAP = 1e-3  # relative: what the solver of the integer program may leave


@dataclass(frozen=True, eq=False)
class MemoryNeeds:
    """Bytes of a GPU, at each moment at which a device may be fullest: a schedule that splits the backward pass has
    several (resident.py)."""

    resident_bytes: Array  # [chunk, moment, run] that one layer keeps
    dropped_bytes: Array  # [chunk, moment, run] that it keeps less if it is recomputed
    fixed_bytes: Array  # [device, moment] whatever the layers
    recompute_bytes: Array  # [device] that recomputing a layer adds at the first moment


@dataclass(frozen=True, eq=False)
class PartitionProblem:
    """One layout. Seconds are of a micro-batch, except where a field says otherwise."""

    runs: tuple[int, ...]  # [run] layers of each
    devices: tuple[int, ...]  # [chunk] device of each
    schedule: Schedule  # order of the passes
    forward_s: Array  # [chunk, run] of one layer: forward pass
    input_s: Array  # [chunk, run] of one layer: backward pass for inputs, with recomputation unless q is free
    weight_s: Array  # [chunk, run] of one layer: backward pass for weights
    recompute_s: Array  # [chunk, run] of one layer, if q counts it
    edge_forward_s: Array  # [chunk] of embedding, head and MTP modules
    edge_input_s: Array  # [chunk] the same, backward pass for inputs
    edge_weight_s: Array  # [chunk] the same, backward pass for weights
    hop_s: Array  # [2, chunk] of the messages that bring its input, and its gradient
    link_s: Array  # [2, chunk] how long they keep their link busy
    needs: MemoryNeeds  # bytes of layers and edges
    memory_bytes: Array  # [device] that a GPU has
    update_s: Array  # [device, run] of the optimizer for one layer, once per step
    fixed_update_s: Array  # [device] of the optimizer, whatever the layers
    unhidden_s: Array  # [device, run] of collectives of one layer that hide behind nothing, once per step
    fixed_unhidden_s: Array  # [device] of those of embedding, head and MTP modules
    chooses_recompute: bool  # whether q is free
    least_first: int = 0  # layers that the first chunk holds at least: a vision tower adds its outputs to them
    once_s: float = 0.0  # seconds of a step outside the pipeline
    growth: float = 1.0  # factor on a step, for stragglers

    def pass_seconds(self, n: Array, q: Array) -> tuple[Array, Array, Array]:
        """[..., chunk] forward, input and weight seconds."""
        forward_s, weight_s = ((n * seconds).sum(axis=-1) for seconds in (self.forward_s, self.weight_s))
        input_s = self.edge_input_s + (n * self.input_s + q * self.recompute_s).sum(axis=-1)
        return self.edge_forward_s + forward_s, input_s, self.edge_weight_s + weight_s

    @property
    def num_devices(self) -> int:
        return max(self.devices) + 1

    @property
    def least_layers(self) -> tuple[int, ...]:
        """[chunk] layers at least: only the last chunk, and without a tower the first one, may be empty."""
        return (self.least_first, *[1] * (len(self.devices) - 2), 0)[: len(self.devices)]

    @property
    def num_folded(self) -> int:
        """The number of devices, from the first, of a V to which no more layers may come back than went there.

        Chunks that come back are resident for a shorter time. Without this rule, few partitions would be too large for
        the bounds of memory. In zb-v, both chunks of the device where it turns are resident for equally long, so that
        device is left out.
        """
        pp = self.num_devices
        folded = len(self.devices) > pp and self.devices[pp] == pp - 1
        return pp - (self.schedule.name == "zb-v") if folded else 0

    def step_s(self, paths: Sequence[Path], n: Array, q: Array) -> Array:
        """[...] seconds of a step as long as the longest of `paths`, without collectives of data parallelism."""
        update_s = self._once_per_step(n, self.update_s, self.fixed_update_s)
        pipeline_s = self.path_seconds(paths, n, q).max(axis=-1)
        return np.asarray((pipeline_s + update_s.max(axis=-1) + self.once_s) * self.growth)

    def path_seconds(self, paths: Sequence[Path], n: Array, q: Array) -> Array:
        """[..., path] seconds of each path, and of what its last device then sends."""
        forward_s, input_s, weight_s = self.pass_seconds(n, q)
        forward, inputs, weights = (np.array([getattr(path, name) for path in paths]).T
                                    for name in ("forward", "inputs", "weights"))  # fmt: skip
        messages_s = np.array([path.messages_s(self.hop_s, self.link_s) for path in paths])
        unhidden_s = self._once_per_step(n, self.unhidden_s, self.fixed_unhidden_s)[..., [x.device for x in paths]]
        return np.asarray(forward_s @ forward + input_s @ inputs + weight_s @ weights + messages_s + unhidden_s)

    def fits(self, n: Array, q: Array) -> NDArray[np.bool_]:
        """[...] whether every device has the memory for a partition."""
        resident, dropped = self.needs.resident_bytes, self.needs.dropped_bytes
        fixed = self.needs.fixed_bytes
        needed = self._at_moments(n, resident) - self._at_moments(q, dropped) + fixed
        if self.chooses_recompute:
            least = (self._at_moments(n, resident - dropped) + fixed)[..., 0]
            recomputing = np.where(self._on_devices(n).any(axis=-1), least + self.needs.recompute_bytes, 0.0)
            needed[..., 0] = np.maximum(needed[..., 0], recomputing)
        return np.asarray((needed <= self.memory_bytes[:, None]).all(axis=(-2, -1)))

    def _at_moments(self, layers: Array, num_bytes: Array) -> Array:
        """[..., device, moment] bytes of [..., chunk, run] layers of [chunk, moment, run] bytes each."""
        return self._on_devices(np.einsum("...cr,cmr->...cm", layers, num_bytes))

    def _once_per_step(self, n: Array, layer_s: Array, fixed_s: Array) -> Array:
        """[..., device] seconds of [device, run] seconds of a layer and [device] of the edges."""
        return np.asarray((self._on_devices(n) * layer_s).sum(axis=-1) + fixed_s)

    def _on_devices(self, values: Array) -> Array:
        """Sums over the chunks of each device: [..., chunk, n] -> [..., device, n]."""
        is_on = np.equal.outer(np.arange(self.num_devices), np.array(self.devices)).astype(np.float64)
        return np.asarray(is_on @ values)

    def critical_paths(self, n: Array, q: Array, number: int) -> list[Path]:
        """The longest paths to the ends of the `number` devices that are done last, for one partition."""
        forward_s, input_s, weight_s = (tuple(seconds.tolist()) for seconds in self.pass_seconds(n, q))
        hops, links = (tuple(map(tuple, seconds.tolist())) for seconds in (self.hop_s, self.link_s))
        unhidden_s = self._once_per_step(n, self.unhidden_s, self.fixed_unhidden_s).tolist()
        costs = Costs(forward_s=forward_s, input_s=input_s, weight_s=weight_s, forward_hop_s=hops[0],
                      backward_hop_s=hops[1], forward_link_s=links[0], backward_link_s=links[1],
                      unhidden_s=tuple(unhidden_s))  # fmt: skip
        timeline = simulator.simulate(self.schedule, costs)
        latest = np.argsort(-timeline.passes_end_s, kind="stable")[:number]
        return longest_paths(timeline, latest.tolist())

    def layers_by_run(self, sizes: Array, recomputed: Array | None = None) -> tuple[Array, Array]:
        """n and q of [..., chunk] layers, of which the first `recomputed` of each chunk are recomputed."""
        edges = np.cumsum([0, *self.runs])
        ends = np.cumsum(sizes, axis=-1)
        starts = ends - sizes

        def overlap(until: Array) -> Array:
            low = np.maximum(starts[..., None], edges[:-1])
            return np.asarray(np.maximum(np.minimum(until[..., None], edges[1:]) - low, 0.0))

        return overlap(ends), overlap(starts + (0.0 if recomputed is None else recomputed))
