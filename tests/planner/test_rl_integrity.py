"""Plans of post-training with a missing or odd field are refused where they are read, with the path of the field."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from meshwright.planner.api import plan_rl
from meshwright.planner.document.reading import load_rl_plan
from meshwright.planner.document.rl_plan import RlPlan

from meshwright.errors import InputError


@pytest.fixture(scope="module")
def plan() -> RlPlan:
    return plan_rl(model="llama-3.2-1b", cluster="2xh100-sxm-80gb", output=300, prompts=16, kl=True)


def edited(plan: RlPlan, path: str, value: Any) -> str:
    """The plan with a new value at a path, or without the field (KeyError). Its digest is right."""
    document = json.loads(plan.to_json())
    *parents, last = path.split(".")
    part = document
    for name in parents:
        part = part[int(name)] if isinstance(part, list) else part[name]
    if value is KeyError:
        del part[int(last) if isinstance(part, list) else last]
    else:
        part[last] = value
    return RlPlan.model_validate(document).to_json()


@pytest.mark.parametrize(
    ("path", "value", "field"),
    [
        ("resolved.answers", KeyError, "resolved.answers"),
        ("resolved.answers.per_step", "x", "resolved.answers.per_step"),
        ("resolved.answers.longest", KeyError, "resolved.answers.longest"),
        ("resolved.models", 3, "resolved.models"),
        ("resolved.models.policy", KeyError, "resolved.models.policy"),
        ("resolved.models.policy.name", KeyError, "resolved.models.policy.name"),
        ("resolved.cluster.groups", KeyError, "resolved.cluster.groups"),
        ("resolved.cluster.groups", [], "resolved.cluster.groups"),
        ("resolved.cluster.groups.0.gpu.memory_bytes", KeyError, "resolved.cluster.groups.0.gpu.memory_bytes"),
        ("resolved.trainer", KeyError, "resolved.trainer"),
        ("resolved.engine", None, "resolved.engine"),
        ("candidates.0.choice", 2, "candidates.0.choice"),
        ("candidates.0.step_s", 0.0, "candidates.0.step_s"),
        ("candidates.0.calls.0", KeyError, "candidates.0.calls.0.after"),
        ("candidates.0.calls.0.engine", None, "candidates.0.calls.0.engine"),
        ("candidates.0.calls.0.gpus", 1, "candidates.0.calls.0.gpus"),
        ("candidates.0.calls.1.layout", {}, "candidates.0.calls.1.layout"),
        ("candidates.0.calls.1.layout", {"tp": "x"}, "candidates.0.calls.1.layout"),
        ("candidates.0.calls.1.layout_id", None, "candidates.0.calls.1.layout_id"),
        ("candidates.0.calls.1.layout_id", "tp2", "candidates.0.calls.1.layout_id"),
        ("candidates.0.calls.1.gpus", 1, "candidates.0.calls.1.gpus"),
        ("candidates.0.calls.1.resident_bytes", {"critic": 1.0}, "candidates.0.calls.1.resident_bytes"),
        ("candidates.0.calls.2.name", "other", "candidates.0.calls"),
    ],
)
def test_an_odd_field_is_named(tmp_path: Path, plan: RlPlan, path: str, value: Any, field: str) -> None:
    assert [call.name for call in plan.best.calls] == ["generate", "reference", "train"]
    file = tmp_path / "rl.json"
    file.write_text(plan.to_json())
    assert load_rl_plan(file).best.placement_id == plan.best.placement_id
    file.write_text(edited(plan, path, value))
    with pytest.raises(InputError) as caught:
        load_rl_plan(file)
    assert field in {problem.field for problem in caught.value.problems}


def test_all_odd_fields_are_named_at_once(tmp_path: Path, plan: RlPlan) -> None:
    once = RlPlan.model_validate_json(edited(plan, "resolved.trainer", KeyError))
    (tmp_path / "rl.json").write_text(edited(once, "candidates.0.calls.0.engine", None))
    with pytest.raises(InputError) as caught:
        load_rl_plan(tmp_path / "rl.json")
    assert {problem.field for problem in caught.value.problems} == {"resolved.trainer", "candidates.0.calls.0.engine"}
