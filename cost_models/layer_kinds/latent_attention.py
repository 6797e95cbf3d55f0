"""Multi-head latent attention: queries, keys and values come up out of latents (DeepSeek-V2, arXiv 2405.04434)."""

from __future__ import annotations

from collections.abc import Iterator

from ..offload_modules import mask_of_modules
from ..quantities.matrix import Matrix
from ..quantities.operation_builder import Builder
from ..quantities.operations import LayerOperations, Saved, tag
from ..specs.model import Attention


def parameters(attention: Attention, hidden: int) -> dict[str, int]:
    """Elements of the projections but `o` (section 2.1).

    q = h·a·d, or q_a = h·r_q and q_b = r_q·a·d; kv_a = h·(r_kv + d_rope); kv_b = r_kv·a·(d - d_rope + d_v).
    A bias, where the family has one, is on the down projections (and on o) only.
    """
    rank = attention.kv_lora_rank or 0
    q_width = attention.heads * attention.head_dim
    latent_width = rank + attention.rope_head_dim
    counts: dict[str, int] = {}
    if attention.q_lora_rank is None:
        counts["q"] = hidden * q_width
    else:
        counts["q_a"] = hidden * attention.q_lora_rank
        counts["q_b"] = attention.q_lora_rank * q_width
    counts["kv_a"] = hidden * latent_width
    nope_head_dim = attention.head_dim - attention.rope_head_dim
    counts["kv_b"] = rank * attention.heads * (nope_head_dim + attention.value_head_dim)
    if attention.qkv_bias:
        counts["qkv_bias"] = latent_width + (attention.q_lora_rank or 0)
    return counts


def matrices(attention: Attention, hidden: int) -> Iterator[Matrix]:
    """The projections except `o` that Muon orthogonalises."""
    latent, heads = attention.kv_lora_rank or 0, attention.heads
    if attention.q_lora_rank is not None:
        yield Matrix(((attention.q_lora_rank, hidden),), split=False)
    yield Matrix(((heads * attention.head_dim, attention.q_lora_rank or hidden),))
    yield Matrix(((latent + attention.rope_head_dim, hidden),), split=False)
    without_positions = attention.head_dim - attention.rope_head_dim
    yield Matrix(((heads * (without_positions + attention.value_head_dim), latent),))


def gathered_width(attention: Attention, hidden: int) -> int:
    """Elements per token that the up projections take: the latent of queries, or all of h, that of keys and values, and
    the part of keys with positions."""
    return (attention.q_lora_rank or hidden) + (attention.kv_lora_rank or 0) + attention.rope_head_dim


def add_projections(builder: Builder, ops: LayerOperations, attention: Attention) -> None:
    """MLA: the down projections are replicated over tp, the up projections split by heads."""
    shard, h, w = builder.shard, builder.model.hidden, builder.activation_bytes
    a, rank, rope = attention.heads / shard.tp, attention.kv_lora_rank or 0, attention.rope_head_dim
    latent = rank + rope
    ops.wgrad_stash.append(w * shard.tokens * a * attention.head_dim)
    if attention.q_lora_rank:
        ops.wgrad_stash.append(2 * w * shard.sp_tokens * attention.q_lora_rank)
        builder.add_gemm(ops, "query down", shard.sp_tokens, attention.q_lora_rank, h)
        builder.add_gemm(ops, "query up", shard.tokens, a * attention.head_dim, attention.q_lora_rank, tag("mla"))
        latent += attention.q_lora_rank
    else:
        builder.add_gemm(ops, "query", shard.tokens, a * attention.head_dim, h, tag("mla"))
    nope_and_value = attention.head_dim - rope + attention.value_head_dim
    ops.wgrad_stash += [w * shard.sp_tokens * (2 * rank + rope), w * shard.tokens * a * nope_and_value]
    builder.add_gemm(ops, "key-value down", shard.sp_tokens, rank + rope, h)
    builder.add_gemm(ops, "key-value up", shard.tokens, a * nope_and_value, rank, tag("mla"))
    sends = mask_of_modules("qkv_linear")
    ops.saved.append(Saved("latent", w * shard.sp_tokens * latent, offload=sends))
    inputs = {("q",): attention.q_lora_rank or 0, ("k", "v"): rank + rope}  # of the up projections: normed latents
    normed = sum(width for names, width in inputs.items() if ops.keeps_input(*names))
    ops.saved.append(Saved("latent norm output", w * shard.sp_tokens * normed, offload=sends))
