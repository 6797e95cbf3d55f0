"""The one place where a cluster, a stack and the fitted efficiencies become `Rates`."""

from __future__ import annotations

from dataclasses import replace
from typing import TypeVar

from ...cost_models.rates.rates import MemoryOverheads, Rates
from ...cost_models.rates.surfaces import AttentionSurface, GemmSurface, UnfusedSurface
from ...cost_models.specs.cluster import ClusterSpec, GpuSpec
from ...cost_models.specs.stack import StackSpec
from ...cost_models.specs.workload import OPERAND_BYTES, Precision
from ...errors import InputError
from ..cluster import device_files, measured_device
from ..rates.calibration import Calibration, assumptions, fitted_formats, shipped
from ..rates.device_rates import DeviceSurfaces, surfaces_for
from ..rates.link_rates import collective_rates, with_measured

# Host memory bandwidth per GPU where the node file has none: eight GPUs share two sockets of 12 DDR5-4800 channels
# (2 x 460 GB/s peak), of which Adam on the CPU reaches about half.
ASSUMED_HOST_BW_BYTES_PER_S = 2 * 460e9 / 2 / 8
# Share of host memory beside the operating system, the data loader and pinned buffers (assumed).
HOST_MEMORY_SHARE = 0.9
# Pinned copies reach about four fifths of the link (assumed).
ASSUMED_PCIE_EFFICIENCY = 0.8
CONTEXT_BYTES, COMMUNICATOR_BYTES = 1.5 * 2**30, 0.15 * 2**30
_OVERHEADS_SOURCE = (
    "assumed: CUDA context and libraries 1.5-2 GiB by nvidia-smi on published runs; NCCL 8-16 channels of 4-10 MiB per "
    "communicator; fitted: reserved over allocated, known holes aside, on published runs of torchtitan and Megatron-LM"
)

_Surface = TypeVar("_Surface", GemmSurface, AttentionSurface)


def rates_for(
    cluster: ClusterSpec, stack: StackSpec, precision: Precision, fitted: Calibration | None = None
) -> Rates:
    """Rates of the cluster's limiting GPU and links under `stack`. Raises InputError if the GPU lacks the dtype.
    fitted: the calibration of devices and links, the shipped one unless given (that of the stack is in `stack`)."""
    gpu = cluster.gpu
    fitted = device_files.calibrated(fitted or shipped(), cluster)
    device = surfaces_for(gpu, fitted)
    stack = _with_measured(stack, cluster)
    dtype = _compute_dtype(device, precision, gpu)
    narrow = dtype in ("fp8", "int8", "fp4")
    wide = "bf16" if narrow and "bf16" in device.gemm else dtype  # head, router and so on stay in bf16
    wide_gemm = _sustained(device.gemm[wide], stack)
    memory_bw = gpu.memory_bw_bytes_per_s * device.fused_memory_efficiency * stack.throughput
    fused = None
    # No flash kernel has fp32. torch's memory-efficient one was not measured, and takes the seconds of plain products.
    if stack.attention != "unfused" and (dtype != "fp32" or gpu.measured):
        fused = _sustained(device.attention[stack.attention], stack)
    return Rates(
        gemm=_sustained(device.gemm[dtype], stack),
        wide_gemm=wide_gemm,
        attention=fused or _unfused(wide_gemm, memory_bw, OPERAND_BYTES[wide]),
        memory_bw_bytes_per_s=memory_bw,
        peak_flops_per_s=gpu.peak_flops_per_s[dtype],
        vector_flops_per_s=gpu.peak_flops_per_s.get("fp32"),
        collectives=with_measured(collective_rates(fitted, stack.nics_per_ring), cluster.collectives),
        levels=cluster.levels,
        pcie_bw_bytes_per_s=device_files.to_host(gpu.pcie_bw_bytes_per_s * ASSUMED_PCIE_EFFICIENCY, cluster),
        host_memory_bw_bytes_per_s=_host_memory_bw(cluster),
        stack=stack,
        overheads=device_files.overheads(overheads(fitted), cluster),
        element_bytes=1.0 if dtype == "int8" else OPERAND_BYTES[dtype],
        wide_element_bytes=OPERAND_BYTES[wide],
        # A device whose calls were timed waits for each of them: what a layer takes by itself adds up.
        host_exponent=1.0 if gpu.measured else Rates.host_exponent,
        passes=measured_device.pairs(gpu, "passes"),
        latency_s=measured_device.pairs(gpu, "latency"),
        sources=_term_sources(device, cluster, dtype),
    )


