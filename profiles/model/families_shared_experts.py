"""Families with shared experts beside the routed ones, or dense layers before: config.json -> ModelSpec; defaults as in
`families.py`.

Routers of GLM-4.5, dots.llm1, Ling, Hy3 and MiMo-V2 are DeepSeek-V3's: sigmoid scores, with a bias for the choice that
training moves by hand and that is no parameter.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

from ...cost_models.specs.model import Attention, FeedForward, MixtureOfExperts, ModelSpec
from .blocks import attention_of, expert_model, num_layers_of, window_size, windows_of
from .families_moe import expert_groups, latent_attention
from .fields import Fields
from .rope import of_layers, window_rope_theta


def _model(
    f: Fields,
    family: str,
    attention: Attention,
    moe: MixtureOfExperts,
    is_moe: Sequence[bool],
    *,
    windows: Sequence[int | None] = (),
    mtp_layers: int = 0,
) -> ModelSpec:
    """mtp_layers: where the config has none."""
    dense = None if all(is_moe) else FeedForward(inner=f.count("intermediate_size"))
    spec = expert_model(f, family, attention, f.count("hidden_size"), moe, dense=dense, is_moe=is_moe,
                        windows=windows, balancing=0.0)  # fmt: skip
    return replace(spec, mtp_layers=f.count("num_nextn_predict_layers", default=mtp_layers, minimum=0))


def _sigmoid(f: Fields, experts: str, shared: str | None, **more: Any) -> MixtureOfExperts:
    """experts, shared: the fields of their numbers; None: there are no shared ones."""
    inner = f.count("moe_intermediate_size")
    router: dict[str, Any] = {
        "router_scores": "sigmoid", "router_normalised": f.flag("norm_topk_prob", True),
        "router_scale": f.number("routed_scaling_factor", 1.0), **more,
    }  # fmt: skip
    return MixtureOfExperts(
        experts=f.count(experts), top_k=f.count("num_experts_per_tok"), expert_inner=inner,
        shared_inner=0 if shared is None else inner * f.count(shared, default=1, minimum=0), **router,
    )  # fmt: skip


def _groups(f: Fields, experts: str) -> dict[str, int]:
    groups, chosen = expert_groups(f, experts)
    return {"groups": groups, "top_groups": chosen}


def _routed(f: Fields, first: int) -> list[bool]:
    """The layers that have experts: by `mlp_layer_types` or a list `moe_layer_freq`, else all from `first` on."""
    layers, marks = num_layers_of(f), f.get("moe_layer_freq")
    if isinstance(marks, list):
        if len(marks) != layers:
            f.problem("moe_layer_freq", f"has {len(marks)} entries for {layers} layers")
        return [bool(index < len(marks) and marks[index]) for index in range(layers)]
    kinds = f.words("mlp_layer_types", layers, ("dense", "sparse"))
    if kinds is not None:
        return [kind == "sparse" for kind in kinds]
    return [index >= f.count("first_k_dense_replace", default=first, minimum=0) for index in range(layers)]


def glm4_moe(f: Fields) -> ModelSpec:
    """GLM-4.5 and later: biases of queries, keys and values only, half of a head turns."""
    norms = f.flag("use_qk_norm", False)
    bias = (f.flag("attention_bias", False), False)
    attention = attention_of(f, f.count("hidden_size"), head_dim=128, bias=bias, head_norms=norms)
    moe = _sigmoid(f, "n_routed_experts", "n_shared_experts", **_groups(f, "n_routed_experts"))
    spec = _model(f, "glm4_moe", attention, moe, _routed(f, 1), mtp_layers=1)
    return replace(spec, partial_rotary_factor=0.5)


def glm4_moe_lite(f: Fields) -> ModelSpec:
    """GLM-4.7-Flash: latent attention."""
    moe = _sigmoid(f, "n_routed_experts", "n_shared_experts", router_scale=f.number("routed_scaling_factor", 1.8),
                   **_groups(f, "n_routed_experts"))  # fmt: skip
    return _model(f, "glm4_moe_lite", latent_attention(f), moe, _routed(f, 1))


def dots1(f: Fields) -> ModelSpec:
    """dots.llm1 (arXiv 2506.05767): attention of Qwen 3, experts of DeepSeek."""
    layers, bias = num_layers_of(f), f.flag("attention_bias", False)
    attention = attention_of(f, f.count("hidden_size"), bias=(bias, bias), head_norms=True)
    moe = _sigmoid(f, "n_routed_experts", "n_shared_experts", router_normalised=f.flag("norm_topk_prob", False),
                   **_groups(f, "n_routed_experts"))  # fmt: skip
    first = f.count("max_window_layers", default=62, minimum=0)
    windows = windows_of(f, layers, window_size(f, "sliding_window", 4096), lambda index: index >= first)
    return _model(f, "dots1", attention, moe, _routed(f, 0), windows=windows)


def deepseek(f: Fields) -> ModelSpec:
    """DeepSeekMoE and Ling 1 (published code of deepseek-ai and inclusionAI): softmax scores, dense layers before those
    with experts; Ling's config has either of two spellings, and its head rows of length 1 with `norm_head`."""
    family, inner = str(f.get("model_type")), f.count("moe_intermediate_size")
    bias = f.flag("attention_bias", f.flag("use_qkv_bias", False)), f.flag("attention_bias", f.flag("use_bias", False))
    attention = attention_of(f, f.count("hidden_size"), bias=bias)
    shared = f.count("n_shared_experts", "num_shared_experts", default=0, minimum=0)
    moe = MixtureOfExperts(
        experts=f.count("n_routed_experts", "num_experts"), top_k=f.count("num_experts_per_tok"), expert_inner=inner,
        shared_inner=inner * shared, router_normalised=f.flag("norm_topk_prob", False),
    )  # fmt: skip
    spec = _model(f, family, attention, moe, _routed(f, 0))
    return replace(spec, unmodelled=("head of rows with length 1",) * f.flag("norm_head", False))


