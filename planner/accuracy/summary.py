"""The result of `validate`: errors of predictions in groups, and the ranking of sweeps."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import Any, TypeVar

from .outcome import ErrorStatistics, RunOutcome, error_statistics
from .sweeps import ChoiceStatistics, Sweep, sweeps_of
from .unpriced_forms import NotPriced

MEMORY_MISS = 0.05  # predicting that much too little memory promises a run that dies
Statistics = TypeVar("Statistics")


@dataclass(frozen=True, kw_only=True)
class MemoryStatistics(ErrorStatistics):
    """Errors of peak memory."""

    too_little: int  # runs that are predicted to need at least MEMORY_MISS less than they did


@dataclass(frozen=True, kw_only=True)
class StepTimeErrors:
    """Errors of step times. The groups count core rows only, where only they are asked for."""

    all: ErrorStatistics | None
    core: ErrorStatistics | None
    by_source: dict[str, ErrorStatistics]
    by_hardware: dict[str, ErrorStatistics]
    by_regime: dict[str, ErrorStatistics]
    by_stack: dict[str, ErrorStatistics]
    by_family: dict[str, ErrorStatistics]


@dataclass(frozen=True, kw_only=True)
class RunCounts:
    """Numbers of runs; all but `rows` and `core` say why a run counts in an error or does not."""

    rows: int
    core: int
    step_time_scored: int
    memory_scored: int
    refused: int
    without_step_time: int
    quality_c: int
    memory_with_unknown_recompute: int  # runs whose memory cannot be predicted: their recomputation is not published
    with_assumptions: int

    @classmethod
    def of(cls, outcomes: Sequence[RunOutcome]) -> RunCounts:
        unknown_recompute = [
            run for run in outcomes
            if run.measured_peak_memory_bytes is not None and run.scored and not run.memory_scored
        ]  # fmt: skip
        return cls(
            rows=len(outcomes), core=sum(run.core for run in outcomes),
            step_time_scored=sum(run.step_error is not None for run in outcomes),
            memory_scored=sum(run.memory_error is not None for run in outcomes),
            refused=sum(run.refused is not None for run in outcomes),
            without_step_time=sum(run.measured_step_s is None for run in outcomes),
            quality_c=sum(not run.scored for run in outcomes), memory_with_unknown_recompute=len(unknown_recompute),
            with_assumptions=sum(bool(run.assumptions) for run in outcomes),
        )  # fmt: skip


@dataclass(frozen=True, kw_only=True)
class Coverage:
    """The share of measured times that lie within their interval."""

    count: int
    covered: float  # share
    claimed: float = 0.9

    @classmethod
    def of(cls, outcomes: Sequence[RunOutcome]) -> Coverage | None:
        known = [run for run in outcomes if run.step_error is not None and run.step_s_low is not None]
        inside = sum((run.step_s_low or 0) <= (run.measured_step_s or 0) <= (run.step_s_high or 0) for run in known)
        return cls(count=len(known), covered=inside / len(known)) if known else None


@dataclass(frozen=True, kw_only=True)
class Summary:
    """Errors and counts of all runs."""

    counts: RunCounts
    headline: str  # rows that the groups count: `all` or `core`
    step_time: StepTimeErrors
    memory: dict[str, MemoryStatistics]  # by what was measured
    choice: ChoiceStatistics | None
    coverage: Coverage | None
    assumptions: dict[str, int]  # assumption -> runs, the most frequent first
    refused: dict[str, str]  # id -> why


@dataclass(frozen=True, kw_only=True)
class RowsNotPriced(NotPriced):
    """Rows of a file that are right, and of a form that no cost model prices."""

    rows: int


@dataclass(frozen=True, kw_only=True)
class Validation:
    """The result of `validate`."""

    rows: tuple[RunOutcome, ...]
    groups: tuple[Sweep, ...]
    summary: Summary
    problems: tuple[str, ...]  # faults of runs that were left out; the rest was judged
    not_priced: tuple[RowsNotPriced, ...] = ()

    def to_dict(self) -> dict[str, Any]:
        """The JSON form."""
        return {
            "rows": [run.to_dict() for run in self.rows],
            "groups": [asdict(sweep) for sweep in self.groups],
            "summary": asdict(self.summary),
            "problems": list(self.problems),
            "not_priced": [asdict(rows) for rows in self.not_priced],
        }


def validation(
    outcomes: Sequence[RunOutcome], problems: Sequence[str] = (), not_priced: Mapping[NotPriced, int] | None = None,
    *, core: bool = False,
) -> Validation:  # fmt: skip
    """Groups and summary of the runs. core: the groups of the summary count core rows only, sweeps as they are.

    not_priced: numbers of rows of each form that no cost model prices.
    """
    sweeps = sweeps_of(outcomes)
    return Validation(
        rows=tuple(outcomes), groups=sweeps, summary=_summary(outcomes, sweeps, core=core), problems=tuple(problems),
        not_priced=tuple(RowsNotPriced(**asdict(form), rows=rows) for form, rows in (not_priced or {}).items()),
    )  # fmt: skip


def _summary(outcomes: Sequence[RunOutcome], sweeps: Sequence[Sweep], *, core: bool) -> Summary:
    core_runs = [run for run in outcomes if run.core]
    counted = core_runs if core else outcomes
    return Summary(
        counts=RunCounts.of(outcomes),
        headline="core" if core else "all",
        step_time=StepTimeErrors(
            all=_step_statistics(outcomes), core=_step_statistics(core_runs),
            by_source=_grouped(counted, "source", _step_statistics),
            by_hardware=_grouped(counted, "hardware", _step_statistics),
            by_regime=_grouped(counted, "regime", _step_statistics),
            by_stack=_grouped(counted, "stack", _step_statistics),
            by_family=_grouped(counted, "family", _step_statistics),
        ),
        memory=_grouped(counted, "memory_kind", memory_statistics),
        choice=ChoiceStatistics.of(sweeps) if sweeps else None,
        coverage=Coverage.of(outcomes),
        assumptions=dict(Counter(label for run in outcomes for label in run.assumptions).most_common()),
        refused={run.id: run.refused for run in outcomes if run.refused},
    )  # fmt: skip


def _step_statistics(outcomes: Sequence[RunOutcome]) -> ErrorStatistics | None:
    return error_statistics([error for run in outcomes if (error := run.step_error) is not None])


def memory_statistics(outcomes: Sequence[RunOutcome]) -> MemoryStatistics | None:
    """Statistics of the runs whose peak memory is scored; None of none."""
    errors = [error for run in outcomes if (error := run.memory_error) is not None]
    if not errors:
        return None
    too_little = sum(error < -MEMORY_MISS for error in errors)
    return MemoryStatistics(**asdict(ErrorStatistics.of(errors)), too_little=too_little)


def _grouped(
    outcomes: Sequence[RunOutcome], key: str, statistics_of: Callable[[Sequence[RunOutcome]], Statistics | None]
) -> dict[str, Statistics]:
    """Statistics of the runs by a field of theirs, in the order of its values."""
    groups: dict[str, list[RunOutcome]] = {}
    for run in outcomes:
        groups.setdefault(getattr(run, key), []).append(run)
    by_name = {name: statistics_of(groups[name]) for name in sorted(groups)}
    return {name: statistics for name, statistics in by_name.items() if statistics is not None}
