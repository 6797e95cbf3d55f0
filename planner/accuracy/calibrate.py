"""`meshwright calibrate`: constants of a stack from runs of one's own.

`python -m meshwright.planner.accuracy.calibrate`: those that ship, from the shipped runs; with `--intervals` only the
file of intervals, from the predictions of runs left out that an earlier fit wrote.

A user's runs move the numbers of their stack family only: devices and links rest on many more runs. The shipped
calibration moves every constant of profiles/rates/constants.py, from its prior.
"""

from __future__ import annotations

import json
import math
import sys
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Generic, TypeVar

import numpy as np

from ...errors import InputError
from ...profiles.io.folders import PUBLISHED
from ...profiles.rates import calibration, constants
from ...profiles.rates.calibration import PRIORS, Calibration
from ...profiles.stack.load import family_of, has_own_facts
from ...profiles.stack.stack_file import stack_text
from ..evaluation import intervals
from . import interval_fit
from .batch_pricing import rates_of
from .calibrate_report import CalibrationReport, report
from .cross_validation import Progress, Runs, Study, study
from .reserve_fit import reserve_share
from .row import Case
from .runs import Problems, read_cases, shipped_files
from .validate import outcome

LEAST_RUNS = 3  # a scalar from fewer says more about the run than about the stack
LEFT_OUT_FILE = PUBLISHED / "left_out.json"
Report = TypeVar("Report", covariant=True)


@dataclass(frozen=True)
class Used:
    """The runs of a file that a fit may see, and why it may not see the others."""

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
    """Fit the stack families of the runs in `paths`, starting at what ships.

    Raises InputError with everything that is wrong in the files (unless `keep_going`), and where fewer than LEAST_RUNS
    runs can be used.
    """
    problems = Problems([])
    cases = list(read_cases(paths, problems))
    if problems.count and not (keep_going and cases):
        raise problems.error()
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
    """A file of the user speaks for a family: numbers that ship for one version of it are not theirs. What the version
    does otherwise than its family holds for theirs too."""
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
        return "which they do not tell apart from other causes"
    if constant.entry.logit:
        return f"odds within a factor of {math.exp(constant.entry.width * spread):.2f}"
    return f"within {100 * (math.exp(constant.entry.width * spread) - 1):.0f} %"


def _plain(value: float) -> str:
    return f"{value:.3g}"


def ship(progress: Progress | None = None) -> Study:
    """The study of the shipped runs from the bare priors."""
    cases = list(read_cases(shipped_files(), Problems([])))
    used = Used.of(cases)
    return study(used.cases, constants.constants(), PRIORS, "fitted", progress)


def shipped_text(studied: Study, reserve: float) -> str:
    """calibrated.yaml: every constant's value, in the shape of the files that it is laid over. reserve: the share that
    the allocator reserves over tensors (reserve_fit.py)."""
    fitted = studied.fit
    values = constants.values_at(fitted.constants, fitted.z.tolist())
    nested = Calibration.of({c.place: value for c, value in zip(fitted.constants, values, strict=True)}, "")
    counts = Counter(constant.entry.scope for constant in fitted.constants)
    lines = [
        "# Written by `python -m meshwright.planner.accuracy.calibrate` from catalogue/published/; do not edit.\n",
        "# Priors: stacks/*.yaml and assumptions.yaml. Meaning of each number: profiles/rates/constants.py.\n",
        f"source: {len(studied.runs.cases)} published runs\n",
        f"constants: {{{', '.join(f'{scope}: {count}' for scope, count in sorted(counts.items()))}}}\n",
    ]  # fmt: skip
    assumed = {**nested.assumptions, "allocator": {"reserve_share": reserve}}
    for root, block in (("stacks", nested.stacks), ("assumptions", assumed)):
        lines.append(f"{root}:\n")
        for name, facts in sorted(block.items()):
            lines.append(f"  {name}: {flow(facts)}\n")
    return "".join(lines)


def flow(value: Any) -> str:
    """YAML in one line, four significant digits: a fit says no more."""
    if isinstance(value, Mapping):
        return "{" + ", ".join(f"{key}: {flow(item)}" for key, item in sorted(value.items())) + "}"
    return repr(float(f"{value:.4g}"))


def left_out_text(studied: Study) -> str:
    """left_out.json: id -> step seconds by a fit without the run's model and cluster, and without its source."""
    rows = zip(studied.runs.cases, studied.across_groups, studied.across_sources, strict=True)
    left_out = {case.id: [float(f"{value:.5g}") for value in pair] for case, *pair in rows}
    lines = ",\n".join(f"{json.dumps(name)}: {json.dumps(pair)}" for name, pair in left_out.items())
    return f"{{\n{lines}\n}}\n"


def interval_text(left_out: Mapping[str, Sequence[float]]) -> str:
    """intervals.yaml, from the table of left_out.json and the shipped runs."""
    shipped = list(read_cases(shipped_files(), Problems([])))
    runs = Runs.of([case for case in shipped if case.id in left_out])
    across_groups, across_sources = np.array([left_out[case.id] for case in runs.cases]).T
    weight = runs.weight(np.ones(len(runs.cases), dtype=bool))
    known, new = (
        interval_fit.measured_factors(runs.cases, runs.log_measured - np.log(predicted), weight)
        for predicted in (across_groups, across_sources)
    )
    ranking = interval_fit.measured_ranking(runs.cases, np.log(across_groups), runs.log_measured)
    memory = interval_fit.measured_memory([outcome(case) for case in shipped if case.memory_scored])
    versions = sorted({v for case in runs.cases if (v := family_of(case.stack_name)[1])})
    return interval_fit.text(known, new, ranking, memory, versions)


def main() -> None:
    """Fits, and writes calibrated.yaml, the predictions of runs left out, and the intervals."""
    if "--intervals" not in sys.argv:
        shipped = ship(lambda done, total: print(f"{done:.0f} of {total:.0f}", flush=True))
        reserve = reserve_share(list(read_cases(shipped_files(), Problems([]))))
        calibration.SHIPPED_FILE.write_text(shipped_text(shipped, reserve), encoding="utf-8")
        LEFT_OUT_FILE.write_text(left_out_text(shipped), encoding="utf-8")
        calibration.shipped.cache_clear()  # the intervals of memory are those of the new reserve
    left_out = json.loads(LEFT_OUT_FILE.read_text(encoding="utf-8"))
    intervals.FILE.write_text(interval_text(left_out), encoding="utf-8")


if __name__ == "__main__":
    main()
