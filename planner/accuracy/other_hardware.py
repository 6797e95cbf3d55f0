"""The fit of hardware that is not NVIDIA's: `python -m meshwright.planner.accuracy.other_hardware`.

Moves the constants of OTHER_TABLE (profiles/rates/constants.py) to the runs of profiles/catalogue/published/other, over
the calibration of the other runs, which stays as it is. Writes calibrated_other.yaml, and the step seconds of fits that
saw no run of the run's cell (folds.py): these generations have too few sources to leave out more.
"""

from __future__ import annotations

import json
from collections.abc import Collection, Sequence
from pathlib import Path

import numpy as np

from ...cost_models.arrays import Array
from ...profiles.io.folders import PUBLISHED
from ...profiles.rates import calibration, constants
from ...profiles.rates.calibration import Calibration
from .calibrate import Used
from .cross_validation import Runs
from .fit import Fit, Fitter, fit
from .folds import Cell, cell_of
from .outcome import ErrorStatistics, RunOutcome
from .row import Case
from .runs import Problems, read_cases
from .ship import flow

FOLDER = PUBLISHED / "other"
LEFT_OUT_FILE = FOLDER / "left_out.json"


def files() -> list[Path]:
    """The runs on other hardware that come with meshwright."""
    return sorted(FOLDER.glob("*.jsonl.gz"))


def fit_other(
    cases: Sequence[Case], base: Calibration, wanted: Collection[Cell] | None = None
) -> tuple[Fit, Array]:  # fmt: skip
    """The fit to all runs, and [runs] seconds by fits that saw no run of the run's cell, which start at the first.

    wanted: the cells whose seconds are wanted; those of others are nan. None: all.
    """
    runs, table = Runs.of(cases), constants.constants(base, constants.OTHER_TABLE)
    fitter, every = Fitter(cases, table, base, "fitted"), np.ones(len(cases), dtype=bool)
    full = fit(fitter, runs.log_measured, runs.weight(every))
    left_out, cells = np.full(len(cases), np.nan), [cell_of(case) for case in cases]
    for cell in sorted(set(cells if wanted is None else wanted)):
        part = np.array([own == cell for own in cells])
        left_out[part] = fit(fitter, runs.log_measured, runs.weight(~part), full.z).seconds[part]
    return full, left_out


def fold_errors(outcomes: Sequence[RunOutcome]) -> dict[str, ErrorStatistics]:
    """Errors of scored runs by fits that saw no run of their cell: of quality A, of all, and of each GPU."""
    predicted = json.loads(LEFT_OUT_FILE.read_text(encoding="utf-8"))
    errors: dict[str, list[float]] = {"quality A": [], "all": []}
    for run in outcomes:
        if run.id not in predicted or not run.scored or run.measured_step_s is None:
            continue
        error = predicted[run.id] / run.measured_step_s - 1
        for name in ("all", run.hardware, *(["quality A"] if run.quality == "A" else [])):
            errors.setdefault(name, []).append(error)
    return {name: ErrorStatistics.of(of) for name, of in errors.items() if of}


def text_of(fitted: Fit) -> str:
    """calibrated_other.yaml."""
    values = constants.values_at(fitted.constants, fitted.z.tolist())
    nested = Calibration.of({c.place: value for c, value in zip(fitted.constants, values, strict=True)}, "")
    lines = [
        "# Written by `python -m meshwright.planner.accuracy.other_hardware`; do not edit.\n",
        f"source: {len(fitted.seconds)} published runs on other hardware\n",
        "assumptions:\n",
    ]
    return "".join(lines) + "".join(f"  {name}: {flow(facts)}\n" for name, facts in sorted(nested.assumptions.items()))


def main() -> None:
    """Fits, and writes both files."""
    cases = Used.of(list(read_cases(files(), Problems([])))).cases
    fitted, seconds = fit_other(cases, calibration.of_runs())
    calibration.OTHER_FILE.write_text(text_of(fitted), encoding="utf-8")
    lines = (f"{json.dumps(case.id)}: {step_s:.5g}" for case, step_s in zip(cases, seconds, strict=True))
    LEFT_OUT_FILE.write_text("{\n" + ",\n".join(lines) + "\n}\n", encoding="utf-8")


if __name__ == "__main__":
    main()
