"""Sentences of a plan on what no measurement gave."""

from __future__ import annotations

import pytest
from meshwright.planner.api import plan_serving


@pytest.mark.parametrize(("model", "stated"), [("qwen3-next-80b-a3b", 1), ("llama-3.1-8b", 0)])
def test_rates_of_recurrences_are_stated(model: str, stated: int) -> None:
    plan = plan_serving(model=model, cluster="4xh100-sxm-80gb", input=30_000, output=300, rate="0.1/s", ttft="60s",
                        tpot="200ms", fix={"tp": 4})  # fmt: skip
    assert sum("recurrences" in it for it in plan.assumptions) == stated
