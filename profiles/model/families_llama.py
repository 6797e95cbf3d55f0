"""Dense families with the blocks of Llama but for norms, biases, windows and layers without positions: config.json ->
ModelSpec; defaults as in `families.py`. Without a class in transformers: those of the published code.
"""

from __future__ import annotations

from dataclasses import replace

from ...cost_models.specs.model import Attention, FeedForward, ModelSpec
from .blocks import attention_of, dense_model, num_layers_of, window_size, windows_of
from .fields import Fields
from .rope import window_rope_theta


def llama(f: Fields, family: str = "llama") -> ModelSpec:
    bias = f.flag("attention_bias", False)
    ffn = FeedForward(inner=f.count("intermediate_size"), bias=f.flag("mlp_bias", False))
    hidden = f.count("hidden_size")
    return dense_model(f, family, attention_of(f, hidden, bias=(bias, bias)), hidden, ffn=ffn)


def with_norms_of_heads(attention: Attention) -> Attention:
    """Queries and keys are normalised over all heads of a token (OLMo 2, arXiv 2501.00656)."""
    return replace(attention, norm_parameters=(attention.heads + attention.kv_heads) * attention.head_dim)


def with_granite_factors(f: Fields, spec: ModelSpec) -> ModelSpec:
    """Factors for embeddings, scores, residuals and logits."""
    factor = f.positive("attention_multiplier") or 1.0
    kinds = tuple(
        kind if kind.attention is None else replace(kind, attention=replace(kind.attention, score_scale=factor))
        for kind in spec.kinds
    )
    return replace(
        spec,
        kinds=kinds,
        embedding_scale=f.positive("embedding_multiplier") or 1.0,
        residual_scale=f.positive("residual_multiplier") or 1.0,
        logit_scale=1.0 / (f.positive("logits_scaling") or 1.0),
    )


def apertus(f: Fields) -> ModelSpec:
    """Norms of the heads of queries and keys; xIELU without a gate, with two learned numbers in every layer."""
    hidden = f.count("hidden_size")
    bias = f.flag("attention_bias", False)
    learned = 2 if f.get("hidden_act") in (None, "xielu") else 0
    ffn = FeedForward(inner=f.count("intermediate_size", default=14336), gated=False, activation_parameters=learned)
    attention = attention_of(f, hidden, bias=(bias, bias), head_norms=True)
    return dense_model(f, "apertus", attention, hidden, ffn=ffn)


def arcee(f: Fields) -> ModelSpec:
    """Squared ReLU without a gate."""
    hidden = f.count("hidden_size")
    bias = f.flag("attention_bias", False)
    ffn = FeedForward(inner=f.count("intermediate_size"), gated=False, bias=f.flag("mlp_bias", False))
    return dense_model(f, "arcee", attention_of(f, hidden, bias=(bias, bias)), hidden, ffn=ffn)


def baichuan(f: Fields) -> ModelSpec:
    """Baichuan 2 divides the rows of its head by their lengths; its 13B has ALiBi, and no max_position_embeddings."""
    hidden = f.count("hidden_size")
    positions = f.count("max_position_embeddings", "model_max_length", default=4096)
    spec = dense_model(f, "baichuan", attention_of(f, hidden), hidden, max_positions=positions)
    alibi = ("ALiBi",) * (not f.has("max_position_embeddings"))
    return replace(spec, unmodelled=("head of rows with length 1", *alibi))


def ernie(f: Fields) -> ModelSpec:
    """ERNIE 4.5: one switch for the biases of both blocks; neighbours of a head turn together."""
    hidden = f.count("hidden_size")
    bias = f.flag("use_bias", False)
    attention = attention_of(f, hidden, head_dim=128, bias=(bias, bias))
    ffn = FeedForward(inner=f.count("intermediate_size"), bias=bias)
    return dense_model(f, "ernie4_5", attention, hidden, ffn=ffn, tied=True)


def exaone4(f: Fields) -> ModelSpec:
    """Norms behind the blocks; three sliding layers, then a full one without positions. Without a window all layers are
    full, and have positions."""
    hidden, layers = f.count("hidden_size"), num_layers_of(f)
    attention = attention_of(f, hidden, head_norms=True)
    size, every = window_size(f, "sliding_window", 4096), f.get("sliding_window_pattern")
    period = len(every) if isinstance(every, str) else f.count("sliding_window_pattern", default=4, minimum=0)
    windows = windows_of(f, layers, size, lambda index: (index + 1) % max(period, 1) != 0)
    spec = dense_model(f, "exaone4", attention, hidden, windows=windows, output_norms=True)
    mixed = size is not None and None in windows
    return replace(spec, unmodelled=("full layers without rotary positions",) if mixed else ())


def glm(f: Fields) -> ModelSpec:
    """Biases of queries, keys and values only; neighbours of half of a head turn together."""
    return _glm(f, "glm", 2)


def glm4(f: Fields) -> ModelSpec:
    """GLM-4-0414: a norm in front of both blocks and one behind."""
    return _glm(f, "glm4", 4)


