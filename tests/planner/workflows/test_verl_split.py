"""Splits of 128 H20 between trainer and engine (verl-project/verl@1dda039b, docs/advance/fully_async.md).

Its tables state no length of answers. At 1,400 tokens the update of the colocated run on 32 GPUs takes its measured
270 s; the run with the split is predicted by that length.
"""

from __future__ import annotations

from dataclasses import replace

import pytest
from meshwright.planner.request.reinforcement import RlRequest
from meshwright.planner.workflows.graph import graph_of
from meshwright.planner.workflows.meshes import Mesh
from meshwright.planner.workflows.prices import Prices
from meshwright.planner.workflows.resolve import rl_problem_of
from meshwright.planner.workflows.search import PlacementResult, price


def step(gpus: int, trainer: int, lag: int) -> PlacementResult | None:
    """DAPO of Qwen2.5-7B, 512 x 16 answers of at most 28k tokens, updates on 32 prompts, FSDP2."""
    request = RlRequest.model_validate({
        "model": "qwen2.5-7b", "gpu": "h20-sxm-96gb", "gpus": gpus, "trainer": "torchtitan",
        "workload": {"kind": "rl", "algorithm": "dapo", "prompts": 512, "samples": 16, "input": 256, "output": 1400,
                     "output_max": 28672, "updates": 16, "lag": lag},
    })  # fmt: skip
    rl = replace(rl_problem_of(request)[0], fixed={"train": {"tp": 1, "pp": 1, "zero": 3}})
    graph, engine = graph_of(rl.work), Mesh(trainer, gpus - trainer) if lag else Mesh(0, gpus)
    placement = {call.name: engine if call.kind == "generate" else Mesh(0, trainer) for call in graph}
    return price(Prices(rl), graph, placement, [trainer], rl.resolved.budget_bytes, lag)


def test_half_and_half_of_128_gpus() -> None:
    colocated, apart = step(32, 32, lag=0), step(128, 64, lag=1)
    assert colocated is not None
    assert apart is not None
    update = next(it for it in colocated.placed if it.call.name == "train")
    assert update.option.seconds == pytest.approx(269.8, rel=0.05)
    assert apart.step_s == pytest.approx(150.63, rel=0.2)


def test_half_and_half_is_better_than_a_quarter_that_trains() -> None:
    quarter, half = step(128, 32, lag=1), step(128, 64, lag=1)
    assert quarter is not None
    assert half is not None
    assert half.step_s < quarter.step_s
