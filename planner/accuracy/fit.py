"""Fits constants to measured step times.

Minimises, over z (prior widths from the prior means), with w the weight of a run and rho soft-l1:
    sum_i w_i rho(log(predicted_i / measured_i) / SCATTER) + sum_j z_j^2
by Gauss-Newton with derivatives by differences; a constant prices only the runs that it can move. Fits to parts of the
runs are taken from the second-order expansion of the predictions around the full fit (`Expansion`).
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from ...cost_models.arrays import Array
from ...profiles.rates import constants as table
from ...profiles.rates.calibration import Calibration
from ...profiles.rates.constants import Constant
from .batch_pricing import Batches
from .row import Case

SCATTER = 0.05  # of log time: residual after the best number per stack (FIDELITY)
ROBUST = 2.0  # scatters beyond which a run counts as an outlier
# In prior widths.
STEP = 0.05  # of differences
WIDE_STEP = 1.0  # of the differences of an expansion: fits to parts of the runs go that far
CONVERGED = 1e-3  # a step that ends a round
NEAR = 0.1  # a first step of a round that makes it the last one
ROUNDS, INNER = 10, 5  # times that derivatives are taken, steps with each of them
HALVINGS = 3  # of a step that does not lower the loss; then derivatives are taken anew
PART_STEPS = 50  # of a fit to a part of the runs, which costs no pricing
# Sources whose rows are composed of fewer measurements (profiles/catalogue/published/README.md).
INDEPENDENT = {"VIA-Research/vTrain ground_truth_single.csv": 30}


def weights(sources: Sequence[str]) -> Array:
    """Weights of rows: a source weighs the root of its independent runs, shared equally by its rows."""
    counts = Counter(sources)
    return np.array([min(counts[s], INDEPENDENT.get(s, counts[s])) ** 0.5 / counts[s] for s in sources])


@dataclass(frozen=True)
class Fit:
    """Constants fitted to runs."""

    # [constants]
    constants: tuple[Constant, ...]
    # [constants] distance from the prior means, in prior widths.
    z: Array
    # [constants] width of the posterior over that of the prior.
    spread: Array
    # The constants at z.
    calibration: Calibration
    # [runs] predicted step seconds at z.
    seconds: Array
    # Gauss-Newton steps that the fit took.
    steps: int


class Fitter:
    """Predictions of runs and their derivatives as functions of the constants' z."""

    def __init__(self, cases: Sequence[Case], constants: Sequence[Constant], base: Calibration, source: str) -> None:
        self.constants = tuple(constants)
        self.base, self.source = base, source
        self.batches = Batches(cases, self.at(np.zeros(len(self.constants))))
        self.moved = [self._moved(constant) for constant in self.constants]
        # [batches] the constants that can move each, and the seconds [runs of the batch] at places of these.
        numbers = range(len(self.batches.batches))
        self._movers = [[j for j, moved in enumerate(self.moved) if i in moved] for i in numbers]
        self._priced: dict[tuple[int, bytes], Array] = {}
        low, high = np.array([constant.bounds for constant in self.constants]).reshape(-1, 2).T
        self.bounds: tuple[Array, Array] = (low, high)

    def at(self, z: Array) -> Calibration:
        return table.calibration_at(self.constants, z.tolist(), self.base, self.source)

    def _moved(self, constant: Constant) -> set[int]:
        """Batches that the constant can move."""
        return {
            i for i, batch in enumerate(self.batches.batches)
            if table.touches(constant, batch.cases[0].stack_name, batch.cases[0].cluster)
        }  # fmt: skip

    def log_seconds(self, z: Array) -> Array:
        return np.log(self._seconds(z, range(len(self.batches.batches)), store=True))

    def _seconds(self, z: Array, chosen: Collection[int], *, store: bool = False) -> Array:
        """[runs] step seconds at z of the chosen batches, NaN of others.

        A batch is priced once where the constants that can move it are the same: fits meet in their start, and come
        back to a place where a step did not lower the loss. store: make z the reference of the batches priced.
        """
        out, fitted = np.full(len(self.batches.cases), np.nan), self.at(z)
        for i in chosen:
            batch, place = self.batches.batches[i], (i, z[self._movers[i]].tobytes())
            if place not in self._priced:
                self._priced[place] = batch.seconds(fitted, store=store)
            out[batch.index] = self._priced[place]
        return out

    def derivatives(self, z: Array, at_z: Array) -> Array:
        """[runs, constants] of log seconds, given those at z."""
        return (self._beside(z, at_z, STEP) - at_z[:, None]) / STEP

    def expansion(self, z: Array, at_z: Array) -> Expansion:
        """Log seconds to second order in every constant around z, given those at z."""
        up, down = (self._beside(z, at_z, step) for step in (WIDE_STEP, -WIDE_STEP))
        slopes, curvature = (up - down) / (2 * WIDE_STEP), (up + down - 2 * at_z[:, None]) / WIDE_STEP**2
        return Expansion(z, at_z, slopes, curvature, self.bounds)

    def _beside(self, z: Array, at_z: Array, step: float) -> Array:
        """[runs, constants] log seconds with one constant each `step` away from z, given those at z."""
        out = np.repeat(at_z[:, None], len(z), axis=1)
        for j, moved in enumerate(self.moved):
            there = z.copy()
            there[j] += step
            log_seconds = np.log(self._seconds(there, moved))
            for i in moved:
                index = self.batches.batches[i].index
                out[index, j] = log_seconds[index]
        return out

    def part_seconds(self, z: Array, part: NDArray[np.bool_]) -> Array:
        """[runs of the part] step seconds at z; no other run is priced."""
        chosen = {i for i, batch in enumerate(self.batches.batches) if part[batch.index].any()}
        return self._seconds(z, chosen)[part]


