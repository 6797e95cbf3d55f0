"""Sentences of a plan on what no measurement gave."""

from __future__ import annotations

import pytest
from meshwright.planner.api import plan_serving
from meshwright.profiles.stack.engines import shipped_engines


@pytest.mark.parametrize(("model", "mixers"), [("qwen3-next-80b-a3b", 36), ("llama-3.1-8b", 0)])
def test_seconds_of_recurrences_are_stated(model: str, mixers: int) -> None:
    """Three of four layers of Qwen3-Next have a recurrence (full_attention_interval 4 of 48 layers)."""
    plan = plan_serving(model=model, cluster="4xh100-sxm-80gb", input=30_000, output=300, rate="0.1/s", ttft="60s",
                        tpot="200ms", fix={"tp": 4})  # fmt: skip
    stated = [it for it in plan.assumptions if it.startswith("recurrences")]
    assert len(stated) == bool(mixers)
    if mixers:
        seconds = shipped_engines().constants.scan_s * mixers * 30_000
        assert f" {seconds:.2g} s of a mean prompt" in stated[0]
