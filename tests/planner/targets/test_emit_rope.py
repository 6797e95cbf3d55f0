"""Scaled and partial rotary positions in emitted files: written where the target has them, refused where it has not."""

from __future__ import annotations

import json
from typing import Any

import pytest
from meshwright.planner import api
from meshwright.planner.document.plan import Plan
from meshwright.planner.document.reading import read_plan
from meshwright.planner.request.load import request_from_dict
from meshwright.planner.targets.check import check_files
from meshwright.planner.targets.emit import LayoutRefusedError, emit
from meshwright.planner.targets.facts import request_part
from meshwright.planner.targets.megatron.options import TABLE as MEGATRON
from meshwright.planner.targets.megatron_bridge.options import TABLE as BRIDGE
from meshwright.planner.targets.option_lists import option_list
from meshwright.planner.targets.setup import Setup
from meshwright.profiles.model.explicit_form import read_explicit_form

from ...sample_plan import unsealed
from .emit_plans import config_of

MAIN = {"megatron": "megatron.args", "megatron-bridge": "bridge_plan.py", "torchtitan": "torchtitan_plan.py"}
LAYOUT = "dp64-mbs1-z1-rfull"
YARN = {"type": "yarn", "factor": 4.0, "original_max_position_embeddings": 32768}
LATENT = {"kv_lora_rank": 64, "qk_nope_head_dim": 64, "qk_rope_head_dim": 32, "v_head_dim": 64}
LLAMA3 = {"type": "llama3", "factor": 8.0, "original_max_position_embeddings": 8192}


def plan_of(model: Any, layout: str = LAYOUT, target: str = "megatron") -> Plan:
    asked = {"model": model, "cluster": "dgx-h100:8", "workload": {"seq_len": 4096, "global_batch": 512}}
    return api.evaluate(request_from_dict({**asked, "target": target}), layout)


def own(scaling: dict[str, Any] | None = None, **more: Any) -> dict[str, Any]:
    """A small model; 131072 positions."""
    model = {"hidden": 1024, "layers": 4, "heads": 8, "ffn_hidden": 2048, "vocab": 32000, "max_positions": 131072}
    return {**model, **({"rope_scaling": scaling} if scaling else {}), **more}


def lines(plan: Plan, target: str) -> set[str]:
    return {line.strip() for line in emit(plan, target).files[MAIN[target]].splitlines()}


WRITTEN = [
    ("llama-3.1-8b", {"--use-rope-scaling", "--rope-scaling-factor 8.0", "--position-embedding-type rope"},
     {"rope_scaling=True,", "rope_scaling_factor=8.0,"}),
    (own(partial_rotary_factor=0.5), {"--rotary-percent 0.5"}, {"rotary_percent=0.5,"}),
    (own({"type": "linear", "factor": 4.0}), {"--rotary-seq-len-interpolation-factor 4"},
     {"seq_len_interpolation_factor=4,"}),
    (own({**YARN, "beta_fast": 16, "truncate": False}),
     {"--position-embedding-type yarn", "--rotary-scaling-factor 4.0", "--mscale 1.0", "--mscale-all-dim 0.0",
      "--yarn-beta-fast 16.0", "--yarn-beta-slow 1.0", "--yarn-original-max-position-embeddings 32768",
      "--no-yarn-correction-range-round-to-int"},
     {'position_embedding_type="yarn",', "yarn_rotary_scaling_factor=4.0,", "yarn_mscale=1.0,",
      "yarn_mscale_all_dim=0.0,", "yarn_beta_fast=16.0,", "yarn_beta_slow=1.0,",
      "yarn_original_max_position_embeddings=32768,", "yarn_correction_range_round_to_int=False,"}),
    (own(YARN), {"--yarn-correction-range-round-to-int"}, {"yarn_correction_range_round_to_int=True,"}),
    ("deepseek-v2-lite",
     {"--rope-type yarn", "--rotary-scaling-factor 40.0", "--mscale 0.707", "--mscale-all-dim 0.707"},
     {'rope_type="yarn",', "rotary_scaling_factor=40.0,", "mscale=0.707,", "mscale_all_dim=0.707,",
      "beta_fast=32.0,", "beta_slow=1.0,", "original_max_position_embeddings=4096,"}),
    # Without a word MLAModelProvider would scale by 40.
    (own(mla=LATENT), {"--rotary-scaling-factor 1.0"}, {"rotary_scaling_factor=1.0,"}),
]  # fmt: skip


