"""The profile of a device's kernels, in base units: what `profile kernels` prints and writes. No torch here."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, dataclass, field
from typing import Any


@dataclass(frozen=True, kw_only=True)
class TimedKernel:
    """One kernel: the median and the quartiles of its samples."""

    name: str  # of the operation in the cost model
    kind: str  # as `kernels.Kind`
    direction: str  # `forward`, `backward`, `input gradient`, `weight gradient` or `step`
    shape: dict[str, int]  # size of each dimension
    median_s: float  # of a call
    low_s: float  # first quartile
    high_s: float  # third quartile
    samples: int  # number of them
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

    kernel: str  # its line in the file of samples
    reason: str  # why it was not timed


@dataclass(frozen=True)
class StepTerm:
    """Seconds of a step in the kernels of one class."""

    measured_s: float  # of the medians
    priced_s: float | None  # as the planner prices them; None: nothing is known of the device

    def plus(self, measured_s: float, priced_s: float | None) -> StepTerm:
        """The sum; the price is known where it is known of both."""
        known = self.priced_s is not None and priced_s is not None
        return StepTerm(self.measured_s + measured_s, (self.priced_s or 0.0) + (priced_s or 0.0) if known else None)


@dataclass(frozen=True)
class LayoutTimes:
    """A step of one layout, kernels alone."""

    layout_id: str  # as `Layout` writes it
    micro_batches: float  # in a step
    terms: dict[str, StepTerm]  # by class of kernel
    missing: tuple[str, ...]  # kernels of the layout that were not timed


@dataclass(frozen=True, kw_only=True)
class DeviceRates:
    """The rates of a device that no catalogue knows, as profiles/cluster/measured_device.py reads them. None: the
    kernels were not timed."""

    name: str  # as cluster files call it
    memory_bytes: float  # that tensors may take
    memory_bw_bytes_per_s: float | None = None  # of plain sums
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

    model: str  # its name
    dtype: str  # of products
    gpu: str  # in the catalogue; empty: none
    environment: Mapping[str, str]  # device and versions
    kernels: tuple[TimedKernel, ...]  # each once
    skipped: tuple[SkippedKernel, ...]  # with reasons
    layouts: tuple[LayoutTimes, ...]  # in the order of the request
    efficiencies: Mapping[str, float | None]  # as in assumptions.yaml; empty: nothing is known of the device
    overlap: Mapping[str, float] | None = None  # time factors of computing and communicating at once
    device: DeviceRates | None = None  # of a device that no catalogue knows

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
