"""Table 1: (layer kind x shard key) -> shapes, FLOPs, bytes and saved tensors of one micro-batch on one rank.

A shard key is the columns that shapes and launches depend on (KEY_FIELDS). A search has thousands of keys however many
million layouts, so everything here is an array over keys, and efficiencies are looked up per key, never per layout.
Quantities only: no bandwidth, no efficiency (`rates` turns these into seconds).

Symbols: T tokens of the rank's micro-batch after context parallelism (b*s/c), h hidden, a heads, g KV heads, d head
dim, f FFN inner size, t tensor-parallel ranks, w bytes per activation element.
"""

from __future__ import annotations

import numpy as np

from ..arrays import Array
from ..cuda_graphs import launched_beside_mixing
from ..layer_kinds import latent_attention
from ..layer_kinds.alternating_updates import add_updates
from ..layer_kinds.attention import add_attention
from ..layer_kinds.augmented_residual import add_augmented
from ..layer_kinds.cross_attention import add_cross_attention
from ..layer_kinds.dense import add_dense, add_threshold, last_of_block
from ..layer_kinds.experts import add_experts
from ..layer_kinds.layer_inputs import add_layer_input
from ..layer_kinds.modulation import add_modulation, split_streams
from ..layer_kinds.registry import kind_of
from ..layer_kinds.residual_streams import add_streams, mixes
from ..layer_kinds.sparse_attention import add_sparse_attention
from ..layer_kinds.stack_start import add_start
from ..offload_modules import mask_of_modules
from ..specs.model import FeedForward, Layer, MixtureOfExperts
from .element_bytes import cast_bytes
from .graph_parts import kept_outputs, mixing_parts_of
from .operation_builder import Builder
from .operations import LAST, Exchange, Gemm, LayerOperations, MemoryTraffic, Saved, Trains, tag
from .params import lora_shapes
from .retrieval_operations import split_towers
from .rounding import add_rounding


def decoder_layer(builder: Builder, kind: Layer, trains: Trains = "all") -> LayerOperations:
    """Operations of one layer of `kind`, of the encoder's for the tokens of the source."""
    builder = (builder.of_source() if kind.encodes else builder).of_streams()
    lora = builder.workload.lora if trains == "lora" else None
    adapted = frozenset(lora_shapes(builder.model, kind, lora.targets)) if lora is not None else frozenset()
    ops = LayerOperations(name=name_of(kind), trains=trains, adapted=adapted)
    shard, h, w = builder.shard, builder.model.hidden, builder.activation_bytes
    ops.input_bytes = w * h * builder.model.residual_streams * shard.sp_tokens
    ops.graph_output = kept_outputs(shard.graphs, kind) * ops.input_bytes
    if builder.stack.splits_layer_inputs:
        split = np.where(shard.sp > 0, 0.0, ops.input_bytes)
        ops.gathered_input = Exchange("tp", "all_gather", split, shard.tp, np.ones_like(split), 0.0, 0.0)
    # A block that mixes tokens and a feed-forward block launch half of a transformer layer's kernels each (assumed).
    ops.kernels = builder.stack.kernels_per_layer * kind.num_blocks / 2 * _launched_beside_mixing(builder, kind)
    _add_norms(builder, ops, kind)
    add_streams(builder, ops, kind.num_blocks)
    add_updates(builder, ops)
    add_layer_input(builder, ops)
    add_augmented(builder, ops, kind)
    projections = _add_mixing(builder, ops, kind) + _add_feed_forward(builder, ops, kind)
    add_start(builder, ops, kind)
    if kind.modulation is not None:
        add_modulation(builder, ops, kind, kind.modulation)
    split_streams(builder, ops, kind)
    if builder.model.dropout:  # a one-byte mask after each block
        ops.saved.append(Saved("dropout masks", kind.num_blocks * h * shard.sp_tokens))
        # The mask written; backward, a pass of its own over it and the gradient (torch native_dropout_backward).
        elements = kind.num_blocks * h * shard.sp_tokens
        ops.traffic.append(MemoryTraffic("dropout", elements, (1 + 2 * w) * elements))
    ops.kernels = ops.kernels + np.where(shard.tp > 1, builder.stack.kernels_per_projection * projections, 0.0)
    split_towers(ops, builder.model.retrieval)
    add_rounding(builder, ops)
    if builder.workload.is_quantised:
        _add_casts(builder, ops)
    if trains == "lora" and builder.workload.lora is not None:
        _add_adapters(builder, ops, kind)
    for exchange in ops.exchanges:
        if exchange.axis != "ep":  # those are among the kernels of the expert block
            ops.kernels = ops.kernels + np.where(exchange.num_bytes > 0, exchange.forward_calls, 0.0)
    return ops


