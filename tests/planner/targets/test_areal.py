"""Files of AReaL: degrees as its grammar spells them, who shares GPUs, and what it does not run."""

from __future__ import annotations

import math
import re
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from meshwright.cost_models.layouts import Layout
from meshwright.planner.api import plan_rl
from meshwright.planner.document.rl_plan import RlPlan
from meshwright.planner.targets.areal.options import backend
from meshwright.planner.targets.post_training.check import check_rl
from meshwright.planner.targets.post_training.emit import emit_rl
from meshwright.planner.targets.post_training.registry import rl_target
from meshwright.planner.targets.post_training.setup import RlSetup

from meshwright.errors import UnsupportedError

from ...snapshots import run_here
from .drawn_placements import drawn

_FILE = "areal.overrides"
_REQUEST: dict[str, Any] = {"algorithm": "grpo", "model": "llama-3.2-1b", "cluster": "4xh100-sxm-80gb", "output": 300,
                            "prompts": 16, "lag": 1, "engine": "sglang"}  # fmt: skip


@pytest.fixture(scope="module")
def plans() -> list[RlPlan]:
    experts = {**_REQUEST, "model": "qwen1.5-moe-a2.7b", "kl": True, "cluster": "2xh100-sxm-80gb"}
    critic = {**_REQUEST, "algorithm": "ppo", "reward": "rule", "updates": 2, "cluster": "2xh100-sxm-80gb"}
    return [plan_rl(**it) for it in (_REQUEST, experts, critic)]


def settings(plan: RlPlan, choice: int) -> dict[str, str]:
    lines = emit_rl(plan, "areal", choice).files[_FILE].splitlines()
    assert all(line.startswith(("++", "#")) for line in lines)
    return dict(line[2:].split("=", 1) for line in lines if not line.startswith("#"))


def degrees(text: str) -> dict[str, int]:
    """Those of the part before experts, by letter."""
    dense = text.split("|")[0].split(":", 1)[1]
    return {letter: int(number) for letter, number in re.findall(r"([dptce])(\d+)", dense)}


def test_files_state_the_plan(plans: list[RlPlan]) -> None:
    for plan in drawn(plans, "areal", 60):
        placed, work = plan.best, plan.request["workload"]
        assert check_rl(plan, emit_rl(plan, "areal", placed.choice).files).problems == ()
        given = settings(plan, placed.choice)
        calls = {call.name: call for call in placed.calls}
        layout, engine = Layout.from_dict(calls["train"].layout or {}), calls["generate"].engine
        assert engine is not None
        trained, served = degrees(given["actor.backend"].strip("'")), degrees(given["rollout.backend"].strip("'"))
        assert [trained[name] for name in "dptc"] == [layout.dp, layout.pp, layout.tp, layout.cp]
        assert trained.get("e", 1) == (layout.ep if layout.etp == 1 else 1)
        assert math.prod(trained[name] for name in "dptc") == calls["train"].gpus
        assert math.prod(served.values()) == calls["generate"].gpus
        assert served["t"] == engine.tp * engine.attention_dp
        # api/cli_args.py has both off; the price has them on.
        overlaps = str(layout.dp * layout.cp > 1) if plan.resolved["trainer"] == "megatron" else None
        assert given.get("actor.megatron.ddp.overlap_grad_reduce") == overlaps
        experts = "moe" in plan.resolved["models"]["policy"]["name"]
        assert ("actor.megatron.moe_permute_fusion" in given) == (experts and overlaps is not None)
        assert int(given["rollout.max_head_offpolicyness"]) == placed.lag
        assert ("rollout.scheduling_strategy.target" in given) == (placed.lag == 0)
        assert (given["enable_offload"] == "True") >= (placed.lag == 0)
        # PPOTrainer._validate_cfg of AReaL 1.0.4: other modes stop where the engine is beside the actor.
        assert given.get("actor.weight_update_mode", "xccl") == ("xccl" if placed.lag else "disk")
        # balanced_greedy_partition: as many prompts for each copy.
        assert int(given["train_dataset.batch_size"]) % trained["d"] == 0
        # ffd_allocate: no fewer sequences than micro-batches, of which each stage has two or more.
        copy = work["prompts"] * int(given["gconfig.n_samples"]) // work["updates"] // trained["d"]
        assert trained["p"] == 1 or (copy >= 2 * trained["p"] and copy % trained["p"] == 0)
        # `critic.optimizer` is `${actor.optimizer}` in the example, and an option below it makes it a new one.
        assert not any(name.startswith("critic.optimizer") for name in given)
        # ffd_allocate: no sequence is longer than a micro-batch.
        longest = int(given["train_dataset.max_length"]) + int(given["gconfig.max_new_tokens"])
        for role in ("actor", *(name for name in ("ref", "critic") if f"{name}.backend" in given)):
            assert int(given[f"{role}.mb_spec.max_tokens_per_mb"]) >= longest
        assert given["actor.ppo_n_minibatches"] == str(work["updates"])
        assert ("critic.backend" in given) == (work["algorithm"] == "ppo")
        assert ("ref.backend" in given) == (given.get("actor.kl_ctl") != "0.0") == ("reference" in calls)


