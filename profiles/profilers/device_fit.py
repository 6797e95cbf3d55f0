"""Fits the `device` of a kernel profile to kernels and layers timed on a device that no catalogue knows. No torch here.

A kernel takes what a call takes whatever its data, timed on hardly any (`kernels.hardly_any`), and its work. Rates are
fitted to work alone, weighted as the layouts run it: `latency` of a layer has the calls.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, replace

import numpy as np
from numpy.typing import NDArray

from ...cost_models.rates.surfaces import GemmSurface, gemm_seconds
from ...cost_models.specs.cluster import GpuSpec
from ...cost_models.specs.workload import OPERAND_BYTES
from ..cluster import measured_device
from ..rates.least_squares import least_squares
from .kernel_results import DeviceRates
from .kernels import Kernel, Need, hardly_any
from .samples import SampleRange

LEAST_WORK = 0.1  # of what a kernel takes: a call that hides its work still has some
_AT_ONCE = ("update", "accumulation", "message")
NO_TIME = 1e-9  # seconds: a profile holds nothing that is zero
# Fitted: share of the peak, columns that filling and draining costs, share of the memory bandwidth.
_START = (0.9, 16.0, 1.0)
_LOW = (0.05, 0.0, 0.05)
_HIGH = (1.5, 512.0, 20.0)


@dataclass(frozen=True)
class Timed:
    """The times of kernels and of parts of a model on one device."""

    spreads: Mapping[Kernel, SampleRange]  # of every kernel, those with hardly any data included
    latency_s: Mapping[str, tuple[float, float]]  # part of a model with hardly any data -> (forward, backward)
    message_bytes_per_s: float = math.inf  # of one to another stage, at either end, beyond its latency

    def work(self, kernel: Kernel) -> float | None:
        """Seconds of a kernel beyond its call; None where one of the two was not timed."""
        call = self.spreads.get(hardly_any(kernel))
        if kernel not in self.spreads or call is None:
            return None
        whole = self.spreads[kernel].median
        return max(whole - call.median, LEAST_WORK * whole)


def weights(needs: Sequence[Need]) -> dict[Kernel, float]:
    """Calls of every kernel, over all layouts."""
    calls: dict[Kernel, float] = {}
    for need in needs:
        for kernel, number in need.calls.items():
            calls[kernel] = calls.get(kernel, 0.0) + number
    return calls


def device(timed: Timed, needs: Sequence[Need], *, name: str, dtype: str, memory_bytes: float) -> DeviceRates:
    """`device` of a profile. A part whose kernels were not timed is left out, which `plan` reports."""
    calls = {kernel: number for kernel, number in weights(needs).items() if timed.work(kernel) is not None}
    work = {kernel: float(timed.work(kernel) or 0.0) for kernel in calls}
    passes = _passes(calls, work)
    if math.isfinite(rate := timed.message_bytes_per_s):
        passes["message"] = rate, rate
    sums = [pair for kind in ("residuals", "norms", "accumulation") if (pair := passes.get(kind))]
    rates = DeviceRates(name=name, memory_bytes=memory_bytes, passes=passes, latency=dict(timed.latency_s))
    if not sums:
        return rates
    bandwidth = sums[0][0]
    rates = replace(rates, memory_bw_bytes_per_s=bandwidth)
    products = _products(calls, work, bandwidth, dtype)
    if products is None:
        return rates
    attention = _attention(calls, work, products.peak_flops_per_s)
    return replace(rates, peak_flops_per_s=products.peak_flops_per_s, gemm=products.gemm, residual=products.residual,
                   attention=attention)  # fmt: skip


@dataclass(frozen=True)
class InPlace:
    """How many times longer the parts of a model take one after the other than by themselves, since each finds caches
    that the others have filled."""

    calls: float  # factor of `latency`
    work: float  # factor of products, attention and passes

    @classmethod
    def of(cls, measured_s: Sequence[float], calls_s: Sequence[float], work_s: Sequence[float]) -> InPlace:
        """From whole models of one size or two, and what their calls and their work are priced at: one factor for both
        where there is one size, or where two factors would not both be above zero."""
        parts, seconds = np.array([calls_s, work_s]).T, np.array(measured_s)
        common = float(seconds.sum() / parts.sum())
        factors = np.linalg.solve(parts, seconds) if len(seconds) == 2 and np.linalg.det(parts) else np.zeros(2)
        return cls(*map(float, factors)) if factors.min() > 0 else cls(common, common)


def in_place(device: DeviceRates, factors: InPlace) -> DeviceRates:
    """`device` with its parts in place. Updates and sums run through all parameters at once, as they were timed, and
    messages as they are sent."""
    calls, work = factors.calls, factors.work
    return replace(
        device, gemm=_slower(device.gemm, work), attention=_slower(device.attention, work), in_place=asdict(factors),
        passes={name: pair if name in _AT_ONCE else (pair[0] / work, pair[1] / work)
                for name, pair in device.passes.items()},
        latency={name: pair if name in _AT_ONCE else (pair[0] * calls, pair[1] * calls)
                 for name, pair in device.latency.items()},
    )  # fmt: skip


def _slower(surface: Mapping[str, float] | None, factor: float) -> dict[str, float] | None:
    """The constants of a surface that takes so many times as long."""
    if surface is None:
        return None
    return {name: value / factor if name.endswith("efficiency") else value for name, value in surface.items()}


def without_calls(device: DeviceRates) -> DeviceRates:
    """`device` whose calls take next to no time: what is left is work."""
    return replace(device, latency=dict.fromkeys(device.latency, (NO_TIME, NO_TIME)))


def latency(samples: Sequence[float]) -> tuple[float, float]:
    """Seconds of a part of a model, of samples forward, backward, forward, ...: of a part that takes next to nothing
    beside another, differences may be negative."""
    forward, backward = (max(float(np.median(direction)), NO_TIME) for direction in (samples[::2], samples[1::2]))
    return forward, backward


def _passes(calls: Mapping[Kernel, float], work: Mapping[Kernel, float]) -> dict[str, tuple[float, float]]:
    """Bytes/s of memory-bound operations by the cost model's names: forward and backward, of all shapes together."""
    moved: dict[tuple[str, bool], list[float]] = {}
    for kernel, number in calls.items():
        if kernel.num_bytes:
            total = moved.setdefault((kernel.name, kernel.direction == "backward"), [0.0, 0.0])
            total[0] += number * kernel.num_bytes
            total[1] += number * work[kernel]
    rates = {key: num_bytes / seconds for key, (num_bytes, seconds) in moved.items()}
    pairs = {name: (rates[name, False], rates.get((name, True), rates[name, False]))
             for name, backward in rates if not backward}  # fmt: skip
    if "norms" in pairs:  # equal shapes are timed under one name
        pairs.setdefault("final norm", pairs["norms"])
    return pairs


