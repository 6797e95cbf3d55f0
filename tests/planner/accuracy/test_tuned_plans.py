"""Tuned plans: reading them, their layouts, what is wrong in them, and how they compare with the search."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from meshwright.cost_models.layouts import parse
from meshwright.planner.accuracy import tuned_plan_outcome as outcomes
from meshwright.planner.accuracy.runs import Problems, read_rows
from meshwright.planner.accuracy.tuned_plan import TunedPlan, read_tuned_plan
from meshwright.planner.accuracy.tuned_plan_gains import Gains
from meshwright.planner.accuracy.tuned_plan_kin import with_kin
from meshwright.planner.accuracy.tuned_plan_outcome import PlanOutcome, beside, outcomes_of, request_key
from meshwright.planner.accuracy.tuned_plans import summary_of, validate_plans
from meshwright.profiles.io.reader import read_document

from ...snapshots import check, run_here

DENSE: dict[str, Any]
EXPERTS: dict[str, Any]
HYBRID: dict[str, Any]
DENSE, EXPERTS, HYBRID = read_document(Path(__file__).parents[2] / "data" / "tuned_plans.yaml").data


def write(tmp_path: Path, *rows: dict[str, Any]) -> Path:
    path = tmp_path / "plans.yaml"
    path.write_text("".join(f"- {json.dumps({k: v for k, v in row.items() if v is not None})}\n" for row in rows))
    return path


def read(tmp_path: Path, *rows: dict[str, Any]) -> tuple[list[TunedPlan], list[str]]:
    path, problems = write(tmp_path, *rows), Problems([])
    plans = list(read_rows([path], read_tuned_plan, problems, names_rows=True))
    return plans, [str(problem).replace(f"{path}, ", "") for problem in problems.first]


def one(tmp_path: Path, row: dict[str, Any], **changed: Any) -> TunedPlan:
    (plan,), problems = read(tmp_path, {**row, **changed})
    assert not problems
    return plan


# --- reading


def test_given_chunks_are_in_the_space_where_even_ones_are_not(tmp_path: Path) -> None:
    """GLM-5.2 on 416 H100 (Megatron-Bridge, perf_recipes/glm_moe_dsa/h100/glm5.py): 26 chunks for 21 groups of layers,
    of which some in the middle hold none."""
    plan = one(tmp_path, {
        "id": "glm52", "model": "glm52", "hf_id": "zai-org/GLM-5.2", "task": "sft", "gpu": "h100", "num_gpus": 416,
        "precision": "bf16", "seq_len": 131072, "global_batch": 520, "micro_batch": 1, "tp": 1, "pp": 13, "vpp": 2,
        "cp": 32, "ep": 32, "dp": 1, "mtp_layers": 1, "cp_comm_type": "allgather", "dispatcher": "flex",
        "dispatcher_backend": "deepep", "recompute": {"granularity": "full", "method": "uniform", "num_layers": 1},
        "pipeline_layout": "Et|t||tttt|tttt|tttt|tttt||tttt|tttt|tttt|tttt||tttt|tttt|tttt|tttt||tttt|tttt|tttt|tttt||"
                           "tttt|tttt|ttttmL",
    })  # fmt: skip
    outcome = outcomes._priced(plan)
    assert (outcome.refused, outcome.fits) == (None, True)


def test_a_packed_row_is_searched_one_sequence_at_a_time(tmp_path: Path) -> None:
    packed, plain = (one(tmp_path, {**DENSE, "packed": flag}) for flag in (True, False))
    requests = [outcomes._requested(plan) for plan in (packed, plain)]
    assert [bool(each.workload.lengths) for each in requests] == [True, False]
    prices = [outcomes._priced(plan).step_s for plan in (packed, plain)]
    assert prices[0] == prices[1]  # documents as long as the sequence


def test_a_row_is_a_layout_its_stages_and_the_request(tmp_path: Path) -> None:
    plan = one(tmp_path, EXPERTS)
    assert str(plan.layout) == "pp4-vpp4-dp64-ep64-mbs1-z1-rsel(mla)-fp8"
    assert plan.chunks == (4,) * 15 + (1,)
    assert plan.request is not None
    workload = plan.request.workload
    assert (plan.request.model, plan.request.cluster, plan.request.gpus) == ("deepseek-v3", "gb200-nvl72", 256)
    assert (workload.precision, workload.optimizer, workload.global_batch) == ("fp8", "adamw-bf16", 4096)
    assert plan.features["moe_dispatcher"] == "hybridep"
    assert plan.features["cuda_graph_modules"] == ["attn", "moe_router", "moe_preprocess"]


@pytest.mark.parametrize(
    ("changed", "chunks"),
    [
        ({"pipeline_layout": None, "account_embedding": True, "account_loss": True, "vpp": None}, None),
        ({"pipeline_layout": None, "first_stage_layers": 16, "last_stage_layers": 13, "vpp": None}, (16, 16, 16, 13)),
        ({"pipeline_layout": "Et|" + "t*4|" * 14 + "t*4mL"}, (1, *(4,) * 15)),
    ],
)  # fmt: skip
def test_stages_are_those_of_the_recipe(
    tmp_path: Path, changed: dict[str, Any], chunks: tuple[int, ...] | None
) -> None:
    plans, problems = read(tmp_path, {**EXPERTS, **changed})
    if chunks is None:  # 61 layers, embedding and loss are 63 parts
        assert "61 layers do not split over pp 4 x vpp 1" in problems[0]
    else:
        assert plans[0].chunks == chunks


def test_graphs_are_of_modules_layers_or_the_iteration(tmp_path: Path) -> None:
    graphs = {
        "layer": {"impl": "transformer_engine", "scope": []},
        "full_iteration": {"impl": "local", "scope": ["full_iteration"]},
        "none": {"impl": "none", "scope": ["attn"]},
        "partial": {"impl": "transformer_engine", "scope": ["attn"]},
    }
    for name, stated in graphs.items():
        row = DENSE if name == "layer" else EXPERTS  # no graph of a layer holds experts
        assert one(tmp_path, row, cuda_graph=stated).features["cuda_graphs"] == name


def test_graphs_of_experts_without_a_scope_hold_what_has_fixed_shapes(tmp_path: Path) -> None:
    """No graph of a layer holds experts, so such a recipe names modules. A recomputed router is in none."""
    plan = one(tmp_path, HYBRID)
    assert plan.features["cuda_graph_modules"] == ["attn", "mamba"]
    assert "CUDA graphs of all modules with fixed shapes (not stated)" in plan.assumptions
    plan = one(tmp_path, HYBRID, recompute={})
    assert plan.features["cuda_graph_modules"] == ["attn", "mamba", "moe_router", "moe_preprocess"]
    stated = one(tmp_path, HYBRID, cuda_graph={"impl": "transformer_engine", "scope": ["attn"]})
    assert stated.features["cuda_graph_modules"] == ["attn"]
    assert not stated.assumptions


def test_a_plan_of_a_hybrid_is_in_the_space(tmp_path: Path) -> None:
    (outcome,) = outcomes_of([one(tmp_path, HYBRID)])
    assert outcome.layout == "dp16-ep8-g(attn+mamba)-mbs1-z1-rsel(norm+moe+shared)"
    assert (outcome.refused, outcome.fits, outcome.described) == (None, True, True)
    assert outcome.ratio is not None
    assert outcome.ratio >= 1


def test_modules_without_a_granularity_are_inactive(tmp_path: Path) -> None:
    plan = one(tmp_path, EXPERTS, recompute={"modules": ["mla_up_proj"]})
    assert "rnone" in str(plan.layout)
    assert plan.assumptions == ("recompute modules without a granularity: nothing is recomputed",)


def test_sharded_states_are_those_of_the_recipe(tmp_path: Path) -> None:
    changed = {"pp": 1, "vpp": None, "dp": 256, "num_microbatches": 16, "pipeline_layout": None, "fsdp": True,
               "fsdp_strategy": "optim_grads_params"}  # fmt: skip
    assert "-dp256-ep64-mbs1-z3-" in f"-{one(tmp_path, EXPERTS, **changed).layout}"
    sharded = one(tmp_path, EXPERTS, **changed, variant="hsdp")
    assert "-dp256-sh64-ep64-" in f"-{sharded.layout}"
    assert "HSDP shards within a domain of the fast link (its size is not stated)" in sharded.assumptions
    assert "-z0-" in str(one(tmp_path, EXPERTS, dist_opt=False, exp_avg_dtype="float32").layout)


KIMI = {**EXPERTS, "model": "kimi_k2", "hf_id": None, "stage_layers": None, "mtp_layers": None, "dist_opt": False,
        "precision_aware_opt": False, "exp_avg_dtype": "float32", "pipeline_layout": "Et*4|(t*4|)*14tL"}  # fmt: skip


def test_a_recipe_without_the_distributed_optimizer_of_adam_has_that_of_muon(tmp_path: Path) -> None:
    """Where the makers of the model trained it with Muon, and the row does not state the optimizer."""
    plan = one(tmp_path, KIMI)
    assert plan.request is not None
    assert plan.request.workload.optimizer == "muon"
    assert "-z1-" in str(plan.layout)
    assert plan.features["layer_wise_layout"] is False
    label = "layer-wise Muon, with which the makers of kimi-k2 trained it (not stated)"
    assert label in plan.assumptions
    other_model = {"model": "deepseek_v3", "pipeline_layout": EXPERTS["pipeline_layout"]}
    others: tuple[dict[str, Any], ...] = ({"dist_opt": True}, {"optimizer": "adam"}, other_model)
    for changed in others:
        other = one(tmp_path, KIMI, **changed)
        assert other.request is not None
        assert other.request.workload.optimizer == "adamw"
        assert label not in other.assumptions
    stated = one(tmp_path, KIMI, optimizer="muon")
    assert stated.request is not None
    assert (stated.request.workload.optimizer, stated.assumptions) == ("muon", ())
    assert "-z0-" in str(stated.layout)


def test_tokens_are_spread_evenly_in_recipes_for_pre_training(tmp_path: Path) -> None:
    """By force, and in what is searched beside them: it changes what is trained."""
    label = "tokens spread evenly over experts by force, as recipes for pre-training have it (not stated)"
    cases: tuple[tuple[dict[str, Any], dict[str, Any], bool | None, bool], ...]
    cases = ((EXPERTS, {}, True, False), (EXPERTS, {"force_balance": None}, True, True),
             (EXPERTS, {"force_balance": False}, False, False), (DENSE, {}, None, False),
             (EXPERTS, {"force_balance": None, "task": "sft"}, None, False))  # fmt: skip
    for row, changed, balanced, assumed in cases:
        plan = one(tmp_path, row, **changed)
        assert plan.features.get("moe_force_balance") is balanced
        assert (label in plan.assumptions) is assumed
    forced, free = (one(tmp_path, EXPERTS, force_balance=flag) for flag in (True, False))
    assert request_key(forced) != request_key(free)
    for priced in (outcomes._as_written, outcomes._requested):
        assert [priced(plan).stack.moe_imbalance for plan in (forced, free)] == [1.0, 1.1]


def test_recipes_of_deepseek_that_name_the_all_to_all_run_what_their_base_turns_to(tmp_path: Path) -> None:
    """HybridEP where they set up ranks for it, else DeepEP; recipes of other models and tasks run what they name."""
    cases: tuple[tuple[dict[str, Any], dict[str, Any], str | None], ...]
    cases = ((EXPERTS, {"hybrid_ep_ranks": 64}, "hybridep"), (EXPERTS, {"hybrid_ep_ranks": None}, "deepep"),
             (EXPERTS, {"task": "sft"}, "alltoall"), (EXPERTS, {"dispatcher": None}, None),
             (KIMI, {"hybrid_ep_ranks": 64}, "alltoall"))  # fmt: skip
    for row, changed, used in cases:
        plan = one(tmp_path, row, **{"dispatcher": "alltoall", "dispatcher_backend": None, **changed})
        assert plan.features.get("moe_dispatcher") == used
        label = f"{used} sends tokens, to which the base recipe of deepseek-v3 turns (stated: alltoall)"
        assert (label in plan.assumptions) is (used in ("hybridep", "deepep"))


@pytest.mark.parametrize("task", ["peft", "lora"])
def test_adapters_are_on_all_linear_modules(tmp_path: Path, task: str) -> None:
    """LoRA() of Megatron-Bridge: linear_qkv, linear_proj, linear_fc1, linear_fc2; with experts it adapts those, too."""
    plan = one(tmp_path, DENSE, task=task)
    assert plan.request is not None
    lora = plan.request.workload.train.lora
    assert lora is not None
    assert (lora.rank, set(lora.targets)) == (32, {"q", "k", "v", "o", "gate", "up", "down"})
    assert any("rank 32 on all linear modules" in text for text in plan.assumptions)
    assert one(tmp_path, DENSE, task="sft").request.workload.train.lora is None  # type: ignore[union-attr]
    refusal = one(tmp_path, EXPERTS, task=task).refusal
    assert refusal is not None
    assert "no plan has adapters of routed experts" in refusal.text


def test_muon_is_priced_with_fewer_bytes_than_adam(tmp_path: Path) -> None:
    muon, adam = outcomes_of([one(tmp_path, KIMI)])[0], outcomes_of([one(tmp_path, KIMI, optimizer="adam")])[0]
    assert muon.refused is None
    assert muon.peak_memory_bytes is not None
    assert adam.peak_memory_bytes is not None
    assert muon.peak_memory_bytes < 0.9 * adam.peak_memory_bytes


def test_all_that_is_wrong_is_named_at_once(tmp_path: Path) -> None:
    rows = (
        {**DENSE, "id": "product", "dp": 3},
        {**DENSE, "id": "batches", "num_microbatches": 31},
        {**DENSE, "id": "missing", "micro_batch": None, "tp": None},
        {**DENSE, "id": "gpu", "gpu": "h1000"},
        {**DENSE, "id": "precision", "precision": "fp7"},
        {**DENSE, "id": "task", "task": "dream"},
        {**DENSE, "id": "optimizer", "optimizer": "sgd"},
        {**DENSE, "id": "layers", "layers": 31},
        {**EXPERTS, "id": "string", "pipeline_layout": "Et*4|(t*4|)*13tmL"},
        {**EXPERTS, "id": "letters", "pipeline_layout": "Ex*4|(t*4|)*14tmL"},
        {**EXPERTS, "id": "chunks", "vpp": 2},
        {**EXPERTS, "id": "stages", "stage_layers": [4] * 15},
        {**DENSE, "id": "nodes", "num_gpus": 12, "dp": 6},
        {**DENSE, "id": "product"},
    )
    plans, problems = read(tmp_path, *rows)
    assert not plans
    check("plans-bad", "".join(f"{problem}\n" for problem in problems))


# --- judging


def test_a_plan_in_the_space_is_priced_beside_the_best_layout(tmp_path: Path) -> None:
    validation = validate_plans([write(tmp_path, DENSE, {**DENSE, "id": "again", "micro_batch": 2, "cp": 1, "dp": 8,
                                                         "num_microbatches": 8})])  # fmt: skip
    for plan in validation.rows:
        assert plan.refused is None
        assert plan.step_s is not None
        assert plan.best_step_s is not None
        assert plan.peak_memory_bytes is not None
        assert plan.ratio == pytest.approx(plan.step_s / plan.best_step_s)
        assert plan.fits is (plan.peak_memory_bytes <= (plan.memory_limit_bytes or 0))
    bests = {plan.best_layout for plan in validation.rows}
    assert len(bests) == 1  # one request
    assert validation.summary.ratio_dense is not None
    assert validation.summary.ratio_dense.count == 2
    assert validation.summary.ratio_moe is None


def test_the_factors_of_a_ratio_multiply_to_it(tmp_path: Path) -> None:
    """A switch that the recipe leaves off shows as its factor, and in no other."""
    tuning = {**EXPERTS, "task": "sft"}
    plans, _ = read(tmp_path, {**tuning, "id": "alltoall", "dispatcher": "alltoall"}, {**tuning, "id": "hybridep"})
    alltoall, hybridep = outcomes_of(plans)
    for plan in (alltoall, hybridep):
        assert plan.gains is not None
        product = plan.gains.software * plan.gains.ep_overlap * plan.gains.cuda_graphs * plan.gains.layout
        assert plan.ratio == pytest.approx(product, rel=1e-6)
        assert plan.gains.largest in Gains.__slots__
    assert alltoall.gains is not None
    assert hybridep.gains is not None
    assert alltoall.gains.software > 1.05 * hybridep.gains.software
    assert alltoall.gains.layout == pytest.approx(hybridep.gains.layout, rel=1e-6)


def test_a_plan_that_is_the_best_is_its_own_best(tmp_path: Path) -> None:
    """The best layout, written as a row, is not slower than anything."""
    (plan,), _ = read(tmp_path, {**DENSE, "num_gpus": 8, "cp": 1, "dp": 8, "num_microbatches": 16})
    (first,) = outcomes_of([plan])
    assert first.best_layout is not None
    best = parse(first.best_layout)
    features = {**plan.features, "cuda_graphs": best.as_dict()["cuda_graphs"]}
    (again,) = outcomes_of([replace(plan, layout=best, features=features, chunks=None)])
    assert (again.ratio, again.best_layout) == (1.0, first.best_layout)
    assert again.step_s == pytest.approx(first.best_step_s)


def test_what_is_not_in_the_space_is_refused_by_its_rule(tmp_path: Path) -> None:
    rows = (
        {**EXPERTS, "id": "modules", "recompute": {"granularity": "selective", "modules": ["dreams"]}},
        {**EXPERTS, "id": "offload", "act_offload": {"fine_grained": True, "modules": ["dreams"]}},
        {**DENSE, "id": "heads", "tp": 3, "cp": 1, "dp": 8, "num_gpus": 24, "num_microbatches": 16, "sp": True},
    )
    validation = validate_plans([write(tmp_path, *rows)])
    assert [plan.rule for plan in validation.rows] == [
        "model.recompute_modules dreams has no counterpart in a plan",
        "model.offload_modules dreams has no counterpart in a plan",
        "heads",
    ]
    assert all(plan.step_s is None and plan.refused for plan in validation.rows)
    assert validation.summary.counts.in_space == 0
    assert validation.summary.in_space_share == 0.0


def test_rows_that_cannot_be_launched_or_described_are_counted_apart(tmp_path: Path) -> None:
    rows = (
        {**EXPERTS, "id": "broken", "vpp": 2, "checks": ["layout has 16 stages, pp*vpp=8"]},
        {"id": "film", "model": "film_14b", "task": "sft", "gpu": "h100", "num_gpus": 16, "precision": "bf16"},
    )
    validation = validate_plans([write(tmp_path, *rows)])
    broken, film = validation.rows
    assert (broken.launchable, broken.described) == (False, True)
    assert broken.refused == "cannot be launched as written: layout has 16 stages, pp*vpp=8"
    assert (film.launchable, film.described, film.refused) == (True, False, "the catalogue has no film_14b")
    counts = validation.summary.counts
    assert (counts.rows, counts.described, counts.launchable, counts.in_space) == (2, 1, 0, 0)
    assert validation.summary.in_space_share is None


def test_plans_for_one_request_share_a_search(tmp_path: Path) -> None:
    plan, other = one(tmp_path, DENSE), one(tmp_path, DENSE, id="other", cp=1, dp=8, num_microbatches=16)
    assert request_key(plan) == request_key(other)
    assert request_key(plan) != request_key(one(tmp_path, DENSE, grad_reduce_fp32=True))


def test_a_sequence_may_be_longer_than_the_positions_of_the_model(tmp_path: Path) -> None:
    longer = one(tmp_path, DENSE, task="sft", packed=True, seq_len=16384)
    (long,) = outcomes_of([longer])
    (short,) = outcomes_of([one(tmp_path, DENSE)])
    assert long.step_s is not None
    assert short.step_s is not None
    assert long.step_s > 2 * short.step_s
    assert long.assumptions == ("packed documents are as long as the sequence (their lengths are not stated)",)


def outcome(name: str, **values: Any) -> PlanOutcome:
    known = {"model": "m", "task": "sft", "gpu": "g", "num_gpus": 8, "precision": "bf16", "launchable": True,
             "described": True}  # fmt: skip
    return PlanOutcome(**{"id": name, **known, **values})


GAINS = Gains(software=1.0, ep_overlap=1.1, cuda_graphs=1.2, layout=1.05)


def test_the_kin_of_a_plan_has_the_switch_that_gains_most() -> None:
    """A plan for the same model, on the same GPU if there is one; the rest of a layout is no switch."""
    best = {"best_layout": "dp8-ep8-epo-gfull-mbs2-z1-rnone", "ratio": 1.4}
    plans = [
        outcome("slow", layout="dp8-ep8-mbs1-z1-rnone-x123456", gains=GAINS, moe=True, dispatcher="alltoall", **best),
        outcome("of another model", model="n", layout="dp8-ep8-gfull-mbs1-z1-rnone"),
        outcome("elsewhere", gpu="h", layout="dp8-ep8-gfull-mbs1-z1-rnone", dispatcher="hybridep"),
        outcome("here", layout="dp8-ep8-epo-gfull-mbs1-z1-rnone"),
        outcome("refused", refused="no", rule="heads"),
    ]
    kin = {plan.id: plan.kin for plan in with_kin(plans)}
    assert kin == {plan.id: "here" if plan.id == "slow" else None for plan in plans}
    named = [with_kin([replace(plans[0], gains=replace(GAINS, **{name: 2.0})), *plans[1:3]])[0].kin
             for name in Gains.__slots__]  # fmt: skip
    assert dict(zip(Gains.__slots__, named, strict=True)) == {
        "software": "elsewhere", "ep_overlap": None, "cuda_graphs": "elsewhere", "layout": None}  # fmt: skip
    assert summary_of(with_kin(plans)).slow_moe == {"cuda_graphs": (1, 1)}
    assert summary_of(plans).slow_moe == {"cuda_graphs": (1, 0)}
    assert summary_of([replace(plans[0], ratio=1.2)]).slow_moe == {}


@pytest.mark.parametrize(
    ("fits", "found", "best"),
    [
        (True, None, (2.0, "itself", 1.0)),  # nothing beats it
        (True, (2.5, "slower"), (2.0, "itself", 1.0)),
        (True, (1.0, "faster"), (1.0, "faster", 2.0)),
        (False, (4.0, "slower"), (4.0, "slower", 0.5)),  # the best that fits
        (False, None, (None, None, None)),  # nothing fits
    ],
)
def test_the_best_is_the_plan_itself_where_it_fits_and_nothing_is_faster(
    fits: bool, found: tuple[float, str] | None, best: tuple[float | None, str | None, float | None]
) -> None:
    judged = beside(outcome("a", step_s=2.0, fits=fits, layout="itself"), found)
    assert (judged.best_step_s, judged.best_layout, judged.ratio) == best


def test_the_summary_counts_and_divides() -> None:
    plans = [
        outcome("a", moe=True, fits=True, step_s=2.0, ratio=1.0),
        outcome("b", moe=True, fits=False, step_s=2.0, ratio=2.0),
        outcome("c", moe=False, fits=True, step_s=2.0, ratio=3.0, task="pretrain"),
        outcome("d", refused="no", rule="heads"),
        outcome("e", refused="no", rule="checks", launchable=False),
    ]
    summary = summary_of(plans)
    assert (summary.in_space_share, summary.fit_share) == (3 / 4, 2 / 4)
    assert summary.ratio_moe is not None
    assert (summary.ratio_moe.median, summary.ratio_moe.max) == (1.5, 2.0)
    assert summary.ratio_dense is not None
    assert summary.ratio_dense.median == 3.0
    assert summary.refused == {"heads": ("d",)}
    assert summary.too_large == ("b",)
    assert {task: counts.rows for task, counts in summary.by_task.items()} == {"pretrain": 1, "sft": 4}


# --- the command


def test_the_command_judges_plans(tmp_path: Path) -> None:
    write(tmp_path, DENSE, {**DENSE, "id": "heads", "tp": 3, "cp": 1, "dp": 8, "num_gpus": 24, "num_microbatches": 16})
    result = run_here("validate", "--plans", "plans.yaml", cwd=tmp_path)
    assert result.code == 0
    assert "2 plans, 2 of models that can be described, 2 of these can be launched as written" in result.out
    assert "in the space: 1 (50.0 %), said to fit: 1 (50.0 %)" in result.out
    document = json.loads(run_here("validate", "--plans", "plans.yaml", "--json", cwd=tmp_path).out)
    assert document["kind"] == "plan-validation"
    wanted = {"id", "refused", "fits", "peak_memory_bytes", "step_s", "best_step_s", "best_layout", "ratio"}
    assert wanted <= set(document["rows"][0])
    assert "refused: " in run_here("validate", "--plans", "plans.yaml", "--rows", cwd=tmp_path).out


def test_the_command_says_what_is_wrong_in_plans(tmp_path: Path) -> None:
    write(tmp_path, {**DENSE, "id": "product", "dp": 3}, DENSE)
    check("plans-error", run_here("validate", "--plans", "plans.yaml", cwd=tmp_path))
    assert run_here("validate", "--plans", "plans.yaml", "--keep-going", cwd=tmp_path).code == 0
    assert run_here("validate", "runs.yaml", "--plans", "plans.yaml", cwd=tmp_path).code == 2


def test_a_row_without_a_split_is_refused_where_no_even_one_exists(tmp_path: Path) -> None:
    plans, problems = read(tmp_path, {**EXPERTS, "pipeline_layout": None, "vpp": None})
    assert problems == []
    assert plans[0].refusal is not None
    assert plans[0].refusal.text == "model.num_layers: 61 layers do not split over pp 4 x vpp 1"


def test_models_that_see_are_judged_by_their_text(tmp_path: Path) -> None:
    plans, problems = read(tmp_path, {**EXPERTS, "hf_id": "Qwen/Qwen3.5-35B-A3B", "model": "qwen35", "layers": None,
                                      "mtp_layers": None, "pipeline_layout": None, "stage_layers": None,
                                      "vpp": None, "first_stage_layers": None})  # fmt: skip
    assert problems == []
    assert "the language model alone, since rows state no images" in plans[0].assumptions


@pytest.mark.parametrize("graph", [True, False])
def test_no_model_that_sees_is_compared_with_a_graph_of_the_iteration(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, graph: bool
) -> None:
    """Its images are counted on the host; without that rule the best layout has such a graph."""
    if graph:
        monkeypatch.setattr(outcomes, "_OF_SEEING", ())
    row = {**EXPERTS, "hf_id": "Qwen/Qwen3.5-35B-A3B", "model": "qwen35", "layers": None, "mtp_layers": None,
           "pipeline_layout": None, "stage_layers": None, "vpp": None, "first_stage_layers": None,
           "gpu": "b200", "num_gpus": 8, "precision": "mxfp8", "ep_overlap": False, "delay_wgrad": False,
           "global_batch": 128, "micro_batch": 1, "tp": 1, "pp": 1, "dp": 8, "ep": 8,
           "num_microbatches": 16, "recompute": {}, "cuda_graph": {"impl": "none", "scope": []},
           "nvl_domain": 8, "hybrid_ep_ranks": 8}  # fmt: skip
    plans, problems = read(tmp_path, row)
    assert problems == []
    (outcome,) = outcomes_of(plans)
    assert outcome.ratio is not None
    assert ("gfull" in str(outcome.best_layout)) == graph


def test_models_that_denoise_train_on_the_mock_latents_of_their_recipes(tmp_path: Path) -> None:
    row = {**DENSE, "hf_id": None, "model": "wan_14b", "layers": None, "seq_len": None, "gpu": "h100", "num_gpus": 32,
           "tp": 2, "sp": True, "pp": 1, "vpp": None, "cp": 4, "dp": 4, "global_batch": 64, "micro_batch": 1,
           "num_microbatches": 16, "recompute": {"granularity": "full", "method": "block", "num_layers": 8},
           "cuda_graph": None, "precision": "bf16"}  # fmt: skip
    plan = one(tmp_path, row)
    assert plan.seq_len == 24 * 52 * 30  # latents of 24 x 104 x 60, two by two
    assert any("1@832x480x93" in text for text in plan.assumptions)
    (outcome,) = outcomes_of([plan])
    assert (outcome.refused, outcome.launchable) == (None, True)
    assert outcome.step_s is not None
