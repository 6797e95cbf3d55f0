"""The devices that the tables measure, and which of them stands for a device that none measures."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass

from ...cost_models.specs.cluster import GpuSpec


@dataclass(frozen=True, slots=True)
class ReferenceDevice:
    """The registry's numbers of a measured device, restated so that a fit never moves with them."""

    peak_flops_per_s: float  # 16-bit, dense
    memory_bw_bytes_per_s: float  # of the datasheet
    num_sms: int  # multiprocessors
    generation: str  # as `generation` gives it
    link: str  # kind of its in-node level
    link_bw_bytes_per_s: float  # per GPU, one direction


DEVICES: Mapping[str, ReferenceDevice] = {
    "a100-sxm-80gb": ReferenceDevice(312e12, 2.039e12, 108, "ampere", "nvlink3", 300e9),
    "a100-pcie-80gb": ReferenceDevice(312e12, 1.935e12, 108, "ampere", "pcie4", 32e9),
    "h100-sxm-80gb": ReferenceDevice(989.5e12, 3.35e12, 132, "hopper", "nvlink4", 450e9),
    "h200-sxm-141gb": ReferenceDevice(989.5e12, 4.8e12, 132, "hopper", "nvlink4", 450e9),
    "b200-sxm-180gb": ReferenceDevice(2250e12, 7.7e12, 148, "blackwell", "nvlink5", 900e9),
    "b300-sxm-288gb": ReferenceDevice(2250e12, 7.75e12, 148, "blackwell", "nvlink5", 900e9),
    "gb200-186gb": ReferenceDevice(2500e12, 8e12, 152, "blackwell", "nvlink5", 900e9),
    "gb300-288gb": ReferenceDevice(2500e12, 8e12, 152, "blackwell", "nvlink5", 900e9),
    "l40s": ReferenceDevice(362e12, 864e9, 142, "ada", "pcie4", 32e9),
    "rtx-pro-6000-server": ReferenceDevice(467.8e12, 1.792e12, 188, "blackwell-rtx", "pcie5", 64e9),
    "mi250x-gcd": ReferenceDevice(191.5e12, 1.6e12, 110, "cdna2", "xgmi", 150e9),
}
V100 = ReferenceDevice(125e12, 0.9e12, 80, "volta", "nvlink2", 150e9)  # its links were measured, its kernels were not

_NVIDIA = "nvidia"
_OTHER_VENDORS = ("cdna2",)  # generations of devices that are not NVIDIA's
FALLBACK_DEVICE = "a100-sxm-80gb"  # for a device of which nothing alike was measured
# Generations without a table -> the one whose efficiencies they take.
_FALLBACK_GENERATIONS = {"volta": "ampere", "turing": "ampere", "pascal": "ampere"}


def generation(arch: str) -> str:
    """`hopper (sm_90)` -> `hopper`; Blackwell's workstation parts (sm_120) are a generation of their own."""
    if "sm_120" in arch:
        return "blackwell-rtx"
    return arch.lower().split()[0].removesuffix("-ultra") if arch.strip() else ""


def base_peak(gpu: GpuSpec) -> float:
    """The 16-bit peak, FLOP/s, which all efficiencies are shares of; the greatest peak where a device has none."""
    peaks = gpu.peak_flops_per_s
    return peaks.get("bf16") or peaks.get("fp16") or max(peaks.values())


def reference_device(gpu: GpuSpec) -> tuple[str, str]:
    """The measured device that `gpu` takes its efficiencies from, and the provenance to show.

    Itself; else the nearest in peak and bandwidth of its generation; else of NVIDIA, for a device of NVIDIA; else the
    A100, which stands for any device.
    """
    if gpu.name in DEVICES:
        return gpu.name, "measured"
    family = generation(gpu.arch)
    family = _FALLBACK_GENERATIONS.get(family, family)
    # The A100-PCIe was measured by large training products alone: it stands for cards like it, not for all A100s.
    candidates = [name for name in DEVICES if name != "a100-pcie-80gb" or "pcie" in gpu.name]
    near = [name for name in candidates if DEVICES[name].generation == family]
    if not near and gpu.vendor.lower() == _NVIDIA:
        near = [name for name in candidates if DEVICES[name].generation not in _OTHER_VENDORS]
    name = min(near, key=lambda name: (_distance(gpu, DEVICES[name]), name), default=FALLBACK_DEVICE)
    return name, f"assumed from {name}"


def knows_generation(gpu: GpuSpec) -> bool:
    """Whether some GPU of its generation was measured, or it was itself, on the cluster of the user."""
    return bool(gpu.measured) or generation(gpu.arch) in {device.generation for device in DEVICES.values()}


def _distance(gpu: GpuSpec, device: ReferenceDevice) -> float:
    """How far two devices are from each other in peak and in memory bandwidth, as a sum of log ratios."""
    peak_ratio = base_peak(gpu) / device.peak_flops_per_s
    bandwidth_ratio = gpu.memory_bw_bytes_per_s / device.memory_bw_bytes_per_s
    return abs(math.log(peak_ratio)) + abs(math.log(bandwidth_ratio))
