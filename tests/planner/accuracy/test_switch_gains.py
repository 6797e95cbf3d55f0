"""What switches gain: published runs of one training before and after they were turned, as measured and as predicted.

`validate --plans` says how much faster than a tuned plan the search is. Most of that are switches of a newer release:
here are the same ones, turned by those who published the runs.
"""

from __future__ import annotations

from functools import cache

import pytest
from meshwright.planner.accuracy.outcome import RunOutcome
from meshwright.planner.accuracy.validate import outcome

from .shipped import shipped_cases

# Start of the id before -> that after, and what was turned.
TURNED = {
    "bridge26.02-gb200-deepseek-v3": ("bridge26.06-gb200-deepseek-v3", "ep_overlap, graph of the iteration"),
    "bridge26.02-gb200-qwen3-30b": ("bridge26.06-gb200-qwen3-30b", "ep_overlap, graph of the iteration"),
    "bridge26.02-gb300-qwen3-30b": ("bridge26.06-gb300-qwen3-30b", "ep_overlap, graph of the iteration"),
    "bridge26.02-gb300-qwen3-235b": ("bridge26.06-gb300-qwen3-235b", "ep_overlap, graph of the iteration, vpp 12"),
    "bridge26.02-b200-qwen3-30b": ("bridge26.02.01-b200-qwen3-30b", "HybridEP, graph of attention, micro-batches of 4"),
    "bridge-qwen30b-16xh100-alltoall-nooverlap": ("bridge-qwen30b-16xh100-alltoall-epoverlap", "ep_overlap"),
    "bridge-qwen30b-16xh100-hybridep-nooverlap": ("bridge-qwen30b-16xh100-hybridep-epoverlap", "ep_overlap"),
    "bridge-qwen30b-16xh100-alltoall-epoverlap": ("bridge-qwen30b-16xh100-hybridep-epoverlap",
                                                  "HybridEP, graphs of the router"),
}  # fmt: skip
CLOSE = 0.12  # every gain is predicted to this; the steps themselves are within 13 %


@cache
def outcomes() -> dict[str, RunOutcome]:
    cases = shipped_cases()
    starts = {start for before, (after, _) in TURNED.items() for start in (before, after)}
    return {start: outcome(next(case for case in cases if case.id.startswith(f"{start}-") or case.id == start))
            for start in starts}  # fmt: skip


def gains(before: str, after: str) -> tuple[float, float]:
    """Step before over step after: measured, predicted."""
    first, second = outcomes()[before], outcomes()[after]
    assert first.measured_step_s is not None
    assert second.measured_step_s is not None
    assert first.step_s is not None
    assert second.step_s is not None
    return first.measured_step_s / second.measured_step_s, first.step_s / second.step_s


@pytest.mark.parametrize("before", TURNED)
def test_a_gain_is_as_large_as_it_was_measured(before: str) -> None:
    measured, predicted = gains(before, TURNED[before][0])
    assert measured > 1.15
    assert predicted == pytest.approx(measured, rel=CLOSE)


def test_gains_are_not_overstated_on_the_whole() -> None:
    ratios = [predicted / measured for measured, predicted in (gains(b, a) for b, (a, _) in TURNED.items())]
    assert 0.95 < sum(ratios) / len(ratios) < 1.02
