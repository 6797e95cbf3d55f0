"""Dense families of rotary positions with LayerNorm: config.json -> ModelSpec; defaults as in `families.py`."""

from __future__ import annotations

from dataclasses import replace

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
