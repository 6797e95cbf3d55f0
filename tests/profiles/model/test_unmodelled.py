"""No field of a config that changes a network is dropped in silence: each is read, or has no effect on it."""

from __future__ import annotations

import json
from typing import Any

import pytest
from meshwright.planner.targets.meshwright.rules import COMPARED
from meshwright.profiles.model.families import FAMILIES
from meshwright.profiles.model.fields import Fields
from meshwright.profiles.model.huggingface import read_config
from meshwright.profiles.model.numerics import with_numerics
from meshwright.profiles.model.unmodelled import NEUTRAL, unmodelled

from ...snapshots import ROOT

CONFIGS = ROOT / "tests" / "data" / "configs"
# No part of the network: initial weights, generation, heads for other tasks, rounding, what is worked out of the rest.
NO_EFFECT = {
    "bos_token_id", "eos_token_id", "pad_token_id", "decoder_start_token_id", "initializer_range", "init_std",
    "use_cache", "pretraining_tp",
    "reorder_and_upcast_attn", "slow_but_exact", "classifier_dropout", "is_decoder", "model_type",
    "output_router_logits",  # of what a forward pass returns; the balancing loss is there with its coefficient
    "original_max_position_embeddings",  # longrope reads it
    "qk_head_dim", "max_window_layers",
}  # fmt: skip
# Fields that the class of a family in transformers 5.24 does not read, or only to draw first weights, or works out of
# others.
UNREAD = {
    "t5": {"dense_act_fn", "initializer_factor", "is_gated_act"},
    "nemotron_h": {
        "attention_bias", "expand", "mamba_proj_bias", "mamba_ssm_cache_dtype", "moe_shared_expert_overlap",
        "mtp_layers_block_type", "n_shared_experts", "num_logits_to_keep", "rescale_prenorm_residual",
        "residual_in_fp32", "sliding_window", "time_step_floor", "time_step_limit", "time_step_max",
        "use_mamba_kernels",
    },
}  # fmt: skip
# With these set the fields that depend on them are read.
SWITCHES = {"use_sliding_window": True, "mlp_only_layers": [0], "first_k_dense_replace": 1, "multi_query": False}
# Those that latent attention has beside the widths of its own.
OF_LATENT = {"num_key_value_heads", "head_dim"}


# Parts beside a text model, which read_config reads or names in a warning.
PARTS = {"vision_config", "audio_config"}


def configured(model_type: str) -> dict[str, Any]:
    """The fields of the class of a model's config in transformers."""
    transformers = pytest.importorskip("transformers")
    if model_type not in transformers.CONFIG_MAPPING:
        pytest.skip(f"transformers has no {model_type}")
    data: dict[str, Any] = transformers.CONFIG_MAPPING[model_type]().to_dict()
    data = data.get("text_config") or data
    return {name: value for name, value in data.items() if name not in transformers.PretrainedConfig().to_dict()}


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("model_type", sorted(FAMILIES))
def test_every_field_of_an_accepted_family_is_read_or_has_no_effect(model_type: str) -> None:
    data = {**configured(model_type), **SWITCHES, "model_type": model_type}
    if not data.get("num_experts_per_tok", 1):  # a size that its class leaves open
        data["num_experts_per_tok"] = 2
    fields = Fields(data)
    spec = with_numerics(fields, model_type, FAMILIES[model_type](fields))
    if spec.family not in COMPARED:
        pytest.skip("the runtime refuses the family")
    unmodelled(fields, spec.family)
    more = OF_LATENT if spec.attentions[0].is_mla else {"hidden_act"} if spec.family == "gpt_oss" else set()
    dropped = set(data) - fields.read - NO_EFFECT - set(SWITCHES) - more - PARTS - UNREAD.get(spec.family, set())
    assert not {name for name in dropped if not name.startswith("summary_")}


def test_published_configs_have_no_field_without_a_formula() -> None:
    """But for dropout, and models whose norms follow their blocks."""
    found: dict[str, list[str]] = {}
    for path in CONFIGS.glob("*.json"):
        spec, _ = read_config(json.loads(path.read_text()), path.stem)
        left = [name for name in spec.unmodelled if name not in spec.dropouts]
        found |= {path.stem: left} if left else {}
    encoders = {name: ["norms after the residual sums"] for name in ("bert-large-uncased", "roberta-base")}
    assert found == {"opt-350m": ["do_layer_norm_before"], **encoders}


@pytest.mark.parametrize("family", sorted(NEUTRAL))
def test_a_value_that_is_not_the_neutral_one_is_named(family: str) -> None:
    for name, neutral in NEUTRAL[family].items():
        other = not neutral if isinstance(neutral, bool) else "other" if isinstance(neutral, str) else 50.0
        assert unmodelled(Fields({name: other}), family) == (name,)
        assert unmodelled(Fields({name: neutral}), family) == ()
        assert unmodelled(Fields({name: None}), family) == ()
