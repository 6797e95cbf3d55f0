"""Efficiencies of a device and of the links: fits and hand-written assumptions, made into the cost models' types.

A device that no table measures borrows from the nearest that one does, scaled by peak and bandwidth, and says so.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, replace
from functools import cache, lru_cache
from typing import Any, get_args

from ...cost_models.quantities.exchanges import OPS
from ...cost_models.rates.collectives import CollectiveRates, LevelRates, OpRates
from ...cost_models.rates.surfaces import AttentionSurface, GemmSurface
from ...cost_models.specs.cluster import GpuSpec
from ...cost_models.specs.stack import AttentionKernel
from ..cluster import measured_device
from ..io.folders import MEASURED
from . import calibration
from .calibration import Calibration

KERNELS: tuple[AttentionKernel, ...] = tuple(name for name in get_args(AttentionKernel) if name != "unfused")
_TABLES = "aiconfigurator tables (Apache-2.0)"
# Generation, 16-bit peak, memory bandwidth and multiprocessors of the measured devices: what finding the nearest needs
# without the registry. profiles/rates/fit_base.py holds the same numbers for the fit (a test compares them).
_DONORS: dict[str, tuple[str, float, float, float]] = {
    "a100-sxm-80gb": ("ampere", 312e12, 2.039e12, 108),
    "a100-pcie-80gb": ("ampere", 312e12, 1.935e12, 108),
    "h100-sxm-80gb": ("hopper", 989.5e12, 3.35e12, 132),
    "h200-sxm-141gb": ("hopper", 989.5e12, 4.8e12, 132),
    "b200-sxm-180gb": ("blackwell", 2250e12, 7.7e12, 148),
    "b300-sxm-288gb": ("blackwell", 2250e12, 7.75e12, 148),
    "gb200-186gb": ("blackwell", 2500e12, 8e12, 152),
    "gb300-288gb": ("blackwell", 2500e12, 8e12, 152),
    "l40s": ("ada", 362e12, 864e9, 142),
    "rtx-pro-6000-server": ("blackwell-rtx", 467.8e12, 1.792e12, 188),
    "mi250x-gcd": ("cdna2", 191.5e12, 1.6e12, 110),
}
_DONOR_VENDOR = "nvidia"  # of all but these generations
_OTHER_VENDORS = ("cdna2",)
# Blocks of assumptions.yaml that the efficiencies of a device rest on.
_DEVICE_BLOCKS = ("training_factor", "memory_efficiency", "fp8_factor", "fp4_factor", "unaligned", "attention")
_ELDERS = {"volta": "ampere", "turing": "ampere", "pascal": "ampere"}  # generations that no table has
# Whose charts of FlashAttention a generation takes. Of CDNA2 one comparison with an A100 says how it differs
# (assumptions.yaml).
_CHART_DEVICES = {"ampere": "a100-sxm-80gb", "hopper": "h100-sxm-80gb", "cdna2": "a100-sxm-80gb"}


@dataclass(frozen=True, slots=True, kw_only=True)
class DeviceRates:
    """Efficiencies of one GPU. `gemm` per number format, `attention` per fused kernel of StackSpec.

    fused_memory_efficiency: share of the memory bandwidth that element-wise kernels reach.
    provenance: "measured", or "assumed from <device>"; attention_provenance: the same of attention, where the device
    that lends products has no measured attention either.
    """

    gemm: Mapping[str, GemmSurface]
    attention: Mapping[str, AttentionSurface]
    fused_memory_efficiency: float
    provenance: str
    attention_provenance: str
    sources: Mapping[str, str]


@cache
def _fits() -> dict[str, Any]:
    loaded: dict[str, Any] = calibration.load_yaml(MEASURED / "fits.yaml")
    return loaded


def fit_errors() -> dict[str, dict[str, float]]:
    """Median and p90 relative error and number of rows of every fit, by its label."""
    errors: dict[str, dict[str, float]] = _fits()["errors"]
    return errors


def generation(arch: str) -> str:
    """`hopper (sm_90)` -> `hopper`; Blackwell's workstation parts (sm_120) are a generation of their own."""
    if "sm_120" in arch:
        return "blackwell-rtx"
    return arch.lower().split()[0].removesuffix("-ultra") if arch.strip() else ""


