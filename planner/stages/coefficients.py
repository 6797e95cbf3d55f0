"""The partition problem of a layout, out of its ledger.

The cost of a layer does not depend on its neighbours, so seconds and bytes of layers are those of one layer on a device
of its own. Only transient tensors are not a sum over layers: the problem takes the least that any stage has of them.
"""

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
from ...cost_models.quantities.resident import resident_moments
from ...cost_models.quantities.stacks import kept_once, stashed_once
from ...cost_models.quantities.stages import (
    EMBEDDING,
    HEAD,
    Splits,
    chunk_rows,
    chunks_per_stage,
    is_folded,
    on_devices,
)
from ...cost_models.rates.kernel_seconds import kernel_seconds
from ...cost_models.rates.layer_seconds import COMPONENTS
from ...cost_models.step import optimizer_seconds, reserved_memory, stage_messages, step, stragglers
from ..evaluation.simulator_costs import single_layers
from ..evaluation.staged import Staged
from .problem import MemoryNeeds, PartitionProblem

# Terms of a step (step.TERMS) that the program has, beside step.ONCE_TERMS, and those that it leaves out. It may leave
# out any: its answer is a bound from below, and each split that it proposes is priced by `Staged`.
PROGRAM_TERMS = frozenset({*COMPONENTS, "accumulate", "bubble", "pp", "optimizer", "stragglers"})
LEFT_OUT_TERMS = frozenset({"imbalance", "fsdp", "resharding", "vocabulary", "dp", "offload"})

# The entries of resident.Moment that count micro-batches from F to I: on chunks that go there, and that come back.
_FROM_F = np.array([1.0, 1.0, 0.0, 0.0])


def runs_of(pattern: tuple[int, ...]) -> tuple[tuple[int, int], ...]:
    """(kind, layers) of each run of equal layers."""
    edges = [0, *(i for i in range(1, len(pattern)) if pattern[i] != pattern[i - 1]), len(pattern)]
    return tuple((pattern[low], high - low) for low, high in itertools.pairwise(edges))


def problem_of(
    staged: Staged, memory_bytes: float, *, separate_recompute: bool, like: PartitionProblem | None = None
) -> PartitionProblem:
    """The partition problem of a layout. separate_recompute: whether stages may recompute different numbers of layers.
    like: the problem of the same layout under other rates, whose bytes are the same."""
    resolved = staged.resolved
    ledger = staged.ledger
    chunks = len(staged.devices)
    pp = staged.layout.pp
    rates = resolved.rates
    runs = runs_of(resolved.problem.pattern)
    key = staged.key
    chooses = separate_recompute and RECOMPUTE_MODES[staged.layout.recompute] == "full"
    kernels, single = kernel_seconds(ledger.tables, rates), single_layers(ledger)
    accumulate_s = accumulated_bytes(single, 0)[:-1] / rates.bandwidth("accumulation")[0]
    forward_s, weight_s = kernels.forward_s[:, key], kernels.weight_s[:, key]
    recompute_s = kernels.recompute_s(*staged.recompute_code).sum(axis=1)[:, key]
    input_s = np.maximum(kernels.backward_s[:, key] - weight_s, 0.0) + accumulate_s
    input_s = input_s if chooses else input_s + recompute_s
    update_s, edges = optimizer_seconds.optimizer_s(single, rates), edge_rows(staged)
    layer_update_s = update_s[:-1] - update_s[-1]

    def of_runs(of_kinds: Array, number: int) -> Array:
        """[number, run] the same row for every chunk or device."""
        return np.tile(of_kinds[[kind for kind, _ in runs]], (number, 1))

    return PartitionProblem(
        runs=tuple(length for _, length in runs), devices=tuple(staged.devices), schedule=staged.schedule,
        forward_s=of_runs(forward_s, chunks), input_s=of_runs(input_s, chunks), weight_s=of_runs(weight_s, chunks),
        recompute_s=of_runs(recompute_s, chunks), edge_forward_s=edges @ forward_s, edge_input_s=edges @ input_s,
        edge_weight_s=edges @ weight_s, hop_s=np.full((2, chunks), float(stage_messages.hop_s(ledger, rates)[0])),
        link_s=np.full((2, chunks), float(stage_messages.link_s(ledger, rates)[0])),
        needs=like.needs if like else _memory_needs(staged, edges, chooses_recompute=chooses),
        memory_bytes=np.full(pp, memory_bytes), update_s=of_runs(layer_update_s, pp),
        fixed_update_s=update_s[-1] + on_devices(edges, staged.devices) @ layer_update_s, chooses_recompute=chooses,
        unhidden_s=np.zeros((pp, len(runs))), fixed_unhidden_s=np.zeros(pp),
        least_first=tower.least if (tower := resolved.problem.edges.tower) else 0,
        once_s=float(step.once_terms_s(ledger, rates)[0]), growth=1.0 + stragglers.straggler_share(ledger),
    )  # fmt: skip


