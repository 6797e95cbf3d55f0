"""Gated DeltaNet in the place of attention (Qwen3-Next) in emitted files: written, read back, refused where it must."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from meshwright.cost_models.cuda_graphs import GRAPH_CODE, launched_beside_mixing
from meshwright.cost_models.quantities.graph_parts import mixing_parts_of
from meshwright.cost_models.specs.model import ModelSpec
from meshwright.cost_models.specs.workload import Workload
from meshwright.planner import api
from meshwright.planner.document.plan import Plan
from meshwright.planner.request.load import request_from_dict
from meshwright.planner.targets.check import check_files
from meshwright.planner.targets.emit import LayoutRefusedError, emit
from meshwright.planner.targets.facts import layout_of, request_part
from meshwright.planner.targets.megatron.cannot_build import cannot_build
from meshwright.planner.targets.megatron.options import TABLE
from meshwright.planner.targets.option_lists import option_list
from meshwright.planner.targets.setup import Setup
from meshwright.profiles.model.explicit_form import read_explicit_form
from meshwright.profiles.model.load import load_model

from meshwright.errors import InputError

from .emit_plans import config_of

NEXT, WORKLOAD = "qwen3-next-80b-a3b", Workload(seq_len=4096, global_batch=512)
TARGETS = ["megatron", "megatron-bridge"]
LAYOUTS = ["pp2-vpp4-dp16-ep16-mbs1-z1-rnone", "tp2-dp16-ep32-mbs1-z1-rfull",
           "dp32-ep32-g(attn+router+pre)-mbs1-z1-rsel(norm+act)"]  # fmt: skip


def spec(**changes: Any) -> ModelSpec:
    return replace(load_model(NEXT)[0], **changes)


def with_mixers(**sizes: Any) -> ModelSpec:
    """The model with a first layer of another mixer."""
    first = spec().kinds[0]
    other = replace(first, mixer=replace(first.mixer, **sizes))  # type: ignore[type-var]
    return spec(kinds=(*spec().kinds, other), pattern=(len(spec().kinds), *spec().pattern[1:]))


def planned(layout: str, target: str = "megatron", precision: str = "bf16") -> Plan:
    workload = {"seq_len": 4096, "global_batch": 512, "precision": precision}
    request = {"model": NEXT, "cluster": "dgx-h100:4", "target": target, "workload": workload}
    return api.evaluate(request_from_dict(request), layout)


@pytest.mark.parametrize("target", TARGETS)
@pytest.mark.parametrize("layout", LAYOUTS)
def test_files_are_right_and_describe_the_same_model(layout: str, target: str) -> None:
    plan, config = planned(layout, target), config_of(target)
    files = emit(plan, target).files
    assert check_files(files).problems == []
    setup, options = Setup.of(plan, 1, "plan.json"), option_list(target)[0]
    bare = {name: "\n".join(line for line in text.splitlines() if not line.startswith("#"))
            for name, text in files.items()}  # fmt: skip
    facts = config.table(options).read(config.read_folder(bare, options).settings)
    read, _ = read_explicit_form(request_part(facts, "model"), NEXT)
    for field in ("pattern", "kinds", "unit_offset_norms", "partial_rotary_factor", "rope_theta", "mtp_layers"):
        assert getattr(read, field) == getattr(setup.model, field)
    assert layout_of(facts, setup.layout.num_gpus) == setup.layout


def test_arguments_are_those_of_the_published_model() -> None:
    lines = emit(planned(LAYOUTS[0]), "megatron").files["megatron.args"].splitlines()
    assert {"--experimental-attention-variant gated_delta_net", "--linear-attention-freq 4", "--attention-output-gate",
            "--apply-layernorm-1p", "--rotary-percent 0.25", "--moe-shared-expert-gate"} <= set(lines)  # fmt: skip
    module = emit(planned(LAYOUTS[0], "megatron-bridge"), "megatron-bridge").files["bridge_plan.py"]
    assert "transformer_layer_spec=get_transformer_block_with_experimental_attention_variant_spec," in module
    assert "linear_attention_freq=4," in module


def settings(**changes: Any) -> dict[str, Any]:
    return {**TABLE.write(Setup.of(planned(LAYOUTS[0]), 1)),
            **{f"--{name.replace('_', '-')}": value for name, value in changes.items()}}  # fmt: skip


@pytest.mark.parametrize("changes", [
    {"experimental_attention_variant": "gdn"}, {"linear_attention_freq": "([1]*3+[0]*1)*12"},
    {"linear_attention_freq": 4},
])  # fmt: skip
def test_other_spellings_are_read(changes: dict[str, Any]) -> None:
    assert TABLE.read(settings(**changes))["model.pattern"] == TABLE.read(settings())["model.pattern"]


def test_sizes_that_are_left_out_are_those_of_the_core() -> None:
    left = {name: value for name, value in settings().items() if not name.startswith(("--linear-n", "--linear-k"))}
    assert TABLE.read(left)["model.mixers"] == TABLE.read(settings())["model.mixers"]


def test_an_irregular_order_is_a_pattern() -> None:
    kinds = spec().kinds
    attends = next(index for index, kind in enumerate(kinds) if kind.attention is not None)
    setup = replace(Setup.of(planned(LAYOUTS[0]), 1), model=spec(pattern=(attends, *spec().pattern[1:])))
    written = TABLE.write(setup)
    assert str(written["--linear-attention-freq"]).startswith("([0]*1+[1]*2+[0]*1+[1]*3")
    assert TABLE.read(written)["model.pattern"][:2] == ["attention+experts", "gated_delta_net+experts"]


@pytest.mark.parametrize(("changes", "reason"), [
    ({"experimental_attention_variant": "dsa"}, "dsa has no counterpart in a plan"),
    ({"linear_attention_freq": "([1]*3+[0]*1)*11"}, "has 44 layers, --num-layers 48"),
    ({"linear_attention_freq": "sometimes"}, "is no pattern of layers"),
    ({"linear_attention_freq": 0}, "0 is no frequency"),
])  # fmt: skip
def test_what_no_plan_holds_is_refused(changes: dict[str, Any], reason: str) -> None:
    with pytest.raises(InputError, match=reason):
        TABLE.read(settings(**changes))


def test_a_variant_needs_its_frequency() -> None:
    with pytest.raises(InputError, match="needs --linear-attention-freq"):
        TABLE.read({name: value for name, value in settings().items() if name != "--linear-attention-freq"})


@pytest.mark.parametrize(("model", "reason"), [
    (with_mixers(value_heads=64), "all layers of gated DeltaNet have the same sizes"),
    (spec(activation="gelu"), "takes silu, not gelu"),
    (spec(pattern=(0,) * 48, kinds=spec().kinds[:1]), "beside layers of attention"),
    (load_model("bamba-9b")[0], "its symbols are layers of one block"),
])  # fmt: skip
def test_what_has_no_argument_is_refused_by_name(model: ModelSpec, reason: str) -> None:
    assert any(reason in text for text in cannot_build(model, WORKLOAD, None))


def test_a_release_is_refused_where_it_lacks_a_part() -> None:
    ends_linear = spec(mtp_layers=1, pattern=(*spec().pattern[:-1], 0))
    for version, predicts in (("0.16.1", False), ("0.17.0", False), ("0.18.0", False), ("0.19.0", True)):
        options = option_list("megatron", version)[0]
        assert cannot_build(spec(), WORKLOAD, options) == cannot_build(spec(mtp_layers=1), WORKLOAD, options) == []
        assert (cannot_build(ends_linear, WORKLOAD, options) == []) is predicts


@pytest.mark.parametrize(("layout", "field", "first"), [
    ("cp2r-dp16-ep32-mbs1-z1-rfull", "cp", "0.18"), ("dp32-ep32-epo-mbs1-z1-rnone", "ep_overlap", "0.17"),
    ("dp32-ep32-mbs1-z1-rnone", "", "0.16"),
])  # fmt: skip
def test_older_releases_run_some_layouts_only(layout: str, field: str, first: str) -> None:
    for version in ("0.16.1", "0.17.0", "0.18.0", "0.19.0"):
        if version >= first:
            assert check_files(emit(planned(layout), "megatron", version=version).files).problems == []
            continue
        with pytest.raises(LayoutRefusedError, match=f"before Megatron-LM {first}") as caught:
            emit(planned(layout), "megatron", version=version)
        assert caught.value.fields == (field,)


@pytest.mark.parametrize("target", TARGETS)
def test_scans_are_not_recomputed_by_themselves(target: str) -> None:
    with pytest.raises(LayoutRefusedError, match="core_attn does not compute scans again"):
        emit(planned("dp32-ep32-mbs1-z1-rsel(attn)", target), target)


def test_check_finds_an_edit_of_the_frequency() -> None:
    files = dict(emit(planned(LAYOUTS[0]), "megatron").files)
    files["megatron.args"] = files["megatron.args"].replace("--linear-attention-freq 4", "--linear-attention-freq 2")
    first, second = check_files(files).problems
    assert "entry 2 of pattern is attention+experts, plan.json has gated_delta_net+experts" in first.message
    assert "another model" in second.message


def test_check_finds_a_recipe_that_builds_attention_alone() -> None:
    files = dict(emit(planned(LAYOUTS[0], "megatron-bridge"), "megatron-bridge").files)
    line = "            transformer_layer_spec=get_transformer_block_with_experimental_attention_variant_spec,\n"
    files["bridge_plan.py"] = files["bridge_plan.py"].replace(line, "")
    problems = check_files(files).problems
    assert [problem.field for problem in problems] == ["model", "model.experimental_attention_variant"]
    assert "other specs build attention alone" in problems[1].message


def test_graphs_of_attention_hold_it() -> None:
    parts = [mixing_parts_of(kind) for kind in spec().kinds]
    assert parts == [("attention",)] * len(parts)
    codes = np.array([GRAPH_CODE["attn"], GRAPH_CODE["mamba"], GRAPH_CODE["none"]])
    assert (launched_beside_mixing(codes, parts[0]) < 1).tolist() == [True, False, False]
