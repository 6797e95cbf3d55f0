"""`meshwright validate --folds`: the shipped runs, each predicted by a fit without similar runs (folds.py)."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import numpy as np

from ...cost_models.arrays import Array, Mask
from ...profiles.io.folders import PUBLISHED
from ..evaluation import intervals
from .folds import cell_of, cells
from .interval_fit import measured_factors
from .outcome import ErrorStatistics, RunOutcome
from .row import Case
from .runs import Problems, Progress, read_cases, shipped_files
from .summary import MemoryStatistics, memory_statistics
from .sweeps import ChoiceStatistics, sweeps_of
from .validate import factors_of, outcome, source_of

LEFT_OUT_FILE = PUBLISHED / "left_out.json"  # written by ship.py


@dataclass(frozen=True, kw_only=True)
class FoldCoverage:
    """The coverage of the 90 % intervals of some runs."""

    runs: int
    covered: float  # share
    covered_unseen: float  # share, by an interval fitted without the residuals of the run's cell
    half_width: float  # median, over the prediction


@dataclass(frozen=True, kw_only=True)
class SweepErrors:
    """Sweeps of one kind of cluster."""

    choice: ChoiceStatistics
    step_time: ErrorStatistics


@dataclass(frozen=True, kw_only=True)
class FoldReport:
    """Errors on runs without similar runs in the fit. Errors are predicted / measured - 1."""

    runs: int
    cells: int
    step_time: Mapping[str, ErrorStatistics]  # by set of runs
    order: ErrorStatistics | None  # of core runs, each source's own offset taken out
    offsets: Mapping[str, float]  # source -> median error of its core runs
    sweeps: Mapping[str, SweepErrors]  # by kind of cluster
    coverage: Mapping[str, FoldCoverage]  # by set of runs
    memory: Mapping[str, MemoryStatistics]  # by what was read, and `all`; it has no fitted constant

    def to_dict(self) -> dict[str, Any]:
        """The JSON form."""
        return asdict(self)


def fold_report(progress: Progress | None = None) -> FoldReport:
    """The report on the shipped runs, from the predictions that the last fit stored."""
    shipped = list(read_cases(shipped_files(), Problems([]), progress))
    left_out: dict[str, list[float]] = json.loads(Path(LEFT_OUT_FILE).read_text(encoding="utf-8"))
    return report_of(shipped, {run: seconds[0] for run, seconds in left_out.items()})


def report_of(shipped: Sequence[Case], left_out: Mapping[str, float]) -> FoldReport:
    """The report on runs, of which those with a step time have the seconds that a fit without them predicts."""
    outcomes = [outcome(case) for case in shipped]
    for run in outcomes:
        run.step_s = left_out.get(run.id, run.step_s)
    judged = [(case, run) for case, run in zip(shipped, outcomes, strict=True) if run.id in left_out]
    cases, runs = [case for case, _ in judged], [run for _, run in judged]
    errors = np.array([run.step_error for run in runs], dtype=np.float64)
    log_ratio = np.log([left_out[case.id] for case in cases]) - np.log([case.measured.step_s or 1.0 for case in cases])
    sets = _sets(cases)
    order, offsets = _order(cases, log_ratio, sets["core"])
    return FoldReport(
        runs=len(runs), cells=len(set(map(cell_of, cases))),
        step_time={name: ErrorStatistics.of(errors[chosen].tolist()) for name, chosen in sets.items() if chosen.any()},
        order=order, offsets=offsets, sweeps=_sweeps(cases, runs), coverage=_coverages(cases, log_ratio, sets),
        memory=_memory(outcomes),
    )  # fmt: skip


def _sets(cases: Sequence[Case]) -> dict[str, Mask]:
    """Sets of runs by name, masks over the cases."""
    core: Mask = np.array([case.core for case in cases], dtype=np.bool_)
    experts: Mask = np.array([case.model.is_moe for case in cases], dtype=np.bool_)
    return {"core": core, "core, dense": core & ~experts, "core, experts": core & experts,
            "all": np.ones(len(cases), dtype=np.bool_), "experts": experts}  # fmt: skip


def _order(cases: Sequence[Case], log_ratio: Array, core: Mask) -> tuple[ErrorStatistics | None, dict[str, float]]:
    """Core errors beside the median of their source, and these medians. A source with one core run has no order."""
    sources, rest, offsets = np.array([source_of(case.source) for case in cases]), [], {}
    for source in sorted(set(sources[core])):
        of_source = log_ratio[core & (sources == source)]
        offset = float(np.median(of_source))
        offsets[str(source)] = float(np.expm1(offset))
        rest += np.expm1(of_source - offset).tolist()
    return (ErrorStatistics.of(rest) if rest else None), offsets


def _sweeps(cases: Sequence[Case], runs: Sequence[RunOutcome]) -> dict[str, SweepErrors]:
    """Sweeps over several nodes and within one."""
    out = {}
    for name, several in (("several nodes", True), ("one node", False)):
        members = [run for case, run in zip(cases, runs, strict=True)
                   if case.group and (case.cluster.num_nodes > 1) == several]  # fmt: skip
        if sweeps := sweeps_of(members):
            errors = [error for run in members if (error := run.step_error) is not None]
            out[name] = SweepErrors(choice=ChoiceStatistics.of(sweeps), step_time=ErrorStatistics.of(errors))
    return out


def _coverages(cases: Sequence[Case], log_ratio: Array, sets: Mapping[str, Mask]) -> dict[str, FoldCoverage]:
    """Coverage by the shipped intervals, and by intervals that did not see the run's cell."""
    log_low, log_high = np.log([factors_of(case) for case in cases]).T
    unseen = _covered_unseen(cases, -log_ratio)
    covered = (log_low <= -log_ratio) & (-log_ratio <= log_high)
    half = (np.exp(log_high) - np.exp(log_low)) / 2
    return {
        name: FoldCoverage(runs=int(chosen.sum()), covered=float(covered[chosen].mean()),
                           covered_unseen=float(unseen[chosen].mean()), half_width=float(np.median(half[chosen])))
        for name in ("all", "core", "experts") if (chosen := sets[name]).any()
    }  # fmt: skip


def _covered_unseen(cases: Sequence[Case], log_measured_over_predicted: Array) -> Mask:
    """Whether each run lies in an interval that is fitted without the runs of its cell."""
    regimes = np.array([case.regime for case in cases])
    narrow = np.array([intervals.is_narrow(case.workload.precision) for case in cases])
    covered = np.zeros(len(cases), dtype=bool)
    for cell, _ in cells(cases):
        known, of_narrow = (measured_factors(regimes[use].tolist(), log_measured_over_predicted[use])
                            for use in (~cell, ~cell & narrow))  # fmt: skip
        for i in np.flatnonzero(cell):
            kind = intervals.kind_of(regimes[i])
            tables = [known, of_narrow] if narrow[i] else [known]
            found = [table[kind] for table in tables if kind in table]
            low, high = min(entry[0] for entry in found), max(entry[1] for entry in found)
            covered[i] = low <= np.exp(log_measured_over_predicted[i]) <= high
    return covered


def _memory(outcomes: Sequence[RunOutcome]) -> dict[str, MemoryStatistics]:
    kinds = sorted({run.memory_kind for run in outcomes})
    groups = {kind: [run for run in outcomes if run.memory_kind == kind] for kind in kinds} | {"all": list(outcomes)}
    return {name: statistics for name, runs in groups.items() if (statistics := memory_statistics(runs)) is not None}
