"""Files of NeMo-RL: its examples have every option, and plans beyond its limits are refused."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from meshwright.planner.api import plan_rl
from meshwright.planner.document.rl_plan import RlPlan
from meshwright.planner.targets.post_training.check import check_rl
from meshwright.planner.targets.post_training.emit import emit_rl

from meshwright.errors import UnsupportedError

from ...snapshots import run_here
from .drawn_placements import drawn

_FILE = "nemo-rl.overrides"
_REQUEST: dict[str, Any] = {"algorithm": "grpo", "model": "llama-3.2-1b", "cluster": "4xh100-sxm-80gb", "output": 300,
                            "prompts": 16, "lag": 1}  # fmt: skip


@pytest.fixture(scope="module")
def grpo() -> RlPlan:
    return plan_rl(**_REQUEST)


def settings(plan: RlPlan, choice: int) -> dict[str, str]:
    lines = emit_rl(plan, "nemo-rl", choice).files[_FILE].splitlines()
    return dict(line.split("=", 1) for line in lines if not line.startswith("#"))


def test_every_option_of_drawn_placements_is_one_of_the_examples(grpo: RlPlan) -> None:
    for plan in drawn([grpo], "nemo-rl", 60):
        files = emit_rl(plan, "nemo-rl", plan.best.choice).files
        assert check_rl(plan, files).problems == ()
        options = settings(plan, plan.best.choice)
        longest = int(options["policy.max_total_sequence_length"])
        assert int(options["policy.sequence_packing.train_mb_tokens"]) >= longest


@pytest.mark.parametrize("lag", [0, 1])
def test_lag_trains_beside_an_asynchronous_engine(lag: int) -> None:
    plan = plan_rl(**{**_REQUEST, "lag": lag}, target="nemo-rl")
    assert {it.lag for it in plan.candidates} == {*range(lag + 1)}
    for placed in [it for it in plan.candidates if it.lag == lag]:
        options = settings(plan, placed.choice)
        lagged = str(placed.lag > 0)
        assert options["policy.generation.vllm_cfg.async_engine"] == lagged
        assert options.get("grpo.async_grpo.enabled", "False") == lagged
        if placed.lag:
            gpus = int(options["policy.generation.colocated.resources.gpus_per_node"])
            assert gpus == placed.rollout_gpus
            assert int(options["cluster.gpus_per_node"]) == placed.rollout_gpus + placed.training_gpus
            assert options["loss_fn.use_importance_sampling_correction"] == "True"
        else:
            assert options["loss_fn.force_on_policy_ratio"] == "True"


@pytest.mark.parametrize(
    ("layout", "reason"),
    [
        ({"vpp": 2, "pp": 2}, "train: vpp 2, and its training loop"),
        ({"zero": 2}, "train: z2: Megatron-FSDP is not written"),
        ({"cp": 2, "cp_algorithm": "ulysses"}, "train: cp by ulysses"),
        ({"precision": "fp8"}, "precision fp8"),
    ],
)
def test_layouts_that_it_lacks_are_refused(grpo: RlPlan, layout: dict[str, Any], reason: str) -> None:
    best = grpo.best
    train = next(call for call in best.calls if call.name == "train")
    changed = train.model_copy(update={"layout": {**(train.layout or {}), **layout}})
    calls = tuple(changed if call.name == "train" else call for call in best.calls)
    others = (best.model_copy(update={"calls": calls}), *grpo.candidates[1:])
    with pytest.raises(UnsupportedError) as caught:
        emit_rl(grpo.model_copy(update={"candidates": others}), "nemo-rl", best.choice)
    assert reason in caught.value.message


@pytest.mark.parametrize(
    ("request_", "reason"),
    [
        ({"algorithm": "ppo"}, "ppo: run_grpo.py is written for GRPO and DAPO"),
        ({"engine": "sglang"}, "sglang: nemo-rl generates with vllm"),
        ({"reward": "llama-3.2-1b"}, "reward: a reward model is an environment"),
    ],
)
def test_steps_that_it_does_not_run(request_: dict[str, Any], reason: str) -> None:
    plan = plan_rl(**{**_REQUEST, "cluster": "2xh100-sxm-80gb", "lag": 0, **request_})
    with pytest.raises(UnsupportedError) as caught:
        emit_rl(plan, "nemo-rl")
    assert reason in caught.value.message


def test_an_edited_file_is_found_out(tmp_path: Path, grpo: RlPlan) -> None:
    (tmp_path / "rl.json").write_text(grpo.to_json())
    assert run_here("emit", "rl.json", "--to", "nemo-rl", "-d", "out", cwd=tmp_path).code == 0
    assert ": in order" in run_here("check", "out", cwd=tmp_path).out
    file = tmp_path / "out" / _FILE
    file.write_text(file.read_text().replace("grpo.num_prompts_per_step", "grpo.num_prompt_per_step"))
    result = run_here("check", "out", cwd=tmp_path)
    assert (result.code, "did you mean `grpo.num_prompts_per_step`" in result.out) == (1, True), result.out


def test_added_options_that_change_the_step_are_problems(grpo: RlPlan) -> None:
    files = emit_rl(grpo, "nemo-rl").files
    for line, text in (("policy.megatron_cfg.peft.enabled=True", "adapters are not planned"),
                       ("loss_fn.force_on_policy_ratio=True", "changes old_logprobs from True, as planned"),
                       ("grpo.val_period=5", "")):  # fmt: skip
        edited = {**files, _FILE: f"{files[_FILE]}{line}\n"}
        checked = check_rl(grpo, edited)
        assert [problem.message for problem in checked.problems if text in problem.message] != [] or not text
        assert (line.partition("=")[0] in checked.not_judged) == (not text)
