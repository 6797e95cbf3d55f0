"""Operations of the ends of a model: embedding and vision tower, output head with the loss, multi-token prediction."""

from __future__ import annotations

import numpy as np

from ..arrays import Array
from ..layer_kinds.alternating_updates import add_first_streams, add_last_streams
from ..layer_kinds.layer_inputs import add_inputs
from ..layer_kinds.residual_streams import add_joined_streams
from ..specs.graph import Graph
from .exchanges import Op
from .operation_builder import Builder
from .operations import Exchange, LayerOperations, MemoryTraffic, Saved, Trains
from .parallel_streams import add_aggregation
from .retrieval_operations import add_vectors
from .tower_operations import add_tower


def embedding(builder: Builder, trains: Trains = "all") -> LayerOperations:
    """Token lookup: memory-bound; its gradient is a scatter-add. The vision tower is beside it."""
    # Read once, written to every residual stream.
    copies = 1 + builder.model.residual_streams
    if builder.stack.streams > 1:  # and from there to each of the parallel ones
        copies += 1 + builder.stack.streams
    moved = copies * builder.activation_bytes * builder.model.hidden * builder.shard.tokens
    ops = LayerOperations(name="embedding", trains=trains, kernels=3.0)
    if builder.model.graph is not None:
        _add_features(builder, ops, builder.model.graph)
        return ops
    scattered = np.zeros_like(moved) if builder.workload.freeze_language else 2 * moved
    ops.traffic.append(MemoryTraffic("embedding", moved, scattered))
    if builder.model.embedding_norm:  # its output is what the first layer takes
        elements = builder.model.hidden * builder.shard.sp_tokens
        ops.saved.append(Saved("embedding norm input", builder.activation_bytes * elements))
        ops.traffic.append(builder.norm_traffic("embedding norm", elements))
    if builder.model.dropout:
        ops.saved.append(Saved("dropout mask", builder.model.hidden * builder.shard.sp_tokens))
    add_first_streams(builder, ops)
    add_inputs(builder, ops)
    add_tower(builder, ops)
    return ops


def _add_features(builder: Builder, ops: LayerOperations, graph: Graph) -> None:
    """A product of the features of each vertex, which get no gradient, and its activation."""
    rows, h, w = builder.shard.tokens, builder.model.hidden, builder.activation_bytes
    builder.add_gemm(ops, "features", rows, h, graph.features, wide=True, has_dgrad=False)
    ops.traffic.append(MemoryTraffic("activation of features", 2 * w * h * rows, 3 * w * h * rows))
    if ops.keeps_input():
        ops.saved.append(Saved("features", w * graph.features * rows))


def head(builder: Builder, trains: Trains = "all") -> LayerOperations:
    """Final norm, output projection and loss, vocabulary split over tp. The logits are a buffer of their own.

    The head of a critic gives each token `token_labels` values and is whole on all ranks of tp.
    """
    ops = LayerOperations(name="head", trains=trains, kernels=10.0)
    _add_head(builder, ops)
    add_joined_streams(builder, ops)
    add_last_streams(builder, ops)
    if builder.model.head_transform:
        _add_transform(builder, ops)
    if builder.model.pooled_classes:
        _add_pooled(builder, ops)
    if builder.model.retrieval is not None:
        add_vectors(builder, ops, builder.model.retrieval)
    return ops


def _add_transform(builder: Builder, ops: LayerOperations) -> None:
    """A dense layer and its activation before the final norm: both keep their inputs. All ranks of tensor parallelism
    have all of its weights (BertLMHead of Megatron Core)."""
    elements, w, h = builder.model.hidden * builder.shard.sp_tokens, builder.activation_bytes, builder.model.hidden
    builder.add_gemm(ops, "head transform", builder.shard.sp_tokens, h, h, wide=True)
    ops.saved.append(Saved("head transform", (1 + ops.keeps_input()) * w * elements))
    ops.traffic.append(MemoryTraffic("head transform activation", 2 * w * elements, 3 * w * elements))
    ops.kernels += 2.0
    if builder.model.transform_norm:
        ops.saved.append(Saved("norm before head transform", (w + (4.0 if builder.norms_in_steps else 0.0)) * elements))
        ops.traffic.append(builder.norm_traffic("norm before head transform", elements))
        ops.kernels += 1.0


def _add_pooled(builder: Builder, ops: LayerOperations) -> None:
    """Products of one token of each sequence."""
    h = builder.model.hidden
    builder.add_gemm(ops, "pooled token", builder.shard.batch, h, h, wide=True)
    builder.add_gemm(ops, "pooled classes", builder.shard.batch, builder.model.pooled_classes, h, wide=True)
    ops.kernels += 3.0


