"""Layers and modules on the host: written for Megatron and Bridge, held by `check`, read by `import`."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path

import pytest
from meshwright.cost_models.layouts import Layouts, parse
from meshwright.planner import api
from meshwright.planner.document.plan import Plan
from meshwright.planner.importing import import_config
from meshwright.planner.request.load import request_from_dict
from meshwright.planner.request.resolve import resolve
from meshwright.planner.space.counting import num_legal
from meshwright.planner.targets.check import check_files
from meshwright.planner.targets.emit import LayoutRefusedError, emit
from meshwright.planner.targets.meshwright.rules import refusal
from meshwright.planner.targets.registry import TARGETS

DENSE = {"model": "llama-3-70b", "cluster": "dgx-h100:8", "workload": {"seq_len": 8192, "global_batch": 512}}
MOE = {"model": "mixtral-8x7b", "cluster": "dgx-h100:1", "workload": {"seq_len": 4096, "global_batch": 64}}
LAYERS, MODULES = "tp8-dp8-mbs1-z1-rnone-off40", "tp8-dp8-mbs1-z1-rsel-off(core_attn+attn_proj)"


def plan_of(layout: str, target: str = "megatron") -> Plan:
    return api.evaluate(request_from_dict({**DENSE, "target": target}), layout)


def files_of(layout: str, target: str = "megatron", version: str | None = None) -> dict[str, str]:
    return dict(emit(plan_of(layout, target), target, version=version).files)


def said(files: Mapping[str, str]) -> str:
    return "\n".join(f"{problem.field} {problem.message}" for problem in check_files(files).problems)


@pytest.mark.parametrize(
    ("layout", "wanted", "edit", "refused"),
    [
        (LAYERS, ["--cpu-offloading-num-layers 40"], ("num-layers 40", "num-layers 80"), "fewer than --num-layers"),
        (LAYERS, [], ("--cpu-offloading-num-layers 40", "--cpu-offloading-num-layers 39"), "offload_layers is 39"),
        (LAYERS, [], ("--bf16", "--bf16\n--recompute-granularity full\n--recompute-method uniform"), "recompute"),
        (MODULES, ["--fine-grained-activation-offloading", "--offload-modules core_attn attn_proj"],
         ("core_attn attn_proj", "attn_proj"), "attn_proj needs core_attn"),
        (MODULES, [], ("--offload-modules core_attn attn_proj\n", ""), "needs --offload-modules"),
        (MODULES, [], ("core_attn attn_proj", "core_attn dreams"), "dreams"),
    ],
)  # fmt: skip
def test_megatron(layout: str, wanted: list[str], edit: tuple[str, str], refused: str) -> None:
    files = files_of(layout)
    assert set(wanted) <= set(files["megatron.args"].splitlines())
    assert check_files(files).problems == []
    changed = files["megatron.args"].replace(*edit)
    assert changed != files["megatron.args"]
    assert refused in said({**files, "megatron.args": changed})


def test_the_variable_that_modules_need() -> None:
    line = "export NVTE_CPU_OFFLOAD_V1=1\n"
    assert line not in files_of(LAYERS)["launch.sh"]
    files = files_of(MODULES)
    assert line in files["launch.sh"]
    without = {**files, "launch.sh": files["launch.sh"].replace(line, "")}
    assert "NVTE_CPU_OFFLOAD_V1 is not set" in said(without)


@pytest.mark.parametrize("target", ["megatron", "megatron-bridge"])
def test_the_variable_that_fused_experts_need(target: str) -> None:
    """TEGroupedMLP of Megatron Core asserts it for gated experts under --use-transformer-engine-op-fuser."""
    asked = {**MOE, "target": target, "fix": {"moe_dispatcher": "hybridep"}}
    line = "export NVTE_CUTEDSL_FUSED_GROUPED_MLP=1\n"
    eager, whole = (dict(emit(api.evaluate(request_from_dict(asked), layout), target).files)
                    for layout in ("dp8-ep8-mbs1-z1-rnone", "dp8-ep8-gfull-mbs1-z1-rnone"))  # fmt: skip
    assert line not in eager["launch.sh"]
    assert line in whole["launch.sh"]
    assert check_files(whole).problems == []
    without = {**whole, "launch.sh": whole["launch.sh"].replace(line, "")}
    assert "NVTE_CUTEDSL_FUSED_GROUPED_MLP is not set" in said(without)
    if target == "megatron":
        with pytest.raises(LayoutRefusedError, match="has no --moe-"):
            emit(api.evaluate(request_from_dict(asked), "dp8-ep8-gfull-mbs1-z1-rnone"), target, version="0.17.0")


@pytest.mark.parametrize("target", ["megatron", "megatron-bridge"])
def test_a_graph_of_the_iteration_lets_go_of_what_other_streams_read(target: str) -> None:
    asked = {**MOE, "target": target, "fix": {"moe_dispatcher": "hybridep"}}
    layouts = ("dp8-ep8-epo-mbs1-z1-rnone", "dp8-ep8-gfull-mbs1-z1-rnone", "dp8-ep8-epo-gfull-mbs1-z1-rnone")
    plain, alone, beside = (emit(api.evaluate(request_from_dict(asked), layout), target).files["launch.sh"]
                            for layout in layouts)  # fmt: skip
    assert "graph_capture_record_stream_reuse" not in plain + alone
    assert "graph_capture_record_stream_reuse:True" in beside
    assert "export NCCL_GRAPH_REGISTER=0\n" in beside


@pytest.mark.parametrize("target", ["megatron", "megatron-bridge"])
def test_a_graph_of_the_iteration_holds_the_gathers_of_sharded_weights(target: str) -> None:
    """Bridge does not turn on by itself what Megatron-FSDP needs in a graph (setup of Megatron-LM, training.py)."""
    asked = {**MOE, "target": target, "fix": {"moe_dispatcher": "hybridep"}}
    eager, whole = (dict(emit(api.evaluate(request_from_dict(asked), layout), target).files)
                    for layout in ("dp8-ep8-mbs1-z3-rnone", "dp8-ep8-gfull-mbs1-z3-rnone"))  # fmt: skip
    fields = ("megatron_fsdp_cuda_graph_mode=True", "fsdp_all_gather_in_start_param_sync=False")
    assert not any(field in text for field in fields for text in eager.values())
    if target == "megatron-bridge":
        assert all(field in whole["bridge_plan.py"] for field in fields)
    assert "graph_capture_record_stream_reuse:True" in whole["launch.sh"]
    assert check_files(whole).problems == []


def test_sharded_weights_are_in_no_graph_of_older_releases() -> None:
    """Their Megatron-FSDP has no mode for graphs (core_v0.17.0, megatron/training/training.py)."""
    asked = {"model": "llama-3.1-8b", "cluster": "dgx-h100:1", "workload": {"seq_len": 4096, "global_batch": 64}}
    plan = api.evaluate(request_from_dict({**asked, "target": "megatron"}), "dp8-gfull-mbs1-z3-rnone")
    assert check_files(emit(plan, "megatron", version="0.18.0").files).problems == []
    with pytest.raises(LayoutRefusedError, match="which no graph holds before Megatron-LM"):
        emit(plan, "megatron", version="0.17.0")


def test_a_graph_of_the_iteration_keeps_the_pinned_memory_of_layers() -> None:
    pinned = "--cpu-offloading-retain-pinned-cpu-buffers"
    files = dict(files_of("tp8-dp8-gfull-mbs1-z1-rnone-off40"))
    assert f"{pinned}\n" in files["megatron.args"]
    assert check_files(files).problems == []
    assert pinned not in files_of("tp8-dp8-mbs1-z1-rnone-off40")["megatron.args"]
    assert "cpu_offloading_retain_pinned_cpu_buffers=True" in files_of(
        "tp8-dp8-gfull-mbs1-z1-rnone-off40", target="megatron-bridge")["bridge_plan.py"]
    without = {**files, "megatron.args": files["megatron.args"].replace(f"{pinned}\n", "")}
    (problem, *_) = check_files(without).problems
    assert f"with a graph of the whole iteration needs {pinned}" in str(problem)


def test_a_graph_of_the_iteration_bounds_the_copies() -> None:
    layout = "tp8-dp8-gfull-mbs1-z1-rnone-off(core_attn)"
    assert "--fine-grained-offloading-max-inflight-offloads 1\n" in files_of(layout)["megatron.args"]
    with pytest.raises(LayoutRefusedError, match="has no --fine-grained-offloading-max-inflight-offloads"):
        files_of(layout, version="0.17.0")


@pytest.mark.parametrize(
    ("layout", "wanted"),
    [
        (LAYERS, ["cpu_offloading=True", "cpu_offloading_num_layers=40"]),
        (MODULES, ["fine_grained_activation_offloading=True", 'offload_modules=["core_attn", "attn_proj"]']),
    ],
)
def test_bridge(layout: str, wanted: list[str]) -> None:
    files = files_of(layout, "megatron-bridge")
    assert all(f"            {line},\n" in files["bridge_plan.py"] for line in wanted)
    assert check_files(files).problems == []
    assert ("export NVTE_CPU_OFFLOAD_V1=1" in files["launch.sh"]) is (layout == MODULES)
    off = files["bridge_plan.py"].replace(f"            {wanted[0]},\n", "")
    assert said({**files, "bridge_plan.py": off}) != ""


@pytest.mark.parametrize("target", ["megatron", "megatron-bridge"])
@pytest.mark.parametrize("layout", [LAYERS, MODULES])
def test_import_reads_them(layout: str, target: str, tmp_path: Path) -> None:
    config = TARGETS[target].config
    assert config is not None
    path = tmp_path / config.main_file
    path.write_text(files_of(layout, target)[config.main_file], encoding="utf-8")
    found = import_config(config.import_format, [path], {"cluster": "dgx-h100:8"})
    assert str(found.layout) == layout


@pytest.mark.parametrize(
    ("layout", "rule"),
    [
        ("dp8-mbs1-z1-rnone-off(attn_proj)", "offload_modules"),
        ("dp8-ep8-mbs1-z1-rsel(moe)-off(expert_fc1)", "offload_modules and recompute"),
        ("dp8-ep8-g(attn+moe)-mbs1-z1-rnone-off(core_attn)", "offload_modules and graphs"),
        ("dp8-ep8-g(attn+router)-mbs1-z1-rnone-off3", "offload_layers and graphs"),
        ("dp8-ep8-gfull-mbs1-z1-rnone-off3", "offload and pages"),
        ("dp8-ep8-gfull-mbs1-z1-rnone-off(expert_fc1)", "offload and pages"),
    ],
)
def test_megatron_refuses(layout: str, rule: str) -> None:
    problem = resolve(request_from_dict({**MOE, "target": "megatron"})).problem
    columns = Layouts.of([parse(layout)])
    broken = [one.name for one in TARGETS["megatron"].rules if not one.allows(columns, problem)[0]]
    assert f"megatron: {rule}" in broken


@pytest.mark.parametrize(("token", "axis"), [("off3", "offload_layers"), ("off(core_attn)", "offload_modules")])
def test_the_runtime_refuses_them(token: str, axis: str) -> None:
    """`launch` asks this of a plan for another target, and `emit` for other frameworks."""
    problem = resolve(request_from_dict(MOE)).problem
    assert "meshwright has no " + axis in str(refusal(parse(f"dp8-ep8-mbs1-z1-rnone-{token}"), problem))
    plan = api.evaluate(request_from_dict({**MOE, "target": "megatron"}), f"dp8-ep8-mbs1-z1-rnone-{token}")
    with pytest.raises(LayoutRefusedError, match=f"deepspeed has no {axis}"):
        emit(plan, "deepspeed")


def test_a_search_takes_what_is_fixed() -> None:
    """Any set of modules by `--fix`, for any software; a target without them has no layout."""
    fixed = {"offload_modules": "core_attn", "pp": 1}
    spaces = {name: resolve(request_from_dict({**MOE, "target": name, "fix": fixed})).space for name in TARGETS}
    assert {name: space.switches["offload_modules"] for name, space in spaces.items()} == dict.fromkeys(TARGETS, (4,))
    plain = resolve(request_from_dict({**MOE, "target": "any"})).space
    assert "offload_layers" not in plain.switches


def test_ranks_without_a_gpu_offload_nothing() -> None:
    for fixed in ({"offload_layers": 3, "pp": 1}, {"offload_modules": "core_attn"}):
        space = resolve(request_from_dict({**DENSE, "target": "any", "fix": fixed})).space
        assert num_legal(space) > 0
        assert num_legal(replace(space, problem=replace(space.problem, on_host=True))) == 0
