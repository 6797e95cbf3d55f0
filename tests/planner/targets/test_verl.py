"""Files of verl: its release has every option; plans beyond its limits are refused, edited files are found."""

from __future__ import annotations

import shutil
import subprocess
from pathlib import Path
from typing import Any

import pytest
from meshwright.cost_models.layouts import Layout, parse
from meshwright.planner.api import plan_rl
from meshwright.planner.document.rl_plan import RlPlan
from meshwright.planner.request.reinforcement import RlRequest
from meshwright.planner.targets.post_training.check import check_rl
from meshwright.planner.targets.post_training.emit import emit_rl
from meshwright.planner.targets.verl.target import VERL
from meshwright.planner.workflows.resolve import rl_problem_of

from meshwright.errors import InputError, UnknownNameError, UnsupportedError

from ...snapshots import run_here
from .drawn_placements import drawn, planned

_FILE = "verl.overrides"


@pytest.fixture(scope="module")
def plans() -> list[RlPlan]:
    return planned()


@pytest.fixture(scope="module")
def grpo(plans: list[RlPlan]) -> RlPlan:
    return plans[0]


def settings(plan: RlPlan, choice: int = 1) -> dict[str, str]:
    lines = emit_rl(plan, "verl", choice).files[_FILE].splitlines()
    return dict(line.split("=", 1) for line in lines if not line.startswith("#"))


def choice_of(plan: RlPlan, *, lag: bool) -> int:
    return next(it.choice for it in plan.candidates if bool(it.lag) == lag)


def test_every_option_of_drawn_placements_is_one_of_its_release(plans: list[RlPlan]) -> None:
    for plan in drawn(plans, "verl", 100):
        files = emit_rl(plan, "verl", plan.best.choice).files
        assert check_rl(plan, files).problems == ()
        # utils/megatron_utils.py, ddp_config_dict has it off; the price has it on.
        trained = Layout.from_dict(next(it.layout or {} for it in plan.best.calls if it.name == "train"))
        overlaps = plan.resolved["trainer"] == "megatron" and trained.dp * trained.cp > 1
        assert ("megatron.override_ddp_config.overlap_grad_reduce=True" in files[_FILE]) == overlaps


def test_an_engine_beside_the_trainer_has_gpus_of_its_own(grpo: RlPlan) -> None:
    choice = choice_of(grpo, lag=True)
    options, placed = settings(grpo, choice), grpo.candidate(choice)
    assert options["trainer.v1.trainer_mode"] == "separate_async"
    assert options["actor_rollout_ref.hybrid_engine"] == "False"
    assert int(options["trainer.nnodes"]) * int(options["trainer.n_gpus_per_node"]) == placed.training_gpus
    rollout = [int(options[f"actor_rollout_ref.rollout.{name}"]) for name in ("nnodes", "n_gpus_per_node")]
    assert rollout[0] * rollout[1] == placed.rollout_gpus
    # trainer_separate_async.py asserts it.
    steps = int(options["trainer.v1.separate_async.parameter_sync_step"])
    mini = int(options["actor_rollout_ref.actor.ppo_mini_batch_size"])
    assert int(options["data.train_batch_size"]) == steps * mini


def test_a_colocated_engine_has_the_gpus_after_the_models_left_them() -> None:
    plan = plan_rl(algorithm="grpo", model="llama-3.2-1b", kl=True, cluster="4xh100-sxm-80gb", output=300, prompts=16,
                   target="verl")  # fmt: skip
    options = settings(plan)
    assert options["trainer.v1.trainer_mode"] == "sync"
    assert "actor_rollout_ref.rollout.nnodes" not in options
    assert options["actor_rollout_ref.actor.megatron.param_offload"] == "True"
    assert options["actor_rollout_ref.actor.use_kl_loss"] == "True"


def test_ppo_trains_a_critic_by_the_degrees_of_the_policy(plans: list[RlPlan]) -> None:
    [plan] = drawn(plans[1:2], "verl", 1)
    options = settings(plan, plan.best.choice)
    assert options["algorithm.adv_estimator"] == "gae"
    for name in ("tensor_model", "pipeline_model", "context", "expert_model"):
        key = f"megatron.{name}_parallel_size"
        assert options.get(f"critic.{key}") == options.get(f"actor_rollout_ref.actor.{key}")
    assert options["reward.reward_model.enable"] == "True"


