"""Costs of one layout for the event simulator: seconds and bytes of every pass, message and collective.

They come from the same tables and rates as the closed form (`step.price`), so that the closed form and the simulation
of a layout can be compared.
"""

from __future__ import annotations

from dataclasses import replace
from functools import partial

import numpy as np

from ...cost_models.arrays import Array
from ...cost_models.quantities.device_memory import DeviceMemory
from ...cost_models.quantities.exchanges import Op
from ...cost_models.quantities.gradients import accumulated_bytes, reductions
from ...cost_models.quantities.groups import Groups
from ...cost_models.quantities.ledger import Ledger
from ...cost_models.quantities.stacks import kept_once, sent_bytes, stashed_once
from ...cost_models.quantities.stages import Splits
from ...cost_models.rates import collectives
from ...cost_models.rates.kernel_seconds import kernel_seconds
from ...cost_models.schedules.simulator import Costs
from ...cost_models.specs.stack import StackSpec
from ...cost_models.step import stage_messages
from ...cost_models.step.data_parallel import exposed_sums_s, in_pieces, of_whole_weights_s
from ...cost_models.step.per_pass_overhead import per_pass_overhead_s
from ..request.resolve import Resolved
from . import vocabulary_passes
from .network import Network
from .staged_layout import StagedLayout


def costs_of(staged: StagedLayout) -> Costs:
    """Seconds of the schedule of a layout; with vocabulary parallelism also those of its passes."""
    vocabulary, costs = staged.ledger.vocabulary, _costs_of_layers(staged)
    if vocabulary is None:
        return costs
    collective_s = partial(data_parallel_s, staged.resolved, staged.ledger)
    return vocabulary_passes.costs_of(staged, vocabulary, costs, collective_s)


def _costs_of_layers(staged: StagedLayout) -> Costs:
    ledger, free_s = staged.ledger, _free_shares(staged)
    forward_s, input_s, weight_s = _passes_s(staged)
    hops, links = (tuple(map(tuple, seconds.tolist())) for seconds in message_seconds(staged))
    reduce_s, gather_s = data_parallel_s(staged.resolved, ledger, staged.rows)
    return Costs(
        forward_s=tuple(forward_s.tolist()), weight_s=tuple(weight_s.tolist()), input_s=tuple(input_s.tolist()),
        forward_hop_s=hops[0], backward_hop_s=hops[1], forward_link_s=links[0], backward_link_s=links[1],
        reduce_s=tuple(reduce_s.tolist()), gather_s=tuple(gather_s.tolist()),
        buckets=round(float(reductions(ledger)[0][0])), gather_overlap=free_s[0], overlap=free_s[1],
        optimizer_s=(float(staged.estimate.terms["optimizer"][0]),) * staged.layout.pp,
    )  # fmt: skip


def _passes_s(staged: StagedLayout) -> tuple[Array, Array, Array]:
    """[chunk] seconds of the passes F, I and W of a micro-batch. I recomputes too, and has the traffic that shows."""
    rates = staged.resolved.rates
    rows = staged.rows
    devices = np.array(staged.devices)
    kernels, key = kernel_seconds(staged.ledger.tables, rates), staged.key
    recompute_s = kernels.recompute_s(*staged.recompute_code).sum(axis=1)[:, key]
    overhead_s = per_pass_overhead_s(staged.ledger, rates)[:, devices, 0] / np.bincount(devices)[devices]
    forward_s, weight_s = rows @ kernels.forward_s[:, key] + overhead_s[0], rows @ kernels.weight_s[:, key]
    backward_s = rows @ kernels.backward_s[:, key] + staged.recomputed @ recompute_s + overhead_s[1]
    return forward_s, np.maximum(backward_s - weight_s, 0.0) + _exposed_s(staged), weight_s


def hiding_shares(stack: StackSpec) -> tuple[float, float]:
    """The shares of gathered weights and of reduced gradients that may hide behind compute. Where none may, the
    simulator runs all of it while the device is idle (`_free_shares`)."""
    return min(stack.dp_gather_overlap, 1.0) or 1.0, min(stack.dp_overlap, 1.0) or 1.0


