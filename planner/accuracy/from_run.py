"""`meshwright calibrate --from-run`: numbers of the runtime's stack from one or a few of its own runs.

A few runs determine a few numbers: at most one per run, and only numbers with an effect that the earlier chosen ones do
not have. All other numbers stay at their shipped values, which the report states.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from ...cost_models.arrays import Array
from ...errors import InputError
from ...profiles.rates import calibration, constants
from ...profiles.rates.constants import UNIDENTIFIED, Constant, values_at
from ...profiles.stack.load import family_of, load_stack
from ...profiles.stack.stack_file import stack_text
from .calibrate import Calibrated, fact_note
from .calibrate_report import FittedConstant
from .fit import SCATTER, Fit, Fitter, fit
from .outcome import ErrorStatistics
from .run_reports import STACK, Run, read_runs

# What is left of a number's slopes, in scatters per prior width, from which a run narrows its prior to UNIDENTIFIED.
_LEAST_SLOPE = (UNIDENTIFIED**-2 - 1.0) ** 0.5


@dataclass(frozen=True, kw_only=True)
class LaunchedRun:
    """A run of `launch`: its seconds and bytes as measured and as predicted."""

    file: str
    layout_id: str
    gpu: str
    num_gpus: int
    num_steps: int  # that count
    measured_step_s: float
    before_s: float  # predicted by what ships
    after_s: float  # predicted by the fit
    measured_bytes: float | None  # of the fullest stage; None where the run did not end
    predicted_bytes: float | None


@dataclass(frozen=True, kw_only=True)
class LaunchedRuns:
    """The runs of a fit; a report that cannot be used is an error, so none is refused."""

    used: int
    reports: tuple[LaunchedRun, ...]
    refused: dict[str, str] = field(default_factory=dict)


@dataclass(frozen=True, kw_only=True)
class BeforeAndAfter:
    """Errors of the runs before and after the fit."""

    before: ErrorStatistics
    after: ErrorStatistics


@dataclass(frozen=True, kw_only=True)
class RunCalibrationReport:
    """The result of a calibration on reports of `launch`."""

    stack: str
    families: tuple[str, ...]
    runs: LaunchedRuns
    constants: dict[str, int]  # `total`: number of fitted constants
    errors: dict[str, BeforeAndAfter]  # `all`
    values: tuple[FittedConstant, ...]  # fitted ones first, then those that stay as they ship
    problems: tuple[str, ...] = ()

    def to_dict(self) -> dict[str, Any]:
        """The JSON form."""
        return asdict(self)


def calibrate_runs(reports: Sequence[Path], plans: Sequence[Path]) -> Calibrated[RunCalibrationReport]:
    """Fit the numbers of the stack `meshwright` that the runs identify, starting at what ships.

    Raises InputError with all problems of the reports, and where the runs identify no number.
    """
    runs, base = read_runs(reports, plans), calibration.shipped()
    family = family_of(STACK)[0]
    candidates = constants.of_family(family, base)
    cases, source = [run.case for run in runs], f"fitted to {len(runs)} runs"
    everything = Fitter(cases, candidates, base, source)
    at_start = everything.log_seconds(np.zeros(len(candidates)))
    slopes = everything.derivatives(np.zeros(len(candidates)), at_start)
    identifiable = identified(slopes)
    if not identifiable:
        raise _tells_nothing(candidates, slopes, len(runs))
    before = np.array([run.seconds() for run in runs])
    measured = np.array([run.step_s for run in runs])
    # The fit prices by the closed form. Its target is scaled so that the plan, which may simulate, meets measurements.
    wanted = np.log(measured / before) + at_start
    fitter = Fitter(cases, [candidates[j] for j in identifiable], base, source)
    result = fit(fitter, wanted, np.ones(len(runs)))
    after = np.array([run.seconds(load_stack(STACK, result.calibration)) for run in runs])
    return Calibrated(_report(runs, candidates, result, before, after), _stack_file(result, len(runs)))


def identified(slopes: Array) -> list[int]:
    """[runs, numbers] derivatives of log seconds by prior widths -> the numbers that the runs tell, surest first.

    The most telling one is taken, what it explains is taken out of the others, and so on (a QR with pivots).
    """
    remaining, chosen = slopes / SCATTER, list[int]()
    for _ in range(min(slopes.shape)):
        lengths = np.linalg.norm(remaining, axis=0)
        most = int(np.argmax(lengths))
        if lengths[most] < _LEAST_SLOPE:
            break
        direction = remaining[:, most] / lengths[most]
        remaining = remaining - np.outer(direction, direction @ remaining)
        chosen.append(most)
    return chosen


def _tells_nothing(candidates: Sequence[Constant], slopes: Array, num_runs: int) -> InputError:
    """Numbers that hardly move what the runs measure."""
    moves = np.exp(np.abs(slopes).max(axis=0)) - 1.0
    lines = [f"{constant.place[-1]}: its prior width moves a step by {move:.1%}"
             for constant, move in zip(candidates, moves, strict=True)]  # fmt: skip
    runs = "the run tells" if num_runs == 1 else f"the {num_runs} runs tell"
    hint = "a step waits for something else, links or its pipeline: run a layout that computes more"
    return InputError("\n".join([f"{runs} no number of the stack", *lines]), hint=hint)


def _report(
    runs: Sequence[Run], candidates: Sequence[Constant], result: Fit, before: NDArray[np.float64],
    after: NDArray[np.float64],
) -> RunCalibrationReport:  # fmt: skip
    measured = np.array([run.step_s for run in runs])
    errors = BeforeAndAfter(before=ErrorStatistics.of((before / measured - 1).tolist()),
                            after=ErrorStatistics.of((after / measured - 1).tolist()))  # fmt: skip
    reports = [_launched(run, float(b), float(a)) for run, b, a in zip(runs, before, after, strict=True)]
    fitted = {constant.place for constant in result.constants}
    unfitted = [_constant(c, c.prior, 0.0, 1.0, at_bound=False) for c in candidates if c.place not in fitted]
    return RunCalibrationReport(
        stack=STACK, families=(family_of(STACK)[0],), runs=LaunchedRuns(used=len(runs), reports=tuple(reports)),
        constants={"total": len(result.constants)}, errors={"all": errors}, values=(*_fitted(result), *unfitted),
    )  # fmt: skip


def _launched(run: Run, before_s: float, after_s: float) -> LaunchedRun:
    measured_bytes, predicted_bytes = run.memory or (None, None)
    return LaunchedRun(
        file=run.file, layout_id=run.candidate.layout_id, gpu=run.resolved.cluster.gpu.name,
        num_gpus=run.resolved.cluster.num_gpus, num_steps=run.num_steps, measured_step_s=run.step_s,
        before_s=before_s, after_s=after_s, measured_bytes=measured_bytes, predicted_bytes=predicted_bytes,
    )  # fmt: skip


def _fitted(result: Fit) -> list[FittedConstant]:
    values = values_at(result.constants, result.z.tolist())
    low, high = np.array([constant.bounds for constant in result.constants]).reshape(-1, 2).T
    return [
        _constant(constant, value, float(z), float(spread), at_bound=bool(z <= lowest or z >= highest))
        for constant, value, z, spread, lowest, highest in zip(
            result.constants, values, result.z, result.spread, low, high, strict=True
        )
    ]


def _constant(constant: Constant, value: float, z: float, spread: float, *, at_bound: bool) -> FittedConstant:
    return FittedConstant(
        name=f"{STACK} {constant.place[-1]}", scope=constant.entry.scope, meaning=constant.entry.meaning,
        prior=constant.prior, value=value, moved_prior_widths=z, spread_over_prior=spread,
        identified=spread <= UNIDENTIFIED, at_bound=at_bound,
    )  # fmt: skip


def _stack_file(result: Fit, num_runs: int) -> str:
    values = values_at(result.constants, result.z.tolist())
    facts = {
        constant.place[-1]: (value, fact_note(constant, float(spread), num_runs))
        for constant, value, spread in zip(result.constants, values, result.spread, strict=True)
    }
    heading = "Written by `meshwright calibrate --from-run`: the stack of the runtime as these runs have it."
    return stack_text({STACK: facts}, heading)