def _add_head(builder: Builder, ops: LayerOperations) -> None:
    shard, h, w = builder.shard, builder.model.hidden, builder.activation_bytes
    parts = shard.head_parts(builder.stack)
    if builder.model.token_head:
        _add_logits(builder, ops, parts)
    if builder.model.token_labels:
        _add_values(builder, ops)
    if builder.model.token_head or builder.model.final_norm:
        elements, joined = builder.stack.streams * h * shard.sp_tokens, builder.stack.streams > 1
        kept = w * (1 + (ops.keeps_input() and not joined)) + (4.0 if builder.norms_in_steps else 0.0)
        ops.saved.append(Saved("final norm", kept * elements))
        ops.traffic.append(builder.norm_traffic("final norm", elements))
        add_aggregation(builder, ops)
    if builder.model.token_labels:
        return
    # Every rank has the head of the first token: only ranks that each have a part of the tokens gather them for it.
    gathers = builder.model.token_head | (shard.sp_tokens < shard.tokens)
    builder.add_tensor_parallel(ops, np.minimum(parts - 1, 1.0) * gathers)


def _add_logits(builder: Builder, ops: LayerOperations, parts: Array) -> None:
    """The product with the vocabulary, in `parts`, and the loss."""
    shard = builder.shard
    builder.add_gemm(ops, "head", shard.tokens, builder.model.vocab / parts, builder.model.hidden, wide=True)
    whole = shard.tokens * builder.model.vocab
    logits, half = whole / shard.loss_parts(builder.stack), builder.stack.loss_traffic_bytes / 2
    ops.traffic.append(MemoryTraffic("loss", half * logits, half * logits, fusable=False))
    if not builder.stack.split_logits:  # made in parts, but the loss takes them whole
        joined = np.where(parts > 1, builder.activation_bytes * whole, 0.0)
        ops.exchanges.append(Exchange("tp", "all_gather", joined, shard.tp, np.ones_like(whole), 1, 0))


def _add_values(builder: Builder, ops: LayerOperations) -> None:
    """Each rank makes the values of its own tokens and gathers those of the others in fp32, and none of their hidden
    states (LinearForLastLayer of verl-project/verl@1dda039b)."""
    shard, labels, half = builder.shard, builder.model.token_labels, builder.stack.loss_traffic_bytes / 2
    width = builder.model.embedding_dim or builder.model.hidden
    builder.add_gemm(ops, "head", shard.sp_tokens, labels, width, wide=True)
    values = labels * shard.tokens
    ops.traffic.append(MemoryTraffic("loss", half * values, half * values, fusable=False))
    gathered = np.where(shard.sp_tokens < shard.tokens, 4.0 * values, 0.0)
    ops.exchanges.append(Exchange("tp", "all_gather", gathered, shard.tp, np.ones_like(gathered), 1, 0))


def mtp(builder: Builder, trains: Trains = "all") -> LayerOperations:
    """An MTP module beside its layer: two norms, a 2h -> h product, another run of the head (DeepSeek-V3, 2.2)."""
    shard, h, w = builder.shard, builder.model.hidden, builder.activation_bytes
    ops = LayerOperations(name="mtp", trains=trains, kernels=16.0)
    if builder.stack.splits_mtp_projection:
        builder.add_gemm(ops, "mtp projection", shard.tokens, h / shard.tp, 2.0 * h, wide=True)
        _add_split_projection(builder, ops)
    else:
        builder.add_gemm(ops, "mtp projection", shard.sp_tokens, float(h), 2.0 * h, wide=True)
    ops.saved.append(Saved("mtp input", (2 + 2 * ops.keeps_input()) * w * h * shard.sp_tokens))
    _add_head(builder, ops)
    return ops


def _add_split_projection(builder: Builder, ops: LayerOperations) -> None:
    """Exchanges of a projection 2h -> h whose outputs are split over tp, gathered, and with sequence parallelism cut
    along the sequence (Megatron Core d98e8a64, multi_token_prediction.py, _concat_embeddings). Input: gathered in both
    passes and its gradient scattered, or its gradient alone summed. Output: gathered; backward the cut of the sequence
    is gathered, that of the outputs takes a part."""
    shard, with_sp = builder.shard, np.minimum(builder.shard.sp, 1.0)
    output = np.where(shard.tp > 1, builder.activation_bytes * builder.model.hidden * shard.tokens, 0.0)
    calls: list[tuple[Op, Array, Array | float, Array | float]] = [
        ("all_gather", 2 * output, with_sp, with_sp), ("reduce_scatter", 2 * output, 0.0, with_sp),
        ("all_reduce", 2 * output, 0.0, 1.0 - with_sp), ("all_gather", output, 1.0, with_sp),
    ]  # fmt: skip
    for op, num_bytes, forward, backward in calls:
        ops.exchanges.append(Exchange("tp", op, num_bytes, shard.tp, np.ones_like(output), forward, backward))
