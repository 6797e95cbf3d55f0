"""Two spaces are said to hold the same layouts exactly where forming both gives the same ones."""

from __future__ import annotations

from dataclasses import replace
from functools import cache
from typing import Any

import numpy as np
import pytest
from meshwright.cost_models.layouts import encode
from meshwright.planner import api
from meshwright.planner.request.load import load_request
from meshwright.planner.request.resolve import Resolved, resolve
from meshwright.planner.search.tasks import Answer, Task, in_order
from meshwright.planner.space.rules import Rule, fixed, only
from meshwright.planner.space.same_layouts import same_layouts
from meshwright.planner.space.tree import Space

from ..search.test_search_exact import everything

SMALL: dict[str, Any] = {"model": "llama-3.2-1b", "gpu": "l40s", "gpus": 4, "global_batch": 4, "seq_len": 2048}


def found(target: str, **more: Any) -> Resolved:
    return resolve(load_request(None, {**SMALL, "target": target, **more}))


def ids(space: Space) -> set[str]:
    layouts = everything(space)
    return set() if layouts is None else {str(layouts.layout(row)) for row in range(len(layouts))}


@cache
def unlimited() -> tuple[Space, set[str]]:
    """All layouts that some framework runs, and their ids."""
    space = found("any").space
    return space, ids(space)


# One more rule of each level, and rules that exclude nothing: of a field, and of the values that it has anyway.
MORE: dict[str, Rule] = {
    "mesh": fixed("tp", 2, "tp=2"),
    "schedule": only("x", "schedule", ("1f1b",), ""),
    "recompute": fixed("recompute", encode("recompute", "full"), "full"),
    "states": fixed("zero", 1, "zero=1"),
    "shards": Rule("x", ("shard", "dp"), lambda x, problem: np.asarray(x["shard"] == x["dp"]), ""),
    "joint": Rule("x", ("zero", "schedule"), lambda x, problem: np.asarray((x["zero"] < 3) | (x["schedule"] == 0)), ""),
    "on some meshes": Rule("x", ("zero", "micro_batch", "offload"), lambda x, problem: np.asarray(
        (x["zero"] < 3) | (x["micro_batch"] < 4) | (x["offload"] == 0)), ""),
    "nothing of a mesh": Rule("x", ("tp",), lambda x, problem: np.asarray(x["tp"] > 0), ""),
    "nothing of a state": Rule("x", ("zero", "tp"), lambda x, problem: np.asarray(x["zero"] + x["tp"] > 0), ""),
}  # fmt: skip


@pytest.mark.parametrize("name", MORE)
def test_a_rule_makes_a_difference_where_it_excludes_something(name: str) -> None:
    space, layouts = unlimited()
    other = replace(space, rules=(*space.rules, MORE[name]))
    assert same_layouts(space, other) == same_layouts(other, space) == (layouts == ids(other))
    assert same_layouts(space, other) == name.startswith("nothing")


def test_targets_of_one_software_run_the_same_layouts() -> None:
    one, other = found("megatron"), found("megatron-bridge")
    assert not set(one.space.rules) <= set(other.space.rules)
    assert same_layouts(one.space, other.space)
    assert ids(one.space) == ids(other.space)


def test_other_software_and_other_sizes_are_others() -> None:
    megatron = found("megatron").space
    assert not same_layouts(megatron, found("megatron", global_batch=8).space)
    assert not same_layouts(megatron, found("torchtitan").space)


def test_a_twin_is_not_searched_and_has_the_answer(monkeypatch: pytest.MonkeyPatch) -> None:
    searched: list[str | None] = []

    def spied(pool: Any, tasks: list[Task], report: Any) -> list[Answer]:
        searched.extend(task.target for task in tasks)
        return in_order(pool, tasks, report)

    monkeypatch.setattr("meshwright.planner.drivers.other_targets.in_order", spied)
    asked: dict[str, Any] = {"model": "llama-3.1-8b", "cluster": "dgx-h100:1", "global_batch": 64}
    plans = {target: api.plan(**asked, target=target, fastest=True) for target in ("megatron", "torchtitan")}
    assert searched.count("megatron-bridge") == 0
    assert searched.count("megatron") == 1
    for plan in plans.values():
        assert plan.by_target is not None
        best = {best.target: (best.layout_id, best.step_s, best.device_bytes) for best in plan.by_target.best}
        assert best["megatron"] == best["megatron-bridge"]
    assert plans["megatron"].best.layout_id == best["megatron"][0]
