"""The coefficients of the partition problems of many pipelines at once.

`stages/coefficients.py` makes the partition problem of one layout. Here are the same numbers as columns, for layouts
that agree in schedule, stages and micro-batches: they have the same chunks, the same order of passes and the same
moments of memory. No number is above the problem's, so a bound that holds for the columns holds for the problem.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any

import numpy as np

from ...cost_models import build_ledger
from ...cost_models.arrays import Array, Ints
from ...cost_models.layouts import Layout, Layouts
from ...cost_models.quantities.device_memory import DeviceMemory
from ...cost_models.quantities.gradients import accumulated_per_kind
from ...cost_models.quantities.ledger import Ledger
from ...cost_models.quantities.resident import resident_moments
from ...cost_models.quantities.stages import Splits, chunk_rows, chunks_per_stage, devices_of, is_folded, on_devices
from ...cost_models.quantities.tables import build, index_keys
from ...cost_models.rates import collectives
from ...cost_models.rates.kernel_seconds import kernel_seconds
from ...cost_models.rates.rates import Rates
from ...cost_models.specs.cluster import Bridge
from ...cost_models.step import optimizer_seconds, reserved_memory, stage_messages
from .islands import IslandPart, crossing
from .never_hidden import never_hidden_s

_FROM_F = np.array([1.0, 1.0, 0.0, 0.0])  # as in stages/coefficients.py


@dataclass(frozen=True, eq=False)
class PipelineColumns:
    """n layouts of one class, on islands that are numbered as `parts`."""

    devices: Ints  # [chunk]
    edges: Array  # [chunk, kind] embedding, head and MTP modules
    kinds: Ints  # [layer kind] numbers of those that the model has
    layers: Array  # [layer kind] how many
    pass_s: Array  # [pass, island, kind, n] of one layer: forward, backward for inputs, backward for weights
    message_s: Array  # [2, island, island, n] of a message from one to the other; how long it keeps its link busy
    moments: Array  # [2, chunk, moment] micro-batches that a chunk holds from F to I, and from I to W
    kept_bytes: Array  # [3, layer kind, n] of one layer: states, and of a micro-batch from F to I and from I to W
    fixed_bytes: Array  # [device, moment, n] whatever the layers
    update_s: Array  # [n] of the optimizer, at least
    never_hidden_s: Array  # [island, kind, n] of one layer: data-parallel messages that nothing hides, at least

    @property
    def with_floor(self) -> PipelineColumns:
        """The same, and a last layout that is as good as any of them in everything: what bounds it bounds them all."""
        names = ("pass_s", "message_s", "kept_bytes", "fixed_bytes", "update_s", "never_hidden_s")
        columns = {name: getattr(self, name) for name in names}
        return replace(self, **{name: np.concatenate([values, values.min(axis=-1, keepdims=True)], axis=-1)
                                for name, values in columns.items()})  # fmt: skip


def columns_of(
    parts: Sequence[IslandPart], layouts: Sequence[Layout], bridge_of: Callable[[int, int], Bridge]
) -> PipelineColumns:
    """parts: the islands, in any order; bridge_of: between two of them, by their places in `parts`. layouts: of one
    schedule, number of stages, chunks and micro-batches."""
    first, batch = layouts[0], Layouts.of(list(layouts))
    problem = parts[0].in_job(first.num_gpus).problem
    keys, key = index_keys(batch)
    ledger = build_ledger.build(problem, build(problem, keys), batch, key, mean=True)
    chunks, devices = chunks_per_stage(first), np.array(devices_of(first))
    edges = chunk_rows(problem.pattern, problem.num_kinds, problem.edges, first.pp, chunks, is_folded(first),
                       (0,) * len(devices))  # fmt: skip
    layers = build_ledger.build_totals(problem)[: problem.num_kinds]
    kinds, rates = np.flatnonzero(layers), [part.rates for part in parts]
    needs = _Needs(ledger, first, devices, edges)
    update_s = [optimizer_seconds.least_optimizer_s(ledger, rate, True) for rate in rates]
    return PipelineColumns(
        devices=devices, edges=edges, kinds=kinds, layers=layers[kinds],
        pass_s=np.stack([_pass_s(ledger, rate) for rate in rates], axis=1),
        message_s=_message_s(parts, ledger, first.num_gpus // first.pp, bridge_of), moments=np.array(needs.moments[:2]),
        kept_bytes=needs.kept_bytes[:, kinds] * needs.growth(rates[0]), fixed_bytes=needs.fixed_bytes(rates[0]),
        update_s=np.min(update_s, axis=0), never_hidden_s=never_hidden_s(parts, layouts),
    )  # fmt: skip


def _message_s(
    parts: Sequence[IslandPart], ledger: Ledger, senders: int, bridge_of: Callable[[int, int], Bridge]
) -> Array:
    num_bytes = np.asarray(ledger.tables.message[ledger.key], dtype=np.float64)
    seconds = np.empty((2, len(parts), len(parts), len(num_bytes)))
    for start, part in enumerate(parts):
        for end in range(len(parts)):
            if start == end:
                seconds[:, start, end] = stage_messages.message_s(ledger, part.rates)
                continue
            curve = crossing(part.rates, bridge_of(start, end), senders, "p2p")
            seconds[:, start, end] = collectives.seconds(curve, num_bytes), curve.s_per_byte[0] * num_bytes
    return seconds


def _on_profiles(ledger: Ledger, rows: Array, **options: Any) -> Ledger:
    """The same layouts, whose stages hold [profile, kind] layers."""
    number = np.zeros((1, len(rows)))
    splits = Splits(rows[None], number, np.ones_like(number), rows.sum(axis=0)[None], **options)
    return replace(ledger, splits=splits, split=np.zeros(len(ledger.layouts), dtype=np.int64))


def _of_kinds(ledger: Ledger, rows: dict[int, Array]) -> Array:
    """[kind, n]; 0 for kinds that the model has not."""
    none, kinds = np.zeros(len(ledger.layouts)), ledger.splits.counts.shape[2]
    return np.array([rows.get(kind, none) for kind in range(kinds)])


def _pass_s(ledger: Ledger, rates: Rates) -> Array:
    """[pass, kind, n]"""
    kernels = kernel_seconds(ledger.tables, rates)
    forward_s, backward_s, weight_s = (kernel[:, ledger.key] for kernel in
                                       (kernels.forward_s, kernels.backward_s, kernels.weight_s))  # fmt: skip
    added_s = _of_kinds(ledger, accumulated_per_kind(ledger)) / rates.bandwidth("accumulation")[0]
    recompute_s = _of_kinds(ledger, ledger.per_code(kernels.recompute_by_code))
    return np.array([forward_s, np.maximum(backward_s - weight_s, 0.0) + added_s + recompute_s, weight_s])


@dataclass(frozen=True, eq=False)
class _Needs:
    """Bytes of a class of layouts."""

    ledger: Ledger
    first: Layout  # one of them
    devices: Ints  # [chunk]
    edges: Array  # [chunk, kind]

    @staticmethod
    def growth(rates: Rates) -> float:
        return 1.0 + rates.overheads.reserve_share

    @cached_property
    def kept_bytes(self) -> Array:
        """[3, kind, n] without what the allocator reserves."""
        ledger, kinds = self.ledger, self.edges.shape[1]
        single = _on_profiles(ledger, np.vstack([np.eye(kinds), np.zeros(kinds)]), adds_up=True)
        memory = DeviceMemory(single)
        states = np.array([sum(memory.states(j).values()) for j in range(kinds + 1)])
        saved = _of_kinds(ledger, ledger.per_code(ledger.tables.saved_by_code))
        return np.array([states[:-1] - states[-1], saved, ledger.tables.wgrad_stash[:, ledger.key]])

    @cached_property
    def moments(self) -> tuple[Array, Array, Ints]:
        """[chunk, moment] micro-batches from F to I, and from I to W; [moment] the row of `_transient_bytes`: as in
        stages/coefficients.py."""
        chunks = len(self.devices)
        pp, vpp, m = (np.full(chunks, float(column[0])) for column in
                      (self.ledger.layouts["pp"], self.ledger.layouts["vpp"], self.ledger.m))  # fmt: skip
        after_f, after_i = resident_moments(self.first.schedule, pp, vpp, m, self.devices.astype(np.float64))
        at_embedding = [after_f - _FROM_F[:, None] / chunks_per_stage(self.first)] if not len(after_i) else []
        numbers, chunk = np.concatenate([after_f, after_i, *at_embedding]), np.arange(chunks)
        back = is_folded(self.first) * (chunk >= chunks // 2)
        from_f, from_i = (numbers[:, start + back, chunk].T for start in (0, 2))
        return from_f, from_i, np.repeat([0, 1, 2], [len(after_f), len(after_i), len(at_embedding)])

    def fixed_bytes(self, rates: Rates) -> Array:
        """[device, moment, n]"""
        from_f, from_i, row = self.moments
        states, saved, stash = self.edges @ self.kept_bytes  # [chunk, n]
        of_edges = states[:, None] + from_f[..., None] * saved[:, None] + from_i[..., None] * stash[:, None]
        at_edges = on_devices(of_edges.reshape(len(self.devices), -1), self.devices.tolist())
        tensors = self._transient_bytes()[row].swapaxes(0, 1) + at_edges.reshape(self.first.pp, len(row), -1)
        return np.asarray(self.growth(rates) * tensors + reserved_memory.fixed_bytes(self.ledger, rates))

    def _transient_bytes(self) -> Array:
        """[3, device, n] transient bytes beside one layer of the kind that needs least, or beside none where a stage
        may be empty."""
        on_gpu, kinds = on_devices(self.edges, self.devices.tolist()), range(self.ledger.problem.num_kinds)
        variants = np.array([on_gpu + np.eye(on_gpu.shape[1])[kind] for kind in kinds] + [on_gpu])
        distinct, which = np.unique(variants.reshape(-1, on_gpu.shape[1]), axis=0, return_inverse=True)
        beside, late = DeviceMemory(_on_profiles(self.ledger, distinct)), DeviceMemory(self.ledger).late_bytes
        of_rows = np.array([beside.transient_bytes(j, late) for j in range(len(distinct))])
        of_variants = of_rows[which.reshape(len(variants), -1)]  # [variant, device, 3, n]
        inner = sorted(set(range(self.first.pp)) - ({self.devices[0], self.devices[-1]} - set(self.devices[1:-1])))
        least = of_variants.min(axis=0)
        least[inner] = of_variants[:-1, inner].min(axis=0)
        return np.asarray(least.swapaxes(0, 1))