def reference_device(gpu: GpuSpec) -> tuple[str, str]:
    """The measured device that `gpu` takes its efficiencies from, and the provenance to show.

    Itself; else the nearest in peak and bandwidth of its generation; else of NVIDIA, for a device of NVIDIA; else the
    A100, which stands for any device.
    """
    if gpu.name in _DONORS:
        return gpu.name, "measured"
    family = _ELDERS.get(generation(gpu.arch), generation(gpu.arch))
    # The A100-PCIe was measured by large training products alone: it speaks for cards like it, not for all A100s.
    lenders = [name for name in _DONORS if name != "a100-pcie-80gb" or "pcie" in gpu.name]
    near = [name for name in lenders if _DONORS[name][0] == family]
    if not near and gpu.vendor.lower() == _DONOR_VENDOR:
        near = [name for name in lenders if _DONORS[name][0] not in _OTHER_VENDORS]
    if not near:
        return "a100-sxm-80gb", "assumed from a100-sxm-80gb"
    peak, bandwidth = _base_peak(gpu), gpu.memory_bw_bytes_per_s

    def distance(name: str) -> tuple[float, str]:
        _, donor_peak, donor_bandwidth, _ = _DONORS[name]
        return abs(math.log(peak / donor_peak)) + abs(math.log(bandwidth / donor_bandwidth)), name

    name = min(near, key=distance)
    return name, f"assumed from {name}"


def _base_peak(gpu: GpuSpec) -> float:
    """The 16-bit peak, which all surfaces are measured in; the greatest there is where a device has none."""
    peaks = gpu.peak_flops_per_s
    return peaks.get("bf16") or peaks.get("fp16") or max(peaks.values())


@lru_cache(maxsize=256)
def _surfaces_for(gpu_key: tuple[Any, ...], fitted: str) -> DeviceRates:
    gpu = GpuSpec(
        name=gpu_key[0], vendor=gpu_key[1], arch=gpu_key[2], peak_flops_per_s=dict(gpu_key[3]), memory_bytes=0.0,
        memory_bw_bytes_per_s=gpu_key[4], link_bw_bytes_per_s=0.0, pcie_bw_bytes_per_s=0.0, num_sms=gpu_key[5],
    )  # fmt: skip
    assumed = calibration.assumptions(fitted)
    name, provenance = reference_device(gpu)
    lender = _attention_lender(name)
    attention_provenance = provenance if lender == name else f"assumed from {lender}"
    return DeviceRates(
        gemm=_gemms(gpu, name, provenance, assumed),
        attention=_attentions(gpu, name, attention_provenance, assumed),
        fused_memory_efficiency=value_of(assumed["memory_efficiency"], "fused", gpu.name, name),
        provenance=provenance,
        attention_provenance=attention_provenance,
        sources={
            key: assumed[key]["source"] for key in _DEVICE_BLOCKS if key != "attention"
        },
    )


def surfaces_for(gpu: GpuSpec, fitted: Calibration | None = None) -> DeviceRates:
    """The efficiencies of `gpu`: its own where it was measured, else scaled from the nearest device that was.
    fitted: the calibration to apply, the shipped one unless given."""
    if gpu.measured:
        surface = measured_device.attention(gpu)
        return DeviceRates(
            gemm=measured_device.gemm(gpu), attention=dict.fromkeys(KERNELS, surface), fused_memory_efficiency=1.0,
            provenance="measured", attention_provenance="measured", sources={},
        )  # fmt: skip
    peaks = tuple(sorted(gpu.peak_flops_per_s.items()))
    key = (gpu.name, gpu.vendor, gpu.arch, peaks, gpu.memory_bw_bytes_per_s, gpu.num_sms)
    return _surfaces_for(key, (fitted or calibration.shipped()).part(*_DEVICE_BLOCKS))


def _entry(block: Mapping[str, Any], *names: str) -> Any:
    """The first of `names` that a block of assumptions holds, else its default."""
    return next((block[name] for name in names if name in block), block["default"])


def value_of(block: Mapping[str, Any], key: str, *names: str) -> float:
    """The value of `key` under the first of `names` that has it, else of the block's default: a calibration may know
    one number of a device whose others are borrowed."""
    return float(next(block[name][key] for name in (*names, "default") if key in block.get(name, ())))


