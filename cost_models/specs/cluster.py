"""The specification of a cluster: GPUs, nodes, links and islands. Quantities only, in base SI units."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from functools import cached_property
from typing import Literal

from .notice import Notice

BLACKWELL = 10.0  # compute capability of the first GPUs of the generation
# The network between sites, whose latency is the time of light: the name and the kind of its level, and its key in a
# cluster file.
WAN = "wan"


def capability_of(arch: str) -> float | None:
    """CUDA compute capability in the name of an architecture: 9.0 where it has sm_90, None where it has none."""
    match = re.search(r"sm_(\d+)", arch)
    return int(match[1]) / 10 if match else None


def is_cpu(arch: str) -> bool:
    """Whether an architecture is that of a socket of a server."""
    return "(x86-64" in arch


@dataclass(frozen=True, kw_only=True)
class GpuSpec:
    """One accelerator: facts of its datasheet."""

    name: str  # canonical, lower case with hyphens
    vendor: str  # lower case
    arch: str  # generation, with the compute capability where efficiencies depend on it
    peak_flops_per_s: Mapping[str, float]  # dtype -> dense peak
    memory_bytes: float  # as the driver shows it
    memory_bw_bytes_per_s: float  # peak
    link_bw_bytes_per_s: float  # to the other GPUs of its node, all links together, one direction
    pcie_bw_bytes_per_s: float  # to the host, one direction
    num_sms: int | None = None  # multiprocessors
    tdp_w: float | None = None  # board power
    usual_stack: str = ""  # of the software that trains on it where it is none for GPUs
    plan_only: bool = False  # no target runs on it (TPU, Trainium, Gaudi, Ascend)
    unconfirmed: tuple[str, ...] = ()  # fields whose value no stored source confirms
    # Constants of a device that no catalogue knows, from `profile kernels` (profiles/cluster/measured_device.py). Its
    # peaks are then those of the best product that was measured.
    measured: Mapping[str, Mapping[str, float]] = field(default_factory=dict)

    def slower(self, share: float) -> GpuSpec:
        """The GPU where it takes so much longer for the same work, as a share: heat or a host holds it down."""
        peaks = {dtype: peak / (1 + share) for dtype, peak in self.peak_flops_per_s.items()}
        return replace(self, peak_flops_per_s=peaks, memory_bw_bytes_per_s=self.memory_bw_bytes_per_s / (1 + share))

    @property
    def compute_capability(self) -> float | None:
        """CUDA compute capability; None where `arch` has none."""
        return capability_of(self.arch)

    @property
    def any_fp8_layout(self) -> bool:
        """Whether products take fp8 operands with one scale as they lie: on Blackwell, but not that of workstations
        (TransformerEngine e7c550c5, common/transformer_engine.cpp, nvte_is_non_tn_fp8_gemm_supported)."""
        capability = self.compute_capability or 0.0
        return BLACKWELL <= capability < 12.0 or capability >= 13.0

    @property
    def is_host(self) -> bool:
        """Whether its memory is that of the host: a CPU rank, the only kind of device that is measured so."""
        return bool(self.measured)


Topology = Literal["switch", "mesh", "torus", "pcie"]


@dataclass(frozen=True, slots=True, kw_only=True)
class NetworkLevel:
    """One level of the bandwidth hierarchy, innermost first."""

    name: str  # node, rack, network ...
    size: int  # GPUs joined at this level or below: 8 for a node, 72 for an NVL72 rack, the cluster for the last
    bw_bytes_per_s: float  # per GPU, one direction, when all GPUs below use it at once
    latency_s: float  # of one message
    # mesh: a group of n gets (n-1)/(size-1) of the bandwidth, since each pair has its own link (MI300X)
    topology: Topology = "switch"
    kind: str = ""  # nvlink4, pcie5, ndr-ib, roce, efa, slingshot, ethernet, wan ...: selects the measured curves
    source: str = ""  # where bandwidth and latency come from
    # How many times faster one GPU sends while those that it shares a port with are silent: their messages take turns.
    # 1: each has a port of its own, or they share it packet by packet.
    shared_by: float = 1.0
    # Chips along each axis of a torus, in the order in which ranks fill them; (): no axes, or none that are known.
    torus: tuple[int, ...] = ()

    @property
    def between_sites(self) -> bool:
        return self.kind == WAN


@dataclass(frozen=True, kw_only=True)
class Rent:
    """The assumed price of GPUs whose nodes have none."""

    usd_per_gpu_hour: float
    source: str


@dataclass(frozen=True, kw_only=True)
class NodeGroup:
    """Nodes that are alike."""

    node: str  # type of node
    gpu: GpuSpec  # its accelerator
    num_nodes: int
    gpus_per_node: int
    host_memory_bytes: float | None = None  # per node
    host_memory_bw_bytes_per_s: float | None = None  # per node
    price_usd_per_node_hour: float | None = None  # of renting one
    rent: Rent | None = None  # where the node has no price
    unconfirmed: tuple[str, ...] = ()  # fields whose value no stored source confirms
    # constants of its GPUs and hosts that were measured on this cluster (profiles/cluster/device_files.py)
    measured: Mapping[str, float] = field(default_factory=dict)

    @property
    def num_gpus(self) -> int:
        return self.num_nodes * self.gpus_per_node

    @property
    def usd_per_node_hour(self) -> float | None:
        """The price of a node, else the rent of its GPUs; None where neither is known."""
        if self.price_usd_per_node_hour is None and self.rent is not None:
            return self.rent.usd_per_gpu_hour * self.gpus_per_node
        return self.price_usd_per_node_hour

    def at_price(self, usd_per_node_hour: float) -> NodeGroup:
        """The group at a price that is given."""
        unconfirmed = tuple(field for field in self.unconfirmed if field != "price")
        return replace(self, price_usd_per_node_hour=usd_per_node_hour, rent=None, unconfirmed=unconfirmed)

    @property
    def price_source(self) -> str:
        """The source of `usd_per_node_hour`; empty without one."""
        if self.price_usd_per_node_hour is not None:
            return f"price of {self.node}{', unconfirmed' if 'price' in self.unconfirmed else ''}"
        return self.rent.source if self.rent is not None else ""


@dataclass(frozen=True, kw_only=True)
class NodeLinks:
    """The network from node to node where it is not the same everywhere; nodes in the order of the groups."""

    # [i][j] from node i to node j with all its NICs, one direction; 0 on the diagonal
    bw_bytes_per_s: tuple[tuple[float, ...], ...]
    source: str  # of the matrix


@dataclass(frozen=True, kw_only=True)
class Island:
    """Uniform nodes at one place: a group of nodes, or the part of a group in one site."""

    name: str  # for screens
    group: int  # index into ClusterSpec.groups
    first_node: int  # of the cluster; the others follow it
    num_nodes: int
    levels: tuple[NetworkLevel, ...]  # hierarchy of these nodes alone


@dataclass(frozen=True, kw_only=True)
class Bridge:
    """The network between two islands. A bandwidth that nothing shares is above that of any link."""

    ends: tuple[int, int]  # indices into ClusterSpec.islands
    link: NetworkLevel  # bandwidth of one GPU over it, one direction, however few send
    gpus_per_node: int  # that share `node_bytes_per_s`
    node_bytes_per_s: float  # shared by the GPUs of a node, one direction
    trunk_bytes_per_s: float  # shared by all that cross, one direction


@dataclass(frozen=True, kw_only=True)
class ClusterSpec:
    """Groups of nodes and the bandwidth hierarchy that joins them.

    Where groups or links differ, each level carries the weakest of their values, and `gpu` is the weakest GPU: a plan
    made so is safe on all of them, and the warnings of the plan say so.
    """

    name: str  # for screens
    groups: tuple[NodeGroup, ...]  # of nodes that are alike
    levels: tuple[NetworkLevel, ...]  # network from the innermost level
    warnings: tuple[Notice, ...] = ()  # for every plan on it
    hosts: tuple[str, ...] = ()  # names of the nodes, (): none are given
    links: NodeLinks | None = None  # where nodes are not joined alike; the last level is then the weakest of them
    # measured on this cluster: kind of level -> operation -> fields of collectives.OpRates
    collectives: Mapping[str, Mapping[str, Mapping[str, float]]] = field(default_factory=dict)
    islands: tuple[Island, ...] = ()  # where there are several groups or sites
    bridges: tuple[Bridge, ...] = ()  # between every two islands

    @property
    def num_nodes(self) -> int:
        return sum(group.num_nodes for group in self.groups)

    @cached_property
    def num_gpus(self) -> int:
        return sum(group.num_gpus for group in self.groups)

    @cached_property
    def gpus_per_node(self) -> int:
        return min(group.gpus_per_node for group in self.groups)

    @cached_property
    def gpu(self) -> GpuSpec:
        """The GPU that limits a uniform plan: the least bf16 (else fp16, else any) peak, then the least memory."""
        return self._limiting.gpu

    @property
    def measured(self) -> Mapping[str, float]:
        """The measurements of that GPU and its hosts."""
        return self._limiting.measured

    @property
    def _limiting(self) -> NodeGroup:
        return min(self.groups, key=lambda group: (_peak(group.gpu.peak_flops_per_s), group.gpu.memory_bytes))

    @property
    def memory_bytes(self) -> float:
        return min(group.gpu.memory_bytes for group in self.groups)

    @property
    def usd_per_hour(self) -> float | None:
        """Dollars per hour of all nodes; None where a group has neither a price nor a rent."""
        prices = [group.usd_per_node_hour for group in self.groups]
        if any(price is None for price in prices):
            return None
        return sum(p * g.num_nodes for p, g in zip(prices, self.groups, strict=True) if p is not None)

    @property
    def price_source(self) -> str:
        """The source of `usd_per_hour`; empty without one."""
        sources = [group.price_source for group in self.groups]
        return "; ".join(dict.fromkeys(sources)) if all(sources) else ""


def _peak(peaks: Mapping[str, float]) -> float:
    return max(peaks.get("bf16", 0.0), peaks.get("fp16", 0.0)) or max(peaks.values(), default=0.0)
