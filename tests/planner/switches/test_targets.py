"""Every target states which values it has of the switches that are fields of a layout, and refuses all others."""

from __future__ import annotations

import pytest
from meshwright.cost_models.cuda_graphs import CUDA_GRAPHS, GRAPH_CODE
from meshwright.cost_models.layouts import Layouts, parse
from meshwright.planner.request.load import request_from_dict
from meshwright.planner.request.resolve import resolve
from meshwright.planner.switches.registry import SWITCHES
from meshwright.planner.targets.meshwright.rules import refusal
from meshwright.planner.targets.registry import TARGETS

from meshwright.errors import InputError

AXES = [name for name, switch in SWITCHES.items() if switch.axis]


@pytest.mark.parametrize("name", [name for name in TARGETS if name != "any"])
def test_every_target_has_its_rules(name: str) -> None:
    rules = {rule.name for rule in TARGETS[name].rules}
    assert {f"{TARGETS[name].built_on or name}: {axis}" for axis in AXES} <= rules


@pytest.mark.parametrize(("token", "axis"), [("epo", "ep_overlap"), ("g(attn+router+pre)", "cuda_graphs")])
def test_the_runtime_refuses_what_it_lacks(token: str, axis: str) -> None:
    """`launch` asks this of a plan for another target."""
    asked = {"model": "mixtral-8x7b", "cluster": "dgx-h100:1", "workload": {"seq_len": 4096, "global_batch": 64}}
    problem = resolve(request_from_dict(asked)).problem
    assert refusal(parse("dp8-ep8-mbs1-z1-rfull"), problem) is None
    reason = refusal(parse(f"dp8-ep8-{token}-mbs1-z1-rfull"), problem)
    assert reason is not None
    assert f"meshwright has no {axis}" in reason


def switches_of(**fix: str) -> dict[str, str]:
    """The switches of Megatron that are chosen for a request with these fixed."""
    asked = {"model": "llama-3.1-8b", "cluster": "dgx-h100:1", "target": "megatron", "fix": fix,
             "workload": {"seq_len": 4096, "global_batch": 64}}  # fmt: skip
    return dict(resolve(request_from_dict(asked)).switches.settings)


def test_a_switch_needs_another() -> None:
    """validate_args of Megatron-LM refuses gathers that overlap beside reductions that do not."""
    assert switches_of()["overlap_param_gather"] == "on"
    off = switches_of(overlap_grad_reduce="off")
    assert (off["overlap_grad_reduce"], off["overlap_param_gather"]) == ("off", "off")
    with pytest.raises(InputError, match="on: it goes with overlap_grad_reduce on, which is fixed to off"):
        switches_of(overlap_grad_reduce="off", overlap_param_gather="on")


def test_tokens_that_are_gathered_do_not_overlap() -> None:
    """TransformerConfig of Megatron Core wants an all-to-all or flex dispatcher for the overlap."""
    asked = {"model": "mixtral-8x7b", "cluster": "dgx-h100:2", "target": "megatron",
             "workload": {"seq_len": 4096, "global_batch": 64}}  # fmt: skip
    assert resolve(request_from_dict(asked)).switches.axes["ep_overlap"] == (0, 1)
    gathered = resolve(request_from_dict({**asked, "fix": {"moe_dispatcher": "allgather"}}))
    assert gathered.switches.axes["ep_overlap"] == (0,)
    layouts = Layouts.of([parse("tp2-dp8-ep4-epo-mbs1-z1-rsel")])
    broken = [rule.name for rule in TARGETS["megatron"].rules if not rule.allows(layouts, gathered.problem).all()]
    assert broken == ["megatron: ep_overlap and dispatcher"]