@dataclass(frozen=True)
class Expansion:
    """Log seconds of runs around a place, to second order; constants are taken not to sharpen each other's effect."""

    z: Array  # [constants] the place
    at_z: Array  # [runs] log seconds there
    slopes: Array  # [runs, constants]
    curvature: Array  # [runs, constants] second derivatives
    bounds: tuple[Array, Array]  # of z

    def least(self, log_measured: Array, weight: Array, frozen: int | None = None) -> Array:
        """The z of least loss. weight: [runs], 0 leaves a run out; frozen: a constant that stays at its prior."""
        low, high = self.bounds
        z = np.clip(self.z, low, high)
        free = np.arange(len(z)) != frozen
        z[~free] = 0.0
        for _ in range(PART_STEPS):
            away = z - self.z
            slopes = self.slopes + self.curvature * away
            log_seconds = self.at_z + (self.slopes + self.curvature * away / 2) @ away
            there = np.clip(z + _newton(slopes, log_seconds - log_measured, weight, z, free, self.bounds), low, high)
            step, z = np.abs(there - z).max(initial=0.0), there
            if step < CONVERGED:
                break
        return np.asarray(z)


def fit(fitter: Fitter, log_measured: Array, weight: Array, start: Array | None = None) -> Fit:
    """The z of least loss. weight: [runs], 0 leaves a run out. Derivatives are taken anew until a step with new ones
    is short. start: the first z [the priors']."""
    z = np.zeros(len(fitter.constants)) if start is None else start
    at_z, slopes = fitter.log_seconds(z), np.empty((0, 0))
    steps = 0
    for _ in range(ROUNDS):
        slopes = fitter.derivatives(z, at_z)
        first = 0.0
        for inner in range(INNER):
            z, at_z, step = _move(fitter, slopes, log_measured, weight, z, at_z)
            steps += 1
            first = step if inner == 0 else first
            if step < CONVERGED:
                break
        if first < NEAR:
            break
    _, curvature = _normal_equations(slopes, at_z - log_measured, weight, z)
    spread = np.sqrt(np.diag(np.linalg.inv(curvature)))
    return Fit(fitter.constants, z, spread, fitter.at(z), np.exp(at_z), steps)


def _newton(
    slopes: Array, residual: Array, weight: Array, z: Array, free: NDArray[np.bool_], bounds: tuple[Array, Array]
) -> Array:
    """One Gauss-Newton step of the free constants that are not held by a bound."""
    low, high = bounds
    gradient, curvature = _normal_equations(slopes, residual, weight, z)
    movable = free & ~((z <= low) & (gradient > 0)) & ~((z >= high) & (gradient < 0))
    move = np.zeros(len(z))
    move[movable] = -np.linalg.solve(curvature[np.ix_(movable, movable)], gradient[movable])
    return move


def _move(
    fitter: Fitter, slopes: Array, log_measured: Array, weight: Array, z: Array, at_z: Array
) -> tuple[Array, Array, float]:
    """One step inside the bounds, halved until the loss falls: z, log seconds there, longest move (0: no step)."""
    low, high = fitter.bounds
    move = _newton(slopes, at_z - log_measured, weight, z, np.ones(len(z), dtype=bool), fitter.bounds)
    before = loss(at_z - log_measured, weight, z)
    for _ in range(HALVINGS):
        there = np.clip(z + move, low, high)
        log_seconds = fitter.log_seconds(there)
        if loss(log_seconds - log_measured, weight, there) <= before:
            return there, log_seconds, float(np.abs(there - z).max(initial=0.0))
        move = move / 2
    return z, at_z, 0.0


def loss(residual: Array, weight: Array, z: Array) -> float:
    """sum w rho(r / SCATTER) + sum z^2, rho(x) = 2 c^2 (sqrt(1 + (x/c)^2) - 1): x^2 for small x, 2 c |x| for large."""
    x = residual / (SCATTER * ROBUST)
    rho = 2.0 * ROBUST**2 * (np.sqrt(1.0 + x * x) - 1.0)
    return float(weight @ rho + z @ z)


def _normal_equations(slopes: Array, residual: Array, weight: Array, z: Array) -> tuple[Array, Array]:
    """Half the gradient of the loss, and its Gauss-Newton curvature."""
    x = residual / (SCATTER * ROBUST)
    robust_weight = weight / np.sqrt(1.0 + x * x) / SCATTER**2
    gradient = slopes.T @ (robust_weight * residual) + z
    return gradient, slopes.T @ (robust_weight[:, None] * slopes) + np.eye(len(z))

