"""The lines of a run that do not come from its ranks: the time that is left, and the end."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest
from meshwright.cli.screens.launch import left_text, summary_line

from ..runtime.jobs import job

JOB = job("dp1-mbs1-z0-rnone", predicted_step_s=0.5)


def steps(first: int, seconds: list[float], **more: float) -> list[dict[str, Any]]:
    return [{"step": first + index, "loss": 4.0 - index / 4, "step_s": step_s, "tokens_per_s": 48 / step_s, **more}
            for index, step_s in enumerate(seconds)]  # fmt: skip


@pytest.mark.parametrize(("number", "recent", "text"), [
    (0, [1.0, 1.0, 1.0], ""),
    (100, [9.0, 5.0], ""),  # the first steps take longer than others
    (100, [9.0, 1.0, 1.5], "  2.50 min left"),
    (100_000, [9.0, 1.0, 1.5], "  41.7 h left"),
])  # fmt: skip
def test_the_time_that_is_left_is_that_of_usual_steps(number: int, recent: list[float], text: str) -> None:
    assert left_text(number, recent) == text


def test_a_run_ends_with_its_steps_and_the_usual_one_beside_the_plan() -> None:
    assert JOB.tokens_per_step == 48
    line = summary_line(steps(11, [9.0, 1.0, 2.0]), JOB)
    assert line == ("trained steps 11 to 13: 144 tokens in 12.0 s, loss 4.0000 to 3.5000; median step 2 s "
                    "(predicted 0.5 s), 24 tokens/s")  # fmt: skip
    on_gpus = summary_line(steps(1, [1.0], mfu=0.3), replace(JOB, predicted_mfu=0.4))
    assert on_gpus.endswith("median step 1 s (predicted 0.5 s), MFU 30.0% (predicted 40.0%), 48 tokens/s")