def name_of(kind: Layer) -> str:
    """The layer's name in tables: `layer` and `moe layer` of transformers, `encoder layer` and `decoder layer` where
    there are both, blocks of diffusion transformers, else that of its blocks."""
    if kind.modulation is not None:
        return f"{'double' if kind.streams == 2 else 'single'}-stream block"
    if kind.encodes or kind.cross_attention is not None:
        return f"{'first ' if kind.starts else ''}{'encoder' if kind.encodes else 'decoder'} layer"
    if kind.is_transformer:
        return "moe layer" if kind.is_moe else "layer"
    names = ["attention"] if kind.attention is not None else []
    names += [kind_of(kind.mixer).name] if kind.mixer is not None else []
    names += [] if kind.feed_forward is None else ["experts"] if kind.is_moe else ["mlp"]
    return f"{' + '.join(names)} layer"


def _launched_beside_mixing(builder: Builder, kind: Layer) -> Array:
    return launched_beside_mixing(builder.shard.graphs, mixing_parts_of(kind))


def _add_mixing(builder: Builder, ops: LayerOperations, kind: Layer) -> int:
    """Attention and another mixer, both of one input; the number of projections."""
    projections = 0
    if kind.attention is not None:
        if kind.attention.index is not None:
            add_sparse_attention(builder, ops, kind.attention, kind.attention.index)
        else:
            add_attention(builder, ops, kind.attention)
        projections += 4  # query, key, value; output
    if kind.mixer is not None:
        mixer = kind_of(kind.mixer)
        mixer.add(builder, ops, kind.mixer)
        ops.kernels = ops.kernels + mixer.kernels * _launched_beside_mixing(builder, kind)
        projections += 2
    if projections:
        builder.add_tensor_parallel(ops, inputs=projections - 1, width=_gathered_width(builder, kind))
    if kind.cross_attention is not None:
        add_cross_attention(builder, ops, kind.cross_attention)
        projections += 4
    return projections


def _gathered_width(builder: Builder, kind: Layer) -> float | None:
    """Elements per token that blocks which mix tokens gather; None: h. The down projections of latent attention run on
    a rank's part of a sequence, and the up projections gather what they made."""
    attention = kind.attention
    if attention is None or not (attention.is_mla and builder.stack.gathers_latents):
        return None
    if kind.mixer is not None or attention.index is not None:  # they take h on every rank
        return None
    return float(latent_attention.gathered_width(attention, builder.model.hidden))


def _add_feed_forward(builder: Builder, ops: LayerOperations, kind: Layer) -> int:
    """The feed-forward block; the number of its projections that tensor parallelism splits."""
    block = kind.feed_forward
    if isinstance(block, MixtureOfExperts):
        add_experts(builder, ops, block)
    if not isinstance(block, FeedForward):
        return 0
    add_dense(builder, ops, block.inner, block.gated)
    add_threshold(builder, ops, block)
    inputs = 2 if block.gated else 1
    builder.add_tensor_parallel(ops, inputs=inputs, first=tag("mlp"), last=LAST | last_of_block(builder, "mlp"))
    return inputs + 1


def _add_norms(builder: Builder, ops: LayerOperations, kind: Layer) -> None:
    # Each block's norm keeps its input (the residual stream) and its output (the input of the next product). A norm of
    # the block's output keeps that, too: without a norm before the block in place of what that one would have made.
    h, w, tokens = builder.model.hidden, builder.activation_bytes, builder.shard.sp_tokens
    for block, projections in _inputs(kind).items():
        shares_input = block == "feed-forward" and kind.parallel_blocks
        if not shares_input:
            ops.saved.append(Saved(f"{block} norm input", w * h * tokens, offload=_sends_input(block, kind)))
        if kind.num_norms >= 4:
            ops.saved.append(Saved(f"{block} output norm input", w * h * tokens))
        if builder.norms_in_steps:  # fp32 input (4), what its weights multiply (w), but not its input (w)
            ops.saved.append(Saved(f"{block} norm steps", 4.0 * h * tokens, tag("norm")))
        if shares_input and kind.num_norms == 1:
            continue
        if ops.keeps_input(*projections):
            dropped_with, num_bytes = 0 if kind.output_norms else tag("norm"), builder.kept_input * h * tokens
            sends = mask_of_modules("qkv_linear") if block == "attention" else 0
            pinned = builder.graphs_return_norm(kind) if block == "feed-forward" else np.zeros_like(tokens)
            ops.saved.append(Saved(f"{block} norm output", num_bytes * (1 - pinned), dropped_with, sends))
            ops.saved.append(Saved(f"{block} norm output of graphs", num_bytes * pinned))
        ops.wgrad_stash.append(builder.kept_input * h * tokens)
    if isinstance(kind.feed_forward, MixtureOfExperts) and kind.feed_forward.branch_norms:
        ops.saved += [Saved(f"{part} experts norm input", w * h * tokens) for part in ("shared", "routed")]
    ops.traffic.append(builder.norm_traffic("norms", kind.num_norms * h * tokens, tag("norm")))
    if not mixes(builder.model):
        added = kind.num_blocks * w * h * tokens
        ops.traffic.append(MemoryTraffic("residuals", 3 * added, 2 * added))