def _free_shares(staged: StagedLayout) -> tuple[float, float]:
    """The shares of the forward and of the backward passes that no other traffic hides behind: the speeds at which
    weights are gathered and gradients are reduced beside them."""
    stack, stage = staged.resolved.stack, staged.stage
    free_s = np.array([stage.forward, stage.backward]) - stage.used
    passes_s = np.array([stage.forward, stage.cycle - stage.forward])
    forward, backward = np.clip(free_s.sum(axis=(1, 2)) / passes_s.sum(axis=(1, 2)), 0.0, 1.0).tolist()
    return forward * (stack.dp_gather_overlap > 0), backward * (stack.dp_overlap > 0)


def _exposed_s(staged: StagedLayout) -> Array:
    """[chunk] seconds of a micro-batch that are neither compute nor a message: most of it adds gradients up, so a
    device's seconds are shared among its chunks by the bytes of their gradients. Sums of copies that all passes but the
    last have (`exposed_sums_s`) are shared among all."""
    rows, devices = staged.rows, np.array(staged.devices)
    chunks_on_device = np.bincount(devices)[devices]
    added_bytes = rows @ accumulated_bytes(single_layers(staged.ledger), 0)[: rows.shape[1]]
    on_device = np.bincount(devices, added_bytes)[devices]
    share = np.divide(added_bytes, on_device, out=1.0 / chunks_on_device, where=on_device > 0)
    stage = staged.stage
    sums_s = exposed_sums_s(staged.ledger, staged.resolved.rates, stage.backward - stage.used[1]) / staged.ledger.m
    return np.asarray((stage.accumulate + stage.fsdp + stage.offload + sums_s)[devices, 0] * share)


def with_bytes(staged: StagedLayout, costs: Costs) -> Costs:
    """`costs` with bytes: none on chunks and devices beyond those of the layers (passes of the vocabulary, streams)."""
    activation_bytes, stash_bytes = (tuple(num_bytes.tolist()) for num_bytes in _saved_bytes(staged))
    no_chunks = (0.0,) * (len(costs.forward_s) - len(activation_bytes))
    no_devices = (0.0,) * (len(costs.optimizer_s) - staged.layout.pp)
    return replace(costs, activation_bytes=activation_bytes + no_chunks, stash_bytes=stash_bytes + no_chunks,
                   static_bytes=_static_bytes(staged.ledger) + no_devices)  # fmt: skip


def _saved_bytes(staged: StagedLayout) -> tuple[Array, Array]:
    """[chunk] bytes of a micro-batch that are kept from F to I, and from I to W (the wgrad stash)."""
    tables, key = staged.ledger.tables, staged.key
    dropped = (tables.saved(0, 0) - tables.saved(*staged.recompute_code))[:, key]
    activations = staged.rows @ tables.saved(0, 0)[:, key] - staged.recomputed @ dropped
    stash, keys = staged.rows @ tables.wgrad_stash[:, key], np.full(len(staged.rows), key)
    return activations + kept_once(tables, staged.rows, keys), stash + stashed_once(tables, staged.rows, keys)


def _static_bytes(ledger: Ledger) -> tuple[float, ...]:
    """[device] bytes of every buffer but activations, which the simulator counts itself."""
    memory = DeviceMemory(ledger)
    buffers = [memory.buffers(device) for device in range(ledger.num_profiles)]
    return tuple(sum(float(size[0]) for name, size in sizes.items() if name != "activations") for sizes in buffers)


def single_layers(ledger: Ledger) -> Ledger:
    """The ledger of one layout on single devices: row k holds one layer of kind k, the last row holds nothing."""
    kinds = ledger.splits.counts.shape[2]
    counts = np.vstack([np.eye(kinds), np.zeros(kinds)])[:, None]
    ones = np.ones((kinds + 1, 1))
    splits = Splits(counts, np.zeros_like(ones), ones, counts[:, 0], adds_up=True)
    rows = np.zeros(kinds + 1, dtype=np.int64)
    return replace(ledger, layouts=ledger.layouts.take(rows), key=ledger.key[rows], code=ledger.code[rows],
                   splits=splits, split=np.arange(kinds + 1))  # fmt: skip