def _attention(calls: Mapping[Kernel, float], work: Mapping[Kernel, float], peak: float) -> dict[str, float] | None:
    """Shares of the peak, at the context of the workload; None where a pass was not timed."""
    shares = {}
    for direction in measured_device.DIRECTIONS:
        chosen = [k for k in calls if k.kind == "attention" and k.direction == direction]
        if not chosen:
            return None
        flops = sum(calls[k] * k.flops for k in chosen)
        shares[f"{direction}_efficiency"] = flops / sum(calls[k] * work[k] for k in chosen) / peak
    return {**shares, "half_context": 0.0}


@dataclass(frozen=True)
class _Products:
    """The constants of `DeviceRates` that products show."""

    peak_flops_per_s: float  # of the best product
    gemm: dict[str, float]  # constants of the surface
    residual: float  # median relative distance of products from it


def _products(
    calls: Mapping[Kernel, float], work: Mapping[Kernel, float], bandwidth: float, dtype: str
) -> _Products | None:  # fmt: skip
    """Peak (the best product) and the surface through all of them; together they take what was measured."""
    products = [kernel for kernel in calls if kernel.kind == "gemm"]
    if not products:
        return None
    seconds = np.array([work[kernel] for kernel in products])
    flops = np.array([kernel.flops for kernel in products])
    share = np.array([calls[kernel] for kernel in products]) * seconds
    share /= share.sum()
    peak = float(np.max(flops / seconds))
    m, n, k = np.array([kernel.product for kernel in products], dtype=float).T
    spec = GpuSpec(name="", vendor="", arch="", peak_flops_per_s={dtype: peak}, memory_bytes=1.0,
                   memory_bw_bytes_per_s=bandwidth, link_bw_bytes_per_s=1.0, pcie_bw_bytes_per_s=1.0)  # fmt: skip

    def surface(values: NDArray[np.float64]) -> GemmSurface:
        constants = dict(zip(measured_device.GEMM, map(float, values), strict=True))
        return measured_device.gemm(replace(spec, measured={"gemm": constants}))[dtype]

    def predicted(values: NDArray[np.float64]) -> NDArray[np.float64]:
        return gemm_seconds(surface(values), m, n, k, OPERAND_BYTES[dtype])

    def residuals(values: NDArray[np.float64]) -> NDArray[np.float64]:
        return np.asarray(np.sqrt(share) * np.log(predicted(values) / seconds))

    solution = least_squares(residuals, _START, bounds=(_LOW, _HIGH), x_scale=(0.1, 16.0, 0.5)).x
    fitted = np.array(solution)
    ratio = float(np.sum(share * predicted(fitted) / seconds))  # of all seconds together
    fitted[0], fitted[2] = fitted[0] * ratio, fitted[2] * ratio
    residual = float(np.median(np.abs(predicted(fitted) / seconds - 1.0)))
    constants = dict(zip(measured_device.GEMM, map(float, fitted), strict=True))
    return _Products(peak, constants, residual)
