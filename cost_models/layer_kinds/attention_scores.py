"""The scores of attention where no fused kernel runs, and the learned bias that some models add to them."""

from __future__ import annotations

import numpy as np

from ..arrays import Array
from ..offload_modules import mask_of_modules
from ..quantities.operation_builder import Builder
from ..quantities.operations import LayerOperations, MemoryTraffic, Saved, tag
from ..specs.model import Attention


def add_statistics(builder: Builder, ops: LayerOperations, rows: Array, keys: int) -> None:
    """Bytes that the core keeps beside its inputs and output, for each of the `rows` (one per query and head) that sees
    at most so many keys: all scores where no fused kernel runs, else the logarithm of their sum."""
    if builder.stack.attention == "unfused":
        _add_scores(builder, ops, rows, keys)
    else:
        ops.saved.append(Saved("log-sum-exp", 4.0 * rows, tag("attn")))


def add_relative_bias(builder: Builder, ops: LayerOperations, attention: Attention) -> None:
    """A number by distance and head on each score, [head, query, key]. All layers of a stack share it, and the first
    one makes it. Unfused attention adds it to the scores and sums their gradient over sequences; a fused kernel takes
    it as an input, which it keeps (torch, scaled_dot_product_attention with attn_mask): once a stage (stacks.py)."""
    w, length, shard = builder.activation_bytes, builder.workload.seq_len, builder.shard
    numbers = w * attention.heads / shard.tp * length**2
    sequences = shard.batch if builder.stack.attention == "unfused" else 1.0
    ops.traffic.append(MemoryTraffic("position bias", (2 * sequences + 1) * numbers, (sequences + 1) * numbers,
                                     tag("attn"), fusable=False))  # fmt: skip
    if attention.bias_parameters:
        ops.traffic.append(MemoryTraffic("position bias made", 2 * numbers, 2 * numbers, fusable=False))


def _add_scores(builder: Builder, ops: LayerOperations, rows: Array, keys: int) -> None:
    """Unfused attention, one row per query and head: all scores are materialised. Kept: softmax output (w),
    dropout mask (1) and dropout output (w), 5*a*s/h of Korthikanti. The softmax itself is in the surface."""
    w, scores = builder.activation_bytes, rows * keys
    kept = ((2 * w + 1) if builder.model.dropout else w) * scores
    ops.saved.append(Saved("attention scores", kept, tag("attn"), mask_of_modules("core_attn")))
    if builder.model.dropout:  # read, written, and the mask; the same of the gradient
        ops.traffic.append(
            MemoryTraffic("score dropout", (2 * w + 1) * scores, (2 * w + 1) * scores, tag("attn"), False)
        )
    _add_softmax_in_steps(builder, ops, rows, keys)


def _add_softmax_in_steps(builder: Builder, ops: LayerOperations, rows: Array, keys: int) -> None:
    """torch, which replaces the fused kernel where it does not take this number of squares, casts the scores to fp32,
    scales, masks, takes the softmax and casts back (Megatron-LM, FusedScaleMaskSoftmax.forward_torch_softmax): five
    kernels in place of one. Each reads and writes them; its gradient too, that of the softmax reads its result as
    well."""
    squares = rows / builder.workload.seq_len
    in_steps = squares % builder.stack.fused_softmax_multiple != 0
    if not in_steps.any():
        return
    w, scores = builder.activation_bytes, np.where(in_steps, rows * keys, 0.0)
    casts, steps, gradients = 2 * (w + 4), 3 * 8, 3 * 8 + 4
    fused, fused_back = 2 * w, 3 * w  # in the surface already
    ops.traffic.append(
        MemoryTraffic("softmax in steps", (casts + steps - fused) * scores, (casts + gradients - fused_back) * scores,
                      tag("attn"), False)
    )  # fmt: skip
    ops.saved.append(Saved("softmax in fp32", 4 * scores, tag("attn"), mask_of_modules("core_attn")))
    ops.kernels = ops.kernels + np.where(in_steps, 4.0, 0.0)
