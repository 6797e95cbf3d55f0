"""What a cluster is: GPUs, nodes, links and islands. Quantities only, in base SI units."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from functools import cached_property
from typing import Literal

from .notice import Notice


@dataclass(frozen=True, kw_only=True)
class GpuSpec:
    """One accelerator, datasheet facts only. peak_flops_per_s: dense, per dtype; memory_bytes: what the driver shows.

    unconfirmed: names of fields whose value no stored source confirms; plan_only: no target runs on it (TPU, Trainium,
    Gaudi, Ascend). measured: of a device that no catalogue knows, what prices it, from `profile kernels`
    (profiles/cluster/measured_device.py); its peaks are then the best product that was measured.
    """

    name: str
    vendor: str
    arch: str
    peak_flops_per_s: Mapping[str, float]
    memory_bytes: float
    memory_bw_bytes_per_s: float
    link_bw_bytes_per_s: float  # to the other GPUs of its node, all links together, one direction
    pcie_bw_bytes_per_s: float  # to the host, one direction
    num_sms: int | None = None
    tdp_w: float | None = None
    plan_only: bool = False
    unconfirmed: tuple[str, ...] = ()
    measured: Mapping[str, Mapping[str, float]] = field(default_factory=dict)

    @property
    def is_host(self) -> bool:
        """Whether its memory is that of the host: a CPU rank, the only kind of device that is measured so."""
        return bool(self.measured)


Topology = Literal["switch", "mesh", "torus", "pcie"]


@dataclass(frozen=True, slots=True, kw_only=True)
class NetworkLevel:
    """One level of the bandwidth hierarchy, innermost first.

    size: GPUs joined at this level or below (8 for a node, 72 for an NVL72 rack, the whole cluster for the last).
    bw_bytes_per_s: per GPU, one direction, when all GPUs below use it at once. topology `mesh`: a group of n of the
    level's GPUs gets (n-1)/(size-1) of it, since each pair has a link of its own (MI300X); `switch`: all of it.
    shared_by: how many times faster one GPU sends while those that it shares its port with are silent; their messages
    go one after the other. 1: each has its own, or they share it packet by packet.
    """

    name: str
    size: int
    bw_bytes_per_s: float
    latency_s: float
    topology: Topology = "switch"
    kind: str = ""  # nvlink4, pcie5, ndr-ib, roce, efa, slingshot, ethernet, wan ...: selects the measured curves
    source: str = ""  # where bandwidth and latency come from
    shared_by: float = 1.0


@dataclass(frozen=True, kw_only=True)
class NodeGroup:
    """Nodes that are alike. measured: constants of their GPUs and hosts that were measured on this cluster
    (profiles/cluster/device_files.py): gemm, attention, fused, reserve_share, context_bytes and others."""

    node: str
    gpu: GpuSpec
    num_nodes: int
    gpus_per_node: int
    host_memory_bytes: float | None = None
    host_memory_bw_bytes_per_s: float | None = None
    price_usd_per_node_hour: float | None = None
    unconfirmed: tuple[str, ...] = ()
    measured: Mapping[str, float] = field(default_factory=dict)

    @property
    def num_gpus(self) -> int:
        return self.num_nodes * self.gpus_per_node


@dataclass(frozen=True, kw_only=True)
class NodeLinks:
    """The network from node to node where it is not the same everywhere; nodes in the order of the groups.

    bw_bytes_per_s[i][j]: what node i sends to node j with all its NICs, one direction; the diagonal says nothing (0).
    """

    bw_bytes_per_s: tuple[tuple[float, ...], ...]
    source: str


@dataclass(frozen=True, kw_only=True)
class Island:
    """Nodes that are alike and near one another: a group of nodes, or its part in one site. Nodes `first_node` to
    first_node + num_nodes - 1 of the cluster; levels: of these nodes alone."""

    name: str
    group: int  # index into ClusterSpec.groups
    first_node: int
    num_nodes: int
    levels: tuple[NetworkLevel, ...]


@dataclass(frozen=True, kw_only=True)
class Bridge:
    """What joins two islands (`ends`, indices into ClusterSpec.islands). link: what one GPU may send over it, one
    direction, however few send; node_bytes_per_s: what the GPUs of a node share of it, gpus_per_node of them;
    trunk_bytes_per_s: what all that cross share. Where nothing is shared, more than any link has."""

    ends: tuple[int, int]
    link: NetworkLevel
    gpus_per_node: int
    node_bytes_per_s: float
    trunk_bytes_per_s: float


@dataclass(frozen=True, kw_only=True)
class ClusterSpec:
    """Groups of nodes and the bandwidth hierarchy that joins them.

    Where groups or links differ, each level carries the weakest of their values, and `gpu` is the weakest GPU: a plan
    made so is safe on all of them, and the warnings of the plan say so. hosts: names of the nodes, () where none are
    given; links: only where nodes are not joined alike, and then the last level is the weakest of them. collectives:
    constants that were measured on this cluster: kind of level -> operation -> fields of collectives.OpRates. islands,
    bridges: where there are several groups or sites, each alone and what joins every two of them.
    """

    name: str
    groups: tuple[NodeGroup, ...]
    levels: tuple[NetworkLevel, ...]
    warnings: tuple[Notice, ...] = ()
    hosts: tuple[str, ...] = ()
    links: NodeLinks | None = None
    collectives: Mapping[str, Mapping[str, Mapping[str, float]]] = field(default_factory=dict)
    islands: tuple[Island, ...] = ()
    bridges: tuple[Bridge, ...] = ()

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
        """What was measured of that GPU and its hosts."""
        return self._limiting.measured

    @property
    def _limiting(self) -> NodeGroup:
        return min(self.groups, key=lambda group: (_peak(group.gpu.peak_flops_per_s), group.gpu.memory_bytes))

    @property
    def memory_bytes(self) -> float:
        return min(group.gpu.memory_bytes for group in self.groups)

    @property
    def usd_per_hour(self) -> float | None:
        prices = [g.price_usd_per_node_hour for g in self.groups]
        if any(price is None for price in prices):
            return None
        return sum(p * g.num_nodes for p, g in zip(prices, self.groups, strict=True) if p is not None)


def _peak(peaks: Mapping[str, float]) -> float:
    return max(peaks.get("bf16", 0.0), peaks.get("fp16", 0.0)) or max(peaks.values(), default=0.0)
