"""Files of OpenRLHF: its parser has every option, they state the plan, and `emit` refuses plans that
it does not run."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from meshwright.cost_models.layouts import Layout
from meshwright.planner.api import plan_rl
from meshwright.planner.document.rl_plan import RlPlan
from meshwright.planner.targets.post_training.check import check_rl
from meshwright.planner.targets.post_training.emit import emit_rl

from meshwright.errors import UnsupportedError

from ...snapshots import run_here
from .drawn_placements import drawn

_FILE = "openrlhf.args"
_REQUEST: dict[str, Any] = {"algorithm": "grpo", "model": "llama-3.2-1b", "cluster": "4xh100-sxm-80gb", "output": 300,
                            "prompts": 16, "lag": 1, "trainer": "deepspeed"}  # fmt: skip
_PPO: dict[str, Any] = {**_REQUEST, "algorithm": "ppo", "updates": 2, "lag": 0, "cluster": "2xh100-sxm-80gb"}


@pytest.fixture(scope="module")
def plans() -> list[RlPlan]:
    return [plan_rl(**it) for it in (_REQUEST, _PPO, {**_REQUEST, "algorithm": "dapo", "lag": 2, "kl": True})]


def settings(plan: RlPlan, choice: int) -> dict[str, str]:
    """Option -> its words."""
    lines = emit_rl(plan, "openrlhf", choice).files[_FILE].splitlines()
    return {name: value for name, _, value in (line.partition(" ") for line in lines if not line.startswith("#"))}


def test_files_state_the_plan(plans: list[RlPlan]) -> None:
    for plan in drawn(plans, "openrlhf", 40):
        placed, work = plan.best, plan.request["workload"]
        assert check_rl(plan, emit_rl(plan, "openrlhf", placed.choice).files).problems == ()
        given = settings(plan, placed.choice)
        calls = {call.name: call for call in placed.calls}
        train, engine = Layout.from_dict(calls["train"].layout or {}), calls["generate"].engine
        assert engine is not None
        gpus = int(given["--actor.num_nodes"]) * int(given["--actor.num_gpus_per_node"])
        degrees = [int(given[f"--ds.{name}"]) for name in ("tensor_parallel_size", "ring_attn_size", "zero_stage")]
        assert degrees == [train.tp, train.cp, max(train.zero, 1)]
        # _gather_params_ctx of OpenRLHF 0.11.2 gathers over tp or over ZeRO-3.
        assert train.tp == 1 or train.zero < 3
        # BasePPOTrainer.ppo_train: without its sleep critic and actor train at once.
        assert placed.lag or "--ds.enable_sleep" in given
        assert "train-critic" not in calls or "--ds.enable_sleep" in given
        assert gpus == calls["train"].gpus == train.tp * train.cp * train.dp
        engines = int(given["--vllm.num_engines"]) * int(given["--vllm.tensor_parallel_size"])
        assert engines == calls["generate"].gpus
        # Its own assert where engines share the GPUs of the actor.
        assert placed.lag or engines == gpus
        assert given.get("--train.async_queue_size", "0") == str(placed.lag)
        assert ("--vllm.enable_sleep" in given) == (placed.lag == 0)
        longest = int(given["--data.max_len"])
        assert longest == work["input"] + int(given["--rollout.max_new_tokens"])
        assert int(given["--train.max_tokens_per_gpu"]) * train.tp * train.cp >= longest
        answers = int(given["--rollout.batch_size"]) * int(given["--rollout.n_samples_per_prompt"])
        assert int(given["--train.batch_size"]) * work["updates"] == answers
        assert ("--critic.num_nodes" in given) == (given["--algo.advantage.estimator"] == "gae")
        assert (given.get("--algo.kl.init_coef") == "0.0") == ("reference" not in calls)
        assert ("--reward.model_name_or_path" in given) == ("reward" in calls)


@pytest.mark.parametrize(
    ("request_", "reason"),
    [
        ({"algorithm": "dpo"}, "dpo: train_ppo_ray trains on answers that it generates"),
        ({"engine": "sglang"}, "sglang: openrlhf generates with vllm"),
        ({"trainer": "megatron"}, "trainer megatron: OpenRLHF trains by DeepSpeed"),
        ({"samples": 1}, "samples 1: group_norm compares the answers"),
    ],
)
def test_steps_that_it_does_not_run(request_: dict[str, Any], reason: str) -> None:
    with pytest.raises(UnsupportedError) as caught:
        plan_rl(**{**_REQUEST, "cluster": "2xh100-sxm-80gb", "lag": 0, **request_}, target="openrlhf")
    assert reason in caught.value.message


def test_layouts_that_it_lacks_are_refused(plans: list[RlPlan]) -> None:
    plan = plans[0]
    for layout, reason in (({"pp": 2}, "pp 2, ep 1: OpenRLHF has neither"),
                           ({"zero": 0, "dp": 2, "cp": 1}, "z0: OpenRLHF moves states of ZeRO's optimizers alone"),
                           ({"zero": 3, "tp": 2}, "z3 with tp 2: OpenRLHF sends weights to vLLM without"),
                           ({"cp": 2, "cp_algorithm": "ulysses"}, "cp by ulysses: OpenRLHF has ring")):  # fmt: skip
        calls = tuple(call.model_copy(update={"layout": {**(call.layout or {}), **layout}}) if call.name == "train"
                      else call for call in plan.best.calls)  # fmt: skip
        edited = plan.model_copy(update={"candidates": (plan.best.model_copy(update={"calls": calls}),)})
        with pytest.raises(UnsupportedError) as caught:
            emit_rl(edited, "openrlhf", plan.best.choice)
        assert reason in caught.value.message


def test_weights_that_stay_are_no_memory_of_the_engine() -> None:
    """offload_deepspeed_states of OpenRLHF 0.11.2 leaves out lp_params: weights in bf16, of every model, whole on each
    GPU below ZeRO-3."""
    plan = plan_rl(**{**_REQUEST, "lag": 0, "kl": True}, target="openrlhf")
    weights, memory = 2 * 1_235_814_400, 80 * 2**30
    for zero, ranks in ((2, 1), (3, 4)):
        calls = tuple(
            call.model_copy(update={"resident_bytes": {}}) if call.name == "generate" else call.model_copy(update={
                "layout": Layout(dp=4, shard=4, zero=zero).as_dict()} if call.kind == "train" else {})
            for call in plan.best.calls)  # fmt: skip
        edited = plan.model_copy(update={"candidates": (plan.best.model_copy(update={"calls": calls}),)})
        given = settings(edited, plan.best.choice)
        models = 1 if "--ref.offload" in given else 2
        assert ("--ref.offload" in given) == (zero == 3)
        share = float(given["--vllm.gpu_memory_utilization"])
        assert share <= 0.9 - models * weights / ranks / memory < share + 0.001


def test_plans_count_the_weights_that_stay() -> None:
    """Below ZeRO-3 four models of 8B would leave vLLM 13 GiB, less than its weights."""
    asked = {**_PPO, "model": "qwen3-8b", "cluster": "dgx-h100:2", "output": 2000, "prompts": 128, "updates": 1}
    plan = plan_rl(**asked, target="openrlhf")
    assert {Layout.from_dict(call.layout).zero for call in plan.best.calls if call.layout} == {3}
    assert {"logprobs", "reference", "reward", "values"} <= {call.name for call in plan.best.calls}
    notes = " ".join(emit_rl(plan, "openrlhf", 1).warnings)
    assert not any(text in notes for text in ("by the layout of train", "cache holds fewer", "scores the answers"))
    free = plan_rl(**asked)
    whole = tuple(call.model_copy(update={"layout": {**call.layout, "zero": 2}}) if call.kind == "train" and call.layout
                  else call for call in plan.best.calls)  # fmt: skip
    edited = free.model_copy(update={"candidates": (plan.best.model_copy(update={"calls": whole}),)})
    with pytest.raises(UnsupportedError) as caught:
        emit_rl(edited, "openrlhf", 1)
    assert "is left beside weights that stay, and vLLM's own take 15.3" in caught.value.message


def test_it_trains_by_deepspeed_where_no_trainer_is_named() -> None:
    asked = {name: value for name, value in _PPO.items() if name != "trainer"}
    plan = plan_rl(**asked, target="openrlhf")
    assert plan.resolved["trainer"] == "deepspeed"
    one, other = (next(call.layout for call in plan.best.calls if call.name == name)
                  for name in ("train", "train-critic"))  # fmt: skip
    assert one == other
    assert settings(plan, 1)["--critic.model_name_or_path"]


def test_an_edited_file_is_found_out(tmp_path: Path, plans: list[RlPlan]) -> None:
    (tmp_path / "rl.json").write_text(plans[0].to_json())
    assert run_here("emit", "rl.json", "--to", "openrlhf", "-d", "out", cwd=tmp_path).code == 0
    assert ": in order" in run_here("check", "out", cwd=tmp_path).out
    file = tmp_path / "out" / _FILE
    # The spelling of older releases.
    file.write_text(file.read_text().replace("--actor.num_nodes", "--actor_num_nodes"))
    result = run_here("check", "out", cwd=tmp_path)
    assert (result.code, "did you mean `--actor.num_nodes`" in " ".join(result.out.split())) == (1, True), result.out
