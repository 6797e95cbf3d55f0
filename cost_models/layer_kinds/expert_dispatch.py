"""Tokens on their way to the ranks of their experts and back: copies, their numbers, collectives."""

from __future__ import annotations

import numpy as np

from ..arrays import Array
from ..quantities.exchanges import Op
from ..quantities.operation_builder import Builder
from ..quantities.operations import Axis, Exchange, LayerOperations, MemoryTraffic, tag
from ..quantities.shards import Shard
from ..quantities.token_dispatch import distinct_share
from ..specs.model import MixtureOfExperts

# Seconds of a sum of rows over those of a copy of as many, by what sums (H200, torch 2.11: benchmarks/kernels_h200).
_SUM_OVER_COPY = {"fused": 1.0, "scatter_add": 4.3, "index_add": 9.1}
_COUNT_BYTES = 8  # of the number of tokens for an expert


def is_dropless(builder: Builder, block: MixtureOfExperts) -> bool:
    """Whether experts take all tokens that choose them, a number that no rank knows beforehand."""
    return builder.stack.dropless and block.capacity_factor is None


def add_dispatch(
    builder: Builder, ops: LayerOperations, block: MixtureOfExperts, chosen: Array, routed: Array, rows: Array
) -> None:  # fmt: skip
    """Tokens to the ranks of their experts, in the order of these, and back. chosen: copies of the tokens that a rank
    holds; routed: those that it sends; rows: those that its experts compute."""
    shard, h, w = builder.shard, block.latent or builder.model.hidden, builder.activation_bytes
    ranks = shard.ep * shard.etp
    if builder.stack.ep_dispatch == "allgather":  # all tokens of all ranks go to each of them
        before = chosen = shard.tokens / shard.tp * ranks
        _add_gathers(ops, w * chosen * h, ranks)
    else:
        before = rows
        if is_dropless(builder, block):
            _add_counts(ops, shard, float(_COUNT_BYTES * block.experts))
        _add_all_to_alls(builder, ops, block, np.where(shard.ep > 1, routed * h, 0.0))
        _add_gathers(ops, w * rows * h, shard.etp, "etp")
    # Rows come rank by rank, and leave so; experts take them one after another.
    ops.reordered_bytes = np.where(ranks > 1, w * (before + rows) * h, 0.0)
    _add_permutation(builder, ops, block, chosen, rows)


def _add_permutation(
    builder: Builder, ops: LayerOperations, block: MixtureOfExperts, routed: Array, rows: Array
) -> None:
    """Each token is copied for every one of its experts, in their order, and what comes back is summed up.

    A dispatcher that sends one copy per expert copies before it sends, sorts what it gets from all ranks by expert, and
    pads the rows of each for fp8 products (Megatron Core, transformer/moe/token_dispatcher.py,
    MoEAlltoAllTokenDispatcher; experts.py, quantization_padding). One that sends a token once per rank copies where the
    token arrives, and pads there (_HybridEPManager). Each is one kernel that moves what it must (TransformerEngine,
    pytorch/permutation.py); sums by torch take longer (`sums_rows`). The same in the backward pass.
    """
    shard, stack, k = builder.shard, builder.stack, block.top_k
    tokens, again = routed / k, np.zeros_like(routed)
    if stack.ep_dispatch == "allgather":
        tokens, routed = routed, rows
    elif stack.ep_dispatch != "alltoall":
        tokens = routed * distinct_share(shard.ep, k, (block.groups, block.top_groups))
    else:
        padded = np.logical_and(ops.host_waits, builder.workload.is_quantised)
        sorts = (block.experts > shard.ep) & (builder.stack.sorts_own_rows | (shard.ep * shard.etp > 1))
        again = rows * (np.where(sorts, 2.0, 0.0) + np.where(padded, 2.0, 0.0))
    row_bytes = builder.activation_bytes * (block.latent or builder.model.hidden)
    copied = (1 + _SUM_OVER_COPY[stack.sums_rows]) * row_bytes * (tokens + routed)
    for name, moved in (("permute", copied), ("sort", 2 * row_bytes * again)):
        ops.traffic.append(MemoryTraffic(name, moved, moved, tag("moe")))


