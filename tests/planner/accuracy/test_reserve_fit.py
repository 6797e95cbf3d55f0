"""The share that the allocator reserves over tensors, fitted to published runs."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import pytest
from meshwright.planner.accuracy.reserve_fit import reserve_share
from meshwright.planner.accuracy.row import Case
from meshwright.planner.accuracy.validate import outcome
from meshwright.profiles.rates.calibration import shipped
from meshwright.profiles.stack.rates import overheads

from .shipped import shipped_cases


@pytest.fixture(scope="module")
def cases() -> Sequence[Case]:
    return shipped_cases()


def test_what_ships_is_the_fit(cases: Sequence[Case]) -> None:
    assert shipped().assumptions["allocator"]["reserve_share"] == float(f"{reserve_share(cases):.4g}")
    assert overheads().reserve_share == shipped().assumptions["allocator"]["reserve_share"]


def test_a_run_that_reserves_as_predicted_asks_for_the_share_in_use(cases: Sequence[Case]) -> None:
    """One run alone is its own median; unscored runs and other kinds of memory say nothing."""
    run = next(case for case in cases if case.memory_scored and case.measured.memory_kind == "reserved")
    predicted = outcome(run).peak_memory_bytes
    exact = replace(run, measured=replace(run.measured, peak_memory_bytes=predicted))
    other = replace(exact, measured=replace(exact.measured, memory_kind="allocated", peak_memory_bytes=1.0))
    unscored = replace(exact, quality="C", measured=replace(exact.measured, peak_memory_bytes=1.0))
    assert reserve_share([exact, other, unscored]) == pytest.approx(overheads().reserve_share, rel=1e-9)


def test_a_source_weighs_as_the_root_of_its_runs(cases: Sequence[Case]) -> None:
    run = next(case for case in cases if case.memory_scored and case.measured.memory_kind == "reserved")
    predicted = outcome(run).peak_memory_bytes or 0.0

    def measured(factor: float, source: str) -> Case:
        return replace(run, source=source, measured=replace(run.measured, peak_memory_bytes=factor * predicted))

    many = [measured(1.0, "one") for _ in range(9)]
    few = [measured(1.1, f"other {number}") for number in range(4)]
    assert reserve_share(many + few) > reserve_share(many) + 0.05  # weights 3 and 4
