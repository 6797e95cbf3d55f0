"""The profiles that a cluster file names (`profiles: [kernels.yaml, memory.yaml]`): kernels, memory and storage.

Their constants take the place of what ships for the cluster's GPU, on this cluster alone: the share of the peak that
products and attention keep up in training, the share of the memory bandwidth that element-wise kernels reach, the bytes
on a GPU that no tensor accounts for, and how fast states are copied to the host and updated there. A kernel profile of
a device that no catalogue knows has all that prices it, and the groups of the file call it by its name.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import yaml

from ...cost_models.rates.rates import MemoryOverheads
from ...cost_models.specs.cluster import ClusterSpec
from ...cost_models.specs.notice import Notice
from ...errors import InputError
from ..io import registry
from ..io.document import Document
from ..io.facts import Facts
from ..io.reader import read_document
from ..io.registry import GpuEntry
from ..rates.calibration import Calibration, overlaid
from . import measured_device

_PATH = ("profiles",)
_KERNELS = "kernel-profile"
_MEMORY = "memory-profile"
_STORAGE = "storage-profile"
_STORAGE_HEAD = """\
# What states are offloaded to, measured by `meshwright profile storage`: medians, bytes one way but for `host memory`,
# whose bytes are read and written.
"""
_EFFICIENCIES = ("gemm", "attention", "fused")


def with_profiles(facts: Facts, cluster: ClusterSpec) -> ClusterSpec:
    """`cluster` with what the profiles that its file names have measured; what is wrong goes to `facts`."""
    named = facts.document.at(_PATH)
    if named is None:
        return cluster
    if not isinstance(named, list) or not named or not all(isinstance(entry, str | Mapping) for entry in named):
        facts.fail(_PATH, "must list files", "`profiles: [kernels.yaml, memory.yaml]`")
        return cluster
    groups = list(cluster.groups)
    warnings: list[str] = []
    for position, name in enumerate(named):
        try:
            profile = _document(facts, name)
            values = constants(profile)
        except InputError as error:
            facts.fail((*_PATH, position), error.message, error.hint)
            continue
        if other := other_hardware(profile, cluster):
            warnings.append(other)
            continue
        device = _measured_on(profile)
        groups = [replace(group, measured={**group.measured, **values}) if group.gpu.name == device else group
                  for group in groups]  # fmt: skip
        warnings += _other_host(facts, profile)
    notices = [Notice("cluster", text) for text in warnings]
    return replace(cluster, groups=tuple(groups), warnings=(*cluster.warnings, *notices))


def _document(facts: Facts, named: str | Mapping[str, Any]) -> Document:
    """A profile that a cluster file names, or holds itself."""
    folder = Path(facts.document.name).parent
    return read_document(folder / named) if isinstance(named, str) else Document("profile", dict(named))


def devices(facts: Facts) -> dict[str, GpuEntry]:
    """The devices that the profiles of a cluster file describe, by name; what is wrong with one goes to `facts`."""
    named = facts.document.at(_PATH)
    by_name: dict[str, GpuEntry] = {}
    for position, profile in enumerate(named if isinstance(named, list) else ()):
        try:
            profile_facts = Facts(_document(facts, profile))
            device = measured_device.entry(profile_facts)
            profile_facts.finish()
        except InputError as error:
            facts.fail((*_PATH, position), error.message, error.hint)
            continue
        if device is not None:
            by_name[device.spec.name] = device
    return by_name


def constants(document: Document) -> dict[str, float]:
    """The constants of one profile, by the names of NodeGroup.measured. Raises InputError with all its problems."""
    facts, kind = Facts(document), document.at(("kind",))
    values: dict[str, float | None] = {}
    if kind == _KERNELS and document.at(measured_device.PATH) is not None:
        measured_device.entry(facts)
        values = {"contention": _contention(facts)}
    elif kind == _KERNELS:
        values = {name: _share(facts, ("efficiencies", name)) for name in _EFFICIENCIES}
        if not any(values.values()) and not facts.problems:
            hint = "profile it on the GPU of this cluster: only then the file compares with the planner"
            facts.fail(("efficiencies",), "says nothing of gemm, attention or fused", hint)
    elif kind == _MEMORY:
        values = {"reserve_share": _share(facts, ("overheads", "reserve_share"), least=0.0),
                  "context_bytes": facts.quantity(("overheads", "context"), "B")}  # fmt: skip
        if all(value is None for value in values.values()) and not facts.problems:
            hint = "`profile memory` writes both where the system tells what a process holds"
            facts.fail(("overheads",), "says nothing of reserve_share or context", hint)
    elif kind == _STORAGE:
        ways = [facts.quantity(("rates", name), "B/s") for name in ("host to device", "device to host")]
        values = {"host_memory_bytes_per_s": facts.quantity(("rates", "host memory"), "B/s"),
                  "pcie_bytes_per_s": min((way for way in ways if way is not None), default=None)}  # fmt: skip
    else:
        facts.fail(("kind",), f"`{kind}` is none of {_KERNELS}, {_MEMORY}, {_STORAGE}",
                   "`meshwright profile kernels -o kernels.yaml`")  # fmt: skip
    facts.finish()
    return {name: value for name, value in values.items() if value is not None}


def _contention(facts: Facts) -> float | None:
    """Seconds of computing lost per second of communication beside it, of `overlap: {compute, communication}`, the time
    factors of both (profilers/overlap.py); None where one rank was measured."""
    if not facts.keys(("overlap",), ("compute", "communication")):
        return None
    compute, communication = (facts.ratio(("overlap", name)) for name in ("compute", "communication"))
    return None if compute is None or communication is None else min(communication * (1.0 - 1.0 / compute), 1.0)


def _share(facts: Facts, path: tuple[str, ...], least: float | None = None) -> float | None:
    """A number above zero, or from `least` on."""
    value = facts.value(path)
    if value is None:
        return None
    low = math.ulp(0.0) if least is None else least
    if isinstance(value, bool) or not isinstance(value, int | float) or not low <= value <= 2:
        facts.fail(path, f"`{value}` must be a share above zero")
        return None
    return float(value)


def other_hardware(document: Document, cluster: ClusterSpec) -> str:
    """A warning where a profile is of no GPU that the cluster has; else empty."""
    on, names = _measured_on(document), dict.fromkeys(group.gpu.name for group in cluster.groups)
    if on in names:
        return ""
    return (f"{document.name}: measured on {on or 'no GPU of the catalogue'}, the cluster has {', '.join(names)}: "
            "not used")  # fmt: skip


def _measured_on(document: Document) -> str:
    """The device of a profile, by the name that a cluster has for it; empty where it names none."""
    where = str(document.at(("gpu",)) or document.at(("environment", "device")) or "")
    return registry.gpu_name(where) if registry.is_gpu(where) else where


def _other_host(facts: Facts, document: Document) -> Iterator[str]:
    """A warning where kernels of a device were timed on another machine than the links of the cluster file."""
    here, there = facts.document.at(("measured", "device")), document.at(("environment", "device"))
    if document.at(measured_device.PATH) is not None and here and there and here != there:
        yield f"{document.name}: measured on {there}, the links of {facts.document.name} on {here}"


def calibrated(fitted: Calibration, cluster: ClusterSpec) -> Calibration:
    """`fitted` with what was measured on the cluster's own GPU over it."""
    measured, gpu = cluster.measured, cluster.gpu.name
    factors = {key: measured[key] for key in ("gemm", "attention") if key in measured}
    above: dict[str, Any] = {"training_factor": {gpu: factors}} if factors else {}
    if "fused" in measured:
        above["memory_efficiency"] = {gpu: {"fused": measured["fused"]}}
    if not above:
        return fitted
    return replace(fitted, assumptions=overlaid(fitted.assumptions, above))


