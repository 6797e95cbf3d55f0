"""Several residual streams, mixed before and after every block (DeepSeek-V4; hyper-connections, arXiv 2409.19606, kept
doubly stochastic, arXiv 2512.24880).

Of n streams of h elements a product of all n h makes the weights of a token: n that sum streams to the input of a
block, n that add its output to each stream, n x n that mix the streams. Before the head n more weights sum them up. The
product is in fp32; the rest are passes over memory. Two fused kernels around a block move, in elements (section 4.3 of
2512.24880): n h read and h written before it; n h + h read and n h written behind it. Backward behind it, streams,
output and gradients are read, gradients of both written: 3 n h + 2 h; before it streams and both gradients are read,
one written: 3 n h + h. The mixing itself, 2 n^2 h FLOPs of a token, runs in these kernels and is not counted.
Tensor parallelism has the weights whole on every rank; sequence parallelism shares tokens of the streams.
"""

from __future__ import annotations

from collections.abc import Iterator

from ..quantities.matrix import Matrix
from ..quantities.operation_builder import Builder
from ..quantities.operations import LayerOperations, MemoryTraffic, Saved
from ..specs.model import ModelSpec


def mixes(model: ModelSpec) -> bool:
    """Whether blocks mix several streams in this way; else see alternating_updates.py."""
    return model.residual_streams > 1 and not model.alternates


def block_parameters(model: ModelSpec) -> dict[str, int]:
    """Parameters of one block: the product; a bias per weight, three factors. None for one stream."""
    streams, weights = model.residual_streams, (2 + model.residual_streams) * model.residual_streams
    return {"streams": weights * streams * model.hidden, "stream_biases": weights + 3} if mixes(model) else {}


def head_parameters(model: ModelSpec) -> int:
    """Parameters of the sum before the head: the product, biases, one factor. 0 for one stream."""
    streams = model.residual_streams
    return streams * (streams * model.hidden + 1) + 1 if mixes(model) else 0


def matrices(model: ModelSpec, blocks: int) -> Iterator[tuple[Matrix, int]]:
    """The matrices of a layer of so many blocks that Muon orthogonalises."""
    streams = model.residual_streams
    if mixes(model):
        yield Matrix((((2 + streams) * streams, streams * model.hidden),), split=False), blocks


def add_streams(builder: Builder, ops: LayerOperations, blocks: float) -> None:
    """Around so many blocks of a layer."""
    n, h, tokens = builder.model.residual_streams, builder.model.hidden, builder.shard.sp_tokens
    if not mixes(builder.model):
        return
    builder.add_gemm(ops, "weights of streams", tokens, (2.0 + n) * n, float(n * h), count=blocks, wide=True)
    moved = blocks * builder.activation_bytes * h * tokens
    ops.traffic.append(MemoryTraffic("residual streams", (3 * n + 2) * moved, (6 * n + 3) * moved))
    ops.saved.append(Saved("residual streams", n * moved))
    ops.saved.append(Saved("outputs of blocks", moved))
    ops.kernels = ops.kernels + 2 * blocks


def add_joined_streams(builder: Builder, ops: LayerOperations) -> None:
    """Before the head."""
    n, h, tokens = builder.model.residual_streams, builder.model.hidden, builder.shard.sp_tokens
    if not mixes(builder.model):
        return
    builder.add_gemm(ops, "weights of streams", tokens, float(n), float(n * h), wide=True)
    moved = builder.activation_bytes * h * tokens
    ops.traffic.append(MemoryTraffic("residual streams", (n + 1) * moved, (2 * n + 1) * moved))
    ops.saved.append(Saved("residual streams", n * moved))
