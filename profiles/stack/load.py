"""Software stacks, and the one place where a cluster, a stack and the fitted efficiencies become `Rates`."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import replace
from functools import cache, lru_cache
from typing import Any, TypeVar

from ...cost_models import units
from ...cost_models.rates.rates import MemoryOverheads, Rates
from ...cost_models.rates.surfaces import AttentionSurface, GemmSurface, UnfusedSurface
from ...cost_models.specs.cluster import ClusterSpec
from ...cost_models.specs.stack import StackSpec
from ...cost_models.specs.workload import OPERAND_BYTES, Precision
from ...errors import InputError, UnknownNameError
from ..cluster import device_files, measured_device
from ..io.folders import CATALOGUE
from ..rates.calibration import Calibration, load_yaml, shipped
from ..rates.device_rates import DeviceRates, surfaces_for
from ..rates.link_rates import collective_rates, with_measured

_FOLDER = CATALOGUE / "stacks"
FAMILIES = _FOLDER / "families.yaml"
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
    reserve_share=0.025,
    source="assumed: CUDA context and libraries 1.5-2 GiB by nvidia-smi on published runs; NCCL 8-16 channels of "
    "4-10 MiB per communicator; reserved over allocated, known holes aside: "
    "0-2.1 % on published runs of torchtitan and Megatron-LM",
)


@cache
def stack_names() -> tuple[str, ...]:
    """Names of all stacks."""
    return tuple(sorted(path.stem for path in _FOLDER.glob("*.yaml") if path != FAMILIES))


def is_family(name: str) -> bool:
    return name in stack_names()


def is_stack(name: str) -> bool:
    """Whether a stack of that name ships: a family or a version of one."""
    return name in stack_names() or name in _table()["versions"]


def has_own_facts(version: str) -> bool:
    """Whether families.yaml says that a version does something else than its family."""
    return len(_table()["versions"].get(version, ())) > 1


def stack_for(name: str, fitted: Calibration | None = None) -> tuple[StackSpec, list[str]]:
    """The family that a stack as published (`megatron-bridge-26.02`) belongs to, with what its version changes, and
    warnings: an unknown version takes its family's values, an unknown family `generic`.
    fitted: the calibration to apply, the shipped one unless given."""
    family, version, warnings = family_of(name)
    stack = _load_stack(family, fitted or shipped())
    return _changed(stack, _version_facts(version, fitted or shipped())) if version else stack, warnings


@cache
def family_of(name: str) -> tuple[str, str, list[str]]:
    """(family, version in families.yaml or "", warnings) of a stack as published."""
    table = _table()
    wanted = name.strip().lower()
    if not wanted:
        return "generic", "", ["stack not stated: generic"]
    if wanted in table["versions"]:
        return table["versions"][wanted]["family"], wanted, []
    if wanted in table["families"]:
        return wanted, "", []
    found = next((family for pattern, family in table["patterns"] if re.search(pattern, wanted)), "generic")
    return found, "", [f"stack {name} is not known: values of {found}"]


@cache
def lineage(name: str) -> tuple[str, ...]:
    """Version, family and what the family inherits: all whose values a stack as published may take."""
    family, version, _ = family_of(name)
    names = [version] if version else []
    while family:
        names.append(family)
        family = _own_facts(family).get("inherits", "")
    return tuple(names)


@cache
def _table() -> Mapping[str, Any]:
    table: Mapping[str, Any] = load_yaml(FAMILIES)
    return table


def load_stack(name: str, fitted: Calibration | None = None) -> StackSpec:
    """The stack `name`, a family or a version of one, with what it inherits. Raises UnknownNameError."""
    if name in _table()["versions"]:
        return replace(stack_for(name, fitted)[0], name=name)
    return _load_stack(name, fitted or shipped())


@lru_cache(maxsize=256)
def _load_stack(name: str, fitted: Calibration) -> StackSpec:
    if name not in stack_names():
        raise UnknownNameError("stack", name, stack_names(), see="meshwright show stacks")
    facts = _facts(name, fitted)
    return StackSpec(name=name, sources={field: fact["source"] for field, fact in facts.items()},
                     **{field: fact["value"] for field, fact in facts.items()})  # fmt: skip


def _changed(stack: StackSpec, facts: Mapping[str, Any]) -> StackSpec:
    sources = {**stack.sources, **{key: fact["source"] for key, fact in facts.items()}}
    return replace(stack, sources=sources, **{key: fact["value"] for key, fact in facts.items()})


def _version_facts(version: str, fitted: Calibration) -> dict[str, Any]:
    return _with_fitted(_in_base_units(_table()["versions"][version]), version, fitted)


def _facts(name: str, fitted: Calibration) -> dict[str, Any]:
    """Field -> {value, source}: the parent's, then the file's own, then what was fitted for this name."""
    own = _own_facts(name)
    parent = own.get("inherits")
    facts = {**(_facts(parent, fitted) if parent else {}), **own}
    return _with_fitted({key: fact for key, fact in facts.items() if key in _FIELDS}, name, fitted)


@cache
def _own_facts(name: str) -> Mapping[str, Any]:
    return _in_base_units(load_yaml(_FOLDER / f"{name}.yaml"))


def _in_base_units(facts: Mapping[str, Any]) -> dict[str, Any]:
    """The facts of a file with quantities as numbers; the family of a version is no fact of it."""
    out = {key: fact for key, fact in facts.items() if key != "family"}
    if "host_s_per_kernel" in out:
        fact = out["host_s_per_kernel"]
        out["host_s_per_kernel"] = {**fact, "value": units.parse(fact["value"], "s")}
    return out


def _with_fitted(facts: dict[str, Any], name: str, fitted: Calibration) -> dict[str, Any]:
    for key, value in fitted.stacks.get(name, {}).items():
        facts[key] = {"value": value, "source": fitted.source}
    return facts


_Surface = TypeVar("_Surface", GemmSurface, AttentionSurface)


def rates_for(
    cluster: ClusterSpec, stack: StackSpec, precision: Precision, fitted: Calibration | None = None
) -> Rates:
    """Rates of the cluster's limiting GPU and links under `stack`. Raises InputError if the GPU lacks the dtype.
    fitted: the calibration of devices and links, the shipped one unless given (that of the stack is in `stack`)."""
    gpu, fitted = cluster.gpu, device_files.calibrated(fitted or shipped(), cluster)
    device = surfaces_for(gpu, fitted)
    if gpu.measured:  # as this software runs it, in the long run
        stack = replace(stack, throughput=1.0)
    if "contention" in cluster.measured:
        stack = replace(stack, contention=cluster.measured["contention"])
    dtype = precision if precision in device.gemm else ("bf16" if precision == "fp16" else precision)
    if dtype not in device.gemm:
        known = ", ".join(sorted(set(device.gemm) & set(OPERAND_BYTES)))
        raise InputError(f"{gpu.name} has no {precision} matrix units", hint=f"it has {known}: `--dtype`")
    wide = "bf16" if dtype in ("fp8", "fp4") and "bf16" in device.gemm else dtype  # head, router and so on stay in bf16
    element_bytes, wide_bytes = (OPERAND_BYTES[name] for name in (dtype, wide))
    gemm, wide_gemm = (_sustained(device.gemm[name], stack) for name in (dtype, wide))
    memory_bw = gpu.memory_bw_bytes_per_s * device.fused_memory_efficiency * stack.throughput
    attention: AttentionSurface | UnfusedSurface
    if stack.attention == "unfused" or (dtype == "fp32" and not gpu.measured):  # no fused kernel of a GPU has fp32
        # The square of scores is aligned, and heads are short enough to stay in the cache.
        products = replace(wide_gemm, unaligned_64=1.0)
        attention = UnfusedSurface(products=products, memory_bw_bytes_per_s=memory_bw, element_bytes=wide_bytes)
    else:
        attention = _sustained(device.attention[stack.attention], stack)
    host = [device_files.host_memory(cluster) or group.host_memory_bw_bytes_per_s for group in cluster.groups]
    per_gpu = [bw / group.gpus_per_node for bw, group in zip(host, cluster.groups, strict=True) if bw]
    return Rates(
        gemm=gemm,
        wide_gemm=wide_gemm,
        attention=attention,
        memory_bw_bytes_per_s=memory_bw,
        peak_flops_per_s=gpu.peak_flops_per_s[dtype],
        collectives=with_measured(collective_rates(fitted, stack.nics_per_ring), cluster.collectives),
        levels=cluster.levels,
        pcie_bw_bytes_per_s=device_files.to_host(gpu.pcie_bw_bytes_per_s * ASSUMED_PCIE_EFFICIENCY, cluster),
        host_memory_bw_bytes_per_s=min(per_gpu) if len(per_gpu) == len(host) else ASSUMED_HOST_BW_BYTES_PER_S,
        stack=stack,
        overheads=device_files.overheads(OVERHEADS, cluster),
        element_bytes=element_bytes,
        wide_element_bytes=wide_bytes,
        # A device whose calls were timed waits for each of them: what a layer takes by itself adds up.
        host_exponent=1.0 if gpu.measured else Rates.host_exponent,
        passes=measured_device.pairs(gpu, "passes"),
        latency_s=measured_device.pairs(gpu, "latency"),
        sources=_term_sources(device, cluster),
    )


def _sustained(surface: _Surface, stack: StackSpec) -> _Surface:
    """`surface` at the rates that the stack's kernels keep up."""
    return replace(surface, training_factor=surface.training_factor * stack.throughput,
                   memory_bw_bytes_per_s=surface.memory_bw_bytes_per_s * stack.throughput)  # fmt: skip


def _term_sources(device: DeviceRates, cluster: ClusterSpec) -> dict[str, str]:
    """Where seconds come from: of compute, and of each level of the network (`level 0`, ...)."""
    compute = "measured" if device.provenance == "measured" else "assumed"
    attention = "measured" if device.attention_provenance == "measured" else "assumed"
    fabric = with_measured(collective_rates(), cluster.collectives)
    spans = [fabric.level(level.kind, depth).source for depth, level in enumerate(cluster.levels)]
    network = {f"level {i}": text if text == "measured" else "fitted" if text.startswith("fitted") else "assumed"
               for i, text in enumerate(spans)}  # fmt: skip
    on_gpu = {**dict.fromkeys(("matmul", "memory", "optimizer", "accumulate"), compute), "attention": attention}
    guesses = {**dict.fromkeys(("host", "offload", "stragglers"), "assumed"),
               **({"host": "measured"} if cluster.gpu.measured else {})}  # fmt: skip
    return {**on_gpu, **guesses, "bubble": "formula", "imbalance": "formula", **network}
