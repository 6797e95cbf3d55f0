"""What the integer program of the stages (`partition_ilp`) needs to know of a layout, out of its ledger."""

from __future__ import annotations

import itertools
from dataclasses import replace

import numpy as np
from numpy.typing import NDArray

from ...cost_models.arrays import Array
from ...cost_models.layouts import RECOMPUTE_MODES
from ...cost_models.quantities.device_memory import LASTING, DeviceMemory
from ...cost_models.quantities.gradients import accumulated_bytes
from ...cost_models.quantities.ledger import Ledger
from ...cost_models.quantities.moments import unusable
from ...cost_models.quantities.resident import moments_held
from ...cost_models.quantities.stages import HEAD, Splits, chunk_rows, chunks_per_stage, is_folded, on_devices
from ...cost_models.rates.kernel_seconds import kernel_seconds
from ...cost_models.rates.rates import COMPONENTS
from ...cost_models.step import optimizer_seconds, reserved_memory, stage_messages, step, stragglers
from ..evaluation.simulator_costs import single_layers
from ..evaluation.staged import Staged
from .ilp import Stages

# Terms of a step (step.TERMS) that the program has, beside step.ONCE_TERMS, and those that it leaves out. It may leave
# out any: its answer is a bound from below, and each split that it proposes is priced by `Staged`.
PROGRAM_TERMS = frozenset({*COMPONENTS, "accumulate", "bubble", "pp", "optimizer", "stragglers"})
LEFT_OUT_TERMS = frozenset({"imbalance", "fsdp", "resharding", "vocabulary", "dp", "offload"})

_HELD = np.array([1.0, 1.0, 0.0, 0.0])  # of held.Moment, what is held from F to I


def runs_of(pattern: tuple[int, ...]) -> tuple[tuple[int, int], ...]:
    """(kind, layers) of each run of equal layers."""
    edges = [0, *(i for i in range(1, len(pattern)) if pattern[i] != pattern[i - 1]), len(pattern)]
    return tuple((pattern[low], high - low) for low, high in itertools.pairwise(edges))


def stages_of(one: Staged, memory_bytes: float, *, recompute_apart: bool, like: Stages | None = None) -> Stages:
    """What the integer program needs of a layout. recompute_apart: whether stages may recompute different numbers.
    like: of the same layout under other rates, which holds the same bytes."""
    resolved, layout, batch = one.resolved, one.layout, one.ledger
    problem, rates, runs = resolved.problem, resolved.rates, runs_of(resolved.problem.pattern)
    chunks = len(one.devices)
    kinds = [kind for kind, _ in runs]
    chooses = recompute_apart and RECOMPUTE_MODES[layout.recompute] == "full"
    tables, key, code = batch.tables, int(batch.key[0]), batch.codes[int(batch.code[0])]
    single = single_layers(batch)
    accumulate = accumulated_bytes(single, 0)[:-1] / rates.bandwidth("accumulation")[0]
    kernels = kernel_seconds(tables, rates)
    redo, weight = kernels.recompute_s(*code).sum(axis=1)[:, key], kernels.weight_s[:, key]
    inputs = np.maximum(kernels.backward_s[:, key] - weight, 0.0) + accumulate
    ends = (problem.pattern, problem.num_kinds, problem.edges, layout.pp, chunks_per_stage(layout), is_folded(layout))
    edges = chunk_rows(*ends, (0,) * chunks)
    always = inputs if chooses else inputs + redo
    saved, kept = tables.saved(*code)[:, key], tables.saved(0, 0)[:, key]
    on_gpu, growth = on_devices(edges, one.devices), 1.0 + rates.overheads.reserve_share
    if like is None:
        state, (from_f, from_i, beside) = _state_bytes(single), _moments(one)
        held = from_f * (kept if chooses else saved) + from_i * tables.wgrad_stash[:, key]
        per_layer = growth * (state[kinds] + held[..., kinds])
        passing = _passing_bytes(one, edges, none_redone=chooses)
        redo_bytes = growth * np.maximum(_passing_bytes(one, edges, filled=True)[0] - passing[0], 0.0) * chooses
        passing = passing[beside].T
        at_ends = on_devices((edges[:, None] * held).sum(axis=2), one.devices)
        fixed_bytes = growth * (passing + (on_gpu @ state)[:, None] + at_ends + _outputs(one, from_f + from_i))
        dropped_bytes = growth * from_f * (kept - saved)[kinds]
        outside = float(reserved_memory.fixed_bytes(batch, rates)[0])
        fixed_bytes = fixed_bytes + _unusable(one, on_gpu)[:, None] + outside
    else:
        per_layer, dropped_bytes = like.held_bytes, like.dropped_bytes
        fixed_bytes, redo_bytes = like.fixed_bytes, like.redo_bytes
    update, pp = optimizer_seconds.optimizer_s(single, rates), layout.pp

    def each(values: Array, number: int) -> Array:
        """The same row for every chunk or device."""
        return np.tile(values[kinds], (number, 1))

    return Stages(
        runs=tuple(length for _, length in runs), devices=tuple(one.devices), order=one.schedule,
        forward_s=each(kernels.forward_s[:, key], chunks), input_s=each(always, chunks), weight_s=each(weight, chunks),
        redo_s=each(redo, chunks),
        edge_forward_s=edges @ kernels.forward_s[:, key], edge_input_s=edges @ always, edge_weight_s=edges @ weight,
        hop_s=np.full((2, chunks), float(stage_messages.hop_s(batch, rates)[0])),
        link_s=np.full((2, chunks), float(stage_messages.link_s(batch, rates)[0])),
        held_bytes=per_layer, dropped_bytes=dropped_bytes, fixed_bytes=fixed_bytes, redo_bytes=redo_bytes,
        memory_bytes=np.full(pp, memory_bytes), update_s=each(update[:-1] - update[-1], pp),
        fixed_update_s=update[-1] + on_gpu @ (update[:-1] - update[-1]), chooses_recompute=chooses,
        fixed_s=float(step.once_terms_s(batch, rates)[0]), growth=1.0 + stragglers.straggler_share(batch),
    )  # fmt: skip


