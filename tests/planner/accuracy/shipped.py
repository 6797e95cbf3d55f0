"""The shipped runs, read and predicted once for all tests of a worker."""

from __future__ import annotations

from functools import cache

from meshwright.planner.accuracy.row import Case
from meshwright.planner.accuracy.runs import Problems, read_cases, shipped_files
from meshwright.planner.accuracy.summary import Summary
from meshwright.planner.accuracy.validate import validate


@cache
def shipped_cases() -> tuple[Case, ...]:
    """All of them, in the order of their files."""
    return tuple(read_cases(shipped_files(), Problems([])))


@cache
def shipped_summary() -> Summary:
    """Their errors, as `validate` sums them up."""
    return validate().summary
