"""Experts that drop tokens: written where a framework can, read back, and refused by field elsewhere."""

from __future__ import annotations

from pathlib import Path

import pytest
from meshwright.planner import api
from meshwright.planner.document.plan import Plan
from meshwright.planner.importing import import_config
from meshwright.planner.targets.check import check_files
from meshwright.planner.targets.emit import LayoutRefusedError, emit

LINES = ["--moe-expert-capacity-factor 1.25", "--moe-pad-expert-input-to-capacity"]


def planned(target: str, layout_id: str = "tp2-dp8-ep4-mbs1-z1-rfull", factor: float | None = 1.25) -> Plan:
    return api.evaluate(None, layout_id, model="mixtral-8x7b", cluster="dgx-h100:2", seq_len=4096, global_batch=64,
                        target=target, expert_capacity_factor=factor)  # fmt: skip


@pytest.mark.parametrize(("target", "name", "lines"), [
    ("megatron", "megatron.args", LINES),
    ("megatron-bridge", "bridge_plan.py",
     ["moe_expert_capacity_factor=1.25,", "moe_pad_expert_input_to_capacity=True,"]),
])  # fmt: skip
def test_it_is_written_and_an_edit_is_named(target: str, name: str, lines: list[str]) -> None:
    files = emit(planned(target), target).files
    assert set(lines) <= {line.strip() for line in files[name].splitlines()}
    assert not check_files(files).problems
    edited = {**files, name: files[name].replace("1.25", "1.5")}
    (problem,) = check_files(edited).problems
    assert "expert_capacity_factor is 1.5, plan.json has 1.25" in problem.message
    plain = emit(planned(target, factor=None), target).files[name]
    assert "capacity" not in plain


def test_it_is_read_back(tmp_path: Path) -> None:
    path = tmp_path / "megatron.args"
    path.write_text(emit(planned("megatron"), "megatron").files["megatron.args"], encoding="utf-8")
    found = import_config("megatron-args", [path], {"cluster": "dgx-h100:2"})
    assert found.request.workload.expert_capacity_factor == 1.25


@pytest.mark.parametrize("target", ["torchtitan", "deepspeed", "accelerate"])
def test_others_refuse_it_by_field(target: str) -> None:
    with pytest.raises(LayoutRefusedError, match=r"workload\.expert_capacity_factor: "):
        emit(planned("any", "dp16-mbs1-z3-rfull"), target)
