"""Several residual streams of which layers run on the first (AltUp, arXiv 2301.13310; Gemma3nTextAltUp of transformers
5.24).

There are n streams of h elements. Before a layer, n x n weights per token, made from the normed first stream, predict
all streams; behind it, n weights made from its normed output add what the layer changed to each of them, and the first
one is scaled by channel. Other streams start as products of the embedding, and products of them are in the mean that
the head takes; all of them have the magnitude of the first.

The counts of passes over memory are those of transformers, step by step. Backward, the gradient of a stream that is cut
out of n is a tensor of all n. Prediction itself, 2 n^2 h FLOPs of a token, is such a pass and is not counted. Tensor
parallelism has the weights whole on every rank.
"""

from __future__ import annotations

from collections.abc import Iterator

from ..quantities.matrix import Matrix
from ..quantities.operation_builder import Builder
from ..quantities.operations import LayerOperations, MemoryTraffic, Saved
from ..specs.model import ModelSpec


def layer_parameters(model: ModelSpec) -> dict[str, int]:
    """Elements of the weights of predictions and corrections, their router and its norm, and the scales."""
    n, h = model.residual_streams, model.hidden
    return {"streams": n**2 + n**3 + n * h + 2 * h} if model.alternates else {}


def matrices(model: ModelSpec) -> Iterator[Matrix]:
    """The matrices of a layer that Muon orthogonalises: all weights but the norm of the router and the scales."""
    n, h = model.residual_streams, model.hidden
    if model.alternates:
        for part in ((n, n), (n * n, n), (n, h)):
            yield Matrix((part,), split=False)


def end_parameters(model: ModelSpec) -> int:
    """Elements of the products before the first layer, and of as many behind the last one."""
    return (model.residual_streams - 1) * model.hidden**2 if model.alternates else 0


def add_updates(builder: Builder, ops: LayerOperations) -> None:
    """Adds the updates around a layer. The norm of its input keeps a part of the predictions, and so all of them."""
    model, tokens, w = builder.model, builder.shard.sp_tokens, builder.activation_bytes
    if not model.alternates:
        return
    n, h = model.residual_streams, model.hidden
    builder.add_gemm(ops, "router of streams", tokens, float(n), float(h), count=2.0, wide=True)
    builder.add_gemm(ops, "weights of predictions", tokens, float(n**2), float(n), wide=True)
    builder.add_gemm(ops, "weights of corrections", tokens, float(n), float(n), wide=True)
    moved, steps = w * h * tokens, 4.0 * h * tokens * builder.norms_in_steps
    # Streams; predictions but for the part that the layer takes; the change, once per stream.
    ops.saved.append(Saved("residual streams", (n + (n - 1) + n) * moved))
    ops.saved.append(Saved("routers of streams", 3 * moved + 2 * steps))  # two inputs of products, one of a norm
    ops.saved.append(Saved("scaled stream", moved))
    ops.traffic.append(builder.norm_traffic("norms of routers of streams", 2 * h * tokens))
    # Forward: product 2, sum 3, copy 2; repeated change 1, product 2, sum 3; last sum 2. Backward: twice as much, and
    # three gradients of one stream as n, which are added: 4 each.
    ops.traffic.append(MemoryTraffic("residual streams", (15 * n + 8) * moved, (42 * n + 16) * moved, fusable=False))
    ops.kernels = ops.kernels + 21.0


def add_first_streams(builder: Builder, ops: LayerOperations) -> None:
    """Adds the products that make the streams of the embedding."""
    _add_products(builder, ops, kept=1)


def add_last_streams(builder: Builder, ops: LayerOperations) -> None:
    """Adds the products of the streams before the head."""
    _add_products(builder, ops, kept=builder.model.residual_streams)


def _add_products(builder: Builder, ops: LayerOperations, kept: int) -> None:
    """kept: streams that go in. Each product is brought to its magnitude by two steps, which keep their inputs."""
    model, tokens, moved = builder.model, builder.shard.sp_tokens, builder.activation_bytes * builder.shard.sp_tokens
    if not model.alternates:
        return
    others, h = model.residual_streams - 1, model.hidden
    builder.add_gemm(ops, "products of streams", tokens, float(h), float(h), count=float(others), wide=True)
    ops.saved.append(Saved("products of streams", (kept + 2 * others) * h * moved))
    # Forward: square 2, mean 1, product 2, quotient 2; stacked 2.
    ops.traffic.append(MemoryTraffic("magnitudes of streams", (9 * others + 5) * h * moved,
                                     (18 * others + 10) * h * moved, fusable=False))  # fmt: skip
    ops.kernels = ops.kernels + 8.0 * others
