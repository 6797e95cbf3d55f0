"""A target that cannot train a request: refused where it was asked for, else another one takes its place.

The property: whatever `plan` returns, `emit` accepts.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from meshwright.cli.main import main
from meshwright.planner import api
from meshwright.planner.document.plan import Plan
from meshwright.planner.targets.emit import emit
from meshwright.planner.targets.registry import TARGETS

from meshwright.errors import MeshwrightError, NoFeasibleLayoutError, UnsupportedError

SMALL: dict[str, Any] = {"gpu": "h100-sxm-80gb", "gpus": 4, "seq_len": 2048, "global_batch": 32}
DENSE, MOE = {"model": "llama-3.2-1b", **SMALL}, {"model": "qwen1.5-moe-a2.7b", **SMALL}
REQUESTS: dict[str, dict[str, Any]] = {
    "dense": DENSE,
    "moe": MOE,
    "lora": {**DENSE, "lora": 8},
    "last layers": {**DENSE, "train_layers": 2},
    "adapters and layers": {**DENSE, "lora": 8, "train_layers": 2},
    "fp8": {**DENSE, "dtype": "fp8"},
    "fp16": {**DENSE, "dtype": "fp16"},
    "8-bit adamw": {**DENSE, "optimizer": "adamw-8bit"},
    "parallel blocks": {**DENSE, "model": "gpt-j-6b"},
    "capacity": {**MOE, "expert_capacity_factor": 1.5},
    "pipeline of 3 stages": {**DENSE, "gpus": 3, "global_batch": 30, "fix": {"pp": 3}},
    "no sequence parallelism": {**DENSE, "fix": {"tp": 2, "sequence_parallel": False}},
    "zero++": {**DENSE, "technique": "zero++"},
    "zero++ of 4 bits": {**DENSE, "technique": "zero++:weight_bits=4"},
    "zero++ with tp": {**DENSE, "technique": "zero++", "fix": {"tp": 2}},
    "1-bit adam": {**DENSE, "technique": "1-bit-adam"},
    "1-bit adam of a run": {**DENSE, "technique": "1-bit-adam", "total_tokens": "1B"},
    "diloco": {**DENSE, "technique": "diloco"},
}
ABLE = [name for name, target in TARGETS.items() if target.trainer is not None]


def answer(target: str | None, request: dict[str, Any]) -> Plan | MeshwrightError:
    """The plan, or the refusal."""
    try:
        return api.plan(None, target=target, top=3, **request)
    except (UnsupportedError, NoFeasibleLayoutError) as error:
        return error


SLOW = ("moe", "capacity")


@pytest.mark.parametrize(
    "name", [pytest.param(name, marks=[pytest.mark.slow] if name in SLOW else []) for name in REQUESTS]
)
def test_emit_accepts_whatever_plan_returns(name: str) -> None:
    answers = {target: answer(target, REQUESTS[name]) for target in (None, *ABLE)}
    for target, result in answers.items():
        if isinstance(result, Plan):
            chosen = result.resolved["target"]
            assert target in (None, chosen)
            for choice in range(1, len(result.candidates) + 1):
                assert emit(result, chosen, choice=choice).files
        else:
            assert result.hint
            assert f"--target {target}`" not in result.hint
    # A request that some target answers is answered without one as well.
    assert isinstance(answers[None], Plan) == any(isinstance(result, Plan) for result in answers.values())


def test_a_target_that_was_asked_for_is_refused_with_reason_and_remedy(capsys: pytest.CaptureFixture[str]) -> None:
    words = ["plan", "--model", "llama-3.2-1b", "--gpu", "h100-sxm-80gb", "--gpus", "4", "--lora", "16"]
    assert main([*words, "--target", "accelerate"]) == 2
    said = capsys.readouterr()
    assert not said.out
    assert "accelerate cannot train llama-3.2-1b" in said.err
    assert "adapters belong to your script (peft)" in said.err
    assert "plan with `--target meshwright`" in said.err


def test_the_default_gives_way_and_the_plan_says_so(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = str(tmp_path / "plan.json")
    words = ["--model", "llama-3.2-1b", "--gpu", "h100-sxm-80gb", "--gpus", "4", "--dtype", "fp8"]
    assert main(["plan", *words, "-o", path]) == 0
    said = capsys.readouterr().err
    assert "planned for megatron-bridge, since meshwright, the default target, cannot train it" in said
    assert main(["emit", path]) == 0
    assert "fp8" in capsys.readouterr().out
    assert main(["explain", path, "--origins"]) == 0
    assert "meshwright cannot train it" in capsys.readouterr().out
