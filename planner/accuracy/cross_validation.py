"""The worth of a calibration: errors before and after, on runs left out of the fit, and without each constant."""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import cached_property

import numpy as np
from numpy.typing import NDArray

from ...cost_models.arrays import Array, Ints
from ...profiles.rates.calibration import Calibration
from ...profiles.rates.constants import Constant
from .fit import Fit, Fitter, fit, weights
from .row import Case
from .validate import source_of

Progress = Callable[[float, float], None]
FOLDS = 5
_FIT_PARTS = 10  # what the full fit takes, in fits to a part of the runs


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

    def weight(self, used: NDArray[np.bool_]) -> Array:
        """[runs] weights of a fit that sees the used ones only: it does not know how many runs the others are."""
        out = np.zeros(len(self.cases))
        out[used] = weights([source for source, use in zip(self.sources, used, strict=True) if use])
        return out


def group_of(case: Case) -> str:
    """Runs of one group share model and cluster: none of them may judge a fit that saw another. Sequence length, biases
    or vocabulary do not make another model, nor another network another cluster."""
    model, cluster = case.model, case.cluster
    return f"{model.hidden} x {model.num_layers} on {cluster.num_gpus} {cluster.gpu.name}"


def folds(groups: Sequence[str], number: int = FOLDS) -> Ints:
    """[runs] fold of each: whole groups, the largest first, each to the fold with fewest runs; ties by digest."""
    members: dict[str, list[int]] = {}
    for i, group in enumerate(groups):
        members.setdefault(group, []).append(i)
    order = sorted(members, key=lambda group: (-len(members[group]), hashlib.sha256(group.encode()).hexdigest()))
    sizes, out = [0] * number, np.zeros(len(groups), dtype=np.int64)
    for group in order:
        fold = sizes.index(min(sizes))
        out[members[group]] = fold
        sizes[fold] += len(members[group])
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
    everything = np.ones(len(cases), dtype=bool)
    labels = [runs.parts[0], np.unique(runs.sources, return_inverse=True)[1]]
    fits = _Progress(progress, _FIT_PARTS + sum(int(parts.max()) + 1 for parts in labels) + len(chosen))
    full = fit(fitter, runs.log_measured, runs.weight(everything))
    fits.advance(_FIT_PARTS)
    groups, sources = (_left_out(fitter, runs, full, parts, fits) for parts in labels)
    frozen = [_without(fitter, runs, full, j, fits) for j in range(len(chosen))]
    return Study(runs, full, before, groups, sources, np.array(frozen).reshape(-1, len(cases)))


def _without(fitter: Fitter, runs: Runs, full: Fit, frozen: int, fits: _Progress) -> Array:
    """[runs] step seconds of a fit with the constant `frozen` (its index) at its prior."""
    weight = runs.weight(np.ones(len(runs.cases), dtype=bool))
    fits.advance()
    return fit(fitter, runs.log_measured, weight, near=full, frozen=frozen).seconds


def left_out_fit(fitter: Fitter, runs: Runs, full: Fit, part: NDArray[np.bool_]) -> Fit:
    """The fit to all runs but `part`. The full fit is where it starts from, which the place of least loss does not
    depend on, and lends it derivatives, which say how predictions move and not what was measured."""
    return fit(fitter, runs.log_measured, runs.weight(~part), near=full)


def _left_out(fitter: Fitter, runs: Runs, full: Fit, labels: Ints, fits: _Progress) -> Array:
    out = np.empty(len(runs.cases))
    for label in np.unique(labels):
        part = labels == label
        out[part] = left_out_fit(fitter, runs, full, part).seconds[part]
        fits.advance()
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
