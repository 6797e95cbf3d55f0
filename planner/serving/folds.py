"""Predictions of runs by fits that saw nothing like them: without their group, their GPU, their family of models."""

from __future__ import annotations

from collections.abc import Callable
from zlib import crc32

import numpy as np

from ...cost_models.arrays import Array
from .fit import Fit, Runs, fit, predicted
from .row import ServingCase

_PARTS = 8  # that groups of runs are dealt into
FOLDS: dict[str, Callable[[ServingCase], str]] = {
    "group": lambda case: str(crc32(case.group.encode()) % _PARTS),
    "gpu": lambda case: case.gpu.name,
    "family": lambda case: case.family,
}


def held_out(runs: Runs, whole: Fit, kind: str, progress: Callable[[float, float], None] | None = None) -> Array:
    """[3, run] as `predicted`: of every run, by the fit to the runs that differ from it in `kind`."""
    labels = np.array([FOLDS[kind](case) for case in runs.cases])
    out = np.full((3, len(labels)), np.nan)
    names = sorted(set(labels))
    for done, name in enumerate(names):
        out_of_fit = labels == name
        part = fit(runs, start=whole, weights=np.where(out_of_fit, 0.0, 1.0))
        out[:, out_of_fit] = predicted(part.service(runs))[:, out_of_fit]
        if progress is not None:
            progress(done + 1.0, float(len(names)))
    return out
