"""Fields of config.json that change what a model computes and that ModelSpec has no field for.

No cost depends on them, so such a model is planned. `ModelSpec.unmodelled` names those that are set, for targets that
build the network themselves.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from ...cost_models.specs.model import DROPOUTS
from .fields import Fields

_NO_NOISE: Mapping[str, Any] = {"router_jitter_noise": 0.0}
_CAUSAL: Mapping[str, Any] = {"use_bidirectional_attention": False}
# Family of the spec -> field -> the value with which it changes nothing; null and absent are equal to it.
NEUTRAL: Mapping[str, Mapping[str, Any]] = {
    "bloom": {"apply_residual_connection_post_layernorm": False},
    # transformers does not normalise the weights of DeepSeek-V2's experts, and turns neighbours of a head.
    "deepseek_v2": {**_NO_NOISE, "moe_layer_freq": 1, "mlp_bias": False, "norm_topk_prob": False},
    "deepseek_v3": {**_NO_NOISE, "moe_layer_freq": 1, "rope_interleave": True},
    "ernie4_5_moe": {"moe_norm_min": 1e-12},
    "gemma": _CAUSAL,
    "gemma2": _CAUSAL,
    "gemma3": {**_CAUSAL, "attn_logit_softcapping": None},  # transformers caps no scores of Gemma 3
    "gemma3n": {"altup_active_idx": 0, "altup_coef_clip": 120.0, "altup_correct_scale": True},
    "glm4_moe_lite": {"rope_interleave": True},
    "gpt2": {"add_cross_attention": False, "scale_attn_by_inverse_layer_idx": False, "scale_attn_weights": True},
    "gpt_oss": {**_NO_NOISE, "swiglu_alpha": 1.702, "swiglu_limit": 7.0},
    "hy_v3": {"enable_moe_fp32_combine": True},  # where sums of shared and routed experts are rounded
    "minimax_m2": _NO_NOISE,
    "mixtral": _NO_NOISE,
    "nemotron_h": {"mamba_hidden_act": "silu"},
    "olmoe": {"clip_qkv": None},
    "opt": {"do_layer_norm_before": True},
    "phimoe": {**_NO_NOISE, "input_jitter_noise": 0.0},
    "qwen2_moe": _NO_NOISE,
    "qwen3_moe": _NO_NOISE,
    "t5": {"relative_attention_max_distance": 128},
    "starcoder2": {"mlp_type": "default", "norm_type": "layer_norm"},
}


def unmodelled(f: Fields, family: str) -> tuple[str, ...]:
    """Names of the fields that are set to something else than their neutral value, dropout included."""
    changed = [name for name, neutral in NEUTRAL.get(family, {}).items() if f.has(name) and f.get(name) != neutral]
    return (*changed, *(name for name in DROPOUTS if f.number(name, 0.0) > 0))
