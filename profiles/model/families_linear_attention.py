"""Families of Hugging Face with linear attention or short convolutions beside attention: config.json -> ModelSpec.

Defaults as in `families.py`.
"""

from __future__ import annotations

from dataclasses import replace

from ...cost_models.layer_kinds.gated_linear_attention import GatedLinearAttention
from ...cost_models.layer_kinds.kimi_delta_attention import KimiDeltaAttention
from ...cost_models.layer_kinds.rwkv7 import Rwkv7
from ...cost_models.layer_kinds.short_convolution import ShortConvolution
from ...cost_models.specs.model import FeedForward, Layer, MixtureOfExperts, ModelSpec
from .blocks import assemble, attention_of, num_layers_of, with_balancing
from .families_moe import latent_attention
from .fields import Fields

_LINEAR = ("linear_attention", "full_attention")
_FACTORS = ("full_attn_alpha_factor", "full_attn_beta_factor", "linear_attn_alpha_factor", "linear_attn_beta_factor",
            "mlp_alpha_factor", "mlp_beta_factor")  # fmt: skip


def minimax(f: Fields) -> ModelSpec:
    """MiniMax-Text-01 and M1: lightning attention, and attention in some layers; experts in all."""
    hidden, layers = f.count("hidden_size"), num_layers_of(f)
    attention = attention_of(f, hidden)
    mixer = GatedLinearAttention(heads=attention.heads, key_head_dim=attention.head_dim,
                                 value_head_dim=attention.head_dim, norm_all_heads=True,
                                 chunk=f.count("block_size", default=256))  # fmt: skip
    moe = MixtureOfExperts(
        experts=f.count("num_local_experts", default=8),
        top_k=f.count("num_experts_per_tok", default=2),
        expert_inner=f.count("intermediate_size"),
    )
    of = {
        "full_attention": Layer(attention=attention, feed_forward=moe),
        "linear_attention": Layer(attention=None, mixer=mixer, feed_forward=moe),
    }
    words = f.words("layer_types", layers, _LINEAR) or [_LINEAR[(index + 1) % 2] for index in range(layers)]
    positions = f.count("max_position_embeddings", default=131072)
    kinds = [of[word] for word in words]
    spec = assemble(f, "minimax", kinds, hidden=hidden, tied=False, max_positions=positions)
    factors = [name for name in _FACTORS if f.number(name, 1.0) != 1.0]
    spec = replace(
        spec, unmodelled=("residuals behind norms", *factors),
        partial_rotary_factor=f.count("rotary_dim", default=attention.head_dim) / attention.head_dim,
    )  # fmt: skip
    return with_balancing(f, spec, moe, layers)


def kimi_linear(f: Fields) -> ModelSpec:
    """Kimi Linear: Kimi Delta Attention, and latent attention without positions in some layers; experts but first."""
    hidden, layers = f.count("hidden_size"), num_layers_of(f)
    attention = replace(latent_attention(f), rotary=False)
    own = f.part("linear_attn_config") or Fields({})
    mixer = KimiDeltaAttention(
        heads=own.count("num_heads", default=f.count("linear_num_heads", default=32)),
        head_dim=own.count("head_dim", default=f.count("linear_head_dim", default=128)),
        conv_kernel=own.count("short_conv_kernel_size", default=f.count("linear_conv_kernel_dim", default=4)),
    )
    f.absorb(own)
    inner = f.count("moe_intermediate_size", default=1024)
    moe = MixtureOfExperts(
        experts=f.count("num_experts", "num_local_experts", "n_routed_experts", default=256),
        top_k=f.count("num_experts_per_token", "num_experts_per_tok", default=8),
        expert_inner=inner,
        shared_inner=inner * f.count("num_shared_experts", "n_shared_experts", default=1),
        groups=f.count("num_expert_group", "n_group", default=1),
        top_groups=f.count("topk_group", default=1),
        router_scores="sigmoid",
        router_normalised=f.flag("moe_renormalize" if f.has("moe_renormalize") else "norm_topk_prob", True),
        router_scale=f.number("routed_scaling_factor", 2.446),
    )
    dense = FeedForward(inner=f.count("intermediate_size", default=9216))
    first = f.count("first_k_dense_replace", default=1, minimum=0)
    blocks = f.words("mlp_layer_types", layers, ("dense", "sparse"))
    kinds = []
    for index, word in enumerate(_kimi_words(f, own, layers)):
        routed = index >= first if blocks is None else blocks[index] == "sparse"
        block = moe if routed else dense
        full = word == "full_attention"
        kinds.append(Layer(attention=attention if full else None, mixer=None if full else mixer, feed_forward=block))
    positions = f.count("model_max_length", "max_position_embeddings", default=1048576)
    spec = assemble(f, "kimi_linear", kinds, hidden=hidden, tied=False, max_positions=positions)
    return replace(spec, tied_embeddings=False)  # whatever the config says: its class in transformers ties nothing


