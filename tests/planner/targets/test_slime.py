"""Files of slime: its parser has every option, they state the plan, and `emit` refuses plans that
it does not run."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from meshwright.cost_models.layouts import CP_ALGORITHMS, RECOMPUTE_MODES, Layout
from meshwright.planner.api import plan_rl
from meshwright.planner.document.rl_plan import RlPlan
from meshwright.planner.targets.post_training.check import check_rl
from meshwright.planner.targets.post_training.emit import emit_rl
from meshwright.planner.targets.post_training.setup import RlSetup

from meshwright.errors import UnsupportedError

from ...snapshots import run_here
from .drawn_placements import drawn

_FILE = "slime.args"
_REQUEST: dict[str, Any] = {"algorithm": "grpo", "model": "qwen3-0.6b", "cluster": "4xh100-sxm-80gb", "output": 300,
                            "prompts": 16, "lag": 1, "engine": "sglang"}  # fmt: skip
_PPO: dict[str, Any] = {**_REQUEST, "algorithm": "ppo", "lag": 0, "reward": "rule", "cluster": "2xh100-sxm-80gb"}


@pytest.fixture(scope="module")
def plans() -> list[RlPlan]:
    experts = {**_REQUEST, "model": "qwen1.5-moe-a2.7b", "kl": True, "cluster": "2xh100-sxm-80gb"}
    return [plan_rl(**it) for it in (_REQUEST, _PPO, experts)]


def settings(plan: RlPlan, choice: int) -> dict[str, Any]:
    """Option -> its words, True without any."""
    lines = [line.split(" ") for line in emit_rl(plan, "slime", choice).files[_FILE].splitlines() if line[0] != "#"]
    assert len({name for name, *_ in lines}) == len(lines)
    return {name: " ".join(words) if words else True for name, *words in lines}


def test_files_state_the_plan(plans: list[RlPlan]) -> None:
    for plan in drawn(plans, "slime", 60):
        placed, work = plan.best, plan.request["workload"]
        files = emit_rl(plan, "slime", placed.choice).files
        assert check_rl(plan, files).problems == ()
        given = settings(plan, placed.choice)
        train = next(call for call in placed.calls if call.name == "train")
        generate = next(call for call in placed.calls if call.name == "generate")
        layout, engine = Layout.from_dict(train.layout or {}), generate.engine
        assert engine is not None
        number = {name: int(given.get(f"--{name}-parallel-size", 1))
                  for name in ("tensor-model", "pipeline-model", "context", "expert-model")}  # fmt: skip
        assert list(number.values()) == [layout.tp, layout.pp, layout.cp, layout.ep]
        actors = int(given["--actor-num-nodes"]) * int(given["--actor-num-gpus-per-node"])
        assert actors == layout.tp * layout.pp * layout.cp * layout.dp == train.gpus
        assert ("--colocate" in given) == (placed.lag == 0) == ("train_async.py" not in files["launch.sh"])
        assert given.get("--rollout-num-gpus") == (str(generate.gpus) if placed.lag else None)
        assert int(given["--rollout-num-gpus-per-engine"]) * engine.instances == generate.gpus
        assert given.get("--sglang-dp-size", "1") == str(engine.attention_dp)
        answers = int(given["--rollout-batch-size"]) * int(given["--n-samples-per-prompt"])
        assert answers == work["prompts"] * (work["samples"] or {"ppo": 1}.get(work["algorithm"], 16))
        longest = work["input"] + int(given["--rollout-max-response-len"])
        assert int(given["--max-tokens-per-gpu"]) * layout.cp >= longest
        # build_dp_schedule of slime 0.3.1: micro-batches are a multiple of `align_to`, each with an answer.
        align_to = layout.dp * (layout.pp if layout.vpp > 1 else 1)
        assert int(given["--global-batch-size"]) % align_to == 0
        assert given.get("--recompute-granularity", "none") == RECOMPUTE_MODES[layout.recompute]
        # Megatron-LM has both off unless they are given; the price has them on.
        assert ("--overlap-grad-reduce" in given) == (layout.dp * layout.cp > 1)
        assert ("--moe-permute-fusion" in given) == ("moe" in plan.resolved["models"]["policy"]["name"])
        assert ("--use-kl-loss" in given) == any(call.role == "reference" for call in placed.calls)
        assert given["--advantage-estimator"] == work["algorithm"]


@pytest.mark.parametrize(
    ("layout", "reason"),
    [
        ({"zero": 3}, "train: z3: the optimizer is always sharded"),
        ({"zero": 0, "tp": 1, "dp": 2, "shard": 2}, "train: z0: the optimizer is always sharded"),
        ({"cp": 2, "cp_algorithm": "ulysses"}, "train: cp by ulysses: slime cuts sequences for ring"),
        ({"precision": "fp8"}, "precision fp8"),
        ({"tp": 1, "dp": 2, "shard": 2, "pp": 3, "vpp": 2}, "vpp 2 with dp 2 and pp 3: the 256 answers of an update"),
    ],
)
def test_layouts_that_it_lacks_are_refused(plans: list[RlPlan], layout: dict[str, Any], reason: str) -> None:
    plan = plans[0]
    train = next(call for call in plan.best.calls if call.name == "train")
    changed = train.model_copy(update={"layout": {**(train.layout or {}), **layout}})
    calls = tuple(changed if call.name == "train" else call for call in plan.best.calls)
    others = (plan.best.model_copy(update={"calls": calls}), *plan.candidates[1:])
    with pytest.raises(UnsupportedError) as caught:
        emit_rl(plan.model_copy(update={"candidates": others}), "slime", plan.best.choice)
    assert reason in caught.value.message


@pytest.mark.parametrize(
    ("request_", "reason"),
    [
        ({"algorithm": "dpo"}, "dpo: slime trains on answers that it generates"),
        ({"engine": "vllm"}, "vllm: slime generates with sglang"),
        ({"trainer": "torchtitan"}, "trainer torchtitan: slime trains by Megatron-LM"),
        ({"reward": "llama-3.2-1b"}, "reward: slime asks a reward model by its URL"),
        ({"model": "gpt2"}, "model gpt2: slime and arguments of Megatron-LM know"),
        ({**_PPO, "critic": "qwen2.5-0.5b"}, "critic: slime builds it by the arguments of the policy"),
    ],
)
def test_steps_that_it_does_not_run(request_: dict[str, Any], reason: str) -> None:
    with pytest.raises(UnsupportedError) as caught:
        plan_rl(**{**_REQUEST, "cluster": "2xh100-sxm-80gb", "lag": 0, **request_}, target="slime")
    assert reason in caught.value.message


def test_a_lag_is_planned_up_to_one_step() -> None:
    plan = plan_rl(**{**_REQUEST, "lag": 2}, target="slime")
    assert {it.lag for it in plan.candidates} == {0, 1}
    assert any("slime 0.3.1 cannot run lag 2: lag 2: train_async.py" in text for text in plan.warnings)


def test_a_critic_trains_by_the_layout_of_the_policy() -> None:
    plan = plan_rl(**_PPO, target="slime")
    one, other = (next(call.layout for call in plan.best.calls if call.name == name)
                  for name in ("train", "train-critic"))  # fmt: skip
    assert one == other
    apart = RlSetup.of(plan, 1, "plan")
    assert apart.calls["train-critic"].first_gpu == apart.train.first_gpu
    assert "--use-rollout-logprobs" in settings(plan, 1)


def test_an_edited_file_is_found_out(tmp_path: Path, plans: list[RlPlan]) -> None:
    (tmp_path / "rl.json").write_text(plans[0].to_json())
    assert run_here("emit", "rl.json", "--to", "slime", "-d", "out", cwd=tmp_path).code == 0
    assert ": in order" in run_here("check", "out", cwd=tmp_path).out
    file = tmp_path / "out" / _FILE
    text = file.read_text().replace("--rollout-batch-size 16", "--rolout-batch-size 16")
    text = text.replace("--n-samples-per-prompt 16", "--n-samples-per-prompt many") + "stray words\n--router-policy x\n"
    file.write_text(text)
    result = run_here("check", "out", "--json", cwd=tmp_path)
    found = [(it["field"], it["message"]) for it in json.loads(result.out)["items"][0]["problems"]]
    assert result.code == 1
    assert ("--rollout-batch-size", "missing; the plan has 16") in found
    assert ("--n-samples-per-prompt", "`many` is not a whole number") in found
    assert any(text == "`stray words` is no option" for _, text in found)
    assert any(name == "--rolout-batch-size" and "has no such option" in text for name, text in found)
    assert all(name != "--router-policy" for name, _ in found)


def test_context_parallelism_divides_the_tokens_of_a_gpu(plans: list[RlPlan]) -> None:
    cut = [plan for plan in drawn(plans, "slime", 60, seed=3)
           if (plan.best.calls[-1].layout or {}).get("cp", 1) > 1]  # fmt: skip
    assert cut
    for plan in cut:
        train = next(call for call in plan.best.calls if call.name == "train")
        assert CP_ALGORITHMS[Layout.from_dict(train.layout or {}).cp_algorithm] == "ring"
        assert settings(plan, plan.best.choice)["--cp-comm-type"] == "p2p"
