"""Plans for a framework of post-training: it runs each of their placements, and they are no faster than others."""

from __future__ import annotations

import random
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from meshwright.planner.api import plan_rl
from meshwright.planner.document.rl_plan import RlPlan
from meshwright.planner.request.reinforcement import RlRequest
from meshwright.planner.serving.instance import InstanceLayout
from meshwright.planner.targets.post_training.emit import emit_rl
from meshwright.planner.targets.post_training.limits import BF16, LayoutLimit, Limits
from meshwright.planner.targets.post_training.registry import RL_TARGETS
from meshwright.planner.targets.post_training.setup import RlSetup
from meshwright.planner.workflows.prices import Prices
from meshwright.planner.workflows.resolve import rl_problem_of

from meshwright.errors import NoFeasibleLayoutError, UnknownNameError, UnsupportedError

from ...snapshots import run_here

_SMALL: dict[str, Any] = {"model": "llama-3.2-1b", "cluster": "4xh100-sxm-80gb", "output": 300, "prompts": 16}
_NODES: dict[str, Any] = {"model": "llama-3.1-8b", "cluster": "dgx-h100:2", "output": 1000, "prompts": 64, "lag": 1}
_DRAWS = 6


_LLAMA, _QWEN = ("llama-3.2-1b", "llama-3.2-3b"), ("qwen2.5-0.5b", "qwen3-0.6b")
# Framework -> the engine that it starts, another, models that it may train, and a further trainer.
_RUNS = {"slime": ("sglang", "vllm", _QWEN, "megatron-bridge"), "areal": ("sglang", "vllm", _LLAMA, "torchtitan"),
         "openrlhf": ("vllm", "sglang", _LLAMA, "megatron")}


def request(numbers: random.Random, to: str) -> dict[str, Any]:
    """A step that a framework may run or not."""
    engine, other, models, trainer = _RUNS.get(to, ("vllm", "sglang", _LLAMA, "torchtitan"))
    usual = "deepspeed" if to == "openrlhf" else "megatron"
    algorithm = numbers.choice(("grpo", "grpo", "grpo", "dapo", "ppo"))
    drawn = {
        "algorithm": algorithm, "lag": numbers.choice((0, 1, 2)), "updates": numbers.choice((1, 2)),
        "model": numbers.choice(models), "kl": numbers.random() < 0.5,
        "cluster": numbers.choice(("2xh100-sxm-80gb", "4xh100-sxm-80gb")),
        "trainer": numbers.choice((usual, usual, trainer)), "reward": "rule",
        "engine": numbers.choice((*[engine] * 3, other)),
    }  # fmt: skip
    if numbers.random() < 0.2:
        drawn["reward"] = "llama-3.2-1b"
    return {**_SMALL, **drawn, **({"critic": models[0]} if algorithm == "ppo" else {})}


def runs_each(plan: RlPlan, to: str) -> bool:
    return all(emit_rl(plan, to, it.choice).files for it in plan.candidates)


@pytest.mark.parametrize("to", RL_TARGETS)
def test_drawn_plans_for_a_framework_are_all_written(to: str) -> None:
    numbers = random.Random(1)
    planned = 0
    for _ in range(_DRAWS):
        asked = request(numbers, to)
        free = plan_rl(**asked)
        try:
            plan = plan_rl(**asked, target=to)
        except UnsupportedError:
            for it in free.candidates:
                assert RL_TARGETS[to].refusals(RlSetup.of(free, it.choice, "plan"))
            continue
        planned += 1
        assert runs_each(plan, to)
        scored = "logprobs" in {call.name for call in plan.best.calls}  # some frameworks always score answers first
        if scored != ("logprobs" in {call.name for call in free.best.calls}):
            work = {**free.request["workload"], "old_logprobs": scored}
            free = plan_rl(RlRequest.model_validate({**free.request, "workload": work}, context={"canonical": True}))
        assert plan.best.step_s >= free.certificate.lower_bound_s * (1 - 1e-9)
        space = plan.certificate.space
        assert space.total == free.certificate.space.total
        left = space.dominated + space.out_of_memory + space.bounded + space.priced + space.unvisited
        assert space.total == left + sum(space.ruled_out.values())
        assert set(space.ruled_out) == {to}
    assert planned > 1


def test_a_limit_that_the_search_does_not_keep_is_found(monkeypatch: pytest.MonkeyPatch) -> None:
    """The search without the limits of layouts and engines finds a placement that the emitter refuses."""
    target = RL_TARGETS["nemo-rl"]
    sharded = LayoutLimit(("zero",), lambda x: x["zero"] == 3, "z{zero}")  # NeMo-RL has no Megatron-FSDP
    lax = Limits(step=target.limits.step, layouts=lambda step, leaves: (BF16, sharded), engine=lambda engine, lag: [])
    with monkeypatch.context() as patch:
        patch.setitem(RL_TARGETS, "nemo-rl", replace(target, limits=lax))
        plan = plan_rl(**_NODES, target="nemo-rl")
    with pytest.raises(UnsupportedError) as caught:
        runs_each(plan, "nemo-rl")
    assert "`plan --target nemo-rl` plans the placements that nemo-rl runs" in caught.value.hint
    assert runs_each(plan_rl(**_NODES, target="nemo-rl"), "nemo-rl")