def test_delayed_scaling_recomputes_no_norms() -> None:
    """TransformerConfig of Megatron Core: "does not support moe_act and layernorm recompute"."""
    asked = {"model": "llama-3.1-8b", "cluster": "dgx-h100:1", "target": "megatron",
             "workload": {"seq_len": 4096, "global_batch": 64, "precision": "fp8"}}  # fmt: skip
    layouts = Layouts.of([parse(f"dp8-mbs1-z1-rsel({module})-fp8") for module in ("norm", "act", "attn")])
    rule = next(rule for rule in TARGETS["megatron"].rules if rule.name == "megatron: delayed scaling and recompute")
    for recipe, legal in (("current", [True, True, True]), ("delayed", [False, False, True])):
        problem = resolve(request_from_dict({**asked, "fix": {"fp8_recipe": recipe}})).problem
        assert rule.allows(layouts, problem).tolist() == legal


def megatron_allows(rule: str, model: str, precision: str, *layouts: str) -> list[bool]:
    asked = {"model": model, "cluster": "dgx-h100:1", "target": "megatron",
             "workload": {"seq_len": 1024, "global_batch": 64, "precision": precision}}  # fmt: skip
    problem = resolve(request_from_dict(asked)).problem
    (found,) = [each for each in TARGETS["megatron"].rules if each.name == f"megatron: {rule}"]
    return [bool(ok) for ok in found.allows(Layouts.of(list(map(parse, layouts))), problem)]


def test_expert_overlap_needs_narrow_weights() -> None:
    """TransformerConfig: "overlap_moe_expert_parallel_comm is only supported with bf16 or fp16 model"."""
    for precision, suffix, legal in (("bf16", "", True), ("fp32", "-fp32", False)):
        layout = f"dp8-ep4-epo-mbs1-z1-rnone{suffix}"
        assert megatron_allows("ep_overlap and precision", "mixtral-8x7b", precision, layout) == [legal]


def test_expert_overlap_goes_with_one_prediction_module() -> None:
    """TransformerConfig: "MTP supports at most one layer when enabling overlap_moe_expert_parallel_comm"."""
    for modules, legal in ((0, True), (1, True), (2, False)):
        asked = {"model": "deepseek-v3", "cluster": "dgx-h100:8", "target": "megatron",
                 "workload": {"seq_len": 1024, "global_batch": 64, "mtp_layers": modules}}  # fmt: skip
        problem = resolve(request_from_dict(asked)).problem
        rule = next(rule for rule in TARGETS["megatron"].rules if rule.name == "megatron: ep_overlap and mtp")
        layouts = Layouts.of([parse(f"dp64-ep8-{overlap}mbs1-z1-rnone") for overlap in ("", "epo-")])
        assert rule.allows(layouts, problem).tolist() == [True, legal]


@pytest.mark.parametrize(("model", "delays"), [("gpt-oss-120b", "off"), ("qwen3-30b-a3b", "on")])
def test_weight_gradients_are_not_delayed_beside_biases_of_attention(model: str, delays: str) -> None:
    """CommOverlapConfig of Bridge: "CUDA graph with delay_wgrad_compute does not support attention bias"."""
    asked = {"model": model, "cluster": "dgx-b200:1", "target": "megatron-bridge",
             "workload": {"seq_len": 1024, "global_batch": 64}}  # fmt: skip
    assert resolve(request_from_dict(asked)).switches.settings["delay_wgrad"] == delays
    fixed = resolve(request_from_dict({**asked, "fix": {"delay_wgrad": "on"}}))
    assert fixed.switches.settings["delay_wgrad"] == "on"


def test_no_layers_are_offloaded_beside_the_expert_overlap() -> None:
    """Its schedule calls the parts of layers (core/models/common/model_chunk_schedule_plan.py), not the forward pass of
    core/transformer/transformer_block.py that sends layers away."""
    layouts = [f"dp8-ep4-{overlap}mbs1-z1-rnone{offload}" for overlap in ("", "epo-")
               for offload in ("", "-off20", "-off(core_attn)")]  # fmt: skip
    assert megatron_allows("offload_layers and ep_overlap", "mixtral-8x7b", "bf16", *layouts) == [
        True, True, True, True, False, True]  # fmt: skip


def test_sharded_weights_are_in_a_graph_of_the_iteration_or_in_none() -> None:
    layouts = [f"dp8-{graphs}mbs1-{states}-rnone" for states in ("z1", "z2", "z3")
               for graphs in ("", "g(attn)-", "glayer-", "gfull-")]  # fmt: skip
    legal = [True] * 4 + [True, False, False, True] * 2
    assert megatron_allows("graphs and zero", "llama-3.2-1b", "bf16", *layouts) == legal


