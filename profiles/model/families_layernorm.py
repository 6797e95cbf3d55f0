"""Dense families with LayerNorm: config.json -> ModelSpec; defaults as in `families.py`."""

from __future__ import annotations

from dataclasses import replace
from itertools import islice

from ...cost_models.specs.model import FeedForward, ModelSpec
from .blocks import attention_of, dense_model, num_layers_of, window_size, windows_of
from .families_llama import with_norms_of_heads
from .fields import Fields

_NO_BIAS = "layer norms without bias"


def cohere(f: Fields) -> ModelSpec:
    """Command R: one norm feeds both blocks in parallel; its norms have no bias, those of heads a weight per head."""
    hidden = f.count("hidden_size")
    bias = f.flag("attention_bias", False)
    attention = attention_of(f, hidden, bias=(bias, bias))
    if f.flag("use_qk_norm", False):
        attention = with_norms_of_heads(attention)
    spec = dense_model(f, "cohere", attention, hidden, num_norms=1, tied=True, parallel=True)
    return replace(spec, logit_scale=f.positive("logit_scale") or 0.0625, unmodelled=(_NO_BIAS,))


def cohere2(f: Fields) -> ModelSpec:
    """Command R7B and A: three sliding layers, then a full one without positions."""
    hidden, layers = f.count("hidden_size"), num_layers_of(f)
    bias = f.flag("attention_bias", False)
    attention = attention_of(f, hidden, head_dim=128, bias=(bias, bias))
    every = f.count("sliding_window_pattern", default=4)
    windows = windows_of(f, layers, window_size(f, "sliding_window", 4096), lambda index: (index + 1) % every != 0)
    spec = dense_model(f, "cohere2", attention, hidden, windows=windows, num_norms=1, tied=True, parallel=True)
    full = ("full layers without rotary positions",) * (None in windows)
    return replace(spec, logit_scale=f.positive("logit_scale") or 0.0625, unmodelled=(_NO_BIAS, *full))


def nemotron(f: Fields) -> ModelSpec:
    """Nemotron-4: norms multiply by 1 + weight, squared ReLU without a gate, half of a head turns."""
    hidden = f.count("hidden_size")
    bias = f.flag("attention_bias", False)
    ffn = FeedForward(inner=f.count("intermediate_size"), gated=False, bias=f.flag("mlp_bias", False))
    attention = attention_of(f, hidden, bias=(bias, bias))
    spec = dense_model(f, "nemotron", attention, hidden, ffn=ffn, norm_bias=True)
    return replace(spec, unit_offset_norms=True, partial_rotary_factor=0.5)


def stablelm(f: Fields) -> ModelSpec:
    """A quarter of a head turns; one norm feeds parallel blocks; norms of heads have a weight per head."""
    hidden = f.count("hidden_size")
    attention = attention_of(f, hidden, bias=(f.flag("use_qkv_bias", False), False))
    if f.flag("qk_layernorm", False):
        attention = with_norms_of_heads(attention)
    parallel = f.flag("use_parallel_residual", False)
    spec = dense_model(f, "stablelm", attention, hidden, num_norms=1 if parallel else 2, norm_bias=True,
                       parallel=parallel, dropout=f.number("hidden_dropout", 0.0) > 0)  # fmt: skip
    return replace(spec, partial_rotary_factor=0.25)


def gpt2(f: Fields) -> ModelSpec:
    """GPT-2, and StarCoder's GPTBigCode, where all heads share one pair of keys and values."""
    family, hidden = str(f.get("model_type")), f.count("n_embd", "hidden_size")
    ffn = FeedForward(inner=f.count("n_inner", default=4 * hidden), gated=False, bias=True)
    positions = f.count("n_positions", "max_position_embeddings")
    dropout = f.number("resid_pdrop", 0.1) > 0
    shared = f.flag("multi_query", family == "gpt_bigcode")
    kv_heads = 1 if shared else f.count("num_attention_heads", "n_head")
    attention = attention_of(f, hidden, kv_heads=kv_heads, bias=(True, True))
    spec = dense_model(f, family, attention, hidden, ffn=ffn, norm_bias=True, tied=True, dropout=dropout,
                  max_positions=positions)  # fmt: skip
    return replace(spec, learned_positions=positions)


def gpt_neox(f: Fields) -> ModelSpec:
    hidden = f.count("hidden_size")
    bias = f.flag("attention_bias", True)
    attention = attention_of(f, hidden, bias=(bias, bias))
    ffn = FeedForward(inner=f.count("intermediate_size"), gated=False, bias=True)
    dropout = f.number("hidden_dropout", 0.0) > 0
    parallel = f.flag("use_parallel_residual", True)
    spec = dense_model(f, "gpt_neox", attention, hidden, ffn=ffn, norm_bias=True, dropout=dropout, parallel=parallel)
    return replace(spec, partial_rotary_factor=f.number("rotary_pct", 0.25))


