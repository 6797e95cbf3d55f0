"""The families of Hugging Face whose layers mix tokens in several ways: config.json -> ModelSpec.

Defaults as in `families.py`.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace

from ...cost_models.layer_kinds.gated_delta_net import GatedDeltaNet
from ...cost_models.layer_kinds.mamba2 import Mamba2
from ...cost_models.specs.model import FeedForward, Layer, MixtureOfExperts, ModelSpec
from .blocks import assemble, attention_of, num_layers_of
from .families_moe import sparse_pattern
from .fields import Fields

_LETTERS = {"M": "linear_attention", "*": "full_attention", "-": "mlp", "E": "moe"}
_OLDER = {"mamba": "linear_attention", "attention": "full_attention"}  # spellings of `layers_block_type`


def _one_of(f: Fields, name: str, kinds: Mapping[str, Layer]) -> list[str]:
    """The kind of every layer: a string of _LETTERS in field `name`, or the words of `layers_block_type`."""
    pattern = f.get(name)
    if pattern is None:
        words = f.get("layers_block_type", "layer_types")
        if words is None:
            f.problem(name, "is missing: which layers are of which kind")
            return []
        if not isinstance(words, list):
            f.problem("layers_block_type", f"must be a list with one entry per layer, is {words!r}")
            return []
        pattern = [_OLDER.get(str(word), str(word)) for word in words]
        unknown = sorted(set(pattern) - set(kinds))
        if unknown:
            f.problem("layers_block_type", f"holds {', '.join(unknown)}; known are {', '.join(kinds)}")
    elif not isinstance(pattern, str) or not set(pattern) <= set(_LETTERS):
        letters = ", ".join(f"{letter} ({kind})" for letter, kind in _LETTERS.items())
        f.problem(name, f"must be made of the letters {letters}, is {pattern!r}")
        return []
    else:
        pattern = [_LETTERS[letter] for letter in pattern]
    stated = f.optional_count("num_hidden_layers")
    if stated is not None and stated != len(pattern):
        f.problem(name, f"has {len(pattern)} entries for {stated} layers")
    return [kind for kind in pattern if kind in kinds]


def nemotron_h(f: Fields) -> ModelSpec:
    """Each layer is one block behind one norm: Mamba-2, attention without positions, an MLP, or experts."""
    hidden, mlp_bias = f.count("hidden_size"), f.flag("mlp_bias", False)
    mamba = Mamba2(
        heads=f.count("mamba_num_heads", default=128),
        head_dim=f.count("mamba_head_dim", default=64),
        groups=f.count("n_groups", "mamba_n_groups", default=8),
        state=f.count("ssm_state_size", default=128),
        conv_kernel=f.count("conv_kernel", "mamba_d_conv", default=4),
        chunk=f.count("chunk_size", "mamba_chunk_size", default=128),
        conv_bias=f.flag("use_conv_bias", True),
        bias=f.flag("use_bias", False),
    )
    if f.sound and mamba.heads % mamba.groups:
        f.problem("n_groups", f"{mamba.groups} groups do not divide {mamba.heads} heads")
    attention = replace(attention_of(f, hidden, head_dim=128), rotary=False)
    block = Layer(attention=None, feed_forward=None, num_norms=1)
    mlp = FeedForward(inner=f.count("intermediate_size", default=21504), gated=False, bias=mlp_bias)
    kinds = {
        "linear_attention": replace(block, mixer=mamba),
        "full_attention": replace(block, attention=attention),
        "mlp": replace(block, feed_forward=mlp),
        "moe": replace(block, feed_forward=_nemotron_experts(f)),
    }
    layers = [kinds[name] for name in _one_of(f, "hybrid_override_pattern", kinds)]
    if not layers:
        layers = [kinds["mlp"]]
    positions = f.count("max_position_embeddings", default=4096)
    if mlp_bias and kinds["moe"] in layers:
        f.problem("mlp_bias", "has no formula beside experts: bias terms of shared experts and of the latent width")
    spec = assemble(f, "nemotron_h", layers, hidden=hidden, tied=False, max_positions=positions)
    return replace(spec, tied_embeddings=False)  # whatever the config says: its class in transformers ties nothing


def _nemotron_experts(f: Fields) -> MixtureOfExperts:
    return MixtureOfExperts(
        experts=f.count("n_routed_experts", default=8),
        top_k=f.count("num_experts_per_tok", default=2),
        expert_inner=f.count("moe_intermediate_size", default=7688),
        gated=False,
        shared_inner=f.count("moe_shared_expert_intermediate_size", default=7688),
        latent=f.optional_count("moe_latent_size"),
        groups=f.count("n_group", default=1),
        top_groups=f.count("topk_group", default=1),
        router_scores="sigmoid",
        router_normalised=f.flag("norm_topk_prob", True),
        router_scale=f.number("routed_scaling_factor", 1.0),
    )


def qwen3_next(f: Fields) -> ModelSpec:
    """Every full_attention_interval-th layer has gated attention, the others a gated DeltaNet; experts in most."""
    hidden, layers = f.count("hidden_size"), num_layers_of(f)
    bias = f.flag("attention_bias", False)
    attention = replace(attention_of(f, hidden, bias=(bias, bias), head_norms=True, head_dim=256), output_gate=True)
    delta = GatedDeltaNet(
        key_heads=f.count("linear_num_key_heads", default=16),
        value_heads=f.count("linear_num_value_heads", default=32),
        key_head_dim=f.count("linear_key_head_dim", default=128),
        value_head_dim=f.count("linear_value_head_dim", default=128),
        conv_kernel=f.count("linear_conv_kernel_dim", default=4),
    )
    if f.sound and delta.value_heads % delta.key_heads:
        f.problem("linear_num_value_heads", f"{delta.value_heads} heads are no multiple of {delta.key_heads} key heads")
    moe = MixtureOfExperts(
        experts=f.count("num_experts"),
        top_k=f.count("num_experts_per_tok"),
        expert_inner=f.count("moe_intermediate_size"),
        shared_inner=f.count("shared_expert_intermediate_size", minimum=0),
        shared_gate=True,
        router_normalised=f.flag("norm_topk_prob", True),
    )
    sparse = sparse_pattern(f, layers)
    dense = FeedForward(inner=f.count("intermediate_size", default=5632))
    every = f.count("full_attention_interval", default=4)
    given = f.words("layer_types", layers, ("linear_attention", "full_attention"))
    full = [(index + 1) % every == 0 if given is None else given[index] == "full_attention" for index in range(layers)]
    kinds = [
        Layer(attention=attention if full[index] else None, mixer=None if full[index] else delta,
              feed_forward=moe if sparse[index] else dense)
        for index in range(layers)
    ]  # fmt: skip
    positions = f.count("max_position_embeddings", default=32768)
    spec = assemble(f, "qwen3_next", kinds, hidden=hidden, tied=False, max_positions=positions)
    # As in `expert_model`: a mean over layers of loads that are not over the experts of a token.
    in_each_layer = f.number("router_aux_loss_coef", 0.001) * moe.top_k / max(sum(sparse), 1)
    return replace(spec, moe_aux_loss_coeff=in_each_layer, unit_offset_norms=True, partial_rotary_factor=0.25)