def test_a_graph_recomputes_no_part_with_dropout() -> None:
    """TransformerConfig: "attention dropout is not supported with graphed attention recomputation"."""
    layouts = ("dp8-g(attn)-mbs1-z1-rsel(attn)", "dp8-g(mlp)-mbs1-z1-rsel(attn)", "dp8-glayer-mbs1-z1-rsel(mlp)")
    assert megatron_allows("graphs and dropout", "gpt2-xl", "bf16", *layouts) == [False, True, False]
    assert megatron_allows("graphs and dropout", "llama-3.2-1b", "bf16", *layouts) == [True, True, True]


def test_experts_in_a_graph_of_the_iteration() -> None:
    """TEGroupedMLP of Megatron Core, _is_fused_impl_supported: "Tensor parallelism is not supported"; delayed and block
    scaling take the path of TransformerEngine that is "NOT cuda-graphable" (ops/basic/grouped_linear.py)."""
    layouts = ("tp2-dp4-ep4-gfull-mbs1-z1-rnone", "tp2-dp4-ep4-etp2-gfull-mbs1-z1-rnone")
    assert megatron_allows("graphs and etp", "mixtral-8x7b", "bf16", *layouts) == [True, False]
    asked = {"model": "mixtral-8x7b", "cluster": "dgx-b200:1", "target": "megatron",
             "workload": {"seq_len": 4096, "global_batch": 64, "precision": "fp8"}}  # fmt: skip
    layout = Layouts.of([parse("dp8-ep4-gfull-mbs1-z1-rnone-fp8")])
    rule = next(rule for rule in TARGETS["megatron"].rules if rule.name == "megatron: graphs and fp8_recipe")
    for recipe, legal in (("mxfp8", True), ("current", True), ("delayed", False), ("blockwise", False)):
        resolved = resolve(request_from_dict({**asked, "fix": {"fp8_recipe": recipe}}))
        assert rule.allows(layout, resolved.problem).tolist() == [legal]
        assert resolved.switches.settings["moe_paged_stash"] == ("on" if legal else "off")
        assert (GRAPH_CODE["full_iteration"] in resolved.switches.axes["cuda_graphs"]) == legal


@pytest.mark.parametrize(
    ("precision", "suffix", "fix", "legal"),
    [("bf16", "", {}, False), ("fp8", "-fp8", {"fp8_recipe": "current"}, False),
     ("fp8", "-fp8", {"fp8_recipe": "mxfp8"}, True), ("fp4", "-fp4", {}, True)],
)  # fmt: skip
def test_activations_of_experts_in_a_graph_of_the_iteration(
    precision: str, suffix: str, fix: dict[str, str], legal: bool
) -> None:
    """TransformerEngine, ops/basic/swiglu.py: "... requires the fused grouped MLP path" as the first step runs."""
    problem = resolve(request_from_dict({
        "model": "mixtral-8x7b", "cluster": "dgx-b200:1", "target": "megatron", "fix": fix,
        "workload": {"seq_len": 4096, "global_batch": 64, "precision": precision},
    })).problem  # fmt: skip
    rule = next(rule for rule in TARGETS["megatron"].rules if rule.name == "megatron: graphs and activations")
    for graphs, recompute, allowed in (("gfull", "rsel(act)", legal), ("gfull", "rsel(norm)", True),
                                       ("g(attn)", "rsel(act)", True)):  # fmt: skip
        layout = Layouts.of([parse(f"dp8-ep4-{graphs}-mbs1-z1-{recompute}{suffix}")])
        assert rule.allows(layout, problem).tolist() == [allowed]


