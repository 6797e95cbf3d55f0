"""Rings of context parallelism: what each hop sends of a rank's tokens, by `StackSpec.ring_sends`.

Links send both ways at once: of two opposite messages the longer counts.
"""

from __future__ import annotations

import numpy as np

from ..arrays import Array
from ..quantities.operation_builder import Builder
from ..quantities.operations import Exchange, LayerOperations, tag

_STATISTIC_BYTES = 4  # fp32


def add_ring(
    builder: Builder, ops: LayerOperations, heads: Array, q_width: Array, k_width: Array, v_width: Array
) -> None:
    """Messages of ranks that form a ring. heads: of a rank's queries; widths: elements per token of a rank's queries,
    keys and values.

    keys: keys and values travel c-1 hops, and again with their gradients.
    queries (TokenRing, ACA-Lab-SJTU/token-ring 3fb15e49, zigzag_ring_flash_attn_forward): queries travel, outputs with
    their log-sum-exp return. Its code has no backward pass. Keys stay there too: queries, gradients of the outputs and
    two statistics per head (log-sum-exp; sum of output times gradient) travel, gradients of the queries return.
    scores (Ring Self-Attention, ColossalAI 1df47edb, RingQK and RingAV of its parallel_sequence): keys travel, then
    values, again backward; gradients of both are summed over all tokens, and each rank keeps its own.
    """
    shard, w = builder.shard, builder.activation_bytes
    ring = np.where(shard.allgather, 1.0, shard.ring)
    if not (ring > 1).any():
        return
    tokens, hops, stride = np.where(ring > 1, shard.tokens, 0.0), ring - 1, shard.tp * shard.ulysses

    def add_hops(num_bytes: Array, forward: Array | float, backward: Array | float) -> None:
        ops.exchanges.append(Exchange("cp", "p2p", num_bytes, ring, stride, forward, backward, tag("attn")))

    if builder.stack.ring_sends == "queries":
        out, statistics = w * q_width * (v_width / k_width), _STATISTIC_BYTES * heads
        add_hops(tokens * np.maximum(w * q_width, out + statistics), hops, 0)
        add_hops(tokens * (w * q_width + out + 2 * statistics), 0, hops)
    elif builder.stack.ring_sends == "scores":
        for width in (k_width, v_width):
            add_hops(w * tokens * width, hops, hops)
            summed = w * tokens * width * ring
            ops.exchanges.append(Exchange("cp", "all_reduce", summed, ring, stride, 0, 1))
        ops.steps = ops.steps + w * tokens * np.maximum(k_width, v_width) * ring  # a whole gradient
    else:
        add_hops(w * tokens * (k_width + v_width), hops, 2 * hops)
