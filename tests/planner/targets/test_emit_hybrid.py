"""Hybrid models in emitted files: written where pretrain_hybrid.py has them, read back, refused where it has not."""

from __future__ import annotations

import re
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from meshwright.cost_models.layouts import PRECISIONS
from meshwright.cost_models.specs.model import ModelSpec
from meshwright.cost_models.specs.workload import Workload
from meshwright.planner import api
from meshwright.planner.document.plan import Plan
from meshwright.planner.request.load import request_from_dict
from meshwright.planner.targets.check import check_files
from meshwright.planner.targets.emit import LayoutRefusedError, emit
from meshwright.planner.targets.facts import layout_of, request_part
from meshwright.planner.targets.megatron.cannot_build import cannot_build
from meshwright.planner.targets.megatron.hybrid import hybrid_rules
from meshwright.planner.targets.megatron.options import TABLE
from meshwright.planner.targets.megatron_bridge.options import TABLE as BRIDGE
from meshwright.planner.targets.option_lists import option_list
from meshwright.planner.targets.registry import target as load_target
from meshwright.planner.targets.setup import Setup
from meshwright.profiles.model.explicit_form import read_explicit_form
from meshwright.profiles.model.load import load_model

from meshwright.errors import InputError

from .emit_plans import config_of

BIG, NANO = "nemotron-h-56b", "nemotron-3-nano-30b-a3b"
LIGHTNING, SUPER = "nemotron-3.5-lightning-30b-a3b", "nemotron-3-super-120b-a12b"
PREDICTING = [(LIGHTNING, "dp16-ep8-mbs1-z1-rfull", 2), (SUPER, "tp2-pp2-dp32-ep64-mbs1-z1-rfull", 16)]
PLANS = [(BIG, "tp8-dp4-mbs1-z1-rfull", 4), (BIG, "tp8-pp2-dp2-mbs1-z1-rfull", 4), (NANO, "dp16-ep8-mbs1-z1-rfull", 2)]
WORKLOAD = Workload(seq_len=8192, global_batch=64)


REQUEST = {"cluster": "dgx-h100:2", "target": "megatron", "workload": {"seq_len": 8192, "global_batch": 768}}


def planned(model: Any, layout: str, nodes: int, target: str = "megatron", dtype: str = "bf16") -> Plan:
    workload = {"seq_len": 8192, "global_batch": 768, "precision": dtype}
    request = {"model": model, "cluster": f"dgx-h100:{nodes}", "target": target, "workload": workload}
    return api.evaluate(request_from_dict(request), layout)


def spec(name: str) -> ModelSpec:
    return load_model(name)[0]


def with_mixer(**sizes: Any) -> ModelSpec:
    """Nemotron-H with other mixers."""
    model = spec(BIG)
    kinds = tuple(replace(k, mixer=replace(k.mixer, **sizes)) if k.mixer else k for k in model.kinds)
    return replace(model, kinds=kinds)


@pytest.mark.parametrize("target", ["megatron", "megatron-bridge"])
@pytest.mark.parametrize(("model", "layout", "nodes"), PLANS + PREDICTING)
def test_files_are_right_and_describe_the_same_model(model: str, layout: str, nodes: int, target: str) -> None:
    plan, config = planned(model, layout, nodes, target), config_of(target)
    files = emit(plan, target).files
    assert check_files(files).problems == []
    assert {"megatron": "pretrain_hybrid.py", "megatron-bridge": "HybridModelProvider("}[target] in "".join(
        files.values()
    )
    setup, options = Setup.of(plan, 1, "plan.json"), option_list(target)[0]
    bare = {name: "\n".join(line for line in text.splitlines() if not line.startswith("#"))
            for name, text in files.items()}  # fmt: skip
    facts = config.table(options).read(config.read_folder(bare, options).settings)
    read, _ = read_explicit_form(request_part(facts, "model"), model)
    for field in ("kinds", "pattern", "mtp_layers", "mtp_pattern", "mtp_shared"):
        assert getattr(read, field) == getattr(setup.model, field)
    assert layout_of(facts, setup.layout.num_gpus) == setup.layout


def test_prediction_modules_follow_the_layers() -> None:
    arguments = emit(planned(*PREDICTING[0]), "megatron").files["megatron.args"]
    assert "MEMEMEME/*E/*E\n" in arguments
    assert "--mtp-num-layers 2\n--mtp-use-repeated-layer\n" in arguments
    facts = BRIDGE.read({
        "model": "HybridModelProvider", "model.hybrid_layer_pattern": "ME*E", "model.mtp_num_layers": 2,
        "model.mtp_hybrid_override_pattern": "*E", "model.mtp_use_repeated_layer": True,
    })  # fmt: skip
    assert (facts["model.mtp_layers"], facts["model.mtp_shared"], facts["model.layers"]) == (2, True, 4)
    assert facts["model.mtp_pattern"] == ["attention", "experts"]


def test_the_runtime_has_prediction_modules_of_one_layer() -> None:
    reasons = "; ".join(load_target("meshwright").cannot_build(spec(SUPER), WORKLOAD))
    assert "prediction modules are one layer each" in reasons


