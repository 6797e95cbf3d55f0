"""The result of `meshwright calibrate`: errors before and after, on runs left out, and every constant."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from ...profiles.rates.constants import UNIDENTIFIED, values_at
from .cross_validation import Study
from .outcome import REFUSED_ERROR, ErrorStatistics


@dataclass(frozen=True, kw_only=True)
class FittedConstant:
    """A constant before and after the fit."""

    name: str
    scope: str  # what it belongs to: a stack, a device, links
    meaning: str
    prior: float
    value: float
    moved_prior_widths: float
    spread_over_prior: float  # standard deviation that is left, as a share of that of the prior
    identified: bool  # whether the runs tell it apart from other causes
    at_bound: bool


@dataclass(frozen=True, kw_only=True)
class JudgedConstant(FittedConstant):
    """A constant with its effect on the error."""

    error_without: float  # mean absolute error of all runs with it held at its prior


@dataclass(frozen=True, kw_only=True)
class StageErrors:
    """Errors of some runs at every stage of the fit."""

    before: ErrorStatistics
    after: ErrorStatistics
    across_groups: ErrorStatistics  # by fits that saw no run of the same model and cluster
    across_sources: ErrorStatistics  # by fits that saw no run of the same source


@dataclass(frozen=True, kw_only=True)
class UsedRuns:
    """Numbers of runs that the fit saw and did not see."""

    used: int
    refused: dict[str, str]  # id -> why it cannot be priced
    groups: int  # pairs of model and cluster
    sources: int
    left_out_by: str  # part that is left out at a time: `groups` or `runs`
    without_step_time: int
    quality_c: int


@dataclass(frozen=True, kw_only=True)
class CalibrationReport:
    """The result of a calibration on runs of any source."""

    families: tuple[str, ...]
    runs: UsedRuns
    constants: dict[str, int]  # numbers of fitted constants: `total`, and by scope
    errors: dict[str, StageErrors]  # by set of runs
    values: tuple[JudgedConstant, ...]
    problems: tuple[str, ...]  # faults of runs that were left out; the rest was fitted

    def to_dict(self) -> dict[str, Any]:
        """The JSON form."""
        return asdict(self)


def report(
    study: Study, families: Sequence[str], refused: Mapping[str, str], problems: Sequence[str], *,
    without_step_time: int, quality_c: int,
) -> CalibrationReport:  # fmt: skip
    """The report on a fit. Refused runs count in every error as 100 % off."""
    runs, fit = study.runs, study.fit
    return CalibrationReport(
        families=tuple(families),
        runs=UsedRuns(used=len(runs.cases), refused=dict(refused), groups=len(set(runs.groups)),
                      sources=len(set(runs.sources)), left_out_by=study.left_out_by,
                      without_step_time=without_step_time, quality_c=quality_c),
        constants={"total": len(fit.constants), **Counter(constant.entry.scope for constant in fit.constants)},
        errors=_errors(study, len(refused)), values=_values(study), problems=tuple(problems),
    )  # fmt: skip


def _errors(study: Study, refused: int) -> dict[str, StageErrors]:
    """Errors by set of runs: all, core, dense, experts, and each stack family."""
    cases = study.runs.cases
    everything = np.ones(len(cases), dtype=bool)
    experts = np.array([case.model.is_moe for case in cases])
    sets: dict[str, NDArray[np.bool_]] = {"all": everything, "core": np.array([case.core for case in cases])}
    sets |= {"dense": ~experts, "experts": experts}
    for family in sorted({case.stack.name for case in cases}):
        sets[family] = np.array([case.stack.name == family for case in cases])
    measured = np.exp(study.runs.log_measured)

    def statistics(predicted: NDArray[np.float64], chosen: NDArray[np.bool_], num_refused: int) -> ErrorStatistics:
        errors = (predicted[chosen] / measured[chosen] - 1).tolist()
        return ErrorStatistics.of([*errors, *[-REFUSED_ERROR] * num_refused])

    by_set: dict[str, StageErrors] = {}
    for name, chosen in sets.items():
        # A set that has all runs says nothing that `all` does not.
        if chosen.any() and (name in ("all", "core") or not chosen.all()):
            num_refused = refused if name == "all" else 0
            by_set[name] = StageErrors(
                before=statistics(study.before, chosen, num_refused),
                after=statistics(study.after, chosen, num_refused),
                across_groups=statistics(study.across_groups, chosen, num_refused),
                across_sources=statistics(study.across_sources, chosen, num_refused),
            )
    return by_set


def _values(study: Study) -> tuple[JudgedConstant, ...]:
    fitted, measured = study.fit, np.exp(study.runs.log_measured)
    values = values_at(fitted.constants, fitted.z.tolist())
    low, high = np.array([constant.bounds for constant in fitted.constants]).reshape(-1, 2).T
    return tuple(
        JudgedConstant(
            name=constant.name, scope=constant.entry.scope, meaning=constant.entry.meaning, prior=constant.prior,
            value=value, moved_prior_widths=float(z), spread_over_prior=float(spread),
            identified=bool(spread <= UNIDENTIFIED), at_bound=bool(z <= lowest or z >= highest),
            error_without=float(np.mean(np.abs(without / measured - 1))),
        )
        for constant, value, z, spread, without, lowest, highest in zip(
            fitted.constants, values, fitted.z, fitted.spread, study.frozen, low, high, strict=True
        )
    )  # fmt: skip