def message_seconds(staged: StagedLayout) -> tuple[Array, Array]:
    """[2, chunk] seconds of the messages that bring its input and its gradient; how long they keep a link busy. Where
    links differ, each message has the bandwidth between the nodes of its two stages."""
    resolved, here = staged.resolved, np.array(staged.devices)
    chunks, last = np.arange(len(here)), len(here) - 1
    before, after = (np.clip(chunks + offset, 0, last) for offset in (-1, 1))
    sent = sent_bytes(staged.ledger, staged.rows)
    messages = np.array([sent[before], sent[np.minimum(chunks, max(last - 1, 0))]])
    bandwidths = np.zeros((2, len(here)))
    if resolved.nodes is not None:
        between = Network(resolved.cluster).between_stages(staged.layout, resolved.nodes)
        bandwidths = np.array([between[here[before], here], between[here[after], here]])
    hop_s, link_s = np.zeros((2, 2, len(here)))
    for bandwidth, num_bytes in sorted(set(zip(bandwidths.flat, messages.flat, strict=True))):
        rates = resolved.rates
        if resolved.nodes is not None:
            rates = rates.on_network({**(resolved.network or {}), "pp": float(bandwidth)})
        same = (bandwidths == bandwidth) & (messages == num_bytes)
        hop, link = stage_messages.message_s(staged.ledger, rates, np.array([num_bytes]))
        hop_s[same], link_s[same] = float(hop[0]), float(link[0])
    return hop_s, link_s


def data_parallel_s(resolved: Resolved, ledger: Ledger, rows: Array) -> tuple[Array, Array]:
    """[chunk] seconds to reduce the gradients and to gather the weights of [chunk, kind] layers, as in `step`: of both
    the part that may hide (`hiding_shares`)."""
    reduce_s, gather_s = np.zeros((2, len(rows)))
    per_chunk = int(ledger.layouts["pp"][0]) / len(rows)
    parts: list[tuple[str, str, Groups]] = [("trained_dense", "", ledger.dense_groups)]
    if resolved.model.is_moe:
        parts.append(("trained_experts", "expert_", ledger.expert_groups))
    for part, ((name, prefix, groups), total) in enumerate(zip(parts, reductions(ledger), strict=False)):
        calls = max(float(total[0]) * per_chunk, 1.0) if total[0] else 0.0
        trained = rows @ ledger.tables.parameters[name][:, int(ledger.key[0])]
        shard, stride = int(groups.shard[0]), int(groups.shard_stride[0])
        gradient = trained * float(np.max(ledger.states.whole_gradient_bytes))
        weight = rows @ ledger.new_weights(part)[:, 0]
        if ledger.states.reduces_once[0]:
            op: Op = "all_reduce" if ledger.states.sums_gradients else "reduce_scatter"
            reduce_s += _collective_s(resolved, f"{prefix}shard", op, shard, stride, gradient, calls)
        copies = int(groups.replicate[0]), int(groups.replicate_stride[0])
        reduce_s += _collective_s(resolved, f"{prefix}replicate", "all_reduce", *copies, gradient / shard, calls)
        if ledger.states.gathers_once[0]:
            broadcasts = resolved.stack.dp_gather == "broadcasts"
            op = "broadcast" if broadcasts else "all_gather"
            pieces = float(shard) if broadcasts else calls
            gather_s += _collective_s(resolved, f"{prefix}shard", op, shard, stride, weight, pieces)
    reduce_s += float(of_whole_weights_s(ledger, resolved.rates)[0]) * per_chunk
    gathers, reduces = hiding_shares(resolved.stack)
    return reduces * reduce_s, gathers * gather_s


def _collective_s(
    resolved: Resolved, group: str, op: Op, size: int, stride: int, num_bytes: Array, calls: float
) -> Array:
    """[chunk] seconds of a collective of `num_bytes` in `calls` pieces, in a kind of group (rates.GROUPS)."""
    levels = resolved.rates.levels_of(group)
    curve = collectives.curve(resolved.rates.collectives, levels, op, np.array([size]), np.array([stride]))
    return in_pieces(curve, num_bytes, np.array(calls))
