"""Parallel streams of one model (ParScale, arXiv 2505.10475): their parameters, and the block that joins them.

Each of P streams computes every token of every layer. Learned keys and values, a prefix in each attention, tell them
apart. Behind the final norm two products make P weights of each token, and the sum of the streams goes to the head
(QwenLM/ParScale cd6acb48, Qwen2Model).
"""

from __future__ import annotations

from dataclasses import replace

from ..specs.model import Layer
from ..specs.stack import StackSpec
from .memory import KindParameters
from .operation_builder import Builder
from .operations import LayerOperations, MemoryTraffic, Saved


def with_prefixes(parameters: KindParameters, kind: Layer, stack: StackSpec) -> KindParameters:
    """Parameters of a layer with the keys and values of each stream, by heads as tensor parallelism splits them."""
    attention = kind.attention
    if stack.streams == 1 or attention is None:
        return parameters
    width = attention.kv_heads * (attention.head_dim + attention.value_head_dim)
    added = float(stack.streams * stack.prefix_tokens * width)
    trained = parameters.trained_sharded + added * (not parameters.frozen)
    return replace(parameters, sharded=parameters.sharded + added, trained_sharded=trained)


def with_aggregation(parameters: KindParameters, hidden: int, stack: StackSpec) -> KindParameters:
    """Parameters of the head with the products that weigh streams, P h -> h -> P with biases, whole on every rank."""
    p = stack.streams
    if p == 1:
        return parameters
    added = float(p * hidden * hidden + hidden + hidden * p + p)
    trained = parameters.trained_replicated + added * (not parameters.frozen)
    return replace(parameters, replicated=parameters.replicated + added, trained_replicated=trained)


def add_aggregation(builder: Builder, ops: LayerOperations) -> None:
    """The weighted sum of streams, in steps of torch: streams put side by side (2 w per element), times their weights
    in fp32 (w + 4), summed (4). Backward: products with the gradient of the sum in fp32, and cast back (8 + w), and
    with the streams, summed (8 + w); the gradient of streams side by side (2 w), and the sum of both (3 w)."""
    p, h, w, tokens = builder.stack.streams, builder.model.hidden, builder.activation_bytes, builder.shard.sp_tokens
    if p == 1:
        return
    builder.add_gemm(ops, "streams in", tokens, h, p * h, wide=True)
    builder.add_gemm(ops, "streams out", tokens, p, h, wide=True)
    kept = w * (p * h + ops.keeps_input() * (p + 1) * h + h)  # factor of the weights, inputs of products, of activation
    ops.saved.append(Saved("streams", (kept + 2 * 4.0 * p) * tokens))  # weights in fp32, smoothed and not
    forward, backward = 8 + 3 * w, 16 + 7 * w
    ops.traffic.append(MemoryTraffic("streams", forward * p * h * tokens, backward * p * h * tokens, fusable=False))
    ops.traffic.append(MemoryTraffic("streams activation", 2 * w * h * tokens, 3 * w * h * tokens))
    ops.kernels += 12.0