def _glm(f: Fields, family: str, num_norms: int) -> ModelSpec:
    hidden = f.count("hidden_size")
    attention = attention_of(f, hidden, head_dim=128, bias=(f.flag("attention_bias", True), False))
    spec = dense_model(f, family, attention, hidden, num_norms=num_norms)
    return replace(spec, partial_rotary_factor=0.5)


def hunyuan(f: Fields) -> ModelSpec:
    """The norms of queries and keys are behind the rotation, whose base grows with `alpha` of rope_scaling."""
    hidden = f.count("hidden_size")
    bias = f.flag("attention_bias", False)
    attention = attention_of(f, hidden, bias=(bias, bias), head_norms=True)
    spec = dense_model(f, "hunyuan_v1_dense", attention, hidden)
    return replace(spec, unmodelled=("query and key norms behind the rotation",))


def internlm(f: Fields) -> ModelSpec:
    """InternLM 1 and 2: one switch for the biases of attention."""
    hidden = f.count("hidden_size")
    bias = f.flag("bias", True)
    return dense_model(f, str(f.get("model_type")), attention_of(f, hidden, bias=(bias, bias)), hidden)


def internlm3(f: Fields) -> ModelSpec:
    """Older configs have `qkv_bias` for queries, keys and values, and `bias` for all else."""
    hidden = f.count("hidden_size")
    inner, bias = f.flag("attention_bias", f.flag("qkv_bias", False)), f.flag("mlp_bias", f.flag("bias", False))
    ffn = FeedForward(inner=f.count("intermediate_size"), bias=bias)
    attention = attention_of(f, hidden, head_dim=128, bias=(inner, bias))
    return dense_model(f, "internlm3", attention, hidden, ffn=ffn)


def mimo(f: Fields) -> ModelSpec:
    """Qwen 2 with modules that predict more than one token."""
    hidden = f.count("hidden_size")
    attention = attention_of(f, hidden, bias=(f.flag("attention_bias", True), False))
    spec = dense_model(f, "mimo", attention, hidden)
    return replace(spec, mtp_layers=f.count("num_nextn_predict_layers", default=0, minimum=0))


def ministral3(f: Fields) -> ModelSpec:
    """Mistral whose queries grow with their position where `llama_4_scaling_beta` is above 0."""
    hidden, layers = f.count("hidden_size"), num_layers_of(f)
    windows = windows_of(f, layers, window_size(f, "sliding_window", None), lambda index: True)
    spec = dense_model(f, "ministral3", attention_of(f, hidden, head_dim=128), hidden, windows=windows)
    part, name = f.part("rope_parameters"), "llama_4_scaling_beta"
    grows = part is None or part.number(name, 0.0) > 0
    return replace(spec, unmodelled=(name,) if grows else ())


def olmo3(f: Fields) -> ModelSpec:
    """OLMo 2 with three sliding layers before each full one; only the full ones scale their positions."""
    hidden, layers = f.count("hidden_size"), num_layers_of(f)
    bias = f.flag("attention_bias", False)
    attention = with_norms_of_heads(attention_of(f, hidden, bias=(bias, bias)))
    windows = windows_of(f, layers, window_size(f, "sliding_window", 4096), lambda index: (index + 1) % 4 != 0)
    spec = dense_model(f, "olmo3", attention, hidden, windows=windows, output_norms=True)
    return replace(spec, window_rope_theta=window_rope_theta(f, f.positive("rope_theta") or 500_000.0))


def seed_oss(f: Fields) -> ModelSpec:
    hidden = f.count("hidden_size")
    bias = (f.flag("attention_bias", True), f.flag("attention_out_bias", False))
    ffn = FeedForward(inner=f.count("intermediate_size"), bias=f.flag("mlp_bias", False))
    dropout = f.number("residual_dropout", 0.1) > 0
    attention = attention_of(f, hidden, head_dim=128, bias=bias)
    return dense_model(f, "seed_oss", attention, hidden, ffn=ffn, dropout=dropout)


def smollm3(f: Fields) -> ModelSpec:
    """Llama with every fourth layer without positions."""
    hidden, layers, bias = f.count("hidden_size"), num_layers_of(f), f.flag("attention_bias", False)
    every = f.count("no_rope_layer_interval", default=4)
    rope = f.get("no_rope_layers") or [(index + 1) % every != 0 for index in range(layers)]
    if not isinstance(rope, list) or len(rope) != layers:
        f.problem("no_rope_layers", f"must be a list of {layers} entries, 0 for a layer without positions")
        rope = [1] * layers
    size = window_size(f, "sliding_window", None) if f.flag("use_sliding_window", False) else None
    windows = windows_of(f, layers, size, lambda index: not rope[index])
    ffn = FeedForward(inner=f.count("intermediate_size"), bias=f.flag("mlp_bias", False))
    attention = attention_of(f, hidden, bias=(bias, bias))
    spec = dense_model(f, "smollm3", attention, hidden, ffn=ffn, windows=windows, tied=True)
    return replace(spec, unmodelled=() if all(rope) else ("no_rope_layers",))