def overheads(fitted: Calibration | None = None) -> MemoryOverheads:
    """Memory beside tensors where nothing was measured on the cluster."""
    return MemoryOverheads(
        context_bytes=CONTEXT_BYTES, communicator_bytes=COMMUNICATOR_BYTES,
        reserve_share=assumptions((fitted or shipped()).part("allocator"))["allocator"]["reserve_share"],
        source=_OVERHEADS_SOURCE,
    )  # fmt: skip


def _with_measured(stack: StackSpec, cluster: ClusterSpec) -> StackSpec:
    """`stack` with what was measured on the cluster in place of its own numbers."""
    if cluster.gpu.measured:  # its kernels were timed as this software runs them, in the long run
        stack = replace(stack, throughput=1.0)
    if "contention" in cluster.measured:
        stack = replace(stack, contention=cluster.measured["contention"])
    return stack


def check_units(cluster: ClusterSpec, precision: Precision) -> None:
    """Raises NoUnitsError where the limiting GPU multiplies in no number format of a precision."""
    _compute_dtype(surfaces_for(cluster.gpu, device_files.calibrated(shipped(), cluster)), precision, cluster.gpu)


class NoUnitsError(InputError):
    """Raised for a GPU that multiplies in none of the number formats of a precision."""


def _compute_dtype(device: DeviceSurfaces, precision: Precision, gpu: GpuSpec) -> str:
    """The number format of products: of `precision`, but bf16 for fp16 where a device has the one only, and on TPUs
    without fp8 int8, in which MaxText trains there (AQT)."""
    others = {"fp16": "bf16", **({"fp8": "int8"} if gpu.vendor == "google" else {})}
    other = others.get(precision, "")
    dtype: str = other if precision not in device.gemm and other in device.gemm else precision
    if dtype not in device.gemm:
        known = ", ".join(sorted(set(device.gemm) & set(OPERAND_BYTES)))
        raise NoUnitsError(f"{gpu.name} has no {precision} matrix units", hint=f"it has {known}: `--dtype`")
    return dtype


def _host_memory_bw(cluster: ClusterSpec) -> float:
    """Host memory bandwidth per GPU, bytes/s, of the group that has least; assumed where one group's is not known."""
    by_node = [device_files.host_memory(cluster) or group.host_memory_bw_bytes_per_s for group in cluster.groups]
    by_gpu = [bw / group.gpus_per_node for bw, group in zip(by_node, cluster.groups, strict=True) if bw]
    return min(by_gpu) if len(by_gpu) == len(by_node) else ASSUMED_HOST_BW_BYTES_PER_S


def _unfused(gemm: GemmSurface, memory_bw_bytes_per_s: float, element_bytes: float) -> UnfusedSurface:
    """Attention as plain products and passes over the scores."""
    # The square of scores is aligned, and heads are short enough to stay in the cache.
    products = replace(gemm, unaligned_64=1.0)
    return UnfusedSurface(products=products, memory_bw_bytes_per_s=memory_bw_bytes_per_s, element_bytes=element_bytes)


def _sustained(surface: _Surface, stack: StackSpec) -> _Surface:
    """`surface` at the rates that the stack's kernels keep up."""
    return replace(surface, training_factor=surface.training_factor * stack.throughput,
                   memory_bw_bytes_per_s=surface.memory_bw_bytes_per_s * stack.throughput)  # fmt: skip


def _term_sources(device: DeviceSurfaces, cluster: ClusterSpec, dtype: str) -> dict[str, str]:
    """The sources of seconds: of terms that are no collectives, and of each level of the network (`level 0`, ...)."""
    compute = "measured" if device.provenance == "measured" else "assumed"
    attention = "measured" if device.attention_provenance == "measured" else "assumed"
    products = "fitted" if dtype in fitted_formats(cluster.gpu) and compute == "assumed" else compute
    fabric = with_measured(collective_rates(), cluster.collectives)
    spans = [fabric.level(level.kind, depth).source for depth, level in enumerate(cluster.levels)]
    network = {f"level {i}": text if text == "measured" else "fitted" if text.startswith("fitted") else "assumed"
               for i, text in enumerate(spans)}  # fmt: skip
    passes = dict.fromkeys(("memory", "optimizer", "accumulate"), compute)
    on_gpu = {"matmul": products, "attention": attention, **passes}
    guesses = {**dict.fromkeys(("host", "offload", "stragglers"), "assumed"),
               **({"host": "measured"} if cluster.gpu.measured else {})}  # fmt: skip
    counted = dict.fromkeys(("bubble", "imbalance", "resharding", "vocabulary"), "formula")
    return {**on_gpu, **guesses, **counted, **network}