@pytest.mark.parametrize(("model", "arguments", "fields"), WRITTEN, ids=range(len(WRITTEN)))
def test_what_megatron_and_bridge_have_is_written_and_read_back(
    model: Any, arguments: set[str], fields: set[str]
) -> None:
    plan = plan_of(model)
    setup = Setup.of(plan, 1)
    for target, expected, table in (("megatron", arguments, MEGATRON), ("megatron-bridge", fields, BRIDGE)):
        assert expected <= lines(plan, target)
        files = emit(plan, target).files
        assert not check_files(files).problems
        facts = table.read(config_of(target).read_folder(files, option_list(target)[0]).settings)
        found = read_explicit_form(request_part(facts, "model"), "m")[0]
        assert found.rope_scaling == setup.model.rope_scaling
        assert found.partial_rotary_factor == setup.model.partial_rotary_factor


def test_what_is_not_scaled_is_not_said_to_be() -> None:
    """`dynamic` changes nothing within the positions that a model has."""
    for model in (own(), own({"type": "dynamic", "factor": 4.0}), "llama-3-8b"):
        for target in ("megatron", "megatron-bridge"):
            text = emit(plan_of(model), target).files[MAIN[target]]
            assert not any(word in text for word in ("scaling", "yarn", "percent", "interpolation"))


@pytest.mark.parametrize(
    ("model", "target", "version", "reason"),
    [
        # pretrain_gpt.py parses the factor and hands on only whether there is one.
        ("llama-3.2-1b", "megatron", None, "--rope-scaling-factor does not reach the model, whose factor is always 8"),
        (own({**LLAMA3, "high_freq_factor": 2.0}), "megatron-bridge", None, "and 8192 positions before, here others"),
        (own({**LLAMA3, "original_max_position_embeddings": 4096}), "megatron", None, "positions before, here others"),
        (own({"type": "linear", "factor": 2.5}), "megatron", None, "by 2.5 is no whole number"),
        (own({"type": "linear", "factor": 2}), "megatron", "0.18.0", "factor does not reach the model"),
        (own(YARN), "megatron", "0.18.0", "release 0.18.0 .* has no --yarn-beta-fast"),
        (own({**YARN, "attention_factor": 1.5}), "megatron-bridge", None, "here 1.5 is not 1.13863"),
        (own(YARN, partial_rotary_factor=0.5), "megatron", None, "yarn turns whole heads"),
        (own({"type": "longrope", "factor": 4.0}), "megatron-bridge", None, "longrope has a factor for every freq"),
        (own(LLAMA3, mla=LATENT), "megatron-bridge", None, "latent attention is scaled by yarn, not by llama3"),
        (own({**YARN, "mscale_all_dim": 1.0}, mla=LATENT), "megatron-bridge", None, "mscale_all_dim needs mscale"),
        (own({**YARN, "truncate": False}, mla=LATENT), "megatron-bridge", None, "rounds the range"),
        (own(YARN, mla=LATENT), "megatron", None, "and 4096 positions before, here others"),
        (own({"type": "longrope", "factor": 4.0}), "meshwright", None, "the runtime has no longrope"),
    ],
)  # fmt: skip
def test_what_does_not_reach_the_model_is_refused(model: Any, target: str, version: str | None, reason: str) -> None:
    with pytest.raises(LayoutRefusedError, match=reason):
        emit(plan_of(model), target, version=version)


def test_bridge_has_what_megatron_refuses() -> None:
    assert "rope_scaling_factor=32.0," in lines(plan_of("llama-3.2-1b"), "megatron-bridge")
    said = lines(plan_of(own({**YARN, "beta_fast": 1.0}, mla=LATENT)), "megatron-bridge")
    assert {"beta_fast=1.0,", "original_max_position_embeddings=32768,"} <= said
    assert "seq_len_interpolation_factor=2," in lines(plan_of(own({"type": "linear", "factor": 2})), "megatron-bridge")


def test_scaling_that_is_edited_out_is_noticed() -> None:
    files = dict(emit(plan_of("llama-3.1-8b"), "megatron").files)
    files["megatron.args"] = files["megatron.args"].replace("--use-rope-scaling\n", "")
    (wrong,) = check_files(files).problems
    assert "rotates otherwise than plan.json (rope_scaling None, there" in str(wrong)