def test_experts_have_degrees_of_their_own(plans: list[RlPlan]) -> None:
    setup = RlSetup.of(plans[1], 1, "plan")
    dense = {"tp": 2, "sequence_parallel": 1, "dp": 4, "shard": 4, "zero": 1}
    assert backend(setup, Layout(**dense, etp=2, ep=2)) == "megatron:(attn:d4p1t2c1|ffn:p1t2e2)"
    assert backend(setup, Layout(**dense, ep=4)) == "megatron:d4p1t2c1e4"


def test_copies_that_get_no_whole_prompts_are_refused() -> None:
    """Six prompts with 16 answers each: four copies divide the answers, and not the prompts."""
    plan = plan_rl(**{**_REQUEST, "prompts": 6}, target="areal")
    assert all(6 % (call.layout or {"dp": 1})["dp"] == 0 for it in plan.candidates for call in it.calls
               if call.kind == "train")  # fmt: skip
    refused = _refusals(plan, dp=4, shard=4, tp=1, pp=1)
    assert any("dp 4 does not divide the 6 prompts" in text for text in refused)


def test_pipelines_need_two_micro_batches_of_each_stage() -> None:
    plan = plan_rl(**{**_REQUEST, "prompts": 2, "samples": 3, "updates": 2}, target="areal")
    assert any("pp 2 with dp 1: of the 3 answers" in text for text in _refusals(plan, dp=1, shard=1, tp=1, pp=2))


def test_an_instance_larger_than_a_node_is_named(plans: list[RlPlan]) -> None:
    calls = tuple(call if call.engine is None else call.model_copy(update={"engine": call.engine.model_copy(
        update={"tp": 4, "instances": 1})}) for call in plans[0].best.calls)  # fmt: skip
    edited = plans[0].model_copy(update={"candidates": (plans[0].best.model_copy(update={"calls": calls}),)})
    whole = RlSetup.of(edited, plans[0].best.choice, "plan")
    for gpus, named in ((2, True), (4, False)):
        notes = rl_target("areal").notes(replace(whole, gpus_per_node=gpus))
        assert any("an instance of 4 GPUs is one worker" in text for text in notes) == named


def test_dapo_clips_on_both_sides_as_planned() -> None:
    plan = plan_rl(**{**_REQUEST, "algorithm": "dapo", "cluster": "2xh100-sxm-80gb"}, target="areal")
    given = settings(plan, 1)
    assert (given["actor.eps_clip"], given["actor.eps_clip_higher"]) == ("0.2", "0.28")


def _refusals(plan: RlPlan, **fields: int) -> list[str]:
    """The best placement with a layout of these degrees."""
    calls = tuple(call.model_copy(update={"layout": {**(call.layout or {}), **fields}}) if call.name == "train"
                  else call for call in plan.best.calls)  # fmt: skip
    edited = plan.model_copy(update={"candidates": (plan.best.model_copy(update={"calls": calls}),)})
    return rl_target("areal").refusals(RlSetup.of(edited, plan.best.choice, "plan"))


def test_instances_beside_the_trainer_are_of_one_gpu() -> None:
    plan = plan_rl(**{**_REQUEST, "lag": 0, "model": "llama-3.1-8b"}, target="areal")
    engine = RlSetup.of(plan, 1, "plan").rollout
    assert engine is not None
    assert engine.tp * engine.pp * engine.attention_dp == 1
    assert engine.instances == 4


@pytest.mark.parametrize(
    ("request_", "reason"),
    [
        ({"algorithm": "dpo"}, "dpo: files are written for its PPO trainer"),
        ({"engine": "vllm"}, "vllm: areal generates with sglang"),
        ({"reward": "llama-3.2-1b"}, "reward: AReaL takes a function"),
    ],
)
def test_steps_that_it_does_not_run(request_: dict[str, Any], reason: str) -> None:
    with pytest.raises(UnsupportedError) as caught:
        plan_rl(**{**_REQUEST, "cluster": "2xh100-sxm-80gb", "lag": 0, **request_}, target="areal")
    assert reason in caught.value.message


def test_an_edited_file_is_found_out(tmp_path: Path, plans: list[RlPlan]) -> None:
    (tmp_path / "rl.json").write_text(plans[0].to_json())
    assert run_here("emit", "rl.json", "--to", "areal", "--choice", "2", "-d", "out", cwd=tmp_path).code == 0
    assert ": in order" in run_here("check", "out", cwd=tmp_path).out
    file = tmp_path / "out" / _FILE
    text = file.read_text().replace("++gconfig.n_samples=16", "++gconfig.n_sample=16")
    file.write_text(text.replace("++actor.offload=False", "++actor.offload=[1,a]"))
    result = run_here("check", "out", cwd=tmp_path)
    said = " ".join(result.out.split())
    assert result.code == 1
    assert "did you mean `gconfig.n_samples`" in said
    assert "`[1,a]` is not true or false" in said
