"""The best layouts of other software: each is what that software, planned for, gives."""

from __future__ import annotations

import itertools
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from meshwright.planner import api
from meshwright.planner.document.plan import Plan
from meshwright.planner.document.reading import load_plan, read_plan
from meshwright.planner.drivers import families, other_targets
from meshwright.planner.search.outcome import SearchOutcome
from meshwright.planner.search.tasks import Answer
from meshwright.planner.space.tree import Count

from ...snapshots import run_here


def planned(target: str) -> Plan:
    return api.plan(model="llama-3.1-8b", cluster="dgx-h100:1", seq_len=8192, global_batch=64, target=target,
                    fastest=True)  # fmt: skip


@pytest.mark.parametrize("target", ["accelerate", "deepspeed", "meshwright"])
def test_a_faster_target_gives_what_it_is_said_to(target: str) -> None:
    plan = planned(target)
    assert plan.outside is not None
    (other,) = plan.outside.targets
    there = planned(other).candidates[0]

    assert (plan.outside.layout_id, plan.outside.step_s) == (there.layout_id, there.step_s)
    assert there.step_s < plan.candidates[0].step_s


def test_the_best_of_every_target_is_that_of_its_plan() -> None:
    plan = planned("meshwright")
    assert plan.by_target is not None
    first, *others = plan.by_target.best
    own = plan.best
    assert (first.target, first.layout_id, first.step_s) == ("meshwright", own.layout_id, own.step_s)
    assert {best.target for best in others} | set(plan.by_target.without) == set(own.targets) - {"meshwright"}
    for best in others:
        there = planned(best.target).best
        assert (best.layout_id, best.step_s, best.device_bytes) == (there.layout_id, there.step_s, there.device_bytes)


def test_targets_that_train_adapters_stand_for_the_one_they_are_built_on() -> None:
    """accelerate trains none by itself, TRL, LLaMA-Factory and Axolotl on it do. Else its row stands for theirs."""
    shared: dict[str, Any] = {"model": "qwen2.5-7b", "cluster": "1xrtx-4090", "seq_len": 2048, "global_batch": 16}
    plan = api.plan(**shared, lora=16)
    assert plan.by_target is not None
    built = {"trl", "llama-factory", "axolotl"}
    assert built == {best.target for best in plan.by_target.best} - {"meshwright"}
    assert built <= set(plan.best.targets)
    assert "adapters" in plan.by_target.without["accelerate"]
    (steps,) = {best.step_s for best in plan.by_target.best if best.target in built}
    assert steps == api.plan(**shared, lora=16, target="trl").best.step_s
    assert not built & set(planned("meshwright").best.targets)


def test_deepspeed_offloads_the_optimizer_of_a_single_gpu() -> None:
    """`offload_optimizer` belongs to ZeRO 1 and above, which DeepSpeed has for one rank as well."""
    shared: dict[str, Any] = {"model": "llama-3.2-1b", "cluster": "1xrtx-4090", "seq_len": 2048, "global_batch": 64}
    plan = api.plan(**shared, target="deepspeed")
    assert plan.best.layout["zero"] > 0
    assert plan.best.layout["offload"] == "opt"
    for stage in (0, 1, 3):
        assert api.plan(**shared, target="deepspeed", fix={"zero": stage}).best.layout["zero"] == stage


def test_the_fastest_target_names_no_other() -> None:
    plans = [planned(target) for target in ("accelerate", "deepspeed", "megatron", "torchtitan")]
    fastest = min(plans, key=lambda plan: plan.candidates[0].step_s)

    assert [plan for plan in plans if plan.outside is None] == [fastest]


def test_a_target_that_cannot_build_the_model_is_not_named() -> None:
    """Megatron would be the fastest, and `emit` refuses Gemma for it: scaled embeddings, GeGLU."""
    plan = api.plan(model="gemma-2-2b", cluster="dgx-h100:1", seq_len=8192, global_batch=64, target="accelerate")
    assert plan.outside is None or plan.outside.targets == ("deepspeed",)
    assert plan.by_target is not None
    assert "gemma2" in plan.by_target.without["megatron"]
    assert "megatron" not in {best.target for best in plan.by_target.best}


def test_ctrl_c_while_others_are_compared_keeps_the_proven_plan(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    """What runs after it (`make plan` emits) must not go on: the exit code is that of an interrupt."""

    def cut(pool: object, tasks: Sequence[object], report: object) -> list[Answer]:
        return [Answer((), Count(), "interrupted") for _ in tasks]

    monkeypatch.setattr(other_targets, "in_order", cut)
    model = ("--model", "llama-3.1-8b", "--cluster", "dgx-h100:1", "--global-batch", "64")
    result = run_here("plan", *model, "-o", "plan.json", cwd=tmp_path)
    kept = load_plan(tmp_path / "plan.json")
    assert result.code == 130
    assert kept.certificate.proven
    assert kept.interrupted
    assert "warning: interrupted before other targets were compared" in result.err
    assert "best layout so far" not in result.err


def test_ctrl_c_while_the_list_is_filled_up_is_told(monkeypatch: pytest.MonkeyPatch) -> None:
    """Few families are left where much is fixed: a second search lists the next best of each."""
    search, calls = families.search, itertools.count()

    def cut(*args: Any, **options: Any) -> SearchOutcome:
        found = search(*args, **options)
        return replace(found, stopped="interrupted") if next(calls) == 1 else found

    monkeypatch.setattr(families, "search", cut)
    asked: dict[str, Any] = {"model": "llama-3.1-8b", "cluster": "dgx-h100:1", "global_batch": 64, "top": 8}
    plan = api.plan(**asked, fix={"tp": 8, "recompute": "none", "micro_batch": 1})
    assert next(calls) == 2  # other targets are not searched after it
    assert plan.interrupted
    assert plan.warnings[-1] == "interrupted before the list was filled up"
    assert read_plan(plan.to_json(), "plan.json").interrupted
