"""What the integer program of the stages (`partition_ilp`) needs to know of a layout, out of its ledger."""

from __future__ import annotations

import itertools
from dataclasses import replace

import numpy as np
from numpy.typing import NDArray

from ...cost_models import step
from ...cost_models.held import held_bytes
from ...cost_models.layouts import RECOMPUTE_MODES, SCHEDULES, V_SCHEDULES
from ...cost_models.ledger import LASTING, Ledger
from ...cost_models.liveness import unusable
from ...cost_models.stages import HEAD, Splits, chunk_rows, on_devices
from ..simulation import Staged, chunks_per_stage, one_by_one
from .partition_ilp import Stages

Array = NDArray[np.float64]


def runs_of(pattern: tuple[int, ...]) -> tuple[tuple[int, int], ...]:
    """(kind, layers) of each run of equal layers."""
    edges = [0, *(i for i in range(1, len(pattern)) if pattern[i] != pattern[i - 1]), len(pattern)]
    return tuple((pattern[low], high - low) for low, high in itertools.pairwise(edges))


def stages_of(one: Staged, memory_bytes: float, *, recompute_apart: bool, like: Stages | None = None) -> Stages:
    """What the integer program needs of a layout. recompute_apart: whether stages may recompute different numbers.
    like: of the same layout under other rates, which holds the same bytes."""
    found, layout, batch = one.found, one.layout, one.batch
    problem, rates, runs = found.problem, found.rates, runs_of(found.problem.pattern)
    chunks = len(one.devices)
    kinds = [kind for kind, _ in runs]
    chooses = recompute_apart and RECOMPUTE_MODES[layout.recompute] == "full"
    tables, key, code = batch.tables, int(batch.key[0]), batch.codes[int(batch.code[0])]
    single = one_by_one(batch)
    accumulate = single.accumulated_bytes(0)[:-1] / rates.bandwidth("accumulation")[0]
    redo, weight = tables.redo(*code).sum(axis=1)[:, key], tables.weight_s[:, key]
    inputs = np.maximum(tables.backward_s[:, key] - weight, 0.0) + accumulate
    ends = (problem.pattern, problem.num_kinds, problem.edges, layout.pp, chunks_per_stage(layout), one.schedule_name)
    edges = chunk_rows(*ends, (0,) * chunks)
    always = inputs if chooses else inputs + redo
    saved, kept = tables.saved(*code)[:, key], tables.saved(0, 0)[:, key]
    on_gpu, growth = on_devices(edges, one.devices), 1.0 + rates.overheads.reserve_share
    if like is None:
        state, held = _state_bytes(single), _held(one, kept if chooses else saved)
        fixed = _passing_bytes(one, edges, none_redone=chooses)
        per_layer = growth * (state[kinds] + held[:, kinds])
        at_ends = on_devices((edges * held).sum(axis=1), one.devices)
        fixed_bytes = growth * (fixed + on_gpu @ state + at_ends + _outputs(one))
        dropped_bytes = growth * (_held(one, kept) - _held(one, saved))[:, kinds]
        fixed_bytes = fixed_bytes + _unusable(one, on_gpu) + float(step.fixed_bytes(batch, rates)[0])
    else:
        per_layer, dropped_bytes, fixed_bytes = like.held_bytes, like.dropped_bytes, like.fixed_bytes
    update, pp = step.optimizer_s(single, rates), layout.pp

    def each(values: Array, number: int) -> Array:
        """The same row for every chunk or device."""
        return np.tile(values[kinds], (number, 1))

    return Stages(
        runs=tuple(length for _, length in runs), devices=tuple(one.devices), order=one.schedule,
        forward_s=each(tables.forward_s[:, key], chunks), input_s=each(always, chunks), weight_s=each(weight, chunks),
        redo_s=each(redo, chunks), redo_bytes=growth * float(tables.working(*code)[key]) if chooses else 0.0,
        edge_forward_s=edges @ tables.forward_s[:, key], edge_input_s=edges @ always, edge_weight_s=edges @ weight,
        hop_s=np.full((2, chunks), float(step.hop_s(batch, rates)[0])),
        link_s=np.full((2, chunks), float(step.link_s(batch, rates)[0])),
        held_bytes=per_layer, dropped_bytes=dropped_bytes, fixed_bytes=fixed_bytes,
        memory_bytes=np.full(pp, memory_bytes), update_s=each(update[:-1] - update[-1], pp),
        fixed_update_s=update[-1] + on_gpu @ (update[:-1] - update[-1]), chooses_recompute=chooses,
        fixed_s=float(step.messages_once_s(batch, rates)[0]), growth=1.0 + step.straggler_share(batch),
    )  # fmt: skip


