"""Attention whose heads are not a rank's own: what ranks of tensor parallelism exchange for it."""

from __future__ import annotations

import numpy as np

from ..arrays import Array
from ..quantities.element_bytes import FP32_BYTES
from ..quantities.operation_builder import Builder
from ..quantities.operations import Exchange, LayerOperations, MemoryTraffic


def made_in_parts(builder: Builder, ops: LayerOperations, kv_heads: int, width: float, made: Array) -> Array:
    """[key] elements per token that a rank's projections put out, where tp has more ranks than there are key/value
    heads an equal part of all, `width`; else `made`. It gathers the parts of the others, puts them side by side, and
    backward scatters the gradient, zero but for its heads (Megatron Core d98e8a64, core/transformer/attention.py,
    get_query_key_value_tensors; core/tensor_parallel/mappings.py, _AllGatherFromTensorParallelRegion)."""
    shard, splits = builder.shard, builder.shard.tp > kv_heads
    whole = np.where(splits, builder.activation_bytes * shard.tokens * width, 0.0)
    if not splits.any():
        return made
    ones = np.ones_like(whole)
    ops.exchanges.append(Exchange("tp", "all_gather", whole, shard.tp, ones, 1, 0))
    ops.exchanges.append(Exchange("tp", "reduce_scatter", whole, shard.tp, ones, 0, 1))
    # Parts joined 2; backward: zeros 1, parts in order of ranks 2.
    ops.traffic.append(MemoryTraffic("projections joined", 2 * whole, 3 * whole, fusable=False))
    return np.where(splits, width / shard.tp, made)


def of_all_heads(builder: Builder, ops: LayerOperations, elements: Array) -> Array:
    """[key] elements of queries and keys that a rank of tp norms over all heads. It gathers those of the others, and
    cuts them again behind the norms; backward it gathers gradients (DiTSelfAttention of Megatron-Bridge 067f987d).
    Passes: two copies before and one behind, of what a rank has; of the whole, heads put side by side and once more in
    order. Else it sums the squares of a token's queries, and of its keys, and backward as many products."""
    tp, w = builder.shard.tp, builder.activation_bytes
    if not builder.stack.gathers_normed_heads:
        sums = np.where(tp > 1, 2 * FP32_BYTES * builder.shard.tokens, 0.0)
        ops.exchanges.append(Exchange("tp", "all_reduce", sums, tp, np.ones_like(tp), 1, 1))
        return elements
    whole = elements * tp
    moved = np.where(tp > 1, w * (6 * elements + 4 * whole), 0.0)
    ops.exchanges.append(Exchange("tp", "all_gather", np.where(tp > 1, w * whole, 0.0), tp, np.ones_like(tp), 1, 1))
    ops.traffic.append(MemoryTraffic("queries and keys gathered", moved, moved, fusable=False))
    return np.asarray(whole)
