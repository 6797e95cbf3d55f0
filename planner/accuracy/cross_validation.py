"""Cross-validation of a calibration: errors before and after, on held-out runs, and without each constant."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from functools import cached_property

import numpy as np

from ...cost_models.arrays import Array, Ints, Mask
from ...profiles.rates.calibration import Calibration
from ...profiles.rates.constants import Constant
from .fit import Expansion, Fit, Fitter, fit, weights
from .folds import folds, group_of, parts_of
from .row import Case
from .validate import source_of

Progress = Callable[[float, float], None]
_FIT_PARTS = 10  # cost of the full fit, in fits to a part of the runs


@dataclass(frozen=True)
class Runs:
    """Runs that a fit may use: scored ones with a time that can be priced."""

    # [runs]
    cases: tuple[Case, ...]
    # [runs] repository and file of each.
    sources: tuple[str, ...]
    # [runs] model and cluster of each.
    groups: tuple[str, ...]
    # [runs] log of the measured step seconds.
    log_measured: Array

    @classmethod
    def of(cls, cases: Sequence[Case]) -> Runs:
        return cls(
            tuple(cases), tuple(source_of(case.source) for case in cases), tuple(group_of(case) for case in cases),
            np.log([case.measured.step_s or np.nan for case in cases]),
        )  # fmt: skip

    @cached_property
    def parts(self) -> tuple[Ints, str]:
        """[runs] the part that each is left out with, and what a part is. Where all runs are one group, one by one."""
        if len(set(self.groups)) > 1:
            return folds(self.groups), "groups"
        return np.arange(len(self.cases)), "runs"

    def weight(self, used: Mask) -> Array:
        """[runs] weights of a fit that sees the used ones only: it does not know how many runs the others are."""
        out = np.zeros(len(self.cases))
        out[used] = weights([source for source, use in zip(self.sources, used, strict=True) if use])
        return out


@dataclass(frozen=True)
class Study:
    """A fit to runs, and the step seconds that it and other fits predict for them."""

    runs: Runs
    # The fit to all runs.
    fit: Fit
    # [runs] seconds by the priors.
    before: Array
    # [runs] seconds by a fit that saw no run of the run's group.
    across_groups: Array
    # [runs] seconds by a fit that saw no run of the run's source.
    across_sources: Array
    # [constants, runs] seconds by a fit with that constant at its prior.
    frozen: Array

    @property
    def after(self) -> Array:
        return self.fit.seconds

    @property
    def left_out_by(self) -> str:
        """`groups` of one model and cluster, or single `runs` where there is one group."""
        return self.runs.parts[1]


def study(
    cases: Sequence[Case], chosen: Sequence[Constant], base: Calibration, source: str, progress: Progress | None = None
) -> Study:
    """Fit the chosen constants to the runs, then judge the fit on runs that it did not see."""
    runs = Runs.of(cases)
    fitter = Fitter(cases, chosen, base, source)
    before = np.exp(fitter.log_seconds(np.zeros(len(chosen))))
    everything = runs.weight(np.ones(len(cases), dtype=bool))
    labels = [runs.parts[0], np.unique(runs.sources, return_inverse=True)[1]]
    fits = _Progress(progress, _FIT_PARTS + sum(int(parts.max()) + 1 for parts in labels) + len(chosen))
    full = fit(fitter, runs.log_measured, everything)
    around = fitter.expansion(full.z, np.log(full.seconds))
    fits.advance(_FIT_PARTS)
    groups, sources = (left_out(fitter, around, runs, parts_of(parts), fits.advance) for parts in labels)
    frozen = np.empty((len(chosen), len(cases)))
    for j in range(len(chosen)):
        z = around.least(runs.log_measured, everything, frozen=j)
        frozen[j] = fitter.part_seconds(z, np.ones(len(cases), dtype=bool))
        fits.advance()
    return Study(runs, full, before, groups, sources, frozen)


def left_out(
    fitter: Fitter, around: Expansion, runs: Runs, parts: Iterable[tuple[Mask, Mask]],
    advance: Callable[[], None] = lambda: None,
) -> Array:  # fmt: skip
    """[runs] step seconds of every part by a fit to the runs outside `unseen`. parts: (part, unseen), masks of runs."""
    out = np.full(len(runs.cases), np.nan)
    for part, unseen in parts:
        z = around.least(runs.log_measured, runs.weight(~unseen))
        out[part] = fitter.part_seconds(z, part)
        advance()
    return out


class _Progress:
    """Counts parts of the work for the progress bar."""

    def __init__(self, progress: Progress | None, total: int) -> None:
        self._progress, self._total = progress, total
        self._done = 0

    def advance(self, parts: int = 1) -> None:
        self._done += parts
        if self._progress is not None:
            self._progress(float(self._done), float(self._total))
