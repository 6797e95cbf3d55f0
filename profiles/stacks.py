"""Software stacks, and the one place where a cluster, a stack and the fitted efficiencies become `Rates`."""

from __future__ import annotations

import re
from dataclasses import replace
from functools import cache
from pathlib import Path
from typing import Any

from ..cost_models import units
from ..cost_models.rates import MemoryOverheads, Rates
from ..cost_models.specs import ClusterSpec, Precision, StackSpec
from ..errors import InputError, UnknownNameError
from .rates import collective_rates, surfaces_for
from .reader import read_document

_FOLDER = Path(__file__).with_name("stacks")
_FAMILIES = _FOLDER / "families.yaml"
_FIELDS = tuple(name for name in StackSpec.__dataclass_fields__ if name not in ("name", "sources"))

# Host memory bandwidth per GPU where the node file has none: eight GPUs share two sockets of 12 DDR5-4800 channels
# (2 x 460 GB/s peak), of which Adam on the CPU reaches about half.
ASSUMED_HOST_BW_BYTES_PER_S = 2 * 460e9 / 2 / 8
# What the operating system, the data loader and pinned buffers leave of host memory (assumed).
HOST_MEMORY_SHARE = 0.9
# Pinned copies reach about four fifths of the link (assumed).
ASSUMED_PCIE_EFFICIENCY = 0.8
OVERHEADS = MemoryOverheads(
    context_bytes=1.5 * 2**30,
    communicator_bytes=0.15 * 2**30,
    reserve_share=0.05,
    source="assumed: CUDA context and libraries 1.5-2 GiB by nvidia-smi on published runs; NCCL 8-16 channels of "
    "4-10 MiB per communicator; 3-8 % of fragmentation with expandable segments (FORMULAS 5.4)",
)


def stack_names() -> list[str]:
    """Names of all stacks."""
    return sorted(path.stem for path in _FOLDER.glob("*.yaml") if path != _FAMILIES)


@cache
def stack_for(name: str) -> tuple[StackSpec, list[str]]:
    """The family that a stack as published (`megatron-bridge-26.02`) belongs to, with what its version changes, and
    warnings: an unknown version takes its family's values, an unknown family `generic`."""
    table = read_document(_FAMILIES).data
    if not name.strip():
        return load_stack("generic"), ["stack not stated: generic"]
    wanted = name.strip().lower()
    version = table["versions"].get(wanted)
    if version is None and wanted in table["families"]:
        version = {"family": wanted}
    if version is None:
        found = next((family for pattern, family in table["patterns"] if re.search(pattern, wanted)), None)
        note = f"stack {name} is not known: values of {found or 'generic'}"
        return load_stack(found or "generic"), [note]
    stack = load_stack(version["family"])
    changed = {key: fact for key, fact in version.items() if key != "family"}
    values = {key: fact["value"] for key, fact in changed.items()}
    if "host_s_per_kernel" in values:
        values["host_s_per_kernel"] = units.parse(values["host_s_per_kernel"], "s")
    sources = {**stack.sources, **{key: fact["source"] for key, fact in changed.items()}}
    return replace(stack, sources=sources, **values), []


@cache
def load_stack(name: str) -> StackSpec:
    """The stack `name`, a family or a version of one, with what it inherits. Raises UnknownNameError."""
    if name in read_document(_FAMILIES).data["versions"]:
        return replace(stack_for(name)[0], name=name)
    if name not in stack_names():
        raise UnknownNameError("stack", name, stack_names(), see="meshwright show stacks")
    facts = _facts(name)
    values = {field: facts[field]["value"] for field in _FIELDS}
    values["host_s_per_kernel"] = units.parse(values["host_s_per_kernel"], "s")
    return StackSpec(name=name, sources={field: facts[field]["source"] for field in _FIELDS}, **values)


def _facts(name: str) -> dict[str, Any]:
    own: dict[str, Any] = dict(read_document(_FOLDER / f"{name}.yaml").data)
    parent = own.pop("inherits", None)
    return {**(_facts(parent) if parent else {}), **own}


_ELEMENT_BYTES = {"fp8": 1.0, "fp32": 4.0}


def rates_for(cluster: ClusterSpec, stack: StackSpec, precision: Precision) -> Rates:
    """Rates of the cluster's limiting GPU and links under `stack`. Raises InputError if the GPU lacks the dtype."""
    gpu = cluster.gpu
    device = surfaces_for(gpu)
    dtype = precision if precision in device.gemm else ("bf16" if precision == "fp16" else precision)
    if dtype not in device.gemm:
        known = ", ".join(sorted(set(device.gemm) & {"bf16", "fp16", "fp8", "fp32"}))
        raise InputError(f"{gpu.name} has no {precision} matrix units", hint=f"it has {known}: `--dtype`")
    wide = "bf16" if dtype == "fp8" else dtype  # head, router and the like stay in bf16 beside fp8
    attention = device.attention[stack.attention]
    if dtype == "fp32":  # no flash kernel has fp32: plain products at the fp32 peak
        attention = replace(device.attention["unfused"], peak_flops_per_s=gpu.peak_flops_per_s["fp32"])
    host = [group.host_memory_bw_bytes_per_s for group in cluster.groups]
    per_gpu = [bw / group.gpus_per_node for bw, group in zip(host, cluster.groups, strict=True) if bw]
    return Rates(
        gemm=device.gemm[dtype],
        wide_gemm=device.gemm.get(wide, device.gemm[dtype]),
        attention=attention,
        memory_bw_bytes_per_s=gpu.memory_bw_bytes_per_s * device.fused_memory_efficiency,
        peak_flops_per_s=gpu.peak_flops_per_s[dtype],
        collectives=replace(collective_rates(), nics_per_ring=stack.nics_per_ring),
        levels=cluster.levels,
        pcie_bw_bytes_per_s=gpu.pcie_bw_bytes_per_s * ASSUMED_PCIE_EFFICIENCY,
        host_memory_bw_bytes_per_s=min(per_gpu) if len(per_gpu) == len(host) else ASSUMED_HOST_BW_BYTES_PER_S,
        stack=stack,
        overheads=OVERHEADS,
        element_bytes=_ELEMENT_BYTES.get(dtype, 2.0),
        wide_element_bytes=_ELEMENT_BYTES.get(wide, 2.0),
        sources=_term_sources(device.provenance, cluster),
    )


def _term_sources(provenance: str, cluster: ClusterSpec) -> dict[str, str]:
    """Where seconds come from: of compute, and of each level of the network (`level 0`, ...)."""
    compute = "measured" if provenance == "measured" else "assumed"
    fabric = collective_rates()
    spans = [fabric.level(level.kind, depth).source for depth, level in enumerate(cluster.levels)]
    network = {f"level {i}": "fitted" if text.startswith("fitted") else "assumed" for i, text in enumerate(spans)}
    on_gpu = dict.fromkeys(("matmul", "attention", "memory", "optimizer", "accumulate"), compute)
    guesses = dict.fromkeys(("host", "offload", "stragglers"), "assumed")
    return {**on_gpu, **guesses, "bubble": "formula", "imbalance": "formula", **network}