def test_stages_are_parts_of_the_pattern() -> None:
    plan = planned(BIG, "tp8-pp2-dp2-mbs1-z1-rfull", 4)
    setup = Setup.of(plan, 1, "plan.json")
    settings = TABLE.write(setup)
    assert list(map(len, settings["--hybrid-layer-pattern"].split("|"))) == setup.chunk_sizes
    assert not {"--num-layers-per-virtual-pipeline-stage", "--pipeline-model-parallel-layout"} & set(settings)
    assert TABLE.read(settings)["stages"] == setup.chunk_sizes


def test_an_edit_of_the_pattern_is_found() -> None:
    files = dict(emit(planned(*PLANS[0]), "megatron").files)
    files["megatron.args"] = files["megatron.args"].replace("pattern M-M-", "pattern MM--")
    first, second = check_files(files).problems
    assert "another model" in first.message
    assert "entry 2 of pattern is mamba, plan.json has mlp" in second.message


@pytest.mark.parametrize(("pattern", "pp", "reason"), [
    ("MG*-", 1, "`G` has no counterpart"), ("M-*-/*G", 1, "`G` has no counterpart"),
    ("M-*-/*E/*-", 1, "prediction modules .* are not the same layers"), ("M-*-/", 1, "are not the same layers"),
    ("M-|*-|M-", 2, "3 stages, no multiple of pp 2"), ("M-*", 2, "no multiple of pp 2"),
])  # fmt: skip
def test_a_pattern_that_no_plan_holds_is_refused(pattern: str, pp: int, reason: str) -> None:
    setup = Setup.of(planned(*PLANS[0]), 1, "plan.json")
    settings = {**TABLE.write(setup), "--hybrid-layer-pattern": pattern, "--pipeline-model-parallel-size": pp}
    with pytest.raises(InputError, match=reason):
        TABLE.read(settings)


@pytest.mark.parametrize(("model", "reason"), [
    (with_mixer(chunk=256), "no argument for chunk 256, not 128"),
    (with_mixer(in_bias=True), "in_bias True, not False"),
    (spec("bamba-9b"), "its symbols are layers"),
])  # fmt: skip
def test_what_has_no_argument_is_refused_by_name(model: ModelSpec, reason: str) -> None:
    assert any(reason in text for text in cannot_build(model, WORKLOAD, None))


def test_releases_without_the_script_are_refused() -> None:
    for version, refused in (("0.16.1", True), ("0.17.0", True), ("0.18.0", False), ("0.19.0", False)):
        texts = cannot_build(spec(BIG), WORKLOAD, option_list("megatron", version)[0])
        assert any("pretrain_hybrid.py" in text for text in texts) is refused


@pytest.mark.parametrize(("change", "field", "reason"), [
    (("--spec megatron.core.models.hybrid.hybrid_layer_specs hybrid_stack_spec\n", ""), "--hybrid-layer-pattern",
     "needs --spec"),
    (("--bf16", "--bf16\n--account-for-loss-in-pipeline-split"), "--account-for-loss-in-pipeline-split",
     "together with --hybrid-layer-pattern"),
])  # fmt: skip
def test_arguments_that_go_ill_with_a_pattern_are_found(change: tuple[str, str], field: str, reason: str) -> None:
    files = dict(emit(planned(*PLANS[0]), "megatron").files)
    files["megatron.args"] = files["megatron.args"].replace(*change)
    assert (field, True) in [(problem.field, reason in problem.message) for problem in check_files(files).problems]


@pytest.mark.parametrize(("token", "reason"), [
    ("ep8-epo-mbs1-z1-rnone", "HybridModel does not compute beside the messages of experts"),
    ("ep8-mbs1-z1-rnone-off3", "HybridModel offloads no layers"),
    ("ep8-mbs1-z1-rsel(attn)", "does not compute scans again"),
])  # fmt: skip
def test_what_hybrid_models_of_the_core_do_not_do_is_refused(token: str, reason: str) -> None:
    for target in ("megatron", "megatron-bridge"):
        with pytest.raises(LayoutRefusedError, match=reason):
            emit(planned(NANO, f"dp16-{token}", 2, target), target)
    moe = api.evaluate(request_from_dict({**REQUEST, "model": "qwen3-30b-a3b"}), f"dp16-{token}")
    assert not load_target("megatron").broken(Setup.of(moe, 1))


def test_graphs_hold_the_mixers_and_experts_are_fused() -> None:
    plan = planned(NANO, "dp16-ep8-g(attn+mamba+router+pre)-mbs1-z1-rnone", 2)
    arguments = emit(plan, "megatron").files["megatron.args"]
    assert "--cuda-graph-modules attn mamba moe_router moe_preprocess" in arguments
    assert "--use-fused-weighted-squared-relu" in arguments
    module = emit(planned(NANO, "dp16-ep8-mbs1-z1-rnone", 2, "megatron-bridge"), "megatron-bridge").files
    assert "use_fused_weighted_squared_relu=True," in module["bridge_plan.py"]