def _state_bytes(single: Ledger) -> Array:
    """[kind] bytes that a layer of each kind keeps beside activations."""
    buffers = single.memory(0)
    total = np.asarray(sum(buffers[name] for name in LASTING if name != "activations"))
    return np.asarray(total[:-1] - total[-1])


def _passing_bytes(one: Staged, edges: Array, *, none_redone: bool) -> Array:
    """[device] bytes of what comes and goes, at least: beside a layer, or none where a stage may be empty. none_redone:
    as if no layer were recomputed."""
    on_gpu = on_devices(edges, one.devices)
    variants = [on_gpu + np.eye(on_gpu.shape[1])[kind] for kind in range(one.found.problem.num_kinds)]
    batch = replace(one.batch, code=one.batch.code * 0, codes=((0, 0),)) if none_redone else one.batch
    held = [_transient(batch, rows) for rows in variants]
    least = np.min(held, axis=0)
    empty = [device for device in {one.devices[0], one.devices[-1]} if one.devices.count(device) == 1]
    least[empty] = np.minimum(least, _transient(batch, on_gpu))[empty]
    return np.asarray(least)


def _transient(batch: Ledger, rows: Array) -> Array:
    """[device] bytes of the buffers that do not last, on devices with these layers; equal devices hold equal ones."""
    distinct, which = np.unique(rows, axis=0, return_inverse=True)
    number = np.zeros((1, len(distinct)))
    splits = Splits(distinct[None], number, np.ones_like(number), rows.sum(axis=0)[None])
    other = replace(batch, splits=splits)
    held = [other.memory(j) for j in range(len(distinct))]
    return np.array([sum(float(x[0]) for name, x in each.items() if name not in LASTING) for each in held])[which]


def _outputs(one: Staged) -> Array:
    """[device] bytes that it keeps of what it hands on, of all micro-batches in flight."""
    devices = np.arange(one.layout.pp, dtype=np.float64)
    kept = np.where(devices < one.layout.pp - 1, one.batch.kept_output[0], 0.0)
    chunks = np.array([kept, np.zeros_like(kept)])
    return np.asarray(held_bytes(*_pipeline(one, devices), chunks, chunks).max(axis=0))


def _unusable(one: Staged, on_gpu: Array) -> Array:
    """[device] bytes of blocks that the loss leaves empty."""
    most = max(float(unusable(one.batch, j)[0]) for j in range(one.batch.num_profiles))
    return np.where(on_gpu[:, HEAD] > 0, most, 0.0)


def _held(one: Staged, saved: Array) -> Array:
    """[chunk, kind] bytes of activations at the peak of its device, of a layer that saves `saved` [kind]."""
    waiting, devices = one.batch.tables.waiting[:, int(one.batch.key[0])], np.array(one.devices, dtype=np.float64)
    folded = SCHEDULES[one.layout.schedule] in V_SCHEDULES
    back = np.arange(len(devices)) >= len(devices) // 2 if folded else np.zeros(len(devices), dtype=bool)
    chunks = np.array([~back, back], dtype=np.float64)[:, :, None]
    pipeline = _pipeline(one, devices[:, None])
    return np.asarray(held_bytes(*pipeline, chunks * saved, chunks * waiting).max(axis=0))


def _pipeline(one: Staged, devices: Array) -> tuple[NDArray[np.int64], Array, Array, Array, Array]:
    """Schedule, stages, chunks, micro-batches and number of these devices: what `held_bytes` asks for."""
    x = one.batch.layouts
    schedule, pp, vpp, m = (np.broadcast_to(column, devices.shape)
                            for column in (x["schedule"], x["pp"], x["vpp"], one.batch.m))  # fmt: skip
    return schedule, pp, vpp, m, devices
