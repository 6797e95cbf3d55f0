"""Attention over ranks of context parallelism as torch runs it: every part of the keys by itself, by eager kernels.

torch 2.6 to 2.9, torch.distributed.tensor.experimental._attention (`_templated_ring_attention` and its backward pass,
`_SDPAMerger`): keys and values go round, or are gathered, and are put into one buffer each time. The output of every
part is cast to fp32 and merged with that of those before. Gradients are summed in fp32, and those of keys and values go
round in fp32, whatever the method is.
"""

from __future__ import annotations

import numpy as np

from ..arrays import Array
from ..quantities.operation_builder import Builder
from ..quantities.operations import Exchange, LayerOperations, MemoryTraffic, tag

_FP32 = 4
# Launched per part: casts of its output and its sums 2, merging them 8, the buffer to send 1, and attention itself.
_KERNELS = 12


def add_torch_ring(builder: Builder, ops: LayerOperations, q_width: Array, k_width: Array, v_width: Array) -> None:
    """Messages and merging of all parts. Widths: elements per token of a rank's queries, keys and values."""
    shard, w = builder.shard, builder.activation_bytes
    parts = shard.ring
    if not (parts > 1).any():
        return
    own = np.where(parts > 1, shard.tokens, 0.0)
    queries, kv, out = own * q_width, own * (k_width + v_width), own * q_width * (v_width / k_width)
    gathered = shard.allgather & (parts > 1)
    hops, stride = np.maximum(parts - 1, 0.0), shard.tp * shard.ulysses
    whole, passed = np.where(gathered, w * kv * parts, 0.0), np.where(gathered, 0.0, w * kv)
    ring = np.where(gathered, 1.0, parts)
    ops.exchanges.append(Exchange("cp", "all_gather", whole, parts / ring, stride, 1, 1, tag("attn")))
    ops.exchanges.append(Exchange("cp", "p2p", passed, ring, stride, hops, hops, tag("attn")))
    ops.exchanges.append(Exchange("cp", "p2p", _FP32 * kv, parts, stride, 0, hops + 1))
    sent = 2 * w * kv * hops
    # Cast w + 4, difference 12, times a share 8, difference 12; at the end it is cast back.
    merged = ((w + 8 * _FP32) * hops + (w + _FP32) * (parts + 1)) * out
    # Sums of all three 8 + w, the buffer of those of keys and values 8; zeros before, and cast back behind.
    summed = (2 * _FP32 + w) * (parts + 1) * (queries + kv) + 2 * _FP32 * parts * kv
    ops.traffic.append(MemoryTraffic("merged parts", sent + merged, sent + summed, tag("attn"), fusable=False))
    ops.kernels = ops.kernels + _KERNELS * hops
    ops.steps = np.maximum(ops.steps, whole)  # gathered keys and values; their gradients go round
