"""The solver of all fits: least squares on log time with a soft loss."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np

from ...cost_models.arrays import Array
from ...errors import MissingExtraError

if TYPE_CHECKING:
    from scipy.optimize import OptimizeResult


def least_squares(residuals: Callable[[Array], Array], start: Any, **options: Any) -> OptimizeResult:
    """`scipy.optimize.least_squares`. Raises MissingExtraError without scipy: only fits of measurements need it."""
    try:
        from scipy.optimize import least_squares as minimise
    except ImportError:
        raise MissingExtraError("runtime", "a fit of measurements") from None
    return minimise(residuals, start, **options)


def solve(
    predict: Callable[[Array], Array],
    measured: Array,
    start: Sequence[float],
    bounds: Sequence[tuple[float, float]],
    weight: Array | float = 1.0,
    soft: float = 0.05,
) -> tuple[Array, dict[str, float]]:
    """Parameters that bring `predict` nearest to `measured` in log time, and the errors that remain.

    soft: the log error from which on a row counts linearly instead of squared, so that outliers do not lead the fit.
    """
    low, high = np.array(bounds, dtype=np.float64).T
    # Parameters span nine orders of magnitude (seconds to tile columns), so the solver sees each over its start.
    scale = np.maximum(np.abs(np.array(start, dtype=np.float64)), 1e-9)

    def residual(unit: Array) -> Array:
        return np.asarray(np.log(predict(unit * scale) / measured) * weight)

    result = least_squares(residual, np.array(start) / scale, bounds=(low / scale, high / scale), loss="soft_l1",
                           f_scale=soft, xtol=1e-12, ftol=1e-12, gtol=1e-12)  # fmt: skip
    parameters = np.asarray(result.x * scale)
    error = np.abs(predict(parameters) / measured - 1.0)
    return parameters, {
        "cost": float(result.cost),
        "rows": float(len(measured)),
        "median": float(np.median(error)),
        "p90": float(np.quantile(error, 0.9)),
    }


def pin(value: float) -> tuple[float, float]:
    """Bounds that fix a parameter where it is (the solver wants a gap)."""
    return value * (1 - 1e-9), value * (1 + 1e-9)