def test_an_engine_of_experts_keeps_to_the_limits_of_the_asynchronous_one() -> None:
    asked = {"model": "qwen3-30b-a3b", "cluster": "dgx-h100:8",
             "workload": {"kind": "rl", "output": 2000, "output_max": 8192, "lag": 1}}  # fmt: skip

    def engine(lag: int, **target: str) -> InstanceLayout:
        question = replace(rl_problem_of(RlRequest.model_validate({**asked, **target}))[0], ray_engine=False)
        option = Prices(question).generate(48, lag)
        assert option is not None
        assert option.instance is not None
        return option.instance.layout

    free, limited = engine(1), engine(1, target="nemo-rl")
    assert free.ep > free.tp
    assert limited.ep <= limited.tp
    assert engine(0, target="nemo-rl") == free


def test_a_critic_of_another_model_has_the_degrees_of_the_policy() -> None:
    asked = {**_NODES, "algorithm": "ppo", "critic": "llama-3.2-1b", "reward": "rule", "lag": 0, "target": "verl"}
    plan = plan_rl(**asked)
    assert runs_each(plan, "verl")
    one, other = (next(call.layout for call in plan.best.calls if call.name == name)
                  for name in ("train", "train-critic"))  # fmt: skip
    assert one is not None
    assert other is not None
    assert {one[name] == other[name] for name in ("tp", "pp", "vpp", "cp", "ep", "etp")} == {True}


def test_a_lag_that_it_does_not_run_is_left_out_with_a_warning() -> None:
    plan = plan_rl(**_SMALL, target="verl", lag=1, reward="llama-3.2-1b")
    assert {it.lag for it in plan.candidates} == {0}
    assert any("verl 0.9.1 cannot run lag 1: reward: separate_async needs" in text for text in plan.warnings)


def test_a_step_that_it_does_not_run_is_refused_before_the_search() -> None:
    with pytest.raises(UnsupportedError) as caught:
        plan_rl(**_SMALL, algorithm="dpo", target="verl")
    assert "verl 0.9.1 cannot run this step\ndpo: main_ppo trains on answers" in caught.value.message


def test_layouts_of_the_framework_that_do_not_fit_name_it() -> None:
    with pytest.raises(NoFeasibleLayoutError) as caught:
        plan_rl(**{**_SMALL, "cluster": "1xh100-sxm-80gb", "model": "llama-3.1-8b"}, target="verl")
    assert "the policy cannot be trained in any layout that verl 0.9.1 runs: " in caught.value.message


@pytest.mark.parametrize("name", ["megatron", "verrl"])
def test_other_names_are_refused_with_those_that_exist(name: str) -> None:
    with pytest.raises(UnknownNameError) as caught:
        plan_rl(**_SMALL, target=name)
    assert caught.value.message == f"unknown framework of post-training `{name}`"
    assert caught.value.hint == "known: verl, nemo-rl, slime, areal, openrlhf"


def test_the_command_plans_and_writes_for_the_framework(tmp_path: Path) -> None:
    flags = ("--workload", "grpo", "--model", "llama-3.2-1b", "--cluster", "2xh100-sxm-80gb", "--output", "300")
    planned = run_here("plan", *flags, "--target", "nemo-rl", "-o", "rl.json", cwd=tmp_path)
    assert planned.code == 0, planned.err
    assert "megatron and vllm in nemo-rl" in " ".join(planned.out.split())
    assert "no other placement that nemo-rl runs is faster" in " ".join(planned.out.split())
    written = run_here("emit", "rl.json", "-d", "run", cwd=tmp_path)
    assert written.code == 0, written.err
    assert (tmp_path / "run" / "nemo-rl.overrides").is_file()


@pytest.mark.slow
def test_verl_shards_gradients_of_a_policy_that_stays_beside_its_reference() -> None:
    """Megatron-FSDP is refused where the model leaves its GPUs; with lag the reference has room beside it."""
    plan = plan_rl(**{**_NODES, "kl": True}, target="verl")
    beside = next(it for it in plan.candidates if it.lag)
    train = next(call for call in beside.calls if call.name == "train")
    assert (train.layout or {})["zero"] == 2
    assert all("policy" in call.resident_bytes for call in beside.calls if call.name == "reference")
    assert runs_each(plan, "verl")
    left = [call.model_copy(update={"resident_bytes": {}}) for call in beside.calls]
    moved = plan.model_copy(update={"candidates": (beside.model_copy(update={"calls": tuple(left)}),)})
    with pytest.raises(UnsupportedError, match="whose buffers verl cannot move"):
        emit_rl(moved, "verl", beside.choice)