def bailing_v2(f: Fields) -> ModelSpec:
    """Ling 2.0 and Ring 2.0 (published code of inclusionAI): half of a head turns."""
    norms = f.flag("use_qk_norm", True)
    bias = (f.flag("use_qkv_bias", False), f.flag("use_bias", False))
    attention = attention_of(f, f.count("hidden_size"), bias=bias, head_norms=norms)
    moe = _sigmoid(f, "num_experts", "num_shared_experts", **_groups(f, "num_experts"))
    return _model(f, "bailing_moe_v2", attention, moe, _routed(f, 0))


def mimo_v2_flash(f: Fields) -> ModelSpec:
    """Sliding layers have twice the keys and values, learned sinks and a base of their own; values are narrower."""
    layers = num_layers_of(f)
    slides = f.get("hybrid_layer_pattern") or [index > 0 and (index + 1) % 6 != 0 for index in range(layers)]
    if not isinstance(slides, list) or len(slides) != layers:
        f.problem("hybrid_layer_pattern", f"must be a list of {layers} entries, 1 for a layer with a window")
        slides = [False] * layers
    full = attention_of(f, f.count("hidden_size"), head_dim=192, bias=(f.flag("attention_bias", False), False))
    full = replace(full, value_head_dim=f.count("v_head_dim", default=128))
    windows = windows_of(f, layers, window_size(f, "sliding_window", 129), lambda index: bool(slides[index]))
    moe = _sigmoid(f, "n_routed_experts", None, **_groups(f, "n_routed_experts"))
    spec = _model(f, "mimo_v2_flash", full, moe, _routed(f, 1), windows=windows)
    short: dict[str, Any] = {"kv_heads": 2 * full.kv_heads, "sink_parameters": full.heads}
    kinds = tuple(
        kind if attention.window is None else replace(kind, attention=replace(attention, **short))
        for kind, attention in zip(spec.kinds, spec.attentions, strict=True)
    )
    scaled = ("attention_value_scale",) * (f.number("attention_value_scale", 0.707) != 1.0)
    return replace(spec, kinds=kinds, partial_rotary_factor=0.334, unmodelled=scaled,
                   window_rope_theta=f.positive("swa_rope_theta") or window_rope_theta(f, 10_000.0))  # fmt: skip