def test_fsdp_trains_where_the_plan_is_for_it(plans: list[RlPlan]) -> None:
    [plan] = drawn(plans[2:3], "verl", 1)
    options = settings(plan, plan.best.choice)
    assert (options["model_engine"], options["actor_rollout_ref.actor.strategy"]) == ("dp", "fsdp2")
    assert options["actor_rollout_ref.rollout.name"] == "sglang"
    assert not any(".megatron." in name for name in options)


@pytest.mark.parametrize(
    ("change", "reason"),
    [
        ({"first_gpu": 0, "gpus": 2}, "reference is on GPUs 0-1, train on 0-"),
        ({"layout": {"zero": 1, "shard": 1}}, "shard 1 of dp"),
        ({"layout": {"precision": "fp8"}}, "precision fp8"),
        ({"layout": {"dp": 3}}, "train: dp 3 does not divide the 256 answers of an update"),
        ({"layout": {"zero": 2}}, "train: z2 by Megatron-FSDP, whose buffers verl cannot move"),
        ({"engine": {"pp": 2}}, "generate: pp 2"),
        ({"engine": {"ep": 8}}, "generate: ep 8 is not tp"),
    ],
)
def test_what_verl_lacks_is_refused_with_the_placement_that_it_has(
    grpo: RlPlan, change: dict[str, Any], reason: str
) -> None:
    choice = choice_of(grpo, lag=False)
    calls = []
    for call in grpo.candidate(choice).calls:
        touched = {"layout": "train", "engine": "generate"}.get(next(iter(change)), "reference")
        if call.name == touched and touched == "train":
            call = call.model_copy(update={"layout": {**(call.layout or {}), **change["layout"]}})
        elif call.name == touched and touched == "generate" and call.engine is not None:
            call = call.model_copy(update={"engine": call.engine.model_copy(update=change["engine"])})
        elif call.name == touched:
            call = call.model_copy(update=change)
        calls.append(call)
    changed = grpo.candidate(choice).model_copy(update={"calls": tuple(calls)})
    others = tuple(changed if it.choice == choice else it for it in grpo.candidates)
    with pytest.raises(UnsupportedError) as caught:
        emit_rl(grpo.model_copy(update={"candidates": others}), "verl", choice)
    assert reason in caught.value.message
    assert "`--choice " in caught.value.hint


@pytest.mark.parametrize(
    ("request_", "reason"),
    [
        ({"algorithm": "dpo"}, "dpo: main_ppo trains on answers that it generates"),
        ({"prompts": 15, "samples": 4, "updates": 4}, "prompts 15 are no multiple of updates 4"),
        ({"lag": 1, "reward": "llama-3.2-1b"}, "separate_async needs a reward model on GPUs of its own"),
    ],
)
def test_steps_that_verl_does_not_run(request_: dict[str, Any], reason: str) -> None:
    plan = plan_rl(**{"model": "llama-3.2-1b", "cluster": "2xh100-sxm-80gb", "output": 300, "prompts": 16, **request_})
    choice = max(plan.candidates, key=lambda it: it.lag).choice
    with pytest.raises(UnsupportedError) as caught:
        emit_rl(plan, "verl", choice)
    assert reason in caught.value.message


@pytest.mark.parametrize(("algorithm", "reason"), [
    ("cp8r", ""), ("cp8u", ""), ("cp8g", "cp by allgather: Transformer Engine before 2.18 refuses packed answers"),
    ("cp8ru", "cp by ring+ulysses: initialize_model_parallel gets no sizes of its levels"),
])  # fmt: skip
def test_context_parallelism_takes_packed_answers(algorithm: str, reason: str) -> None:
    request = RlRequest.model_validate({"model": "llama-3.1-8b", "cluster": "dgx-h100:2", "target": "verl",
        "workload": {"kind": "rl", "algorithm": "grpo", "prompts": 128, "output": 1000}})  # fmt: skip
    layout = parse(f"{algorithm}-dp2-mbs1-z1-rnone")
    found = VERL.limits.layouts(rl_problem_of(request)[0].step, False)
    assert [limit.explain(layout) for limit in found if limit.broken_by(layout)] == [reason] * bool(reason)


