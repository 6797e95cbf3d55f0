"""Attention to all tokens before, or to a window of them: projections, the core, positions, context parallelism."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np

from ..arrays import Array
from ..offload_modules import mask_of_modules
from ..quantities.matrix import Matrix
from ..quantities.operation_builder import Builder
from ..quantities.operations import Core, Exchange, LayerOperations, MemoryTraffic, Saved, tag
from ..specs.model import Attention
from . import latent_attention
from .attention_scores import add_relative_bias, add_statistics
from .rings import add_ring
from .split_heads import made_in_parts, of_all_heads
from .torch_ring import add_torch_ring


def parameters(attention: Attention, hidden: int) -> dict[str, int]:
    """Elements of the projections, biases, head norms and sinks of one attention block.

    Grouped-query: q = h·a·d, k = h·g·d, v = h·g·d_v, o = a·d_v·h. Only what is there gets a key.
    """
    counts = latent_attention.parameters(attention, hidden) if attention.is_mla else _grouped_query(attention, hidden)
    counts["o"] = attention.heads * attention.value_head_dim * hidden
    if attention.output_bias:
        counts["o_bias"] = hidden
    if attention.norm_parameters:
        counts["qk_norm"] = attention.norm_parameters
    if attention.sink_parameters:
        counts["sinks"] = attention.sink_parameters
    if attention.bias_parameters:
        counts["relative_bias"] = attention.bias_parameters
    return counts


def _widths(attention: Attention) -> dict[str, int]:
    """Widths of the outputs of grouped-query projections, by name."""
    widths = {
        "q": attention.heads * attention.head_dim,
        "k": attention.kv_heads * attention.head_dim * (not attention.takes_keys),
        "v": attention.kv_heads * attention.value_head_dim * makes_values(attention),
        "q_gate": attention.gates,
    }
    return {name: width for name, width in widths.items() if width}


def makes_values(attention: Attention) -> bool:
    """Whether there is a projection of values alone."""
    return not (attention.values_from_keys or attention.takes_keys)


def _grouped_query(attention: Attention, hidden: int) -> dict[str, int]:
    widths = _widths(attention)
    counts = {name: hidden * width for name, width in widths.items()}
    if attention.qkv_bias:  # a gate of heads is a projection of its own, without one
        without = attention.gates * attention.gates_heads + (0 if attention.key_bias else widths["k"])
        counts["qkv_bias"] = sum(widths.values()) - without
    return counts


def projection_shapes(attention: Attention, h: int) -> dict[str, tuple[int, int, bool]]:
    """Inputs, outputs, and whether tensor parallelism splits the outputs, of each projection that takes adapters: of
    latent attention the up projections."""
    q_in, kv_in, k_width = h, h, attention.kv_heads * attention.head_dim
    v_width = attention.kv_heads * attention.value_head_dim
    if attention.is_mla:
        q_in, kv_in = attention.q_lora_rank or h, attention.kv_lora_rank or h
        k_width = attention.heads * (attention.head_dim - attention.rope_head_dim)
        v_width = attention.heads * attention.value_head_dim
    keys = {} if attention.takes_keys else {"k": (kv_in, k_width, True)}
    values = {"v": (kv_in, v_width, True)} if makes_values(attention) else {}
    return {
        "q": (q_in, attention.heads * attention.head_dim, True),
        **keys,
        **values,
        "o": (attention.heads * attention.value_head_dim, h, False),
    }


def matrices(attention: Attention, hidden: int) -> Iterator[Matrix]:
    """The matrices that Muon orthogonalises."""
    if attention.is_mla:
        yield from latent_attention.matrices(attention, hidden)
    else:
        yield Matrix(tuple((width, hidden) for width in _widths(attention).values()))
    yield Matrix(((hidden, attention.heads * attention.value_head_dim),))


def add_attention(builder: Builder, ops: LayerOperations, attention: Attention) -> None:
    """Symbols as in layer_operations.py; dv: head dim of values."""
    shard, h, w = builder.shard, builder.model.hidden, builder.activation_bytes
    tokens, a, d, dv = shard.tokens, attention.heads / shard.tp, attention.head_dim, attention.value_head_dim
    g = np.maximum(attention.kv_heads / shard.tp, 1.0)
    own = g * (not attention.takes_keys)  # heads of keys and values that the layer makes, and keeps
    if attention.is_mla:
        latent_attention.add_projections(builder, ops, attention)
        g = own = a  # MLA decompresses keys and values for every head before the core
    else:
        _add_heads(builder, ops, attention, own)
    builder.add_gemm(ops, "attention output", tokens, h, a * dv)
    ops.wgrad_stash += [builder.kept_input * tokens * a * dv, w * h * shard.sp_tokens]
    context = _context(builder, attention)
    prefix = builder.stack.prefix_tokens  # that every query sees
    flops = 2.0 * tokens * a * (d + dv) * ((context / 2 if attention.causal else context) + prefix)  # QK^T and PV
    ops.cores.append(Core(flops, context, d, tag("attn")))
    heads_bytes, core = w * tokens * (a * d + own * (d + dv)), mask_of_modules("core_attn")
    if prefix:
        heads_bytes = heads_bytes + _added_prefix(builder, ops, g * (d + dv))
    ops.saved.append(Saved("query, key, value", heads_bytes, tag("mla") if attention.is_mla else 0, core))
    if attention.norm_parameters:
        add_head_norms(builder, ops, attention, tokens * (a + own) * d)
    if attention.value_norm:
        _add_value_norm(builder, ops, attention, tokens * own * dv)
    if attention.output_gate:
        _add_gated_output(builder, ops, tokens * a * dv, attention.gates / (attention.heads * dv))
    else:
        add_kept_output(builder, ops, tokens * a * dv)
    if not builder.model.learned_positions and attention.rotary:
        add_rotary_positions(builder, ops, attention, tokens * (a + own) * d)
    if builder.stack.attention == "unfused":  # heads come one after another and are put side by side
        ops.traffic.append(MemoryTraffic("heads joined", 2 * w * tokens * a * dv, 2 * w * tokens * a * dv))
    add_statistics(builder, ops, tokens * a, builder.workload.seq_len)
    if attention.relative_bias:
        add_relative_bias(builder, ops, attention)
    taken = _repeated(builder, ops, a, g, d + dv)
    _add_context_parallel(builder, ops, a, a * d, taken * d, taken * dv)


def _add_heads(builder: Builder, ops: LayerOperations, attention: Attention, own: Array) -> None:
    """The product that makes queries, keys and values of the heads of a rank, `own` [key] of keys and values."""
    shard, d, dv = builder.shard, attention.head_dim, attention.value_head_dim
    made = attention.heads / shard.tp * d + own * (d + dv * makes_values(attention)) + attention.gates / shard.tp
    if builder.stack.gathers_projections:
        made = made_in_parts(builder, ops, attention.kv_heads, sum(_widths(attention).values()), made)
    builder.add_gemm(ops, "qkv", shard.tokens, made, builder.model.hidden)
    ops.wgrad_stash.append(builder.activation_bytes * shard.tokens * made)


def _added_prefix(builder: Builder, ops: LayerOperations, width: Array) -> Array:
    """[key] bytes of prefixes, `width` elements per token. Keys and values are put behind them, and the whole is kept;
    backward they are slices of one gradient."""
    w, shard = builder.activation_bytes, builder.shard
    added = np.asarray(w * width * builder.stack.prefix_tokens * shard.batch)
    ops.traffic.append(MemoryTraffic("prefixes", 2 * (w * width * shard.tokens + added), 0 * added, tag("attn")))
    return added


def _repeated(builder: Builder, ops: LayerOperations, heads: Array | float, kv_heads: Array, width: int) -> Array:
    """Heads of keys and values as attention takes them: one for each query head where they are copied (repeats_keys).
    Backward the gradients of copies are summed, and compiled blocks, which keep the fewer, copy them again."""
    copied = builder.shard.tokens * width * (heads + kv_heads) * (heads > kv_heads)
    if not builder.stack.repeats_keys or not np.any(copied):
        return kv_heads
    moved = builder.activation_bytes * copied
    ops.traffic.append(MemoryTraffic("keys and values repeated", moved, 2 * moved, tag("attn"), fusable=False))
    return np.maximum(heads, kv_heads)


def add_kept_output(builder: Builder, ops: LayerOperations, elements: Array) -> None:
    """The output of attention, kept by its core and by the output projection."""
    shard, w = builder.shard, builder.activation_bytes
    core, projection = mask_of_modules("core_attn"), mask_of_modules("attn_proj")
    out, projected = w * elements, ops.keeps_input("o")
    if projected:  # the core keeps the same tensor, but where it is sent to other ranks in between
        alone = core if builder.kept_input < w else projection
        ops.saved.append(Saved("attention output", out, offload=np.where(shard.ulysses > 1, alone, alone | core)))
    # The core keeps it as it made it: by heads. The product after it keeps what came back by tokens.
    by_heads = np.where(shard.ulysses > 1, out, 0.0) if projected else out
    ops.saved.append(Saved("attention output by heads", by_heads, tag("attn"), core))
    if builder.kept_input < w and projected:  # the core keeps it too, as it made it
        ops.saved.append(Saved("quantised attention output", builder.kept_input * elements, offload=projection))


def _add_value_norm(builder: Builder, ops: LayerOperations, attention: Attention, elements: Array) -> None:
    """It keeps what goes in, which is what the norm of keys keeps where one projection makes both."""
    if not attention.values_from_keys:
        inputs = builder.activation_bytes * elements
        ops.saved.append(Saved("input of the norm of values", inputs, offload=mask_of_modules("qkv_linear")))
    ops.traffic.append(builder.norm_traffic("norm of values", elements))


def _add_gated_output(builder: Builder, ops: LayerOperations, elements: Array, gates: float) -> None:
    """The output of attention times a sigmoid of the gate. gates: of an element, 1 or its share of a gate of its head.

    The product keeps both factors, so that recomputation of the core drops neither: of a sigmoid torch keeps the output
    and not the gate (transformers, Qwen3NextAttention; our runtime), Megatron Core's compiled product keeps the gate
    alone (attention.py, _apply_output_gate). The projection behind it keeps their product. Sigmoid 2, product 3;
    backward: two products 3 each, sigmoid 3; for a gate of a head the second product is summed over the head, which
    reads it once more.
    """
    w, own = builder.activation_bytes, gates < 1
    by_heads = np.where(builder.shard.ulysses > 1, elements, 0.0)
    ops.saved.append(Saved("attention output", w * elements))
    ops.saved.append(Saved("attention output by heads", w * by_heads, tag("attn"), mask_of_modules("core_attn")))
    ops.saved.append(Saved("gate of the output", w * gates * elements))
    if ops.keeps_input("o"):
        sends = mask_of_modules("attn_proj")
        ops.saved.append(Saved("gated output", builder.kept_input * elements, offload=sends))
    forward, backward = 2 + 3 * gates, 5 + 4 * gates + (1 - gates) * own
    ops.traffic.append(MemoryTraffic("output gate", forward * w * elements, backward * w * elements, fusable=False))


def add_head_norms(builder: Builder, ops: LayerOperations, attention: Attention, elements: Array) -> None:
    """Norms of the `elements` of queries and keys; of latent attention those of the latents that they are made from."""
    if attention.is_mla:
        elements = builder.shard.sp_tokens * attention.norm_parameters
    else:  # they keep what goes in; what comes out, turned to its positions, is what attention keeps
        if builder.model.diffusion is not None and attention.norm_parameters > 2 * attention.head_dim:
            elements = of_all_heads(builder, ops, elements)
        inputs = builder.activation_bytes * elements
        ops.saved.append(Saved("input of query and key norms", inputs, offload=mask_of_modules("qkv_linear")))
    ops.traffic.append(builder.norm_traffic("query and key norms", elements))


def add_rotary_positions(builder: Builder, ops: LayerOperations, attention: Attention, elements: Array) -> None:
    """Rotation of the `elements` of queries and keys: one fused kernel; or torch's steps, which cast to fp32, rotate as
    complex numbers and cast back (torchtitan, apply_rotary_emb); or Megatron Core's, in the dtype of the activations.

    The latter (models/common/embeddings/rope_utils.py, _apply_rotary_pos_emb_bshd), values read and written. Forward:
    products with cosine 2 and sine 2, one half negated 1, halves joined 2, sum 3, joined with what is not rotated 2.
    Backward: products 4, negation 1, halves joined 2, sum 3, gradients of two slices 4, and their sum 3. Latent
    attention has a kernel of its own for both (fused_mla_yarn_rope_apply.py).
    """
    stack, w, scaling = builder.stack, builder.activation_bytes, builder.model.trained_scaling
    is_scaled = scaling is not None and scaling.amplitude != 1.0 and not attention.is_mla
    fused = stack.fused_positions and (stack.fused_scaled_positions or not is_scaled)
    if fused:
        forward, backward = 2 * w, 2 * w
    elif stack.fused_positions:
        forward, backward = 12 * w, 17 * w
    else:
        forward = backward = builder.fp32_casts + 8
    ops.traffic.append(MemoryTraffic("positions", forward * elements, backward * elements, fusable=fused))


def _context(builder: Builder, attention: Attention) -> float:
    """Mean span in tokens: a causal query sees half of it. A window W of a long context C counts 2W - W^2/C."""
    full = builder.workload.context_tokens
    if attention.window is None or attention.window >= full:
        return full
    return 2 * attention.window - attention.window**2 / full


def _add_context_parallel(
    builder: Builder, ops: LayerOperations, heads: Array, q_width: Array, k_width: Array, v_width: Array
) -> None:
    """Ring: rings.py; all-gather: KV out, gradients back; Ulysses: A2A of queries, keys and values, and of what comes
    out."""
    shard, w = builder.shard, builder.activation_bytes
    if builder.stack.rings_in_torch:
        add_torch_ring(builder, ops, q_width, k_width, v_width)
    else:
        add_gathered_keys(builder, ops, k_width + v_width)
        add_ring(builder, ops, heads, q_width, k_width, v_width)
    if (shard.ulysses > 1).any():
        out = q_width * (v_width / k_width)
        # Recomputed attention that stops with the last tensor that it needs does not send its output again.
        again = 0 if builder.stack.recompute_stops_early else tag("attn")
        for width, tags in ((q_width + k_width + v_width, tag("attn")), (out, again)):
            heads = np.where(shard.ulysses > 1, w * shard.tokens * width, 0.0)
            ops.exchanges.append(Exchange("cp", "all_to_all", heads, shard.ulysses, shard.tp, 1, 1, tags))


def add_gathered_keys(builder: Builder, ops: LayerOperations, width: Array | float) -> None:
    """All-gather of `width` elements per token of keys and values, and a reduce-scatter of their gradients. Backward
    both are whole at once (TransformerEngine d0067d0d, AttnFuncWithCPAndKVAllGather)."""
    shard = builder.shard
    gathered = np.where(shard.allgather, shard.cp, 1.0)
    if (gathered > 1).any():
        full = np.where(gathered > 1, builder.activation_bytes * shard.tokens * width * shard.cp, 0.0)
        ops.exchanges.append(Exchange("cp", "all_gather", full, gathered, shard.tp, 1, 1, tag("attn")))
        ops.exchanges.append(Exchange("cp", "reduce_scatter", full, gathered, shard.tp, 0, 1))
        ops.steps = np.maximum(ops.steps, 2 * full)