def test_a_plan_that_does_not_say_is_emitted_with_a_warning() -> None:
    data = json.loads(plan_of("llama-3.1-8b").to_json())
    del data["resolved"]["model"]["rope_scaling"]
    older = read_plan(json.dumps(unsealed(data)), "plan.json")
    for target in ("megatron", "megatron-bridge", "torchtitan"):
        said = emit(older, target, choice=1) if target != "torchtitan" else emit(_titan(older), target)
        assert "assumed, since the model's config lacks them: rope_scaling none" in said.warnings


def _titan(plan: Plan) -> Plan:
    """The same model on a layout that torchtitan has."""
    other = json.loads(plan_of("llama-3.1-8b", "dp64-mbs1-z2-rfull", "torchtitan").to_json())
    other["resolved"]["model"] = plan.resolved["model"]
    return read_plan(json.dumps(unsealed(other)), "plan.json")


@pytest.mark.parametrize(
    ("model", "said"),
    [
        # The flavour 8B scales as Llama 3.1, and 1B by 8 too, which Llama 3.2 scales by 32.
        ("llama-3-8b", {"theta=500000.0,", 'scaling="none",'}),
        ("llama-3.1-8b", {"theta=500000.0,", 'scaling="llama",', "scaling_factor=8.0,", "high_freq_factor=4.0,",
                          "low_freq_factor=1.0,", "original_max_position_embeddings=8192,"}),
        ("llama-3.2-1b", {'scaling="llama",', "scaling_factor=32.0,"}),
        ("qwen3-8b", {"theta=1000000.0,", 'scaling="none",'}),
        ("deepseek-v2-lite", {'scaling="yarn",', "rope_factor=40.0,", "beta_fast=32.0,", "beta_slow=1.0,",
                              "original_seq_len=4096,", "truncate=True,", "layer.attention.mscale = 0.707"}),
    ],
)  # fmt: skip
def test_torchtitan_rotates_as_the_plan(model: str, said: set[str]) -> None:
    plan = plan_of(model, "dp64-mbs1-z2-rfull", "torchtitan")
    for version in ("0.3.0", "0.4.0.dev"):
        text = emit(plan, "torchtitan", version=version).files[MAIN["torchtitan"]]
        assert said <= {line.strip() for line in text.splitlines()}
        assert "model_spec = as_planned(model_registry(" in text
        assert ("mscale" in text) == (model == "deepseek-v2-lite")
    compile(text, "torchtitan_plan.py", "exec")


def test_predictions_of_deepseek_rotate_too() -> None:
    plan = plan_of("deepseek-v3", "dp64-ep8-mbs1-z2-rfull", "torchtitan")
    assert "for layer in [*model_spec.model.layers, *model_spec.model.mtp_layers]:" in lines(plan, "torchtitan")


QWEN = {"hidden": 1024, "layers": 28, "heads": 16, "kv_heads": 8, "head_dim": 128, "ffn_hidden": 3072, "vocab": 151936,
        "max_positions": 131072, "tied_embeddings": True, "qk_norm": 256}  # fmt: skip


@pytest.mark.parametrize(
    ("more", "reason"),
    [
        ({"rope_scaling": LLAMA3}, "qwen3/0.6B has no llama3"),
        ({"rope_scaling": {"type": "linear", "factor": 2}}, "qwen3/0.6B has no linear"),
        ({"rope_scaling": YARN}, "its yarn leaves cos and sin as they are, here they grow by 1.13863"),
        ({"partial_rotary_factor": 0.5}, "it turns whole heads"),
        ({"rope_theta": None}, "its models have rotary positions"),
    ],
)
def test_what_torchtitan_cannot_rotate(more: dict[str, Any], reason: str) -> None:
    layout = "dp64-mbs1-z2-rfull"
    emit(plan_of({**QWEN, "rope_scaling": {**YARN, "attention_factor": 1.0}}, layout, "torchtitan"), "torchtitan")
    with pytest.raises(LayoutRefusedError, match=reason):
        emit(plan_of({**QWEN, **more}, layout, "torchtitan"), "torchtitan")


def test_planning_says_what_emit_will_refuse() -> None:
    """A plan for Megatron-LM of a model that it scales otherwise: priced, and no file comes of it."""
    (said,) = [text for text in plan_of("llama-3.2-1b", "dp64-mbs1-z1-rnone").warnings if "`emit` refuses" in text]
    assert said.startswith("megatron cannot train llama-3.2-1b, `emit` refuses: model.rope_scaling")
    assert "plan with `--target meshwright`" in said
    assert not any("refuses" in text for text in plan_of("llama-3.1-8b", "dp64-mbs1-z1-rnone").warnings)
