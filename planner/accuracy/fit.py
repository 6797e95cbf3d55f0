"""Fits constants to measured step times.

Minimises, over z (prior widths from the prior means), with w the weight of a run and rho soft-l1:
    sum_i w_i rho(log(predicted_i / measured_i) / SCATTER) + sum_j z_j^2
by Gauss-Newton with derivatives by differences; a constant prices only the runs that it can move.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from ...cost_models.arrays import Array
from ...profiles.rates import constants as table
from ...profiles.rates.calibration import Calibration
from ...profiles.rates.constants import Constant
from .batch_pricing import Batches
from .row import Case

SCATTER = 0.05  # of log time: what the best number per stack leaves (FIDELITY)
ROBUST = 2.0  # scatters beyond which a run counts as an outlier
STEP = 0.05  # of differences, in prior widths
ROUNDS, INNER = 10, 5  # times that derivatives are taken, steps with each of them
# In prior widths.
CONVERGED = 1e-3  # a step that ends a round
NEAR = 0.1  # a first step of a round that makes it the last one
CLOSE = 0.02  # a step that ends a round of a fit that starts at another fit
FAR = 1.0  # the distance from that other fit up to which its derivatives are used
# Sources whose rows are composed of fewer measurements (profiles/catalogue/published/README.md).
INDEPENDENT = {"VIA-Research/vTrain ground_truth_single.csv": 30}


def weights(sources: Sequence[str]) -> Array:
    """A source weighs as the root of its independent runs, and each of its rows the same."""
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
    # [runs, constants] derivatives of log seconds by z.
    slopes: Array
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
        self.bounds = tuple(np.array([constant.bounds for constant in self.constants]).reshape(-1, 2).T)

    def at(self, z: Array) -> Calibration:
        return table.calibration_at(self.constants, z.tolist(), self.base, self.source)

    def _moved(self, constant: Constant) -> set[int]:
        """Batches that the constant can move."""
        return {
            i for i, batch in enumerate(self.batches.batches)
            if table.touches(constant, batch.cases[0].stack_name, batch.cases[0].cluster)
        }  # fmt: skip

    def log_seconds(self, z: Array) -> Array:
        return np.log(self.batches.seconds(self.at(z)))

    def derivatives(self, z: Array, at_z: Array) -> Array:
        """[runs, constants] of log seconds, given those at z."""
        out = np.zeros((len(at_z), len(z)))
        for j in range(len(z)):
            there = z.copy()
            there[j] += STEP
            moved = self.batches.seconds(self.at(there), store=False, only=self.moved[j])
            out[:, j] = (np.log(moved) - at_z) / STEP
        return out


def fit(
    fitter: Fitter, log_measured: Array, weight: Array, near: Fit | None = None, frozen: int | None = None
) -> Fit:
    """The z of least loss. weight: [runs], 0 leaves a run out; frozen: index of a constant that stays at its prior.

    Derivatives are taken anew until a step with new ones is short. The derivatives of a fit that is near serve as they
    are, unless the constants end up further from it than FAR.
    """
    z = np.zeros(len(fitter.constants)) if near is None else near.z.copy()
    free = np.arange(len(z)) != frozen
    z[~free] = 0.0
    at_z, used = fitter.log_seconds(z), np.empty((0, 0))
    steps = 0
    for turn in range(ROUNDS):
        borrowed = near is not None and turn == 0
        used = near.slopes if near is not None and borrowed else fitter.derivatives(z, at_z)
        first = np.inf
        for inner in range(INNER):
            z, at_z, step = _move(fitter, used, log_measured, weight, z, at_z, free)
            steps += 1
            first = step if inner == 0 else first
            if step < (CLOSE if near is not None else CONVERGED):
                break
        if (near is not None and np.abs(z - near.z).max() < FAR) if borrowed else first < NEAR:
            break
    _, curvature = _normal_equations(used, at_z - log_measured, weight, z)
    spread = np.sqrt(np.diag(np.linalg.inv(curvature)))
    return Fit(fitter.constants, z, spread, used, fitter.at(z), np.exp(at_z), steps)


def _move(
    fitter: Fitter, slopes: Array, log_measured: Array, weight: Array, z: Array, at_z: Array, free: NDArray[np.bool_]
) -> tuple[Array, Array, float]:
    """One Gauss-Newton step of the free constants inside the bounds, halved until the loss falls: z, log seconds
    there, longest move."""
    low, high = fitter.bounds
    gradient, curvature = _normal_equations(slopes, at_z - log_measured, weight, z)
    movable = free & ~((z <= low) & (gradient > 0)) & ~((z >= high) & (gradient < 0))
    move = np.zeros(len(z))
    move[movable] = -np.linalg.solve(curvature[np.ix_(movable, movable)], gradient[movable])
    before = loss(at_z - log_measured, weight, z)
    for _ in range(8):
        there = np.clip(z + move, low, high)
        log_seconds = fitter.log_seconds(there)
        if loss(log_seconds - log_measured, weight, there) <= before:
            return there, log_seconds, float(np.abs(there - z).max())
        move = move / 2
    # The batches compare the next constants with those of the last call, which must be z again.
    fitter.log_seconds(z)
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

