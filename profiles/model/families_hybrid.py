"""The families of Hugging Face whose layers mix tokens in several ways: config.json -> ModelSpec.

Defaults as in `families.py`.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from ...cost_models.layer_kinds.gated_delta_net import GatedDeltaNet
from ...cost_models.specs.model import FeedForward, Layer, MixtureOfExperts, ModelSpec
from .blocks import assemble, attention_of, num_layers_of, with_balancing
from .families_llama import with_norms_of_heads
from .families_moe import sparse_pattern
from .fields import Fields


def _delta_net(f: Fields, key_heads: int = 16, value_heads: int = 32) -> GatedDeltaNet:
    """key_heads, value_heads: where the config has none."""
    delta = GatedDeltaNet(
        key_heads=f.count("linear_num_key_heads", default=key_heads),
        value_heads=f.count("linear_num_value_heads", default=value_heads),
        key_head_dim=f.count("linear_key_head_dim", default=128),
        value_head_dim=f.count("linear_value_head_dim", default=128),
        conv_kernel=f.count("linear_conv_kernel_dim", default=4),
    )
    if f.sound and delta.value_heads % delta.key_heads:
        f.problem("linear_num_value_heads", f"{delta.value_heads} heads are no multiple of {delta.key_heads} key heads")
    return delta


def _qwen(f: Fields, family: str, blocks: Sequence[FeedForward | MixtureOfExperts]) -> ModelSpec:
    """Every full_attention_interval-th layer has gated attention, the others a gated DeltaNet; blocks: [layer]."""
    hidden, layers = f.count("hidden_size"), len(blocks)
    bias = f.flag("attention_bias", False)
    attention = replace(attention_of(f, hidden, bias=(bias, bias), head_norms=True, head_dim=256), output_gate=True)
    delta, every = _delta_net(f), f.count("full_attention_interval", default=4)
    given = f.words("layer_types", layers, ("linear_attention", "full_attention"))
    full = [(index + 1) % every == 0 if given is None else given[index] == "full_attention" for index in range(layers)]
    kinds = [
        Layer(attention=attention, feed_forward=block) if attends
        else Layer(attention=None, mixer=delta, feed_forward=block)
        for attends, block in zip(full, blocks, strict=True)
    ]  # fmt: skip
    positions = f.count("max_position_embeddings", default=32768)
    spec = assemble(f, family, kinds, hidden=hidden, tied=False, max_positions=positions)
    return replace(spec, unit_offset_norms=True, partial_rotary_factor=0.25)


def _experts(f: Fields, *, normalised: bool, inner: dict[str, int]) -> MixtureOfExperts:
    """inner: {"default": width} of an expert and of the shared one, where a config may leave them out."""
    return MixtureOfExperts(
        experts=f.count("num_experts"),
        top_k=f.count("num_experts_per_tok"),
        expert_inner=f.count("moe_intermediate_size", **inner),
        shared_inner=f.count("shared_expert_intermediate_size", minimum=0, **inner),
        shared_gate=True,
        router_normalised=normalised,
    )


def qwen3_next(f: Fields) -> ModelSpec:
    """Experts in most layers."""
    moe = _experts(f, normalised=f.flag("norm_topk_prob", True), inner={})
    dense = FeedForward(inner=f.count("intermediate_size", default=5632))
    sparse = sparse_pattern(f, num_layers_of(f))
    spec = _qwen(f, "qwen3_next", [moe if routed else dense for routed in sparse])
    return with_balancing(f, spec, moe, sum(sparse))


def qwen3_5(f: Fields) -> ModelSpec:
    """The text model of Qwen 3.5, without experts."""
    block = FeedForward(inner=f.count("intermediate_size"))
    return _qwen(f, "qwen3_5", [block] * num_layers_of(f))


def qwen3_5_moe(f: Fields) -> ModelSpec:
    """The text model of Qwen 3.5 with experts in all layers."""
    layers = num_layers_of(f)
    moe = _experts(f, normalised=True, inner={"default": 512})
    return with_balancing(f, _qwen(f, "qwen3_5_moe", [moe] * layers), moe, layers)


def olmo_hybrid(f: Fields) -> ModelSpec:
    """Gated DeltaNet behind norms, and every fourth layer attention with norms of its output (as OLMo 3)."""
    hidden, layers = f.count("hidden_size"), num_layers_of(f)
    bias = f.flag("attention_bias", False)
    attention = with_norms_of_heads(attention_of(f, hidden, bias=(bias, bias)))
    rope = f.part("rope_parameters")
    attention = replace(attention, rotary=rope is not None and rope.has("rope_theta"))
    delta = _delta_net(f, attention.heads, attention.heads)
    if not f.has("linear_key_head_dim"):
        delta = replace(delta, key_head_dim=max(3 * hidden // (4 * delta.key_heads), 1))
    if not f.has("linear_value_head_dim"):
        delta = replace(delta, value_head_dim=2 * delta.key_head_dim)
    block = FeedForward(inner=f.count("intermediate_size"))
    given = f.words("layer_types", layers, ("linear_attention", "full_attention"))
    full = [index % 4 == 3 if given is None else given[index] == "full_attention" for index in range(layers)]
    full[-1] |= not any(full)
    of_attention = Layer(attention=attention, feed_forward=block, output_norms=True)
    of_mixer = Layer(attention=None, mixer=delta, feed_forward=block)
    kinds = [of_attention if attends else of_mixer for attends in full]
    positions = f.count("max_position_embeddings", default=65536)
    return assemble(f, "olmo_hybrid", kinds, hidden=hidden, tied=False, max_positions=positions)