def _scale(gpu: GpuSpec, name: str) -> float:
    """Best product found on a device over the best on `name`, which it borrows from, as shares of their peaks; 1 where
    nobody looked for either."""
    best = calibration.prior_assumptions()["best_gemm_flops_per_s"]
    if gpu.name == name or gpu.name not in best or name not in best:
        return 1.0
    return float(best[gpu.name] / _base_peak(gpu) / (best[name] / _DONORS[name][1]))


def _num_sms(gpu: GpuSpec, name: str) -> float:
    """Multiprocessors; where unknown, those of the donor: what matters is how tiles divide, not a rate."""
    return float(gpu.num_sms or _DONORS[name][3])


def _gemms(gpu: GpuSpec, name: str, provenance: str, assumed: Mapping[str, Any]) -> dict[str, GemmSurface]:
    fitted = _fits()["gemm"][name]
    aligned = _entry(assumed["unaligned"], generation(gpu.arch))
    base_peak, scale = _base_peak(gpu), _scale(gpu, name)
    source = _TABLES if provenance == "measured" else provenance
    surfaces = {}
    for dtype, peak in gpu.peak_flops_per_s.items():
        narrow = dtype in ("fp8", "fp4")
        factor = float(_entry(assumed[f"{dtype}_factor"], gpu.name, name)) if narrow else 1.0
        surfaces[dtype] = GemmSurface(
            peak_flops_per_s=peak,
            memory_bw_bytes_per_s=gpu.memory_bw_bytes_per_s,
            num_sms=_num_sms(gpu, name),
            efficiency=fitted["efficiency"] * factor * scale,
            # Filling a tile takes time, not columns: twice the rate passes twice the columns meanwhile.
            ramp_k=fitted["ramp_k"] * peak / base_peak,
            fixed_s=fitted["fixed_s"],
            small_tile_factor=fitted["small_tile_factor"],
            wave_quantisation=fitted["wave_quantisation"],
            memory_efficiency=fitted["memory_efficiency"],
            # fp8 products run further from the power limit: published fp8 runs show no loss against the benchmark.
            # fp4: assumed alike.
            training_factor=1.0 if factor != 1.0 else value_of(assumed["training_factor"], "gemm", gpu.name, name),
            source=source if dtype in ("bf16", "fp16") else f"{source}, {dtype} from its peak",
            **aligned,
        )
    return surfaces


def _attentions(
    gpu: GpuSpec, name: str, provenance: str, assumed: Mapping[str, Any]
) -> dict[str, AttentionSurface]:
    kernels = _entry(assumed["attention"], generation(gpu.arch))
    training = value_of(assumed["training_factor"], "attention", gpu.name, name)
    surfaces: dict[str, AttentionSurface] = {}
    for kernel in KERNELS:
        # PyTorch's own is FlashAttention-2 unless listed; a kernel of a later generation runs as the native one.
        own = kernels.get(kernel) or kernels["flash2" if kernel in ("sdpa", "flash1", "triton") else kernels["native"]]
        measured = _native(name, own["of"])
        backward = own.get("backward") or _fits()["backward_over_forward"][own["measured_backward"]]
        forward = measured["forward_efficiency"] * own["forward"] * _scale(gpu, name)
        surfaces[kernel] = AttentionSurface(
            peak_flops_per_s=_base_peak(gpu),
            memory_bw_bytes_per_s=gpu.memory_bw_bytes_per_s,
            num_sms=_num_sms(gpu, name),
            forward_efficiency=forward,
            backward_efficiency=forward * backward,
            half_context=measured["half_context"],
            narrow_head_factor=measured["narrow_head_factor"],
            longest_block=measured["longest_block"],
            fixed_s=measured["fixed_s"],
            training_factor=training,
            source=provenance if own["forward"] == 1.0 else f"{provenance}, {kernel} scaled from {own['of']}",
        )
    return surfaces


def _attention_lender(name: str) -> str:
    """The device whose attention stands for that of `name`, which lends products."""
    return name if name in _fits()["attention"] else _CHART_DEVICES[_DONORS[name][0]]


