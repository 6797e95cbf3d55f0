"""The families of Hugging Face with layers of Mamba or Mamba-2: config.json -> ModelSpec.

Defaults as in `families.py`.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace

from ...cost_models.layer_kinds.mamba import Mamba
from ...cost_models.layer_kinds.mamba2 import Mamba2
from ...cost_models.specs.model import FeedForward, Layer, MixtureOfExperts, ModelSpec
from .blocks import assemble, attention_of, num_layers_of, with_balancing
from .families_llama import with_granite_factors
from .fields import Fields

_UNBOUNDED = 1 << 30  # positions of a model that has none
_LETTERS = {"M": "linear_attention", "*": "full_attention", "-": "mlp", "E": "moe"}
_OLDER = {"mamba": "linear_attention", "attention": "full_attention"}  # spellings of `layers_block_type`


def _one_of(f: Fields, name: str, kinds: Mapping[str, Layer], *by_words: str) -> list[str]:
    """The kind of every layer: a string of _LETTERS in field `name`, or the words of a field of `by_words`."""
    pattern = f.get(name)
    if pattern is None:
        words = f.get(*by_words)
        if words is None:
            f.problem(name, "is missing: which layers are of which kind")
            return []
        if not isinstance(words, list):
            f.problem(by_words[0], f"must be a list with one entry per layer, is {words!r}")
            return []
        pattern = [_OLDER.get(str(word), str(word)) for word in words]
        unknown = sorted(set(pattern) - set(kinds))
        if unknown:
            f.problem(by_words[0], f"holds {', '.join(unknown)}; known are {', '.join(kinds)}")
    elif not isinstance(pattern, str) or not set(pattern) <= set(_LETTERS):
        letters = ", ".join(f"{letter} ({kind})" for letter, kind in _LETTERS.items())
        f.problem(name, f"must be made of the letters {letters}, is {pattern!r}")
        return []
    else:
        pattern = [_LETTERS[letter] for letter in pattern]
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
        in_bias=f.flag("use_bias", False),
        out_bias=f.flag("use_bias", False),
        least_step=f.number("time_step_min", 0.001),  # whatever `time_step_limit` says (its mixer in transformers 5.24)
    )
    _check_groups(f, "n_groups", mamba)
    attention = replace(attention_of(f, hidden, head_dim=128), rotary=False)
    block = Layer(attention=None, feed_forward=None, num_norms=1)
    mlp = FeedForward(inner=f.count("intermediate_size", default=21504), gated=False, bias=mlp_bias)
    kinds = {
        "linear_attention": replace(block, mixer=mamba),
        "full_attention": replace(block, attention=attention),
        "mlp": replace(block, feed_forward=mlp),
        "moe": replace(block, feed_forward=_nemotron_experts(f)),
    }
    names = _one_of(f, "hybrid_override_pattern", kinds, "layers_block_type", "layer_types")
    if (stated := f.optional_count("num_hidden_layers")) is not None and f.sound and stated != len(names):
        f.problem("hybrid_override_pattern", f"has {len(names)} entries for {stated} layers")
    layers = [kinds[name] for name in names] or [kinds["mlp"]]
    positions = f.count("max_position_embeddings", default=4096)
    if mlp_bias and kinds["moe"] in layers:
        f.problem("mlp_bias", "has no formula beside experts: bias terms of shared experts and of the latent width")
    spec = assemble(f, "nemotron_h", layers, hidden=hidden, tied=False, max_positions=positions)
    spec = replace(spec, tied_embeddings=False)  # whatever the config says: its class in transformers ties nothing
    return _with_predictions(f, spec, kinds)


def _with_predictions(f: Fields, spec: ModelSpec, kinds: Mapping[str, Layer]) -> ModelSpec:
    """The model with its prediction modules, each of layers of these kinds. Its class in transformers builds none;
    Megatron-Bridge does (NemotronHBridge, 067f987d), and lets all share the weights of one unless told otherwise."""
    modules = f.count("num_nextn_predict_layers", default=0, minimum=0)
    if not modules:
        return spec
    layers = [kinds[name] for name in _one_of(f, "mtp_hybrid_override_pattern", kinds, "mtp_layers_block_type")]
    every = tuple(dict.fromkeys((*spec.kinds, *layers)))
    return replace(
        spec, kinds=every, mtp_layers=modules, mtp_pattern=tuple(every.index(layer) for layer in layers),
        mtp_shared=modules > 1 and f.flag("mtp_use_repeated_layer", True),
    )  # fmt: skip


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


def mamba2(f: Fields) -> ModelSpec:
    """Layers of nothing but Mamba-2."""
    hidden, bias = f.count("hidden_size"), f.flag("use_bias", False)
    mixer = Mamba2(
        heads=f.count("num_heads", default=128),
        head_dim=f.count("head_dim", default=64),
        groups=f.count("n_groups", default=8),
        state=f.count("state_size", default=128),
        conv_kernel=f.count("conv_kernel", default=4),
        chunk=f.count("chunk_size", default=256),
        conv_bias=f.flag("use_conv_bias", True),
        in_bias=bias,
        out_bias=bias,
    )
    _check_groups(f, "n_groups", mixer)
    expanded = hidden * f.count("expand", default=2)
    if f.sound and expanded != mixer.inner:
        f.problem("expand", f"{expanded} channels are not {mixer.heads} heads of {mixer.head_dim}")
    layers = [Layer(attention=None, feed_forward=None, mixer=mixer, num_norms=1)] * num_layers_of(f)
    return assemble(f, "mamba2", layers, hidden=hidden, tied=False, max_positions=_UNBOUNDED)


def _mixer(f: Fields, hidden: int, *, channels: int | None = None, out_bias: bool | None = None) -> Mamba2:
    """As Bamba spells it. channels: of all heads, where it is not a multiple of hidden."""
    heads, bias = f.count("mamba_n_heads", default=128), f.flag("mamba_proj_bias", False)
    channels = channels or f.count("mamba_expand", default=2) * hidden
    stated = f.get("mamba_d_head")
    head_dim = f.count("mamba_d_head", default=max(channels // heads, 1)) if stated != "auto" else channels // heads
    if f.sound and heads * head_dim != channels:
        f.problem("mamba_n_heads", f"{heads} heads of {head_dim} are not {channels} channels")
    mixer = Mamba2(
        heads=heads,
        head_dim=max(head_dim, 1),
        groups=f.count("mamba_n_groups", default=1),
        state=f.count("mamba_d_state", default=256),
        conv_kernel=f.count("mamba_d_conv", default=4),
        chunk=f.count("mamba_chunk_size", default=256),
        conv_bias=f.flag("mamba_conv_bias", True),
        in_bias=bias,
        out_bias=bias if out_bias is None else out_bias,
    )
    _check_groups(f, "mamba_n_groups", mixer)
    return mixer


def _check_groups(f: Fields, name: str, mixer: Mamba2) -> None:
    if f.sound and mixer.heads % mixer.groups:
        f.problem(name, f"{mixer.groups} groups do not divide {mixer.heads} heads")


def bamba(f: Fields) -> ModelSpec:
    """Attention in the layers of `attn_layer_indices`, Mamba-2 in the others, an MLP in all."""
    hidden, layers = f.count("hidden_size"), num_layers_of(f)
    bias = f.flag("attention_bias", False)
    attention = attention_of(f, hidden, bias=(bias, bias), kv_heads=f.count("num_key_value_heads", default=8))
    block = FeedForward(inner=f.count("intermediate_size"), bias=f.flag("mlp_bias", False))
    of_attention = Layer(attention=attention, feed_forward=block)
    of_mixer = Layer(attention=None, feed_forward=block, mixer=_mixer(f, hidden))
    attends = set(f.indices("attn_layer_indices", layers) or [])
    kinds = [of_attention if index in attends else of_mixer for index in range(layers)]
    positions = f.count("max_position_embeddings", default=262144)
    spec = assemble(f, "bamba", kinds, hidden=hidden, tied=False, max_positions=positions)
    return replace(spec, partial_rotary_factor=0.5)


def granitemoehybrid(f: Fields) -> ModelSpec:
    """Mamba-2 or attention by `layer_types`; experts beside an MLP that all tokens pass, or that MLP alone."""
    hidden, layers = f.count("hidden_size"), num_layers_of(f)
    bias = f.flag("attention_bias", False)
    rotary = f.get("position_embedding_type") == "rope"
    attention = replace(attention_of(f, hidden, bias=(bias, bias)), rotary=rotary)
    shared = f.count("shared_intermediate_size", default=1024)
    block: FeedForward | MixtureOfExperts = FeedForward(inner=shared)
    if experts := f.count("num_local_experts", default=8, minimum=0):
        block = MixtureOfExperts(
            experts=experts,
            top_k=f.count("num_experts_per_tok", default=2),
            expert_inner=f.count("intermediate_size", default=11008),
            shared_inner=shared,
        )
    of = {
        "full_attention": Layer(attention=attention, feed_forward=block),
        "linear_attention": Layer(attention=None, feed_forward=block, mixer=_mixer(f, hidden)),
    }
    words = f.words("layer_types", layers, (*of, *_OLDER)) or f.words("layers_block_type", layers, (*of, *_OLDER))
    kinds = [of[_OLDER.get(word, word)] for word in words or ["linear_attention"] * layers]
    positions = f.count("max_position_embeddings", default=2048)
    spec = assemble(f, "granitemoehybrid", kinds, hidden=hidden, tied=False, max_positions=positions)
    return with_granite_factors(f, spec)


# Factors of parts of a layer, which have no field of ours.
_MULTIPLIERS = ("attention_in_multiplier", "attention_out_multiplier", "key_multiplier", "mlp_multipliers",
                "ssm_in_multiplier", "ssm_multipliers", "ssm_out_multiplier")  # fmt: skip


def falcon_h1(f: Fields) -> ModelSpec:
    """Attention and Mamba-2 of the same input, then an MLP, in every layer."""
    hidden, bias = f.count("hidden_size"), f.flag("attention_bias", False)
    attention = attention_of(f, hidden, bias=(bias, bias))
    channels = f.count("mamba_d_ssm", default=1024) if f.has("mamba_d_ssm") or "mamba_d_ssm" not in f.data else None
    mixer = _mixer(f, hidden, channels=channels, out_bias=f.flag("projectors_bias", False))
    mixer = replace(mixer, gated_norm=f.flag("mamba_rms_norm", False))
    block = FeedForward(inner=f.count("intermediate_size"), bias=f.flag("mlp_bias", False))
    layers = [Layer(attention=attention, feed_forward=block, mixer=mixer)] * num_layers_of(f)
    positions = f.count("max_position_embeddings", default=8192)
    spec = assemble(f, "falcon_h1", layers, hidden=hidden, tied=False, max_positions=positions)
    changed = [name for name in _MULTIPLIERS if f.has(name) and set(_numbers(f.get(name))) != {1.0}]
    return replace(
        spec,
        embedding_scale=f.positive("embedding_multiplier") or 1.0,
        logit_scale=f.positive("lm_head_multiplier") or 1.0,
        unmodelled=tuple(changed),
    )


def _numbers(value: object) -> list[object]:
    return list(value) if isinstance(value, list) else [value]


def mamba(f: Fields, family: str = "mamba") -> ModelSpec:
    """Layers of nothing but Mamba of the first version."""
    hidden = f.count("hidden_size")
    bias, conv_bias = f.flag("use_bias", False), f.flag("use_conv_bias", True)
    mixer = _selective(f, "expand", "state_size", "time_step_rank", "conv_kernel", conv_bias, bias)
    mixer = replace(mixer, channels=f.count("intermediate_size", default=mixer.channels))
    layers = [Layer(attention=None, feed_forward=None, mixer=mixer, num_norms=1)] * num_layers_of(f)
    return assemble(f, family, layers, hidden=hidden, tied=True, max_positions=_UNBOUNDED)


def falcon_mamba(f: Fields) -> ModelSpec:
    """Mamba with norms without weights of step, B and C."""
    return replace(mamba(f, "falcon_mamba"), unmodelled=("norms of step, B and C without weights",))


def _selective(
    f: Fields, expand: str, state: str, rank: str, kernel: str, conv_bias: bool, bias: bool, norms: bool = False
) -> Mamba:
    """Mamba by the names of its fields."""
    hidden, automatic = f.count("hidden_size"), f.get(rank) in (None, "auto")
    return Mamba(
        channels=hidden * f.count(expand, default=2),
        state=f.count(state, default=16),
        step_rank=-(-hidden // 16) if automatic else f.count(rank),
        conv_kernel=f.count(kernel, default=4),
        conv_bias=conv_bias,
        bias=bias,
        step_norms=norms,
    )


def jamba(f: Fields) -> ModelSpec:
    """Mamba, and attention without positions in every attn_layer_period-th layer; experts in every second layer."""
    hidden, layers = f.count("hidden_size"), num_layers_of(f)
    attention = replace(attention_of(f, hidden, kv_heads=f.count("num_key_value_heads", default=8)), rotary=False)
    conv_bias, bias = f.flag("mamba_conv_bias", True), f.flag("mamba_proj_bias", False)
    mixer = _selective(f, "mamba_expand", "mamba_d_state", "mamba_dt_rank", "mamba_d_conv", conv_bias, bias, True)
    dense = FeedForward(inner=f.count("intermediate_size", default=14336))
    moe = MixtureOfExperts(
        experts=f.count("num_experts", "num_local_experts", default=16),
        top_k=f.count("num_experts_per_tok", default=2),
        expert_inner=dense.inner,
        router_normalised=False,
    )
    attends = _every(f, "attn_layer_period", "attn_layer_offset", layers, (8, 4))
    routes = [routed and moe.experts > 1
              for routed in _every(f, "expert_layer_period", "expert_layer_offset", layers, (2, 1))]  # fmt: skip
    kinds = [
        Layer(attention=attention if full else None, mixer=None if full else mixer,
              feed_forward=moe if routed else dense)
        for full, routed in zip(attends, routes, strict=True)
    ]  # fmt: skip
    positions = f.count("max_position_embeddings", default=262144)
    spec = assemble(f, "jamba", kinds, hidden=hidden, tied=False, max_positions=positions)
    return with_balancing(f, spec, moe, sum(routes))


def _every(f: Fields, period: str, offset: str, layers: int, default: tuple[int, int]) -> list[bool]:
    """Layers whose index is `offset` in each group of `period`."""
    every, first = f.count(period, default=default[0]), f.count(offset, default=default[1], minimum=0)
    if f.sound and first >= every:
        f.problem(offset, f"{first} is not below {period} {every}")
    return [index % every == first for index in range(layers)]
