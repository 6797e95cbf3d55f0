"""`meshwright calibrate`: constants of a stack from a user's runs.

A user's runs move the numbers of their stack family only: devices and links rest on many more runs (ship.py).
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Generic, TypeVar

from ...errors import InputError
from ...profiles.rates import calibration, constants
from ...profiles.rates.calibration import Calibration
from ...profiles.stack.load import family_of, has_own_facts
from ...profiles.stack.stack_file import stack_text
from .batch_pricing import rates_of
from .calibrate_report import CalibrationReport, report
from .cross_validation import Progress, Study, study
from .row import Case
from .runs import Problems, read_cases

LEAST_RUNS = 3  # fewer runs do not separate the stack from the run
Report = TypeVar("Report", covariant=True)


@dataclass(frozen=True)
class Used:
    """The runs of a file for a fit, and the reasons that exclude the others."""

    cases: tuple[Case, ...]
    # Id of a run that cannot be priced -> the reason.
    refused: Mapping[str, str]
    # Number of runs without a step time.
    without_step_time: int
    # Number of timed runs of quality C.
    quality_c: int

    @classmethod
    def of(cls, cases: Sequence[Case]) -> Used:
        timed = [case for case in cases if case.measured.step_s is not None]
        refused = {case.id: reason for case in timed if case.scored and (reason := _refused(case))}
        used = tuple(case for case in timed if case.scored and case.id not in refused)
        return cls(used, refused, len(cases) - len(timed), sum(not case.scored for case in timed))

    @property
    def left_out(self) -> str:
        parts = [(len(self.refused), "cannot be priced"), (self.without_step_time, "without a step time"),
                 (self.quality_c, "of quality C")]  # fmt: skip
        return ", ".join(f"{count} {words}" for count, words in parts if count)


def _refused(case: Case) -> str:
    if case.order:
        return f"the order {case.order} is simulated, which no fit is"
    try:
        rates_of(case)
    except InputError as error:
        return error.message
    return ""


@dataclass(frozen=True)
class Calibrated(Generic[Report]):
    """The result of a calibration."""

    report: Report
    stack: str  # text of the stack file


def calibrate(
    paths: Sequence[Path], *, keep_going: bool = False, progress: Progress | None = None
) -> Calibrated[CalibrationReport]:
    """Fit the stack families of the runs in `paths`, starting at the shipped constants.

    Raises InputError with all problems of the files (unless `keep_going`), and for fewer than LEAST_RUNS usable runs.
    """
    problems = Problems([])
    cases = list(read_cases(paths, problems))
    if problems.count and not (keep_going and cases):
        raise problems.error()
    if problems.not_priced and not cases:
        kinds = sorted({f"{rows.kind}: {rows.reason}" for rows in problems.not_priced})
        raise InputError(
            f"no training run in these files, but {'; '.join(kinds)}",
            hint="docs/concepts/trust.md has the fields of a run",
        )
    used = Used.of(cases)
    if len(used.cases) < LEAST_RUNS:
        raise too_few(len(cases), used)
    base = calibration.shipped()
    runs = [replace(case, stack_name=_speaks_for(case, base)) for case in used.cases]
    families = sorted({case.stack.name for case in runs})
    chosen = [constant for family in families for constant in constants.of_family(family, base)]
    studied = study(runs, chosen, base, f"fitted to {len(runs)} runs", progress)
    reported = report(studied, families, used.refused, [str(problem) for problem in problems.first],
                      without_step_time=used.without_step_time, quality_c=used.quality_c)  # fmt: skip
    return Calibrated(reported, _stack_file(studied, families))


def _speaks_for(case: Case, base: Calibration) -> str:
    """The stack of a user's file, which covers a family. Shipped numbers of one version do not apply to it.

    Differences of behaviour between that version and its family do apply.
    """
    version = family_of(case.stack_name)[1]
    return version if has_own_facts(version) and version not in base.stacks else case.stack.name


def too_few(given: int, used: Used) -> InputError:
    why = f": {used.left_out}" if used.left_out else ""
    reasons = [f"{name}: {reason}" for name, reason in used.refused.items()][:3]
    return InputError(
        "\n".join([f"{len(used.cases)} of {given} runs can be used{why}; a calibration needs {LEAST_RUNS}", *reasons]),
        hint="give `measured: {step_s: ...}` of at least three short jobs, best of different layouts",
    )


def _stack_file(studied: Study, families: Sequence[str]) -> str:
    facts: dict[str, dict[str, tuple[float, str]]] = {family: {} for family in families}
    fitted = studied.fit
    for constant, z, spread in zip(fitted.constants, fitted.z, fitted.spread, strict=True):
        runs = sum(case.stack.name == constant.owner for case in studied.runs.cases)
        facts[constant.owner][constant.place[-1]] = (constant.value(float(z)), fact_note(constant, float(spread), runs))
    names = {case.stack_name for case in studied.runs.cases}
    if len(names) == len(families) == 1:  # all of one version, which may differ from its family
        facts = {names.pop(): facts[families[0]]}
    return stack_text(facts, "Written by `meshwright calibrate`: a stack family as these runs have it.")


def fact_note(constant: constants.Constant, spread: float, num_runs: int) -> str:
    """The source of a fitted number in a stack file."""
    counted = "1 run" if num_runs == 1 else f"{num_runs} runs"
    return f"fitted to {counted}; {_plain(constant.prior)} before, {_certainty(constant, spread)}"


def _certainty(constant: constants.Constant, spread: float) -> str:
    if spread > constants.UNIDENTIFIED:
        return "which they do not separate from other causes"
    if constant.entry.logit:
        return f"odds within a factor of {math.exp(constant.entry.width * spread):.2f}"
    return f"within {100 * (math.exp(constant.entry.width * spread) - 1):.0f} %"


def _plain(value: float) -> str:
    return f"{value:.3g}"