def hy_v3(f: Fields) -> ModelSpec:
    """Hunyuan 3."""
    if f.flag("mlp_bias", False):
        f.problem("mlp_bias", "there is no formula for shared experts with biases")
    bias = f.flag("attention_bias", False)
    attention = attention_of(f, f.count("hidden_size"), head_dim=128, bias=(bias, bias), head_norms=True)
    moe = _sigmoid(f, "num_experts", "num_shared_experts", router_normalised=True,
                   router_scale=f.number("router_scaling_factor", 2.826))  # fmt: skip
    return _model(f, "hy_v3", attention, moe, _routed(f, 1))


def hunyuan_moe(f: Fields) -> ModelSpec:
    """Hunyuan 1 with experts in all layers; attention as in `families_llama.hunyuan`. Numbers may be one per layer."""
    layers, bias = num_layers_of(f), f.flag("attention_bias", False)
    if f.flag("use_cla", False):
        f.problem("use_cla", "there is no formula for layers that take the keys and values of another")
    attention = attention_of(f, f.count("hidden_size"), bias=(bias, bias), head_norms=True)
    inner = f.count("intermediate_size")
    moe = MixtureOfExperts(experts=_same(f, "num_experts"), top_k=_same(f, "moe_topk"), expert_inner=inner,
                           shared_inner=inner)  # fmt: skip
    spec = _model(f, "hunyuan_v1_moe", attention, moe, [True] * layers)
    return replace(spec, unmodelled=("query and key norms behind the rotation",))


def _same(f: Fields, name: str) -> int:
    """A number, or a list with the same one for each layer."""
    value = f.get(name)
    if not isinstance(value, list) or not value:
        return f.count(name)
    if set(map(str, value)) != {str(value[0])}:
        f.problem(name, "differs between layers, for which there is no formula")
    return value[0] if isinstance(value[0], int) and value[0] > 0 else 1


def step3p5(f: Fields) -> ModelSpec:
    """Step-3.5 (the text model of Step3p7 in transformers 5.24): a sigmoid per head gates what attention puts out,
    sliding layers may have more heads, norms multiply by 1 + weight. Lists may have entries for MTP modules behind."""
    layers, bias = num_layers_of(f), f.flag("attention_bias", False)
    mtp = f.count("num_nextn_predict_layers", default=0, minimum=0)
    if f.flag("mlp_bias", False):
        f.problem("mlp_bias", "there is no formula for shared experts with biases")
    kv_heads = f.count("num_attention_groups", "num_key_value_heads", default=8)
    full = attention_of(f, f.count("hidden_size"), kv_heads=kv_heads, head_dim=128, bias=(bias, bias), head_norms=True)
    gated, width = f.flag("use_head_wise_attn_gate", True), f.positive("query_pre_attn_scalar") or full.head_dim
    scale = None if width == full.head_dim else width**-0.5
    full = replace(full, output_gate=gated, gates_heads=gated, score_scale=scale)
    words = Fields({"layer_types": _of_model(f, "layer_types", layers, mtp)})
    moe = MixtureOfExperts(
        experts=f.count("n_routed_experts", "moe_num_experts", default=288),
        top_k=f.count("num_experts_per_tok", "moe_top_k", default=8), expert_inner=f.count("moe_intermediate_size"),
        shared_inner=f.count("share_expert_dim", "share_expert_dims", default=1280), router_scores="sigmoid",
        router_scale=f.number("moe_router_scaling_factor", 1.0),
    )  # fmt: skip
    windows = windows_of(words, layers, window_size(f, "sliding_window", None), lambda index: False)
    f.absorb(words)
    spec = _model(f, "step3p5", full, moe, _sparse(f, layers, mtp), windows=windows)
    other = f.part("attention_other_setting") or Fields({})
    heads = f.count("num_sliding_attention_heads", default=other.count("num_attention_heads", default=full.heads))
    f.absorb(other)
    if f.sound and heads % kv_heads:
        f.problem("num_sliding_attention_heads", f"{heads} heads are not divisible by {kv_heads} key/value heads")
    kinds = tuple(
        kind if attention.window is None else replace(kind, attention=replace(attention, heads=heads))
        for kind, attention in zip(spec.kinds, spec.attentions, strict=True)
    )
    clamped = [name for name in ("swiglu_limits", "swiglu_limits_shared") if any(f.get(name) or ())]
    return replace(
        spec, kinds=kinds, unit_offset_norms=True, unmodelled=tuple(clamped),
        partial_rotary_factor=of_layers(f, "partial_rotary_factors", "full_attention") or 1.0,
        window_rope_theta=of_layers(f, "rope_theta", "sliding_attention") or window_rope_theta(f, 10_000.0),
    )  # fmt: skip


