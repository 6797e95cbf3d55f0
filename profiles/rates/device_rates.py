"""Efficiencies of a device: fits and hand-written assumptions, made into the cost models' surfaces.

A device that no table measures takes those of its reference device, scaled by peak and bandwidth, and says so.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from functools import lru_cache
from typing import Any, NamedTuple, get_args

from ...cost_models.rates.surfaces import AttentionSurface, GemmSurface
from ...cost_models.specs.cluster import GpuSpec
from ...cost_models.specs.stack import AttentionKernel
from ..cluster import measured_device
from . import calibration
from .calibration import Calibration, entry_of, value_of
from .reference_devices import DEVICES, base_peak, generation, reference_device
from .tables import TABLES_SOURCE, fits

KERNELS: tuple[AttentionKernel, ...] = tuple(name for name in get_args(AttentionKernel) if name != "unfused")
# Blocks of assumptions.yaml that the efficiencies of a device rest on.
_DEVICE_BLOCKS = ("training_factor", "memory_efficiency", "fp8_factor", "fp4_factor", "unaligned", "attention")
# Generation -> the device whose charts of FlashAttention it takes. One comparison of CDNA2 with an A100 shows how the
# two differ (assumptions.yaml).
_CHART_DEVICES = {"ampere": "a100-sxm-80gb", "hopper": "h100-sxm-80gb", "cdna2": "a100-sxm-80gb"}


@dataclass(frozen=True, slots=True, kw_only=True)
class DeviceSurfaces:
    """Efficiencies of one GPU."""

    gemm: Mapping[str, GemmSurface]  # by number format (bf16, fp8, ...)
    attention: Mapping[str, AttentionSurface]  # by fused kernel of StackSpec.attention
    fused_memory_efficiency: float  # share of the memory bandwidth that element-wise kernels reach
    provenance: str  # "measured", or "assumed from <device>"
    attention_provenance: str  # the same of attention, which the reference device of products may not have either
    sources: Mapping[str, str]  # block of assumptions.yaml -> where its values come from


class _Device(NamedTuple):
    """The facts that the efficiencies of a device depend on; hashable, so that they are made once per device."""

    name: str  # canonical
    generation: str  # `hopper`
    peaks: tuple[tuple[str, float], ...]  # (number format, FLOP/s)
    base_peak: float  # FLOP/s, 16 bit
    memory_bw_bytes_per_s: float  # of the datasheet
    num_sms: float  # multiprocessors
    reference: str  # the measured device whose efficiencies it takes
    provenance: str  # "measured", or "assumed from <reference>"


def surfaces_for(gpu: GpuSpec, fitted: Calibration | None = None) -> DeviceSurfaces:
    """The efficiencies of `gpu`: its own where it was measured, else scaled from the nearest device that was.
    fitted: the calibration to apply, the shipped one unless given."""
    if gpu.measured:
        surface = measured_device.attention(gpu)
        return DeviceSurfaces(
            gemm=measured_device.gemm(gpu), attention=dict.fromkeys(KERNELS, surface), fused_memory_efficiency=1.0,
            provenance="measured", attention_provenance="measured", sources={},
        )  # fmt: skip
    reference, provenance = reference_device(gpu)
    device = _Device(
        name=gpu.name,
        generation=generation(gpu.arch),
        peaks=tuple(sorted(gpu.peak_flops_per_s.items())),
        base_peak=base_peak(gpu),
        memory_bw_bytes_per_s=gpu.memory_bw_bytes_per_s,
        # Where unknown, those of the reference device: what matters is how tiles divide, not a rate.
        num_sms=float(gpu.num_sms or DEVICES[reference].num_sms),
        reference=reference,
        provenance=provenance,
    )
    return _surfaces(device, (fitted or calibration.shipped()).part(*_DEVICE_BLOCKS))


@lru_cache(maxsize=256)
def _surfaces(device: _Device, fitted: str) -> DeviceSurfaces:
    assumed = calibration.assumptions(fitted)
    measured = _attention_device(device.reference)
    attention_provenance = device.provenance if measured == device.reference else f"assumed from {measured}"
    return DeviceSurfaces(
        gemm=_gemms(device, assumed),
        attention=_attentions(device, attention_provenance, assumed),
        fused_memory_efficiency=value_of(assumed["memory_efficiency"], "fused", device.name, device.reference),
        provenance=device.provenance,
        attention_provenance=attention_provenance,
        sources={key: assumed[key]["source"] for key in _DEVICE_BLOCKS if key != "attention"},
    )


def _scale(device: _Device) -> float:
    """Best product found on a device over the best on its reference device, as shares of their peaks; 1 where nobody
    looked for either."""
    best = calibration.prior_assumptions()["best_gemm_flops_per_s"]
    if device.name == device.reference or device.name not in best or device.reference not in best:
        return 1.0
    reference_share = best[device.reference] / DEVICES[device.reference].peak_flops_per_s
    return float(best[device.name] / device.base_peak / reference_share)


def _gemms(device: _Device, assumed: Mapping[str, Any]) -> dict[str, GemmSurface]:
    fitted = fits()["gemm"][device.reference]
    aligned = entry_of(assumed["unaligned"], device.generation)
    scale = _scale(device)
    source = TABLES_SOURCE if device.provenance == "measured" else device.provenance
    names = (device.name, device.generation, device.reference)
    training = value_of(assumed["training_factor"], "gemm", *names)
    surfaces = {}
    for dtype, peak in device.peaks:
        narrow = dtype in ("fp8", "fp4")
        factor = float(entry_of(assumed[f"{dtype}_factor"], *names)) if narrow else 1.0
        surfaces[dtype] = GemmSurface(
            peak_flops_per_s=peak,
            memory_bw_bytes_per_s=device.memory_bw_bytes_per_s,
            num_sms=device.num_sms,
            efficiency=fitted["efficiency"] * factor * scale,
            # Filling a tile takes time, not columns: twice the rate passes twice the columns meanwhile.
            ramp_k=fitted["ramp_k"] * peak / device.base_peak,
            fixed_s=fitted["fixed_s"],
            small_tile_factor=fitted["small_tile_factor"],
            wave_quantisation=fitted["wave_quantisation"],
            memory_efficiency=fitted["memory_efficiency"],
            # fp8 products run further from the power limit: published fp8 runs show no loss against the benchmark.
            # The same is assumed of fp4.
            training_factor=1.0 if factor != 1.0 else training,
            source=source if dtype in ("bf16", "fp16") else f"{source}, {dtype} from its peak",
            **aligned,
        )
    return surfaces


def _attentions(device: _Device, provenance: str, assumed: Mapping[str, Any]) -> dict[str, AttentionSurface]:
    kernels = entry_of(assumed["attention"], device.generation)
    training = value_of(assumed["training_factor"], "attention", device.name, device.generation, device.reference)
    surfaces: dict[str, AttentionSurface] = {}
    for kernel in KERNELS:
        # PyTorch's own is FlashAttention-2 unless listed; a kernel of a later generation runs as the native one.
        nearest = "flash2" if kernel in ("sdpa", "flash1", "triton") else kernels["native"]
        variant = kernels.get(kernel) or kernels[nearest]
        measured = _measured_attention(device.reference, variant["of"])
        backward = variant.get("backward") or fits()["backward_over_forward"][variant["measured_backward"]]
        forward = measured["forward_efficiency"] * variant["forward"] * _scale(device)
        surfaces[kernel] = AttentionSurface(
            peak_flops_per_s=device.base_peak,
            memory_bw_bytes_per_s=device.memory_bw_bytes_per_s,
            num_sms=device.num_sms,
            forward_efficiency=forward,
            backward_efficiency=forward * backward,
            half_context=measured["half_context"],
            narrow_head_factor=measured["narrow_head_factor"],
            longest_block=measured["longest_block"],
            fixed_s=measured["fixed_s"],
            training_factor=training,
            source=provenance if variant["forward"] == 1.0 else f"{provenance}, {kernel} scaled from {variant['of']}",
        )
    return surfaces


def _attention_device(reference: str) -> str:
    """The device whose measured attention stands for that of a reference device, which may have none."""
    return reference if reference in fits()["attention"] else _CHART_DEVICES[DEVICES[reference].generation]


def _measured_attention(reference: str, kernel: str) -> dict[str, float]:
    """The fit of `kernel` on a reference device.

    The tables hold serving with paged keys, FlashAttention's own charts dense training shapes. Where a chart exists,
    it gives the numbers, and the tables only say how devices of the generation compare.
    """
    attention = fits()["attention"]
    by_table = attention[_attention_device(reference)]
    chart_device = _CHART_DEVICES.get(DEVICES[reference].generation, "")
    by_chart = fits()["charts"].get(f"{kernel} {chart_device}")
    if by_chart is None:
        return dict(by_table)
    relative = by_table["forward_efficiency"] / attention[chart_device]["forward_efficiency"]
    return {**by_table, **by_chart, "forward_efficiency": by_chart["forward_efficiency"] * relative}
