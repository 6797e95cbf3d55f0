"""Fits the constants of post-training to measured steps.

Minimises, over z (prior widths from the prior means of the logarithms), with rho(r) = log(1 + r^2):
    sum_i rho(log(predicted_i / measured_i) / scatter) + sum_j z_j^2
by a compass search: a step has corners where calls change places, so derivatives do not help.

Run as a module with files of rows, which this repository does not hold, it prints the errors of the fit and of fits
that saw no run of the same family of models, and writes the constants that ship:
    python -m meshwright.planner.workflows.fit rlhf.yaml
"""

from __future__ import annotations

import sys
from collections.abc import Mapping, Sequence
from dataclasses import asdict
from datetime import date
from pathlib import Path

import numpy as np

from ...cost_models.arrays import Array
from ...profiles.io.folders import MEASURED
from ...profiles.stack.post_training import PostTrainingConstants
from ..accuracy.runs import Problems, read_rows
from .row import RlCase, read_rl_row
from .runs import RlRun

# Scatter of the logarithm of a step that no constant explains: the splits of most runs are not published (assumed).
SCATTER = 0.1
# Constant -> (prior mean, width of its logarithm). A factor of 1: the part takes what it takes alone. Copies: memory of
# the host that is not pinned is slower than its link by a factor that no file states (assumed).
PRIORS: Mapping[str, tuple[float, float]] = {
    "training": (1.0, 0.5), "copies": (3.0, 1.0), "iteration_s": (5e-3, 0.7), "step_s": (10.0, 0.7),
}  # fmt: skip
_FRAMEWORK = "NVIDIA-NeMo/RL"  # of the runs that are fitted to; those of others stay a check
_WIDEST, _FINEST = 0.5, 0.005  # steps of the search, in prior widths


def fit(runs: Sequence[RlRun]) -> PostTrainingConstants:
    """The constants of the least loss."""
    z = np.zeros(len(PRIORS))
    least, step = _loss(runs, z), _WIDEST
    while step >= _FINEST:
        moves = [z + sign * step * axis for axis in np.eye(len(z)) for sign in (1.0, -1.0)]
        losses = [_loss(runs, move) for move in moves]
        best = int(np.argmin(losses))
        if losses[best] < least:
            z, least = moves[best], losses[best]
        else:
            step /= 2.0
    return _constants(z)


def held_out(runs: Sequence[RlRun]) -> Array:
    """[run] predicted seconds over measured ones, by the fit to the runs of other families of models."""
    ratios = np.empty(len(runs))
    for family in {run.case.family for run in runs}:
        constants = fit([run for run in runs if run.case.family != family])
        for i, run in enumerate(runs):
            if run.case.family == family:
                ratios[i] = run.step_s(constants) / run.case.step_s
    return ratios


def ratios_of(runs: Sequence[RlRun], constants: PostTrainingConstants) -> Array:
    """[run] predicted seconds over measured ones."""
    return np.array([run.step_s(constants) / run.case.step_s for run in runs])


def _constants(z: Array) -> PostTrainingConstants:
    return PostTrainingConstants(**{name: mean * float(np.exp(width * at))
                                    for (name, (mean, width)), at in zip(PRIORS.items(), z, strict=True)})  # fmt: skip


def _loss(runs: Sequence[RlRun], z: Array) -> float:
    residuals = np.log(ratios_of(runs, _constants(z))) / SCATTER
    return float(np.sum(np.log1p(residuals**2)) + z @ z)


def text_of(constants: PostTrainingConstants, runs: Sequence[RlRun], source: str) -> str:
    """profiles/catalogue/measured/post_training.yaml."""
    families = sorted({run.case.family for run in runs})
    lines = [
        "# Seconds of a step of post-training over those of its parts where they run alone, the same for all models,",
        f"# GPUs and frameworks. Fitted on {date.today()} by planner/workflows/fit.py to {len(runs)} measured steps of",
        f"# {', '.join(families)}.",
        f"# Source: {source}",
        "# Their meaning: PostTrainingConstants in profiles/stack/post_training.py.",
        "constants:",
        *(f"  {name}: {value:.3g}" for name, value in asdict(constants).items()),
    ]
    return "\n".join(lines) + "\n"


def report(runs: Sequence[RlRun], ratios: Array) -> str:
    """Errors of predictions in per cent, over all runs and of each family of models."""
    errors, families = 100.0 * abs(ratios - 1.0), np.array([run.case.family for run in runs])
    parts = [f"{name} {np.median(errors[families == name]):.0f}" for name in sorted(set(families))]
    return (f"median {np.median(errors):.1f}, mean {errors.mean():.1f}, largest {errors.max():.1f}; "
            f"medians: {', '.join(parts)}")  # fmt: skip


def main() -> None:
    """Fit the constants to the files that the command line names, and write them."""
    problems = Problems([])
    rows = list(read_rows([Path(name) for name in sys.argv[1:]], read_rl_row, problems))
    if problems.count:
        raise problems.error()
    found = [RlRun.of(row) for row in rows if isinstance(row, RlCase) and row.source.startswith(_FRAMEWORK)]
    runs = [run for run in found if run is not None]
    constants = fit(runs)
    print(f"Fit, %: {report(runs, ratios_of(runs, constants))}")
    print(f"Without the family, %: {report(runs, held_out(runs))}")
    sources = "; ".join(sorted({run.case.source for run in runs}))
    (MEASURED / "post_training.yaml").write_text(text_of(constants, runs, sources), encoding="utf-8")


if __name__ == "__main__":
    main()
