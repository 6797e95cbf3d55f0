"""The profile of a device's kernels, in base units: what `profile kernels` prints and writes. No torch here."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, dataclass, field
from typing import Any


@dataclass(frozen=True, kw_only=True)
class TimedKernel:
    """One kernel: the median and the quartiles of its samples."""

    name: str
    kind: str
    direction: str  # `forward`, `backward`, `input gradient`, `weight gradient` or `step`
    shape: dict[str, int]
    median_s: float
    low_s: float  # first quartile
    high_s: float  # third quartile
    samples: int
    flops_per_s: float | None  # None: it does no products
    bytes_per_s: float | None  # None: it is not bound by memory
    priced_s: float | None  # as the planner prices it; None: nothing is known of the device

    def to_dict(self) -> dict[str, Any]:
        """The JSON form. A rate that the kernel does not have is absent."""
        values = asdict(self)
        return {name: value for name, value in values.items() if value is not None or not name.endswith("per_s")}


@dataclass(frozen=True)
class SkippedKernel:
    """A kernel that was not timed."""

    kernel: str
    reason: str


@dataclass(frozen=True)
class StepTerm:
    """Seconds of a step in the kernels of one class."""

    measured_s: float
    priced_s: float | None

    def plus(self, measured_s: float, priced_s: float | None) -> StepTerm:
        """The sum; the price is known where it is known of both."""
        known = self.priced_s is not None and priced_s is not None
        return StepTerm(self.measured_s + measured_s, (self.priced_s or 0.0) + (priced_s or 0.0) if known else None)


@dataclass(frozen=True)
class LayoutTimes:
    """A step of one layout, kernels alone."""

    layout_id: str
    micro_batches: float  # in a step
    terms: dict[str, StepTerm]  # by class of kernel
    missing: tuple[str, ...]  # kernels of the layout that were not timed


@dataclass(frozen=True, kw_only=True)
class DeviceRates:
    """What prices a device that no catalogue knows. profiles/cluster/measured_device.py says what the numbers mean;
    None: its kernels were not timed."""

    name: str
    memory_bytes: float
    memory_bw_bytes_per_s: float | None = None
    peak_flops_per_s: float | None = None  # of the best product
    gemm: dict[str, float] | None = None  # surface of products
    residual: float | None = None  # median relative distance of products from their surface
    attention: dict[str, float] | None = None  # shares of the peak
    passes: dict[str, tuple[float, float]] = field(default_factory=dict)  # bytes/s, forward and backward
    latency: dict[str, tuple[float, float]] = field(default_factory=dict)  # seconds, forward and backward
    in_place: dict[str, float] | None = None  # factors of a whole model over its parts

    def to_dict(self) -> dict[str, Any]:
        """The JSON form, without what is not known."""
        return {name: value for name, value in asdict(self).items() if value is not None}


@dataclass(frozen=True, kw_only=True)
class KernelProfile:
    """The kernels of the layouts of a model, on one device."""

    model: str
    dtype: str
    gpu: str  # in the catalogue; empty: none
    environment: Mapping[str, str]
    kernels: tuple[TimedKernel, ...]
    skipped: tuple[SkippedKernel, ...]
    layouts: tuple[LayoutTimes, ...]
    efficiencies: Mapping[str, float | None]  # as in assumptions.yaml; empty: nothing is known of the device
    overlap: Mapping[str, float] | None = None  # time factors of computing and communicating at once
    device: DeviceRates | None = None

    def to_dict(self) -> dict[str, Any]:
        """The JSON form."""
        optional = {} if self.overlap is None else {"overlap": dict(self.overlap)}
        if self.device is not None:
            optional["device"] = self.device.to_dict()
        return {
            "kind": "kernel-profile", "model": self.model, "dtype": self.dtype, "gpu": self.gpu,
            "environment": dict(self.environment), "kernels": [kernel.to_dict() for kernel in self.kernels],
            "skipped": [asdict(kernel) for kernel in self.skipped],
            "layouts": [asdict(layout) for layout in self.layouts], "efficiencies": dict(self.efficiencies), **optional,
        }  # fmt: skip