def test_odd_projections_are_not_in_fp8() -> None:
    (rule,) = (rule for rule in hybrid_rules("megatron") if rule.name == "megatron: mixers in fp8")
    columns = {"precision": np.array([PRECISIONS.index(name) for name in ("bf16", "fp8")])}
    for model, allowed in ((spec(BIG), [True, True]), (with_mixer(heads=264, groups=8), [True, False])):
        problem = replace(Setup.of(planned(*PLANS[0]), 1, "plan.json").problem, model=model)
        assert list(rule.allows(columns, problem)) == allowed


def test_groups_of_mixers_bound_tensor_parallelism() -> None:
    with pytest.raises(InputError, match="state-space groups"):
        planned(BIG, "tp16-dp2-mbs1-z1-rfull", 4)


def bridge_reasons(model: ModelSpec) -> str:
    return "; ".join(load_target("megatron-bridge").cannot_build(model, WORKLOAD))


def test_bridge_has_chunks_of_any_size_and_refuses_the_rest_by_its_own_names() -> None:
    assert bridge_reasons(spec(BIG)) == bridge_reasons(with_mixer(chunk=256)) == ""
    assert "HybridModelProvider has no argument for in_bias True" in bridge_reasons(with_mixer(in_bias=True))
    assert "its symbols are layers of one block" in bridge_reasons(spec("bamba-9b"))
    setup = Setup.of(planned(*PLANS[0], "megatron-bridge"), 1, "plan.json")
    written = BRIDGE.write(replace(setup, model=with_mixer(chunk=256)))
    assert BRIDGE.read(written)["model.mixers"]["mamba"]["chunk"] == 256


def test_a_hybrid_of_bridge_in_fp32_turns_off_the_bf16_of_its_class() -> None:
    """HybridModelProvider has bf16=True, and no MixedPrecisionConfig is written in fp32."""
    plan = planned(BIG, "tp2-nosp-dp24-mbs1-z1-rfull-fp32", 6, "megatron-bridge", "fp32")
    files = dict(emit(plan, "megatron-bridge").files)
    text = files["bridge_plan.py"]
    assert "bf16=False,\n" in text
    assert "params_dtype=torch.float32,\n" in text
    assert check_files(files).problems == []
    for lines in (r" +bf16=False,\n", r" +(bf16=False|params_dtype=torch.float32),\n"):
        files["bridge_plan.py"] = re.sub(lines, "", text)
        assert "precision is bf16, plan.json has fp32" in [problem.message for problem in check_files(files).problems]
    assert BRIDGE.read({"model": "HybridModelProvider"})["precision"] == "bf16"


def test_bridge_has_no_virtual_stages_of_hybrids() -> None:
    with pytest.raises(LayoutRefusedError, match="HybridModelProvider has no virtual stages"):
        emit(planned(BIG, "tp8-pp2-vpp2-dp2-mbs1-z1-rfull", 4, "megatron-bridge"), "megatron-bridge")
    emit(planned(BIG, "tp8-pp2-vpp2-dp2-mbs1-z1-rfull", 4), "megatron")


@pytest.mark.parametrize(("change", "field", "reason"), [
    (("num_layers=118", "num_layers=96"), "model.hybrid_layer_pattern", "has 118 layers, model.num_layers is 96"),
    (('="M-M-', '="G-M-'), "model.hybrid_layer_pattern", "`G` has no counterpart"),
    (("model=HybridModelProvider(", "model=GPTModelProvider("), "model.hybrid_layer_pattern",
     "is a field of HybridModelProvider, not of GPTModelProvider"),
    (("            hybrid_layer_pattern=", "            hybrid_override_pattern="), "model",
     "HybridModelProvider needs model.hybrid_layer_pattern"),
    (("num_layers=118,", "num_layers=118, virtual_pipeline_model_parallel_size=2,"),
     "model.virtual_pipeline_model_parallel_size", "together with model.hybrid_layer_pattern"),
])  # fmt: skip
def test_edits_that_bridge_finds_late_are_found(change: tuple[str, str], field: str, reason: str) -> None:
    files = dict(emit(planned(*PLANS[0], "megatron-bridge"), "megatron-bridge").files)
    assert change[0] in files["bridge_plan.py"]
    files["bridge_plan.py"] = files["bridge_plan.py"].replace(*change)
    found = [(problem.field, problem.message) for problem in check_files(files).problems]
    assert any(name == field and reason in text for name, text in found), found


def test_a_recipe_of_bridge_may_leave_its_defaults_out() -> None:
    said = {"model": "HybridModelProvider", "model.hybrid_layer_pattern": "M*-E", "model.hidden_size": 256}
    facts = BRIDGE.read(said)
    assert facts["model.pattern"] == ["mamba", "attention", "mlp", "experts"]
    assert (facts["model.rope_theta"], facts["model.norm_bias"], facts["model.ffn_bias"]) == (None, False, False)
    assert (facts["model.tied_embeddings"], facts["model.dropout"]) == (False, False)
    assert facts["model.mixers"]["mamba"] == {"kind": "mamba2", "heads": 8, "head_dim": 64, "groups": 8, "state": 128,
                                              "chunk": 128}  # fmt: skip