def _kimi_words(f: Fields, own: Fields, layers: int) -> list[str]:
    """The kind of every layer; the config in `own` counts layers from 1."""
    words = f.words("layer_types", layers, _LINEAR)
    if words is not None:
        return words
    full = own.get("full_attn_layers")
    chosen = {int(number) - 1 for number in full} if isinstance(full, list) else set(range(4, layers, 4))
    return [_LINEAR[index in chosen] for index in range(layers)]


def _convolutions(f: Fields, family: str, blocks: list[FeedForward | MixtureOfExperts]) -> ModelSpec:
    """Short convolutions, and attention with norms of heads in some layers; blocks: [layer]."""
    hidden, layers = f.count("hidden_size"), len(blocks)
    attention = attention_of(f, hidden, head_norms=True, kv_heads=f.count("num_key_value_heads", default=8))
    mixer = ShortConvolution(channels=hidden, conv_kernel=f.count("conv_L_cache", default=3),
                             bias=f.flag("conv_bias", False))  # fmt: skip
    words = f.words("layer_types", layers, ("conv", "full_attention"))
    full = f.indices("full_attn_idxs", layers)
    kinds = []
    for index, block in enumerate(blocks):
        attends = full is None or index in full if words is None else words[index] == "full_attention"
        kinds.append(Layer(attention=attention if attends else None, mixer=None if attends else mixer,
                           feed_forward=block))  # fmt: skip
    positions = f.count("max_position_embeddings", default=128_000)
    tied = f.flag("tie_embedding", True)
    return assemble(f, family, kinds, hidden=hidden, tied=tied, max_positions=positions)


def lfm2(f: Fields) -> ModelSpec:
    """LFM2; the width of its MLP is two thirds of what the config has, rounded up, unless it says otherwise."""
    inner = f.count("block_ff_dim", "intermediate_size")
    if f.flag("block_auto_adjust_ff_dim", True):
        multiple = f.count("block_multiple_of", default=256)
        inner = int(f.number("block_ffn_dim_multiplier", 1.0) * int(2 * inner / 3))
        inner = -(-inner // multiple) * multiple
    return _convolutions(f, "lfm2", [FeedForward(inner=max(inner, 1))] * num_layers_of(f))


def lfm2_moe(f: Fields) -> ModelSpec:
    """LFM2 with experts behind the first num_dense_layers."""
    moe = MixtureOfExperts(
        experts=f.count("num_experts", default=32),
        top_k=f.count("num_experts_per_tok", default=4),
        expert_inner=f.count("moe_intermediate_size", default=1792),
        router_scores="sigmoid",
        router_normalised=f.flag("norm_topk_prob", True),
        router_scale=f.number("routed_scaling_factor", 1.0),
    )
    dense, first = FeedForward(inner=f.count("intermediate_size")), f.count("num_dense_layers", default=2, minimum=0)
    if not f.has("layer_types"):
        f.problem("layer_types", "is missing: which layers are convolutions (conv) and which full_attention")
    return _convolutions(f, "lfm2_moe", [dense if index < first else moe for index in range(num_layers_of(f))])


def rwkv7(f: Fields) -> ModelSpec:
    """RWKV-7; ranks that a config leaves out are those of flash-linear-attention (bc3b101d, layers of RWKV-7)."""
    hidden, layers = f.count("hidden_size"), num_layers_of(f)
    head = f.count("head_dim", default=64)
    if f.sound and hidden % head:
        f.problem("head_dim", f"{head} does not divide hidden size {hidden}")
    for name in ("attn", "value_dim"):
        if f.has(name):
            f.problem(name, "has no formula beside layers of RWKV-7")

    def rank(name: str, factor: float) -> int:
        return f.count(name, default=max(32, round(factor * hidden**0.5 / 32) * 32))

    wide = head / 64
    first = Rwkv7(
        heads=max(hidden // head, 1),
        head_dim=head,
        decay_rank=rank("decay_low_rank_dim", 2.5 * wide),
        rate_rank=rank("a_low_rank_dim", 2.5 * wide),
        gate_rank=rank("gate_low_rank_dim", 5.0),
    )
    later = replace(first, value_rank=rank("v_low_rank_dim", 1.7 * wide))
    ratio = f.count("hidden_ratio", default=4)
    block = FeedForward(inner=f.count("intermediate_size", default=-(-hidden * ratio // 32) * 32), gated=False)
    bias = f.flag("norm_bias", True)
    kinds = [
        Layer(attention=None, mixer=later if index else first, feed_forward=block, norm_bias=bias)
        for index in range(layers)
    ]
    positions = f.count("max_position_embeddings", default=2048)
    spec = assemble(f, "rwkv7", kinds, hidden=hidden, tied=False, max_positions=positions, norm_bias=bias)
    return replace(spec, embedding_norm=f.flag("norm_first", True), unmodelled=("tokens mixed with the one before",))
