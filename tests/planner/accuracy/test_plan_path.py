"""Published runs as requests: pinned as a user would, a run has the price that `validate` gives it."""

from __future__ import annotations

from functools import cache
from typing import Any

import pytest
from meshwright.planner.accuracy.plan_path import EQUAL, PathOutcome, PathSummary, compared, request_of
from meshwright.planner.accuracy.row import Case
from meshwright.planner.accuracy.validate import predict
from meshwright.planner.api import plan
from meshwright.planner.request.load import Request

from .shipped import shipped_cases

TARGET = "megatron-bridge"
# Start of an id -> what it needs a request to state.
RUNS = {
    "bridge26.06-gb300-llama3.1-405b-256gpu-fp8-tp4": "the generation of the network, uneven stages",
    "bridge26.06-gb200-deepseek-v3": "graphs of the iteration",
    "bridge26.06-b300-gpt-oss-120b": "biases of experts, and their activation",
    "bridge26.02.01-h100-qwen3-30b-a3b": "a dispatcher that is not recorded",
    "bridge25.11-gb200-deepseek-v3-256gpu-bf16": "no multi-token prediction",
    "bridge25.09-b200-deepseek-v3": "a capacity of experts",
    "bridge25.09-b200-qwen3-30b-a3b": "a capacity of experts, in graphs of layers",
    "bridge25.09-h100-deepseek-v3": "weights that are gathered beside, and gradients that are not",
    "bridge-moonlight16b-8xh100": "collectives of tensor parallelism that are not recorded",
    "bridge-llama70b-sft-32xh100-tp4pp8dp1": "a distributed optimizer on its own",
}


@cache
def runs() -> dict[str, Case]:
    cases = shipped_cases()
    return {start: next(case for case in cases if case.id.startswith(start)) for start in RUNS}


def step_of(request: Request) -> float:
    return plan(request, fastest=True).best.closed_s


@pytest.mark.parametrize("start", RUNS)
def test_a_run_and_its_plan_have_one_price(start: str) -> None:
    outcome = compared(runs()[start], TARGET, step_of)
    assert outcome.refused is None
    assert outcome.plan_step_s == pytest.approx(outcome.run_step_s, rel=EQUAL)


@pytest.mark.parametrize(
    ("start", "change"),
    [
        ("bridge25.11-gb200-deepseek-v3-256gpu-bf16", {"mtp_layers": None}),
        ("bridge25.09-b200-deepseek-v3", {"expert_capacity_factor": None}),
        ("bridge-moonlight16b-8xh100", {"fix.tp_comm_overlap": "on"}),
        ("bridge26.02.01-h100-qwen3-30b-a3b", {"fix.moe_dispatcher": "deepep"}),
        ("bridge-moonlight16b-8xh100", {"stack": "megatron-core-2025"}),
    ],
)  # fmt: skip
def test_a_pin_matters(start: str, change: dict[str, Any]) -> None:
    """Without it, or otherwise, the plan is another one."""
    request = request_of(runs()[start], TARGET)
    for name, value in change.items():
        if name.startswith("fix."):
            request = request.model_copy(update={"fix": {**request.fix, name.removeprefix("fix."): value}})
        elif name == "stack":
            request = request.model_copy(update={name: value})
        else:
            workload = request.workload.model_copy(update={name: value})
            request = request.model_copy(update={"workload": workload})
    assert step_of(request) != pytest.approx(predict(runs()[start]).step_s, rel=EQUAL)


def test_what_differs_or_has_no_plan_is_counted() -> None:
    outcomes = [
        PathOutcome(id="same", run_step_s=1.0, plan_step_s=1.0005),
        PathOutcome(id="slower", run_step_s=1.0, plan_step_s=1.25),
        PathOutcome(id="none", run_step_s=1.0, plan_step_s=None, refused="no layout"),
    ]
    summary = PathSummary.of(outcomes)
    assert (summary.rows, summary.equal, summary.largest_difference) == (3, 1, 1.0)
    assert (summary.differ, summary.refused) == ({"slower": 0.25}, {"none": "no layout"})
