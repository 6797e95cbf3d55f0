"""The bandwidth hierarchy of a cluster, made of nodes and a network: which GPUs share which bandwidth.

Latencies are per step of a collective. For NVLink, PCIe and NICs they are NCCL's own constants for its ring with the
Simple protocol, the one that large messages take (nccl src/graph/tuning.cc). Check: eight GPUs of 3.4 us and two
network steps of 14 us are 76 us per node and all-reduce; the sizes at which SimAI's measured grid reaches half of the
bandwidth (12.5 MB per node) say 62 us.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Literal

from ...cost_models.specs.cluster import WAN, NetworkLevel, NodeGroup, Topology
from ...cost_models.specs.notice import Notice
from ..io import registry

_NCCL = "NCCL tuning.cc, ring, Simple"
_LIKE = "assumed as of the nearest link that NCCL lists"
LATENCY: dict[str, tuple[float, str]] = {
    **{f"nvlink{generation}": (3.4e-6, _NCCL) for generation in (2, 3, 4, 5, 6)},
    **{f"pcie{generation}": (5.7e-6, _NCCL) for generation in (3, 4, 5)},
    "xgmi": (2.1e-6, "RCCL tuning model, ring, Simple"),
    "ici": (1e-6, "assumed, about 1 us per hop"),
    "neuronlink": (3.4e-6, _LIKE),
    "hccs": (3.4e-6, _LIKE),
    "roce-mesh": (5.7e-6, _LIKE),
    "upi": (3.4e-6, _LIKE),
    "ib": (14e-6, _NCCL),
    "roce": (14e-6, _NCCL),
    "efa": (20e-6, "aws-ofi-nccl tuner"),
    "slingshot": (14e-6, _LIKE),
    "ethernet": (28e-6, "assumed, twice NCCL's RDMA network"),
}
_STANDARD_GBPS: dict[str, tuple[float, ...]] = {  # speeds that NICs of a kind are made in
    "ib": (10, 20, 40, 56, 100, 200, 400, 800),
    "efa": (25, 50, 100, 200, 400, 800),
    "slingshot": (100, 200, 400),
    "roce": (10, 25, 40, 50, 100, 200, 400, 800),
    "ethernet": (1, 10, 25, 40, 50, 100, 200, 400, 800),
}

# Generations of a kind whose efficiencies differ: rates know them by these names.
GENERATIONS = {"edr-ib": "ib", "hdr-ib": "ib", "ndr-ib": "ib", "xdr-ib": "ib", "efa-v1": "efa", "efa-v4": "efa"}
# What a file may call a network.
NETWORKS = (*registry.INTER_KINDS, *GENERATIONS)

FabricType = Literal["non-blocking", "rail-optimised", "rail-only", "oversubscribed", "torus", "dragonfly"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Inter:
    """The network as one GPU of a node sees it."""

    bw_bytes_per_s: float  # NICs x NIC speed / GPUs of the node, one direction
    latency_s: float  # per step of a collective
    kind: str  # one of INTER_KINDS, its generation (`ndr-ib`), or NETWORK_KIND
    nics: int | None = None  # per node; None: not known
    source: str = ""  # of bandwidth and latency
    shared_by: float = 1.0  # see NetworkLevel


@dataclass(frozen=True, slots=True, kw_only=True)
class Group:
    """Equal nodes on one network."""

    nodes: NodeGroup  # what they are, and how many
    intra: tuple[NetworkLevel, ...]  # levels inside a node (or its rack), innermost first
    inter: Inter | None  # None: their network is not known
    warnings: tuple[str, ...] = ()  # texts on what was assumed

    @property
    def needs_network(self) -> bool:
        return self.nodes.num_gpus > self.intra[-1].size


@dataclass(frozen=True, slots=True, kw_only=True)
class Fabric:
    """The network between nodes."""

    type: FabricType = "non-blocking"  # its shape
    ratio: float = 1.0  # bandwidth inside a pod over bandwidth between pods, per GPU
    pod_nodes: int | None = None  # nodes of a pod, or of a dragonfly's group
    sites: tuple[tuple[str, int], ...] = ()  # (name, nodes)
    wan_bw_bytes_per_s: float = 0.0  # of one site, one direction, all its links together
    wan_latency_s: float = 0.0  # between two sites
    between: Inter | None = None  # what joins groups, if slower than their networks; its nics: GPUs sharing it

    def wan(self, size: int, bw_bytes_per_s: float) -> NetworkLevel:
        """The link between sites, of so many GPUs. bw_bytes_per_s: of one of them."""
        return NetworkLevel(name=WAN, size=size, bw_bytes_per_s=bw_bytes_per_s, latency_s=self.wan_latency_s, kind=WAN,
                            source="as given")  # fmt: skip


def pcie_kind(bw_bytes_per_s: float) -> str:
    """Generation of an x16 slot: 16, 32 and 64 GB/s are the third, fourth and fifth."""
    return "pcie3" if bw_bytes_per_s < 24e9 else "pcie4" if bw_bytes_per_s < 48e9 else "pcie5"


def latency(kind: str) -> tuple[float, str]:
    """(seconds per step, source) of a kind of link."""
    return LATENCY.get(kind, (14e-6, _LIKE))


def intra_level(name: str, size: int, bw: float, topology: Topology, kind: str, source: str) -> NetworkLevel:
    seconds, where = latency(kind)
    return NetworkLevel(name=name, size=size, bw_bytes_per_s=bw, latency_s=seconds, topology=topology, kind=kind,
                        source=f"bandwidth: {source}; latency: {where}")  # fmt: skip


def domain_size(gpus_per_node: int, num_nodes: int, domain: int) -> tuple[int, str]:
    """(GPUs per fast-link domain, warning) of nodes that a rack-wide link joins.

    Jobs that span racks use the same number of nodes of each where that is possible: 32 trays of an NVL72 are two
    racks of 16, not one of 18 and one of 14.
    """
    per_rack = domain // gpus_per_node
    if num_nodes <= per_rack:
        note = f"taken as {num_nodes} of the {per_rack} nodes of a rack" if num_nodes < per_rack else ""
        return gpus_per_node * num_nodes, note
    racks = -(-num_nodes // per_rack)
    if num_nodes % racks:
        return per_rack * gpus_per_node, (f"{num_nodes} nodes do not fill {racks} racks of {per_rack} evenly: "
                                          f"groups that straddle racks are slower than planned")  # fmt: skip
    size = num_nodes // racks
    note = f"taken as {racks} racks with {size} of {per_rack} nodes in use each" if size < per_rack else ""
    return size * gpus_per_node, note


def assemble(groups: Sequence[Group], fabric: Fabric) -> tuple[tuple[NetworkLevel, ...], list[Notice]]:
    """The hierarchy of the whole cluster, innermost first, and what to warn of. Every group that needs a network has
    one: the caller checked."""
    levels = _merge_intra(groups)
    total = sum(group.nodes.num_gpus for group in groups)
    warnings: list[Notice] = []
    if len(groups) > 1:
        warnings += _mixed_warnings(groups, fabric)
    every = [*(group.inter for group in groups), fabric.between]
    inters = [inter for inter in every if inter is not None]
    if levels[-1].size < total and inters:
        slowest = min(inters, key=lambda inter: inter.bw_bytes_per_s)
        slowest = replace(slowest, latency_s=max(inter.latency_s for inter in inters))
        gpus_per_node = min(group.nodes.gpus_per_node for group in groups)
        levels += _network_levels(slowest, fabric, total, gpus_per_node)
        warnings += _site_warnings(fabric)
        levels = _increasing(levels)
    return tuple(levels), warnings


def _merge_intra(groups: Sequence[Group]) -> list[NetworkLevel]:
    """The weakest of the levels inside the nodes; where the groups are built differently, only the outermost."""
    if len({len(group.intra) for group in groups}) == 1:
        return [_weakest(same_depth, min(level.size for level in same_depth))
                for same_depth in zip(*(group.intra for group in groups), strict=True)]  # fmt: skip
    return [_weakest([level for group in groups for level in group.intra], min(g.intra[-1].size for g in groups))]


def _weakest(levels: Sequence[NetworkLevel], size: int) -> NetworkLevel:
    slowest = min(levels, key=lambda level: level.bw_bytes_per_s)
    topology: Topology = "mesh" if any(level.topology == "mesh" for level in levels) else slowest.topology
    axes = slowest.torus if all(level.size == size for level in levels) else ()
    return replace(slowest, name=levels[-1].name, size=size, topology=topology, torus=axes,
                   latency_s=max(level.latency_s for level in levels))  # fmt: skip


def _network_levels(inter: Inter, fabric: Fabric, total: int, gpus_per_node: int) -> list[NetworkLevel]:
    """The levels between nodes: pods or groups, the whole network, and the line between sites."""
    reach = min(nodes for _, nodes in fabric.sites) * gpus_per_node if fabric.sites else total
    base = NetworkLevel(name="site" if fabric.sites else "cluster", size=reach, bw_bytes_per_s=inter.bw_bytes_per_s,
                        latency_s=inter.latency_s, topology="torus" if fabric.type == "torus" else "switch",
                        kind=f"{inter.kind}-rail-only" if fabric.type == "rail-only" else inter.kind,
                        source=inter.source, shared_by=inter.shared_by)  # fmt: skip
    levels = [base]
    pod = (fabric.pod_nodes or 0) * gpus_per_node
    if fabric.type in ("oversubscribed", "dragonfly") and fabric.ratio > 1 and pod < reach:
        thin = f"{inter.source}; over {fabric.ratio:g} between pods"
        name = "group" if fabric.type == "dragonfly" else "pod"
        inside = [replace(base, name=name, size=pod)] if pod else []
        levels = [*inside, replace(base, bw_bytes_per_s=base.bw_bytes_per_s / fabric.ratio, source=thin)]
    if fabric.sites:
        largest = max(nodes for _, nodes in fabric.sites) * gpus_per_node
        levels.append(fabric.wan(total, fabric.wan_bw_bytes_per_s / largest))
    return levels


def _site_warnings(fabric: Fabric) -> list[Notice]:
    if len({nodes for _, nodes in fabric.sites}) <= 1:
        return []
    named = ", ".join(f"{name} {nodes}" for name, nodes in fabric.sites)
    text = f"sites differ in size ({named} nodes): groups are laid out for the smallest"
    return [Notice("uniform-plan", text)]


def _increasing(levels: Sequence[NetworkLevel]) -> list[NetworkLevel]:
    """Drop a level that joins no more GPUs than the one below it (a site of one node), keeping the last."""
    distinct: list[NetworkLevel] = []
    for level in levels:
        if not distinct or level.size > distinct[-1].size:
            distinct.append(level)
    # A link outside is never faster than the way out to it.
    for position in range(1, len(distinct)):
        if distinct[position].bw_bytes_per_s > distinct[position - 1].bw_bytes_per_s:
            distinct[position] = replace(distinct[position], bw_bytes_per_s=distinct[position - 1].bw_bytes_per_s)
    return distinct


def _mixed_warnings(groups: Sequence[Group], fabric: Fabric) -> list[Notice]:
    warnings = []
    gpus = sorted({group.nodes.gpu.name for group in groups})
    if len(gpus) > 1:
        weakest = min((group.nodes.gpu for group in groups),
                      key=lambda gpu: max(gpu.peak_flops_per_s.get(t, 0.0) for t in ("bf16", "fp16")))  # fmt: skip
        smallest = min((group.nodes.gpu for group in groups), key=lambda gpu: gpu.memory_bytes)
        text = (
            f"mixed GPUs ({', '.join(gpus)}): an even plan runs at the speed of {weakest.name} and in the "
            f"memory of {smallest.name}"
        )
        warnings.append(Notice("uniform-plan", text))
    vendors = sorted({group.nodes.gpu.vendor for group in groups})
    if len(vendors) > 1:
        text = f"{' and '.join(vendors)} GPUs share no communication library: one job cannot span them"
        warnings.append(Notice("cluster", text))
    sizes = sorted({group.nodes.gpus_per_node for group in groups})
    if len(sizes) > 1:
        listed = " and ".join(map(str, sizes))
        text = f"nodes of {listed} GPUs: groups inside a node are limited to {sizes[0]}"
        warnings.append(Notice("uniform-plan", text))
    inters = [group.inter for group in groups if group.inter is not None]
    speeds = sorted({inter.bw_bytes_per_s for inter in inters})
    if len(speeds) > 1:
        listed = ", ".join(gbps(speed) for speed in speeds)
        warnings.append(Notice("uniform-plan", f"networks of {listed} per GPU: the slowest is used for all"))
    kinds = sorted({GENERATIONS.get(inter.kind, inter.kind) for inter in inters})
    if len(kinds) > 1 and fabric.between is None:
        text = (
            f"networks of different kinds ({', '.join(kinds)}) must be joined by something: "
            "give `links.between_groups` if it is slower than they are"
        )
        warnings.append(Notice("cluster", text))
    return warnings


def gbps(bytes_per_s: float) -> str:
    """A network speed for people, in bits as on the cable: `400 Gb/s`."""
    bits = bytes_per_s * 8
    return f"{bits / 1e12:.4g} Tb/s" if bits >= 1e12 else f"{bits / 1e9:.4g} Gb/s"


def suspicious_nic(bw_bytes_per_s: float, kind: str, text: str) -> str:
    """A warning if a NIC speed is none that NICs have, but would be with bits and bytes exchanged; else empty."""
    known = _STANDARD_GBPS.get(kind, _STANDARD_GBPS["roce"])

    def made(gigabits: float) -> bool:
        return any(abs(gigabits - standard) <= 0.03 * standard for standard in known)

    speed = bw_bytes_per_s * 8e-9
    if made(speed):
        return ""
    if made(speed / 8):
        return f"{_stated(text, bw_bytes_per_s)}, more than a NIC has; {_bits_meant(bw_bytes_per_s / 8)}"
    if made(speed * 8):
        return f"{_stated(text, bw_bytes_per_s)}, no speed that {kind} NICs have; {_bytes_meant(bw_bytes_per_s * 8)}"
    return ""


def suspicious_ratio(bw_bytes_per_s: float, expected: float, text: str, owner: str) -> str:
    """A warning if a bandwidth is about 8 times off the one that `owner` has (bits for bytes); else empty."""
    ratio = bw_bytes_per_s / expected
    if 6 <= ratio <= 10:
        than = f"{ratio:.2g} times the {gbps(expected)} of {owner}"
        return f"{_stated(text, bw_bytes_per_s)} per GPU, {than}; {_bits_meant(bw_bytes_per_s / 8)}"
    if 6 <= 1 / ratio <= 10:
        than = f"1/{1 / ratio:.2g} of the {expected / 1e9:.4g} GB/s of {owner}"
        return f"{_stated(text, bw_bytes_per_s)} per GPU, {than}; {_bytes_meant(bw_bytes_per_s * 8)}"
    return ""


def _stated(text: str, bytes_per_s: float) -> str:
    shown, in_bytes = " ".join(text.split()), f"{bytes_per_s / 1e9:.4g} GB/s"
    return f"`{shown}` is {gbps(bytes_per_s) if shown == in_bytes else in_bytes}"


def _bits_meant(bytes_per_s: float) -> str:
    return f"if bits were meant, write `{gbps(bytes_per_s)}` ({bytes_per_s / 1e9:.4g} GB/s)"


def _bytes_meant(bytes_per_s: float) -> str:
    return f"if bytes were meant, write `{bytes_per_s / 1e9:.4g} GB/s` ({gbps(bytes_per_s)})"