def _inputs(kind: Layer) -> dict[str, tuple[str, ...]]:
    """Block -> projections of its normed input, as adapters name them."""
    inputs: dict[str, tuple[str, ...]] = {}
    if (attention := kind.attention) is not None:  # latent attention: key, value and mostly query come out of latents
        inputs["attention"] = () if attention.q_lora_rank else ("q",) if attention.is_mla else ("q", "k", "v")
    elif kind.mixer is not None:
        inputs["mixer"] = ()
    if kind.cross_attention is not None:
        inputs["cross-attention"] = ()
    return inputs if kind.feed_forward is None else inputs | {"feed-forward": ("gate", "up")}


def _sends_input(block: str, kind: Layer) -> int:
    """The offload module that saves what the norm before a block takes: the first product of the block where it is
    fused with the norm, as Megatron Core does but before latent attention and before experts (gpt_layer_specs.py)."""
    if block == "attention" and kind.attention is not None:
        return mask_of_modules("attn_norm" if kind.attention.is_mla else "qkv_linear")
    if block != "feed-forward":
        return 0
    return mask_of_modules("mlp_norm") if kind.is_moe else 0


def _add_casts(builder: Builder, ops: LayerOperations) -> None:
    """The operands of a product are quantised, and the gradient of its output; weights once per step (step.py) or
    in every forward pass."""
    stack, moved = builder.stack, cast_bytes(builder.workload, builder.stack, any_fp8_layout=builder.any_fp8_layout)
    for gemm in [g for g in ops.gemms if not g.wide]:
        weights = 0.0 if stack.caches_fp8_weights else gemm.n * gemm.k
        forward = moved * gemm.count * (gemm.m * gemm.k + weights)
        backward = moved * gemm.count * gemm.m * gemm.n
        ops.traffic.append(MemoryTraffic(f"casts of {gemm.name}", forward, backward, gemm.tag, fusable=False))
        ops.kernels = ops.kernels + builder.stack.kernels_per_cast * gemm.count


def _add_adapters(builder: Builder, ops: LayerOperations, kind: Layer) -> None:
    """LoRA: two thin products beside each targeted projection, of which the second keeps its input, too."""
    lora, shard, w = builder.workload.lora, builder.shard, builder.activation_bytes
    if lora is None:
        return
    ones = np.ones_like(shard.tokens)
    rank = lora.rank * ones
    ops.wgrad_stash.clear()  # of weights that are frozen
    for name, (inputs, outputs, splits_outputs) in lora_shapes(builder.model, kind, lora.targets).items():
        width_in = inputs * ones / (1.0 if splits_outputs else shard.tp)
        width_out = outputs * ones / (shard.tp if splits_outputs else 1.0)
        ops.gemms.append(Gemm(f"adapter in {name}", shard.tokens, rank, width_in, ones, wide=True))
        ops.gemms.append(Gemm(f"adapter out {name}", shard.tokens, width_out, rank, ones, wide=True))
        ops.saved.append(Saved(f"adapter {name}", w * shard.tokens * lora.rank))
        # A rank keeps its part of what all have: the input of a product split by outputs, the gradient of one
        # split by inputs.
        whole, part = (outputs, inputs) if splits_outputs else (inputs, outputs)
        ops.wgrad_stash.append(w * (shard.tokens * whole / shard.tp + shard.sp_tokens * part))
        ops.wgrad_stash.append(2 * w * shard.tokens * lora.rank)
    dequantised = {"bf16": 0.0, "int8": 3.0, "nf4": 2.5}[lora.base_dtype]  # read packed, write bf16
    if dequantised:
        elements = sum(g.count * g.n * g.k for g in ops.gemms if not g.name.startswith("adapter"))
        moved = dequantised * np.asarray(elements)
        ops.traffic.append(MemoryTraffic("dequantisation", moved, moved, fusable=False))
