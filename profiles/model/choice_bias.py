"""Routers that balance experts by a number added to each score for the choice alone (arXiv 2408.15664).

Source: the classes of transformers 5.24 with `e_score_correction_bias` or `expert_bias` (models/*/modeling_*.py); Ling
2.0 has code of its own (moe_router_enable_expert_bias in its config).
"""

from __future__ import annotations

from dataclasses import replace

from ...cost_models.specs.model import Layer, MixtureOfExperts, ModelSpec
from .fields import Fields

FAMILIES = frozenset((
    "bailing_moe_v2", "deepseek_v3", "deepseek_v32", "deepseek_v4", "dots1", "ernie4_5_moe", "glm4_moe",
    "glm4_moe_lite", "glm_moe_dsa", "hy_v3", "kimi_k2", "kimi_linear", "lfm2_moe", "mimo_v2_flash", "minimax_m2",
    "nemotron_h", "step3p5",
))  # fmt: skip


def with_choice_bias(fields: Fields, family: str, spec: ModelSpec) -> ModelSpec:
    """The model with the bias where its config or its family has one."""
    method = fields.get("topk_method")
    biased = family in FAMILIES if method is None else method == "noaux_tc"
    if not (biased and fields.flag("use_expert_bias", True)):
        return spec

    def balanced(kind: Layer) -> Layer:
        block = kind.feed_forward
        if not isinstance(block, MixtureOfExperts):
            return kind
        return replace(kind, feed_forward=replace(block, choice_bias=True))

    return replace(spec, kinds=tuple(map(balanced, spec.kinds)))
