"""The first layout of a plan is the fastest by the simulator, of all that the search keeps near its best."""

from __future__ import annotations

from typing import Any

import pytest
from meshwright.planner.drivers import simulated_order
from meshwright.planner.drivers.alternatives import FAMILIES
from meshwright.planner.drivers.families import best_of_families
from meshwright.planner.drivers.simulated_order import WINDOW, SimulatedOrder
from meshwright.planner.drivers.watch import Watch
from meshwright.planner.evaluation.staged import Staged
from meshwright.planner.request.load import load_request
from meshwright.planner.request.resolve import resolve
from meshwright.planner.search.executors import Here

from meshwright import plan

DEEP: dict[str, Any] = {"model": "llama-3.1-405b", "cluster": "dgx-h100:2048", "target": "megatron",
                        "fix": ["micro_batch=1", "zero=1"]}  # fmt: skip
SHALLOW: dict[str, Any] = {"model": "llama-3.1-8b", "cluster": "dgx-h100:2", "global_batch": 128, "seq_len": 8192,
                           "fix": ["pp=4"]}  # fmt: skip
# The layout with its best closed form takes 3.8 % longer than the best by the simulator.
FEW: dict[str, Any] = {**SHALLOW, "global_batch": 32, "fix": ["pp=8"]}
_BOUND = 1e-3  # regret


def regret(fields: dict[str, Any]) -> tuple[float, SimulatedOrder]:
    """How much longer the first layout takes than the fastest that the search kept, as a share; all are simulated."""
    resolved = resolve(load_request(None, fields))
    watch = Watch(None, None, Here())
    order = SimulatedOrder(resolved, best_of_families(resolved, watch, FAMILIES, WINDOW)).run(watch)
    _, kept = order.outcome.top.kept
    steps = [Staged.of(resolved, kept.layout(row), simulate=True).step_s for row in range(len(kept))]
    return order.rows[0][0] / min(steps) - 1, order


@pytest.mark.parametrize("fields", [DEEP, SHALLOW, FEW], ids=["deep", "shallow", "few"])
def test_no_layout_near_the_best_is_faster(fields: dict[str, Any]) -> None:
    loss, order = regret(fields)
    assert loss < _BOUND
    assert order.simulated <= len(order.outcome.top.rows) + simulated_order.MOST_RUNS
    assert order.leaders[0] == order.rows[0]


@pytest.mark.slow
def test_an_order_without_runs_is_seen(monkeypatch: pytest.MonkeyPatch) -> None:
    """The closed form alone puts a slower layout first."""
    monkeypatch.setattr(Staged, "is_simulated", False)
    resolved = resolve(load_request(None, FEW))
    first = best_of_families(resolved, Watch(None, None, Here()), FAMILIES).top.rows[0][2]
    monkeypatch.undo()
    assert regret(FEW)[1].rows[0][0] < Staged.of(resolved, first, simulate=True).step_s * (1 - _BOUND)


def test_the_plan_lists_simulated_steps_and_says_what_is_proven() -> None:
    chosen = plan(**DEEP, fastest=True)
    assert all(candidate.closed_form_s is not None for candidate in chosen.candidates)
    assert chosen.best.step_s == min(candidate.step_s for candidate in chosen.candidates)
    proof = chosen.certificate
    assert proof.proven
    assert (proof.kept or 0) > 1
    assert 0 < (proof.kept_within or 0) <= WINDOW
    assert proof.space.simulated >= len(chosen.candidates)
