"""The numbers of the hardware and the software that a study turns, each read from and written to a resolved request.

A knob is spelled as in the files that hold the number: `gpu.memory.bandwidth` as in profiles/catalogue/hardware,
`cluster.links.inter_node.bandwidth` as in a cluster file, `stack.tp_overlap` as in profiles/catalogue/stacks. Turning
one changes quantities of the cluster or the stack only: model, workload and layout stay, so nothing is looked up again.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Literal

from ...cost_models.specs.cluster import WAN, ClusterSpec, GpuSpec, NetworkLevel, NodeGroup
from ...cost_models.specs.stack import StackSpec
from ...cost_models.units import Dimension
from ...profiles.io import registry
from ...profiles.io.reader import read_document
from ...profiles.stack.stack_file import ABOVE_ZERO, Range, range_of
from ..request.resolve import Resolved

Better = Literal["more", "less", ""]
_INSIDE = ("pair", "node", "rack", "slice")  # names of the levels that are built into a node or rack (profiles.fabric)


@dataclass(frozen=True)
class Knob:
    """One number. `read`: its value in base units of `dimension`, None where the cluster has none; `write`: the request
    with another value. `better`: which way a step gets faster, empty where the number is no speed. `range`: what it may
    be, that of the files which hold it."""

    path: str
    label: str
    dimension: Dimension
    better: Better
    read: Callable[[Resolved], float | None]
    write: Callable[[Resolved, float], Resolved]
    range: Range = ABOVE_ZERO

    def scaled(self, resolved: Resolved, factor: float) -> Resolved:
        """The request with the number times `factor`; as it is where there is no such number."""
        value = self.read(resolved)
        return resolved if value is None else self.set(resolved, value * factor)

    def set(self, resolved: Resolved, value: float) -> Resolved:
        """The request with the number at `value`; itself where that changes nothing."""
        return resolved if value == self.read(resolved) else self.write(resolved, value)


def _on_cluster(resolved: Resolved, change: Callable[[ClusterSpec], ClusterSpec]) -> Resolved:
    return replace(resolved, cluster=change(resolved.cluster))


def _gpu(path: str, label: str, dimension: Dimension, better: Better, field: str) -> Knob:
    """A number of the accelerator. Written as a ratio, so that mixed GPUs keep theirs."""

    def read(resolved: Resolved) -> float | None:
        value = getattr(resolved.cluster.gpu, field)
        return float(value) if value else None

    def write(resolved: Resolved, value: float) -> Resolved:
        now = read(resolved)

        def turned(group: NodeGroup) -> NodeGroup:
            before = getattr(group.gpu, field)
            changed: dict[str, Any] = {field: before * value / now if now and before else value}
            return replace(group, gpu=replace(group.gpu, **changed))

        return _groups(resolved, turned)

    return Knob(path, label, dimension, better, read, write)


def _groups(resolved: Resolved, change: Callable[[NodeGroup], NodeGroup]) -> Resolved:
    return _on_cluster(
        resolved, lambda cluster: replace(cluster, groups=tuple(change(group) for group in cluster.groups))
    )


def _read_peak(resolved: Resolved) -> float:
    return resolved.rates.peak_flops_per_s


def _write_peak(resolved: Resolved, value: float) -> Resolved:
    """All dense peaks in proportion: `value` is that of the compute dtype."""
    factor = value / _read_peak(resolved)

    def changed(gpu: GpuSpec) -> GpuSpec:
        return replace(gpu, peak_flops_per_s={dtype: peak * factor for dtype, peak in gpu.peak_flops_per_s.items()})

    return _groups(resolved, lambda group: replace(group, gpu=changed(group.gpu)))


def _node(path: str, label: str, dimension: Dimension, better: Better, field: str) -> Knob:
    """A number of every node; that of the first group is shown."""

    def read(resolved: Resolved) -> float | None:
        value = getattr(resolved.cluster.groups[0], field)
        return float(value) if value is not None else None

    def write(resolved: Resolved, value: float) -> Resolved:
        changed: dict[str, Any] = {field: value}
        return _groups(resolved, lambda group: replace(group, **changed))

    return Knob(path, label, dimension, better, read, write)


def _read_price(resolved: Resolved) -> float | None:
    """The price of a node of the first group, also an assumed one."""
    return resolved.cluster.groups[0].usd_per_node_hour


def _write_price(resolved: Resolved, value: float) -> Resolved:
    return _groups(resolved, lambda group: group.at_price(value))


def _place(level: NetworkLevel) -> str:
    return "intra_node" if level.name in _INSIDE else WAN if level.between_sites else "inter_node"


def _link(place: str, label: str, dimension: Dimension, better: Better, field: str) -> Knob:
    """Bandwidth per GPU or latency of a kind of link. Several levels of the kind (pods, pairs) keep their ratio; a link
    outside is never faster than the way out to it (profiles/cluster/fabric.py, assemble)."""

    def own(resolved: Resolved) -> list[NetworkLevel]:
        return [level for level in resolved.cluster.levels if _place(level) == place]

    def read(resolved: Resolved) -> float | None:
        levels = own(resolved)
        # Of pair and node the node's number is the one that a cluster file gives.
        value = float(getattr(levels[-1 if place == "intra_node" else 0], field)) if levels else None
        return value if value is None or field != "bw_bytes_per_s" else value * _gpus_per(resolved, place)

    def write(resolved: Resolved, value: float) -> Resolved:
        now = read(resolved)
        if not now:
            return resolved
        levels = [
            replace(level, **{field: getattr(level, field) * value / now}) if _place(level) == place else level
            for level in resolved.cluster.levels
        ]
        for depth in range(1, len(levels)):
            bw = min(levels[depth].bw_bytes_per_s, levels[depth - 1].bw_bytes_per_s)
            levels[depth] = replace(levels[depth], bw_bytes_per_s=bw)
        links = resolved.cluster.links
        if links is not None and (place, field) == ("inter_node", "bw_bytes_per_s"):  # pairs of nodes keep their ratio
            pairs = tuple(tuple(pair * value / now for pair in row) for row in links.bw_bytes_per_s)
            links = replace(links, bw_bytes_per_s=pairs)
        return _on_cluster(resolved, lambda cluster: replace(cluster, levels=tuple(levels), links=links))

    name = f"cluster.links.{place}" if place != WAN else f"cluster.{WAN}"
    return Knob(f"{name}.{'bandwidth' if dimension == 'B/s' else 'latency'}", label, dimension, better, read, write)


def described(resolved: Resolved) -> Mapping[str, Any]:
    """The cluster as the request or its file writes it out; empty for a name."""
    description = resolved.request.cluster
    if isinstance(description, str) and Path(description).is_file():
        description = read_document(description).data
    return description if isinstance(description, Mapping) else {}


def _block(resolved: Resolved, place: str) -> object:
    """The link as the request writes it out; None for none."""
    description = described(resolved)
    return description.get(WAN) if place == WAN else (description.get("links") or {}).get(place)


def per_in_text(resolved: Resolved, place: str) -> str:
    """`node` where the request says `400 Gb/s per node` of a link; else empty."""
    block = _block(resolved, place)
    match = re.search(r"\sper\s+(\w+)\s*$", str(block.get("bandwidth", "")) if isinstance(block, Mapping) else "")
    return match[1].lower() if match else ""


def per_of(resolved: Resolved, place: str) -> str:
    """The owner of what the request calls the bandwidth of a link: `gpu` (the default), `nic`, `node` or `site` (the
    default between sites)."""
    block = _block(resolved, place)
    field = block.get("per") if isinstance(block, Mapping) else None
    return str(per_in_text(resolved, place) or field or ("site" if place == WAN else "gpu"))


def fastest_pair(resolved: Resolved, path: str) -> float | None:
    """Bandwidth of the fastest pair of nodes, counted as the knob at `path` counts that of the slowest; None for other
    knobs, and where all pairs are alike."""
    links = resolved.cluster.links
    if links is None or path != "cluster.links.inter_node.bandwidth":
        return None
    most = max(max(row) for row in links.bw_bytes_per_s)
    return most / resolved.cluster.gpus_per_node * _gpus_per(resolved, "inter_node")


def _gpus_per(resolved: Resolved, place: str) -> float:
    """The GPUs that share the bandwidth of a link, as the request counts it."""
    description, node = described(resolved), resolved.cluster.gpus_per_node
    per = per_of(resolved, place)
    if per == "site":
        return max(float(site["nodes"]) for site in description["sites"]) * node
    if per == "nic":
        entry = registry.load_node(resolved.cluster.groups[0].node)
        return node / entry.nics if entry.nics else 1.0
    return float(node) if per == "node" else 1.0


def _stack(field: str) -> Knob:
    dimension: Dimension = "s" if field.endswith("_s_per_kernel") else "count"

    def write(resolved: Resolved, value: float) -> Resolved:
        whole = isinstance(getattr(resolved.stack, field), int)
        changed: dict[str, Any] = {field: round(value) if whole else value}
        return replace(resolved, stack=replace(resolved.stack, **changed))

    better: Better = "more" if field.endswith("_overlap") else "less"
    label = f"{field.replace('_s_per_', ' time per ').replace('_', ' ')} (software)"

    def read(resolved: Resolved) -> float:
        return float(getattr(resolved.stack, field))

    return Knob(f"stack.{field}", label, dimension, better, read, write, range_of(field))


# What the hardware is made of, in the order of a data sheet.
HARDWARE = (
    Knob("gpu.peak", "peak FLOP/s", "FLOP/s", "more", _read_peak, _write_peak),
    _gpu("gpu.memory.bandwidth", "GPU memory bandwidth", "B/s", "more", "memory_bw_bytes_per_s"),
    _gpu("gpu.memory.capacity", "GPU memory", "B", "", "memory_bytes"),
    _gpu("gpu.pcie.bandwidth", "PCIe to the host", "B/s", "more", "pcie_bw_bytes_per_s"),
    _gpu("gpu.tdp", "GPU power", "W", "", "tdp_w"),
    _link("intra_node", "link inside the node", "B/s", "more", "bw_bytes_per_s"),
    _link("inter_node", "network", "B/s", "more", "bw_bytes_per_s"),
    _link("inter_node", "network latency", "s", "less", "latency_s"),
    _link(WAN, "network between sites", "B/s", "more", "bw_bytes_per_s"),
    _link(WAN, "latency between sites", "s", "less", "latency_s"),
    _node("cluster.host_memory", "host memory", "B", "", "host_memory_bytes"),
    _node("cluster.host_memory_bandwidth", "host memory bandwidth", "B/s", "more", "host_memory_bw_bytes_per_s"),
    Knob("cluster.price", "price of a node", "USD/h", "", _read_price, _write_price),
)
_NUMBERS = [
    name for name, field in StackSpec.__dataclass_fields__.items() if field.type in ("float", "int")
]  # names of types are text under `from __future__ import annotations`
SOFTWARE = tuple(_stack(name) for name in _NUMBERS)
KNOBS = {knob.path: knob for knob in (*HARDWARE, *SOFTWARE)}