def _native(name: str, kernel: str) -> dict[str, float]:
    """The fit of `kernel` on a measured device. FlashAttention's own charts, where they are, hold dense training shapes
    (the tables: serving with paged keys): then the tables only say how devices of the generation compare."""
    fits = _fits()
    table = fits["attention"][_attention_lender(name)]
    chart_device = _CHART_DEVICES.get(_DONORS[name][0], "")
    chart = fits["charts"].get(f"{kernel} {chart_device}")
    if chart is None:
        return dict(table)
    relative = table["forward_efficiency"] / fits["attention"][chart_device]["forward_efficiency"]
    return {**table, **chart, "forward_efficiency": chart["forward_efficiency"] * relative}


def collective_rates(fitted: Calibration | None = None, nics_per_ring: float = math.inf) -> CollectiveRates:
    """Constants of every kind of link: fitted inside a node, assumed (but for the ramp) between nodes."""
    return _collective_rates((fitted or calibration.shipped()).part("links", "fabrics", "trees"), nics_per_ring)


@lru_cache(maxsize=64)
def _collective_rates(fitted: str, nics_per_ring: float) -> CollectiveRates:
    fits, assumed = _fits(), calibration.assumptions(fitted)
    links, fabrics = assumed["links"], assumed["fabrics"]
    copies = links["copy_efficiency"]
    kinds = {kind: _measured_link(entry, _entry(copies, kind)) for kind, entry in fits["links"].items()}
    kinds.update({kind: _assumed_link(entry) for kind, entry in links.items() if "base_s" in entry})
    newest = {"nvlink": kinds["nvlink5"], "pcie": kinds["pcie5"]}  # families, for a generation that is not listed
    ramp = float(fits["fabric"]["ramp"])
    outside = {kind: _fabric(entry, ramp, fabrics["source"]) for kind, entry in fabrics.items() if kind != "source"}
    outer = outside.pop("default")
    sources = {kind: level.source for kind, level in {**kinds, **outside}.items()}
    return CollectiveRates(
        kinds={**kinds, **newest, **outside}, inner=kinds["nvlink4"], outer=outer, sources=sources,
        tree_efficiency=float(assumed["trees"]["efficiency"]), nics_per_ring=nics_per_ring,
    )  # fmt: skip


def with_measured(rates: CollectiveRates, measured: Mapping[str, Mapping[str, Mapping[str, float]]]) -> CollectiveRates:
    """`rates` with the constants of the kinds of link that were measured on this very cluster."""
    if not measured:
        return rates
    own = {kind: LevelRates(ops={op: OpRates(**ops[op]) for op in OPS}, source="measured")
           for kind, ops in measured.items()}  # fmt: skip
    return replace(rates, kinds={**rates.kinds, **own})


def _measured_link(entry: Mapping[str, Any], copy_efficiency: float) -> LevelRates:
    """Fitted operations; an all-reduce alone (V100) also stands for the rest, at half its steps."""
    ops = {op: OpRates(**values) for op, values in entry["ops"].items()}
    whole = ops["all_reduce"]
    half = replace(whole, hop_s=whole.hop_s / 2)
    for op in OPS:
        ops.setdefault(op, replace(ops.get("all_gather", half), efficiency=copy_efficiency if op == "p2p" else
                                   ops.get("all_gather", half).efficiency))  # fmt: skip
    return LevelRates(ops=ops, switch_efficiency=float(entry["switch_efficiency"]), source=f"fitted, {_TABLES}")


def _assumed_link(entry: Mapping[str, Any]) -> LevelRates:
    one = OpRates(**{key: float(entry[key]) for key in ("base_s", "hop_s", "efficiency", "ramp")})
    return LevelRates(
        ops={op: replace(one, efficiency=float(entry["copy"])) if op == "p2p" else one for op in OPS},
        source=f"assumed: {entry['source']}",
    )


def _fabric(entry: Mapping[str, Any], ramp: float, source: str) -> LevelRates:
    one = OpRates(**{key: float(entry[key]) for key in ("base_s", "hop_s", "efficiency")}, ramp=ramp)
    direct = replace(one, efficiency=float(entry["all_to_all"]))
    # One message has no ring to fill: it starts once, and its ramp is that of a plain copy.
    message = replace(one, base_s=one.base_s / 2, ramp=1.0)
    special = {"all_to_all": direct, "p2p": message}
    return LevelRates(ops={op: special.get(op, one) for op in OPS}, source=f"assumed: {source}")