def _add_counts(ops: LayerOperations, shard: Shard, num_bytes: float) -> None:
    """The numbers of tokens for all experts, `num_bytes` of each rank, sent before the tokens: to the ranks of the
    experts, and from these to those that share each expert (runtime/model/dispatch.py).

    Megatron Core gathers all of them over ep x etp in one call (transformer/moe/token_dispatcher.py,
    MoEAlltoAllTokenDispatcher.preprocess). Its `kernels_per_expert_block` come from the time of whole layers, this call
    included. Latencies of a measured device come from a rank whose peers answer at once.
    """
    ways: tuple[tuple[Op, Array, Array, str], ...] = (
        ("all_to_all", shard.ep, shard.etp, ""), ("all_gather", shard.etp, np.ones_like(shard.etp), "etp"))  # fmt: skip
    for op, size, stride, links in ways:
        full = np.where(size > 1, num_bytes * (size if op == "all_gather" else 1.0), 0.0)
        ops.exchanges.append(Exchange("ep", op, full, size, stride, 1, 0, tag("moe"), links=links, awaited=True))


def _add_all_to_alls(builder: Builder, ops: LayerOperations, block: MixtureOfExperts, elements: Array) -> None:
    """Tokens to their experts and back, their gradients likewise: `elements` of a rank each time."""
    shard, w, moe, dispatch = builder.shard, builder.activation_bytes, tag("moe"), builder.stack.ep_dispatch
    once_per_node = dispatch.startswith("deduplicated")
    groups = (block.groups, block.top_groups)
    reach = (float(block.top_k), groups) if once_per_node else (1.0, (1, 1))
    quantised = dispatch.endswith("fp8") and builder.workload.is_quantised
    for num_bytes, calls in ((1.0, 1), (w, 1)) if quantised else ((w, 2),):
        sent = num_bytes * (1.0 - builder.stack.tokens_at_home) * elements
        ops.exchanges.append(Exchange("ep", "all_to_all", sent, shard.ep, shard.etp, calls, calls, moe, *reach))


def _add_gathers(ops: LayerOperations, full: Array, size: Array, links: str = "") -> None:
    """Tokens of `size` neighbours, `full` bytes, gathered to all of them, and their outputs summed up and scattered.
    links: see Exchange."""
    full = np.where(size > 1, full, 0.0)
    if full.any():
        for op in ("all_gather", "reduce_scatter"):
            ops.exchanges.append(Exchange("ep", op, full, size, np.ones_like(full), 1, 1, tag("moe"), links=links))


def add_duplicates(ops: LayerOperations, copies: Array, rows: Array, shard: Shard) -> None:
    """Collectives of ranks of tp that hold the same tokens. Bytes: copies of these tokens, rows that a rank computes.

    Each sends its part of the copies. It gathers the others' part of the outputs that come back, and of the gradients
    in the backward pass. Ranks that split an expert sum their outputs up whole and drop what is not their part, instead
    of scattering the sums, as they do with gradients of inputs (DeepSpeed 38327e07, moe/sharded_moe.py,
    MOELayer.forward; moe/mappings.py; deepspeedai/Megatron-DeepSpeed 4efb479d, core/tensor_parallel/layers.py,
    RowParallelLinear)."""
    holds_all = (shard.tp > 1) & (shard.sp == 0)
    gathered: tuple[tuple[Axis, str, Array, Array], ...] = (
        ("tp", "tp", copies, shard.tp), ("ep", "etp", rows, shard.etp))  # fmt: skip
    for axis, links, full, size in gathered:
        sent = np.where(holds_all & (size > 1), full, 0.0)
        if sent.any():
            one = np.ones_like(sent)
            ops.exchanges.append(Exchange(axis, "all_gather", sent, size, one, 1, 1, tag("moe"), links=links))
