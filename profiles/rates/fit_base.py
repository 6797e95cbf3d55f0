"""What the fits share: the shipped tables, the devices that they were measured on, and the solver."""

from __future__ import annotations

import csv
import gzip
from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np
from scipy.optimize import least_squares

from ...cost_models.arrays import Array
from ..io.folders import MEASURED


@dataclass(frozen=True, slots=True)
class Device:
    """What the tables were measured on; the registry's numbers, restated so that a fit never moves with them."""

    peak_flops_per_s: float
    memory_bw_bytes_per_s: float
    num_sms: int
    generation: str
    link: str  # kind of its in-node level
    link_bw_bytes_per_s: float


DEVICES = {
    "a100-sxm-80gb": Device(312e12, 2.039e12, 108, "ampere", "nvlink3", 300e9),
    "a100-pcie-80gb": Device(312e12, 1.935e12, 108, "ampere", "pcie4", 32e9),
    "h100-sxm-80gb": Device(989.5e12, 3.35e12, 132, "hopper", "nvlink4", 450e9),
    "h200-sxm-141gb": Device(989.5e12, 4.8e12, 132, "hopper", "nvlink4", 450e9),
    "b200-sxm-180gb": Device(2250e12, 7.7e12, 148, "blackwell", "nvlink5", 900e9),
    "b300-sxm-288gb": Device(2250e12, 7.75e12, 148, "blackwell", "nvlink5", 900e9),
    "gb200-186gb": Device(2500e12, 8e12, 152, "blackwell", "nvlink5", 900e9),
    "gb300-288gb": Device(2500e12, 8e12, 152, "blackwell", "nvlink5", 900e9),
    "l40s": Device(362e12, 864e9, 142, "ada", "pcie4", 32e9),
    "rtx-pro-6000-server": Device(467.8e12, 1.792e12, 188, "blackwell-rtx", "pcie5", 64e9),
    "mi250x-gcd": Device(191.5e12, 1.6e12, 110, "cdna2", "xgmi", 150e9),
}
V100 = Device(125e12, 0.9e12, 80, "volta", "nvlink2", 150e9)


def table(name: str) -> list[dict[str, str]]:
    """The rows of `profiles/catalogue/measured/<name>.csv.gz`."""
    with gzip.open(MEASURED / f"{name}.csv.gz", "rt", encoding="utf-8", newline="") as lines:
        return list(csv.DictReader(lines))


def columns(rows: Sequence[dict[str, str]], *names: str) -> list[Array]:
    return [np.array([float(row[name]) for row in rows]) for name in names]


def solve(
    predict: Callable[[Array], Array],
    measured: Array,
    start: Sequence[float],
    bounds: Sequence[tuple[float, float]],
    weight: Array | float = 1.0,
    soft: float = 0.05,
) -> tuple[Array, dict[str, float]]:
    """Parameters that bring `predict` nearest to `measured` in log time, and the errors that are left."""
    low, high = np.array(bounds, dtype=np.float64).T
    scale = np.maximum(np.abs(np.array(start, dtype=np.float64)), 1e-9)

    def residual(unit: Array) -> Array:
        return np.asarray(np.log(predict(unit * scale) / measured) * weight)

    found = least_squares(residual, np.array(start) / scale, bounds=(low / scale, high / scale), loss="soft_l1",
                          f_scale=soft, xtol=1e-12, ftol=1e-12, gtol=1e-12)  # fmt: skip
    value = np.asarray(found.x * scale)
    error = np.abs(predict(value) / measured - 1.0)
    return value, {
        "cost": float(found.cost),
        "rows": float(len(measured)),
        "median": float(np.median(error)),
        "p90": float(np.quantile(error, 0.9)),
    }


def pin(value: float) -> tuple[float, float]:
    """Bounds that hold a parameter where it is (the solver wants a gap)."""
    return value * (1 - 1e-9), value * (1 + 1e-9)
