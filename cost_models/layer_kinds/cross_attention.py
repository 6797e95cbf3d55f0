"""Attention of a decoder's tokens to the output of the encoder (arXiv 1706.03762, section 3.2.3)."""

from __future__ import annotations

import numpy as np

from ..quantities.operation_builder import Builder
from ..quantities.operations import Core, Exchange, LayerOperations, Saved, tag
from ..specs.model import Attention
from . import attention as self_attention
from .attention_scores import add_statistics


def parameters(attention: Attention, hidden: int) -> dict[str, int]:
    """Elements of the block, by name: those of self-attention."""
    return {f"cross_{name}": count for name, count in self_attention.parameters(attention, hidden).items()}


def add_cross_attention(builder: Builder, ops: LayerOperations, attention: Attention) -> None:
    """Queries of the T tokens of the target; keys and values of the S tokens of the source, which all of a rank's heads
    see. Symbols as in layer_operations.py; dv: head dim of values."""
    shard, source, h, w = builder.shard, builder.of_source().shard, builder.model.hidden, builder.activation_bytes
    a, d, dv = attention.heads / shard.tp, attention.head_dim, attention.value_head_dim
    g = np.maximum(attention.kv_heads / shard.tp, 1.0)
    source_len = builder.of_source().workload.seq_len
    queries, keys = w * shard.tokens * a * d, w * source.tokens * g * (d + dv)
    builder.add_gemm(ops, "cross query", shard.tokens, a * d, h)
    builder.add_gemm(ops, "cross key and value", source.tokens, g * (d + dv), h)
    builder.add_gemm(ops, "cross output", shard.tokens, h, a * dv)
    ops.wgrad_stash += [queries, keys, builder.kept_input * shard.tokens * a * dv, w * h * shard.sp_tokens]
    ops.cores.append(Core(2.0 * shard.tokens * a * (d + dv) * source_len, source_len, d, tag("attn")))
    ops.saved.append(Saved("cross query, key, value", queries + keys))
    if attention.norm_parameters:
        self_attention.add_head_norms(builder, ops, attention, (shard.tokens * a + source.tokens * g) * d)
    self_attention.add_kept_output(builder, ops, shard.tokens * a * dv)
    add_statistics(builder, ops, shard.tokens * a, source_len)
    builder.add_tensor_parallel(ops)
    _add_gathered_source(builder, ops)


def _add_gathered_source(builder: Builder, ops: LayerOperations) -> None:
    """Messages of the encoder's output before keys and values: gathered where ranks hold parts of it, and its gradient
    scattered; else the sum of its gradient."""
    shard, source = builder.shard, builder.of_source().shard
    full = np.where(shard.tp > 1, builder.activation_bytes * builder.model.hidden * source.tokens, 0.0)
    split, whole = np.where(shard.sp > 0, full, 0.0), np.where(shard.sp > 0, 0.0, full)
    ones = np.ones_like(full)
    ops.exchanges.append(Exchange("tp", "all_gather", split, shard.tp, ones, 1, 0))
    ops.exchanges.append(Exchange("tp", "reduce_scatter", split, shard.tp, ones, 0, 1))
    ops.exchanges.append(Exchange("tp", "all_reduce", whole, shard.tp, ones, 0, 1))