def test_an_edited_file_is_found_out(tmp_path: Path, grpo: RlPlan) -> None:
    (tmp_path / "rl.json").write_text(grpo.to_json())
    assert run_here("emit", "rl.json", "-d", "out", cwd=tmp_path).code == 0
    assert ": in order" in run_here("check", "out", cwd=tmp_path).out
    file = tmp_path / "out" / _FILE
    text = file.read_text()
    for right, wrong, said in (
        ("trainer.nnodes=", "+trainer.nnodes=", "is in its YAML, and `+` is for others"),
        ("trainer.nnodes=", "critic.fsdp.strategy=fsdp2\ntrainer.nnodes=", "is for model_engine=dp, not megatron"),
        ("for verl 0.9.1;", "for verl 0.8.0;", "line 2: for verl 0.8.0; options are those of 0.9.1"),
        ("trainer.nnodes", "trainer.nodes", "trainer.nodes: verl 0.9.1 (pypi) has no such option"),
        ("use_dynamic_bsz=True", "use_dynamic_bsz=yes please", "`yes please` is not true or false"),
        ("rollout.n=16", "rollout.n=8", "is 8; the plan has 16"),
        ("data.train_batch_size=16\n", "", "data.train_batch_size: missing; the plan has 16"),
        ("rollout.n=16", "rollout.n=16\nactor_rollout_ref.model.lora.rank=8", "trains adapters; the plan trains all"),
        ("rollout.n=16", "rollout.n=16\nactor_rollout_ref.model.lora_rank=8", "trains adapters; the plan trains all"),
        ("rollout.n=16", "rollout.n=16\nreward.reward_model.enable=True", "leaves the step open: reward.reward_model"),
        ("rollout.n=16", "rollout.n=16\nactor_rollout_ref.actor.ppo_epochs=2", "2 passes over the answers of a step"),
    ):
        file.write_text(text.replace(right, wrong))
        result = run_here("check", "out", cwd=tmp_path)
        assert (result.code, said in result.out) == (1, True), result.out
    file.write_text(f"{text}actor_rollout_ref.actor.clip_ratio=0.3\ntrainer.total_epochs=3\nactor_rollout_ref.model.lora_rank=0\n")
    result = run_here("check", "out", cwd=tmp_path)
    assert result.code == 0
    assert "not judged: actor_rollout_ref.actor.clip_ratio, trainer.total_epochs" in result.out
    file.write_text(text)
    script = tmp_path / "out" / "launch.sh"
    script.write_text(script.read_text().replace("set -euo pipefail\n", ""))
    assert "launch.sh: `set -euo pipefail` is missing" in run_here("check", "out", cwd=tmp_path).out
    script.unlink()
    assert "launch.sh: missing" in run_here("check", "out", cwd=tmp_path).out


def test_other_names_and_options_are_refused(tmp_path: Path, grpo: RlPlan) -> None:
    (tmp_path / "rl.json").write_text(grpo.to_json())
    with pytest.raises(UnknownNameError):
        emit_rl(grpo, "verrl")
    with pytest.raises(InputError, match="the plan has no placement 99"):
        emit_rl(grpo, "verl", 99)
    result = run_here("emit", "rl.json", "--launcher", "slurm", cwd=tmp_path)
    assert (result.code, "--launcher is for other plans" in result.err) == (2, True)


@pytest.mark.skipif(shutil.which("bash") is None, reason="launch.sh is a script of bash")
def test_the_script_gives_every_override_as_one_word(tmp_path: Path, grpo: RlPlan) -> None:
    files = emit_rl(grpo, "verl").files
    for name, text in files.items():
        spaced = text.replace("trainer.nnodes", "\n  # ours\n \n  trainer.nnodes")  # `check` takes such lines
        (tmp_path / name).write_text(spaced.replace("exec python3 -m verl.trainer.main_ppo", "printf '%s\\n'"))
    done = subprocess.run(["bash", str(tmp_path / "launch.sh"), "a=b c"], capture_output=True, text=True, check=True)
    expected = [line for line in files[_FILE].splitlines() if not line.startswith("#")]
    assert done.stdout.splitlines() == [*expected, "a=b c"]