def edge_rows(staged: Staged) -> Array:
    """[chunk, kind] embedding, head and MTP modules, without any layer."""
    problem, layout = staged.resolved.problem, staged.layout
    no_layers = (0,) * len(staged.devices)
    return chunk_rows(problem.pattern, problem.num_kinds, problem.edges, layout.pp, chunks_per_stage(layout),
                      is_folded(layout), no_layers)  # fmt: skip


def _memory_needs(staged: Staged, edges: Array, *, chooses_recompute: bool) -> MemoryNeeds:
    ledger = staged.ledger
    rates = staged.resolved.rates
    tables = staged.ledger.tables
    key = staged.key
    kinds = [kind for kind, _ in runs_of(staged.resolved.problem.pattern)]
    growth = 1.0 + rates.overheads.reserve_share  # the allocator reserves more than tensors take
    on_gpu, state = on_devices(edges, staged.devices), _state_bytes(single_layers(ledger))
    from_f, from_i, transient_row = _moments(staged)
    saved, recomputed = tables.saved(0, 0)[:, key], tables.saved(*staged.recompute_code)[:, key]
    if chooses_recompute:  # stages that recompute repeat the tower too: the least that any partition keeps of it
        saved = saved.copy()
        saved[EMBEDDING] = recomputed[EMBEDDING]
    resident = from_f * (saved if chooses_recompute else recomputed) + from_i * tables.wgrad_stash[:, key]
    transient = _transient_bytes(staged, edges, none_recomputed=chooses_recompute)
    recompute_bytes = np.zeros(staged.layout.pp)
    if chooses_recompute:
        recomputing = _transient_bytes(staged, edges, filled=True)[0]
        recompute_bytes = growth * np.maximum(recomputing - transient[0], 0.0)
    # Of an encoder and its decoder a stage keeps something once: here the most that one may, with layers of both.
    both = np.ones((1, edges.shape[1]))
    once = from_f[..., 0] * kept_once(tables, both, staged.ledger.key) + from_i[..., 0] * stashed_once(
        tables, both, staged.ledger.key)  # fmt: skip
    at_edges = on_devices((edges[:, None] * resident).sum(axis=2) + once, staged.devices)
    tensors = transient[transient_row].T + (on_gpu @ state)[:, None] + at_edges + _outputs(staged, from_f + from_i)
    outside = _unusable(staged, on_gpu)[:, None] + float(reserved_memory.fixed_bytes(ledger, rates)[0])
    return MemoryNeeds(
        resident_bytes=growth * (state[kinds] + resident[..., kinds]),
        dropped_bytes=growth * from_f * (saved - recomputed)[kinds],
        fixed_bytes=growth * tensors + outside, recompute_bytes=recompute_bytes,
    )  # fmt: skip


def _state_bytes(single: Ledger) -> Array:
    """[kind] bytes that a layer of each kind keeps for the whole run: weights, gradients, optimizer states."""
    buffers = DeviceMemory(single).buffers(0)
    total = np.asarray(sum(buffers[name] for name in LASTING if name != "activations"))
    return np.asarray(total[:-1] - total[-1])


