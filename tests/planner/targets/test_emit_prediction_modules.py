"""torchtitan and modules for further tokens: its MTPDecoder, which stages and context parallelism do not split."""

from __future__ import annotations

import pytest
from meshwright.planner import api
from meshwright.planner.document.plan import Plan
from meshwright.planner.targets.check import check_files
from meshwright.planner.targets.emit import LayoutRefusedError, emit


def plan_of(layout: str, **changes: int) -> Plan:
    return api.evaluate(None, layout, model="deepseek-v3", cluster="dgx-h100:32", seq_len=4096, global_batch=1024,
                        **changes)  # type: ignore[arg-type]  # fields of a request


def test_their_loss_takes_the_list_of_logits() -> None:
    """torchtitan 0.3.0, models/deepseek_v3/mtp.py: MTPDecoder.forward returns a list, which MTPLoss takes."""
    layout = "dp256-ep64-mbs1-z3-rfull"
    files = emit(plan_of(layout), "torchtitan").files
    text = files["torchtitan_plan.py"]
    assert "num_mtp_layers=1" in text
    assert "loss=MTPLoss.Config(" in text
    assert "CrossEntropyLoss" not in text
    assert not check_files(files).problems
    without = emit(plan_of(layout, mtp_layers=0), "torchtitan").files["torchtitan_plan.py"]
    assert "loss=CrossEntropyLoss.Config(" in without
    assert "MTPLoss" not in without


@pytest.mark.parametrize(("layout", "degrees"), [
    ("pp16-dp16-ep16-mbs1-z2-rfull", r"pp 16, cp 1"), ("cp2g-dp128-ep64-mbs1-z3-rfull", r"pp 1, cp 2"),
])  # fmt: skip
def test_stages_and_context_parallelism_are_refused_beside_them(layout: str, degrees: str) -> None:
    with pytest.raises(LayoutRefusedError, match=rf"refuse pipelines and context parallelism \({degrees}\)"):
        emit(plan_of(layout), "torchtitan")


def test_a_model_without_them_has_stages() -> None:
    text = emit(plan_of("pp16-dp16-ep16-mbs1-z2-rfull", mtp_layers=0), "torchtitan").files["torchtitan_plan.py"]
    assert "pipeline_parallel_degree=16" in text