def gpt_neo(f: Fields) -> ModelSpec:
    """Every other layer sees a window; queries, keys and values have no bias, and scores are not scaled."""
    hidden, heads, positions = f.count("hidden_size"), f.count("num_heads"), f.count("max_position_embeddings")
    ffn = FeedForward(inner=f.count("intermediate_size", default=4 * hidden), gated=False, bias=True)
    attention = attention_of(f, hidden, heads=heads, kv_heads=heads, bias=(False, True))
    size = f.count("window_size", default=256)
    windows = [size if kind == "local" else None for kind in _kinds_of_neo(f)]
    spec = dense_model(f, "gpt_neo", replace(attention, rotary=False, score_scale=1.0), hidden, ffn=ffn, norm_bias=True,
                       windows=windows, tied=True, dropout=f.number("resid_dropout", 0.0) > 0,
                       max_positions=positions)  # fmt: skip
    return replace(spec, learned_positions=positions)


def _kinds_of_neo(f: Fields) -> list[str]:
    """`global` or `local` of each layer: `attention_types` has pairs of such words and how often they are repeated."""
    layers = f.count("num_layers", maximum=10_000)
    pairs = f.get("attention_types") or [[["global", "local"], -(-layers // 2)]]
    try:
        kinds = list(islice((str(kind) for words, times in pairs for _ in range(times) for kind in words), layers))
    except (TypeError, ValueError):
        kinds = []
    if len(kinds) < layers or not set(kinds) <= {"global", "local"}:
        f.problem("attention_types", f"must be pairs of words and numbers for {layers} layers, is {pairs!r}",
                  hint='as in [[["global", "local"], 12]] for 24 layers')  # fmt: skip
        return ["global"] * layers
    return kinds


def gptj(f: Fields) -> ModelSpec:
    """One norm feeds attention and feed-forward in parallel; only the feed-forward and the head have biases."""
    hidden = f.count("n_embd", "hidden_size")
    ffn = FeedForward(inner=f.count("n_inner", default=4 * hidden), gated=False, bias=True)
    attention = attention_of(f, hidden, kv_heads=f.count("num_attention_heads", "n_head"))
    dropout = f.number("resid_pdrop", 0.0) > 0
    positions = f.count("n_positions", "max_position_embeddings", default=2048)
    spec = dense_model(f, "gptj", attention, hidden, ffn=ffn, num_norms=1, norm_bias=True, dropout=dropout,
                  max_positions=positions, parallel=True)  # fmt: skip
    return replace(spec, head_bias=True, partial_rotary_factor=f.count("rotary_dim", default=64) / attention.head_dim)


def phi(f: Fields) -> ModelSpec:
    """Phi-1 to Phi-2: one norm feeds attention and feed-forward in parallel; all have biases, also the head; norms of
    heads have weights and biases as wide as one head."""
    hidden = f.count("hidden_size")
    attention = attention_of(f, hidden, bias=(True, True))
    if f.flag("qk_layernorm", False):
        attention = replace(attention, norm_parameters=4 * attention.head_dim)
    ffn = FeedForward(inner=f.count("intermediate_size"), gated=False, bias=True)
    spec = dense_model(f, "phi", attention, hidden, ffn=ffn, num_norms=1, norm_bias=True, parallel=True,
                       dropout=f.number("resid_pdrop", 0.0) > 0)  # fmt: skip
    return replace(spec, head_bias=True, partial_rotary_factor=0.5)


def opt(f: Fields) -> ModelSpec:
    """The position table has 2 rows more than positions; opt-350m embeds into 512 and has no final norm."""
    hidden = f.count("hidden_size")
    bias = f.flag("enable_bias", True)
    positions = f.count("max_position_embeddings")
    embedding_dim = f.count("word_embed_proj_dim", default=hidden)
    ffn = FeedForward(inner=f.count("ffn_dim"), gated=False, bias=bias)
    norms = f.flag("layer_norm_elementwise_affine", True)
    spec = dense_model(f, "opt", attention_of(f, hidden, bias=(bias, bias)), hidden, ffn=ffn, num_norms=2 * int(norms),
                  norm_bias=True, tied=True, dropout=f.number("dropout", 0.1) > 0)  # fmt: skip
    final = norms and f.flag("do_layer_norm_before", True) and not f.flag("_remove_final_layer_norm", False)
    return replace(
        spec,
        learned_positions=positions + 2,
        final_norm=final,
        embedding_dim=None if embedding_dim == hidden else embedding_dim,
    )


def bloom(f: Fields) -> ModelSpec:
    """ALiBi: no position table; a norm after the embedding."""
    hidden = f.count("n_embed", "hidden_size")
    ffn = FeedForward(inner=4 * hidden, gated=False, bias=True)
    attention = attention_of(f, hidden, kv_heads=f.count("num_attention_heads", "n_head"), bias=(True, True))
    dropout = f.number("hidden_dropout", 0.0) > 0
    spec = dense_model(f, "bloom", attention, hidden, ffn=ffn, norm_bias=True, tied=True, dropout=dropout,
                  max_positions=f.count("seq_length", default=2048))  # fmt: skip
    return replace(spec, embedding_norm=True)


def starcoder2(f: Fields) -> ModelSpec:
    hidden, layers = f.count("hidden_size"), num_layers_of(f)
    bias = f.flag("use_bias", True)
    ffn = FeedForward(inner=f.count("intermediate_size"), gated=False, bias=bias)
    windows = windows_of(f, layers, window_size(f, "sliding_window", None), lambda index: True)
    dropout = f.number("residual_dropout", 0.0) > 0
    return dense_model(f, "starcoder2", attention_of(f, hidden, bias=(bias, bias)), hidden, ffn=ffn, windows=windows,
                  norm_bias=True, tied=True, dropout=dropout)  # fmt: skip