@pytest.mark.parametrize(
    ("target", "cluster", "recipe", "precision", "copies"),
    [
        ("megatron", "dgx-b200:1", "current", "fp8", 1), ("megatron", "dgx-b200:1", "delayed", "fp8", 1),
        ("megatron", "dgx-b200:1", "mxfp8", "fp8", 2), ("megatron", "dgx-b200:1", "blockwise", "fp8", 2),
        ("megatron", "dgx-h100:1", "current", "fp8", 2), ("megatron", "8xrtx-5090", "current", "fp8", 2),
        ("megatron", "dgx-b200:1", None, "bf16", 0),
        ("torchtitan", "dgx-b200:1", "tensorwise-dynamic", "fp8", 2),
    ],
)  # fmt: skip
def test_a_weight_is_quantised_once_where_products_take_it_as_it_lies(
    target: str, cluster: str, recipe: str | None, precision: str, copies: int
) -> None:
    """TransformerEngine, csrc/quantizer.cpp: with_transpose = columnwise_usage && !is_non_tn_fp8_gemm_supported."""
    fix = {} if recipe is None or target != "megatron" else {"fp8_recipe": recipe}
    asked = {"model": "llama-3.1-8b", "cluster": cluster, "target": target, "fix": fix,
             "workload": {"seq_len": 4096, "global_batch": 64, "precision": precision}}  # fmt: skip
    assert resolve(request_from_dict(asked)).problem.state_bytes.quantised_copy == copies


def test_gathers_of_mxfp8_in_bridge() -> None:
    """Megatron-Bridge: "reuse_grad_buf_for_mxfp8_param_ag must be set to True"; pretrain_gpt.py has no such check."""
    asked = {"model": "llama-3.1-8b", "cluster": "dgx-b200:1", "fix": {"fp8_param_gather": "on", "fp8_recipe": "mxfp8"},
             "workload": {"seq_len": 4096, "global_batch": 64, "precision": "fp8"}}  # fmt: skip
    assert resolve(request_from_dict({**asked, "target": "megatron"})).switches.settings["fp8_param_gather"] == "on"
    with pytest.raises(InputError, match="on: it goes with fp8_recipe delayed or current or blockwise"):
        resolve(request_from_dict({**asked, "target": "megatron-bridge"}))
    asked["fix"] = {"fp8_recipe": "mxfp8"}
    settings = resolve(request_from_dict({**asked, "target": "megatron-bridge"})).switches.settings
    assert settings["fp8_param_gather"] == "grad_buffer"


@pytest.mark.parametrize(("cluster", "fix", "dispatcher", "graphs"), [
    ("dgx-h100:2", {}, "deepep", {"none", "attn+moe_router+moe_preprocess"}),
    ("dgx-h100:2", {"cuda_graphs": "full_iteration"}, "hybridep", {"full_iteration"}),
    ("gb200-nvl72:2", {}, "hybridep", {"none", "attn+moe_router+moe_preprocess", "full_iteration"}),
    ("gb200-nvl72:2", {"moe_dispatcher": "alltoall"}, "alltoall", {"none", "attn+moe_router+moe_preprocess"}),
    ("dgx-a100-80gb:2", {"moe_dispatcher": "hybridep"}, "hybridep", {"none", "attn+moe_router+moe_preprocess"}),
])  # fmt: skip
def test_whole_iterations_of_experts_need_hybridep(
    cluster: str, fix: dict[str, str], dispatcher: str, graphs: set[str]
) -> None:
    """Only it has room of a fixed size for the tokens of a rank; Bridge refuses DeepEP on racks of Blackwell."""
    asked = {"model": "mixtral-8x7b", "cluster": cluster, "target": "megatron", "fix": fix,
             "workload": {"seq_len": 4096, "global_batch": 64}}  # fmt: skip
    switches = resolve(request_from_dict(asked)).switches
    assert switches.settings["moe_dispatcher"] == dispatcher
    assert switches.settings["moe_paged_stash"] == ("on" if "full_iteration" in graphs else "off")
    assert {CUDA_GRAPHS[code] for code in switches.axes["cuda_graphs"]} == graphs
    with pytest.raises(InputError, match="full_iteration: it goes with moe_dispatcher hybridep"):
        resolve(request_from_dict({**asked, "fix": {"cuda_graphs": "full_iteration", "moe_dispatcher": "deepep"}}))