def _state_bytes(single: Ledger) -> Array:
    """[kind] bytes that a layer of each kind keeps beside activations."""
    buffers = DeviceMemory(single).buffers(0)
    total = np.asarray(sum(buffers[name] for name in LASTING if name != "activations"))
    return np.asarray(total[:-1] - total[-1])


def _passing_bytes(one: Staged, edges: Array, *, none_redone: bool = False, filled: bool = False) -> Array:
    """[3, device] bytes of what comes and goes (DeviceMemory.transient_bytes), at least: beside a layer, or none where
    a stage may be empty. none_redone: as if no layer were recomputed; filled: none is empty."""
    on_gpu = on_devices(edges, one.devices)
    variants = [on_gpu + np.eye(on_gpu.shape[1])[kind] for kind in range(one.resolved.problem.num_kinds)]
    batch = replace(one.ledger, code=one.ledger.code * 0, codes=((0, 0),)) if none_redone else one.ledger
    late = DeviceMemory(one.ledger).late_bytes
    of_kinds = np.array([_transient(batch, rows, late) for rows in variants])
    least = of_kinds.min(axis=0)
    # A chunk between the ends has a layer, and so has each before and behind it: which kinds can it be of?
    pattern, last = one.resolved.problem.pattern, len(one.devices) - 1
    for chunk, device in enumerate(one.devices[1:-1], 1):
        kinds = sorted(set(pattern[chunk - 1 : len(pattern) - last + 1 + chunk]))
        least[:, device] = np.maximum(least[:, device], of_kinds[kinds, :, device].min(axis=0))
    if filled:
        return np.asarray(least)
    empty = sorted({one.devices[0], one.devices[-1]} - set(one.devices[1:-1]))
    least[:, empty] = np.minimum(least, _transient(batch, on_gpu, late))[:, empty]
    return np.asarray(least)


def _transient(batch: Ledger, rows: Array, late: Array) -> Array:
    """[3, device] the same of devices with these layers; equal devices hold equal ones."""
    distinct, which = np.unique(rows, axis=0, return_inverse=True)
    number = np.zeros((1, len(distinct)))
    splits = Splits(distinct[None], number, np.ones_like(number), rows.sum(axis=0)[None])
    other = DeviceMemory(replace(batch, splits=splits))
    return np.array([other.transient_bytes(j, late)[:, 0] for j in range(len(distinct))]).T[:, which]


def _outputs(one: Staged, in_flight: Array) -> Array:
    """[device, moment] bytes that it keeps of what it hands on. in_flight: [chunk, moment, 1] micro-batches."""
    hands_on = np.arange(one.layout.pp) < one.layout.pp - 1
    return np.asarray(hands_on[:, None] * one.ledger.kept_output[0] * in_flight[: one.layout.pp, :, 0])


def _unusable(one: Staged, on_gpu: Array) -> Array:
    """[device] bytes of blocks that the loss leaves empty."""
    most = max(float(unusable(one.ledger, j)[0]) for j in range(one.ledger.num_profiles))
    return np.where(on_gpu[:, HEAD] > 0, most, 0.0)


def _moments(one: Staged) -> tuple[Array, Array, NDArray[np.int64]]:
    """[chunk, moment, 1] micro-batches of each chunk that are held from F to I, and from I to W, at each moment at
    which its device may be fullest; [moment] the row of `_passing_bytes` that is there: after an F, after an I, and
    without a split backward pass in that of the embedding, when a micro-batch of one chunk is gone."""
    x, devices = one.ledger.layouts, np.array(one.devices)
    pp, vpp, m = (np.full(len(devices), float(column[0])) for column in (x["pp"], x["vpp"], one.ledger.m))
    after_f, after_i = moments_held(one.layout.schedule, pp, vpp, m, devices.astype(np.float64))
    back = is_folded(one.layout) * (np.arange(len(devices)) >= len(devices) // 2)
    last = [after_f - _HELD[:, None] / chunks_per_stage(one.layout)] if not len(after_i) else []
    numbers, chunk = np.concatenate([after_f, after_i, *last]), np.arange(len(devices))
    from_f, from_i = (numbers[:, first + back, chunk].T[..., None] for first in (0, 2))
    return from_f, from_i, np.repeat([0, 1, 2], [len(after_f), len(after_i), len(last)])