def _transient_bytes(staged: Staged, edges: Array, *, none_recomputed: bool = False, filled: bool = False) -> Array:
    """[3, device] transient bytes (DeviceMemory.transient_bytes) that every stage has at least: those beside one layer,
    or beside none where a stage may be empty. none_recomputed: as if no layer were; filled: no stage is empty."""
    on_gpu, devices = on_devices(edges, staged.devices), staged.devices
    variants = [on_gpu + np.eye(on_gpu.shape[1])[kind] for kind in range(staged.resolved.problem.num_kinds)]
    ledger, late = staged.ledger, DeviceMemory(staged.ledger).late_bytes
    if none_recomputed:
        ledger = replace(ledger, code=ledger.code * 0, codes=((0, 0),))
    of_kinds = np.array([_transient_beside(ledger, rows, late) for rows in variants])
    least = of_kinds.min(axis=0)
    # Every chunk between the ends has a layer. So chunk c starts at layer c - 1 or later, and as many layers are left
    # for the chunks behind it: only the kinds in between can be on it.
    pattern, last = staged.resolved.problem.pattern, len(devices) - 1
    for chunk, device in enumerate(devices[1:-1], 1):
        kinds = sorted(set(pattern[chunk - 1 : len(pattern) - last + 1 + chunk]))
        least[:, device] = np.maximum(least[:, device], of_kinds[kinds, :, device].min(axis=0))
    if filled:
        return np.asarray(least)
    may_be_empty = sorted({devices[0], devices[-1]} - set(devices[1:-1]))
    least[:, may_be_empty] = np.minimum(least, _transient_beside(ledger, on_gpu, late))[:, may_be_empty]
    return np.asarray(least)


def _transient_beside(ledger: Ledger, rows: Array, late: Array) -> Array:
    """[3, device] transient bytes of devices with [device, kind] layers. Each distinct row is computed once."""
    distinct, which = np.unique(rows, axis=0, return_inverse=True)
    number = np.zeros((1, len(distinct)))
    splits = Splits(distinct[None], number, np.ones_like(number), rows.sum(axis=0)[None])
    other = DeviceMemory(replace(ledger, splits=splits))
    return np.array([other.transient_bytes(j, late)[:, 0] for j in range(len(distinct))]).T[:, which]


def _outputs(staged: Staged, in_flight: Array) -> Array:
    """[device, moment] bytes of outputs that a stage keeps after it sent them on. in_flight: [chunk, moment, 1]
    micro-batches."""
    hands_on = np.arange(staged.layout.pp) < staged.layout.pp - 1
    return np.asarray(hands_on[:, None] * staged.ledger.saved_output[0] * in_flight[: staged.layout.pp, :, 0])


def _unusable(staged: Staged, on_gpu: Array) -> Array:
    """[device] bytes of allocator blocks that the loss frees and nothing else can use."""
    most = max(float(unusable(staged.ledger, j)[0]) for j in range(staged.ledger.num_profiles))
    return np.where(on_gpu[:, HEAD] > 0, most, 0.0)


def _moments(staged: Staged) -> tuple[Array, Array, NDArray[np.int64]]:
    """[chunk, moment, 1] micro-batches that each chunk holds from F to I, and from I to W, at each moment at which its
    device may be fullest; [moment] the row of `_transient_bytes` for it.

    The moments are after an F and after an I. Without a split backward pass there is one more, in the backward pass of
    the embedding, when one micro-batch of one chunk is gone.
    """
    x, devices = staged.ledger.layouts, np.array(staged.devices)
    pp, vpp, m = (np.full(len(devices), float(column[0])) for column in (x["pp"], x["vpp"], staged.ledger.m))
    after_f, after_i = resident_moments(staged.layout.schedule, pp, vpp, m, devices.astype(np.float64))
    at_embedding = [after_f - _FROM_F[:, None] / chunks_per_stage(staged.layout)] if not len(after_i) else []
    numbers, chunk = np.concatenate([after_f, after_i, *at_embedding]), np.arange(len(devices))
    comes_back = is_folded(staged.layout) * (chunk >= len(devices) // 2)
    from_f, from_i = (numbers[:, first + comes_back, chunk].T[..., None] for first in (0, 2))
    return from_f, from_i, np.repeat([0, 1, 2], [len(after_f), len(after_i), len(at_embedding)])