def overheads(assumed: MemoryOverheads, cluster: ClusterSpec) -> MemoryOverheads:
    """`assumed` with what was measured on the cluster."""
    measured = {name: cluster.measured[name] for name in ("reserve_share", "context_bytes") if name in cluster.measured}
    if measured and cluster.gpu.measured:  # what a process holds for its links to other ranks is in the context
        measured["communicator_bytes"] = 0.0
    return replace(assumed, **measured, source="measured on this cluster") if measured else assumed


def storage_text(document: Mapping[str, Any], date: str, samples: str) -> str:
    """The rates of `profile storage` as YAML with units. samples: the name of the file of raw samples."""
    rates = {name: f"{rate['median'] / 1e9:.4g} GB/s" for name, rate in document["rates"].items()}
    written = {"kind": _STORAGE, "date": date, "gpu": document["gpu"] or None, "samples": samples,
               "environment": document["environment"], "rates": rates}  # fmt: skip
    return _STORAGE_HEAD + yaml.safe_dump(written, sort_keys=False, width=120)


def to_host(assumed_bytes_per_s: float, cluster: ClusterSpec) -> float:
    """Bytes/s of pinned copies between a GPU and its host, the slower direction."""
    return cluster.measured.get("pcie_bytes_per_s", assumed_bytes_per_s)


def host_memory(cluster: ClusterSpec) -> float | None:
    """Bytes/s of a node's memory, read and written, as measured; None where it was not."""
    return cluster.measured.get("host_memory_bytes_per_s")