def _of_model(f: Fields, name: str, layers: int, mtp: int) -> Any:
    """A list per layer without the entries of `mtp` modules behind them."""
    values = f.get(name)
    return values[:layers] if isinstance(values, list) and len(values) == layers + mtp else values


def _sparse(f: Fields, layers: int, mtp: int) -> list[bool]:
    """The layers that have experts: `mlp_layer_types`, else the numbers in `moe_layers_enum`, else all from the
    fourth."""
    words = Fields({"mlp_layer_types": _of_model(f, "mlp_layer_types", layers, mtp)})
    kinds, numbers = words.words("mlp_layer_types", layers, ("dense", "sparse")), f.get("moe_layers_enum")
    f.absorb(words)
    if kinds is not None:
        return [kind == "sparse" for kind in kinds]
    if numbers is None:
        return [index >= 3 for index in range(layers)]
    parts = {str(part).strip() for part in (numbers.split(",") if isinstance(numbers, str) else numbers)}
    if not all(part.isdecimal() for part in parts - {""}):
        f.problem("moe_layers_enum", "must be the numbers of the layers with experts, as a list or with commas between")
    return [str(index) in parts for index in range(layers)]


def ernie_moe(f: Fields) -> ModelSpec:
    """ERNIE 4.5: softmax scores, neighbours of a head turn together."""
    layers, bias = num_layers_of(f), f.flag("use_bias", False)
    attention = attention_of(f, f.count("hidden_size"), bias=(bias, bias))
    inner = f.count("moe_intermediate_size")
    moe = MixtureOfExperts(
        experts=f.count("moe_num_experts"), top_k=f.count("moe_k"), expert_inner=inner,
        shared_inner=inner * f.count("moe_num_shared_experts", default=2, minimum=0),
    )  # fmt: skip
    if bias and moe.shared_inner:
        f.problem("use_bias", "there is no formula for shared experts with biases")
    first = f.count("moe_layer_start_index", default=1, minimum=0)
    last = f.count("moe_layer_end_index", default=-1, minimum=-1)
    every = f.count("moe_layer_interval", default=1)
    is_moe = [(index + 1) % every == 0 and first <= index <= (layers if last < 0 else last) for index in range(layers)]
    dense = None if all(is_moe) else FeedForward(inner=f.count("intermediate_size"), bias=bias)
    return replace(
        expert_model(f, "ernie4_5_moe", attention, f.count("hidden_size"), moe, dense=dense, is_moe=is_moe),
        tied_embeddings=f.flag("tie_word_embeddings", True),
    )
