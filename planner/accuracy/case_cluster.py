"""The cluster of a published run: its GPUs, the links inside a node or rack, and the network."""

from __future__ import annotations

import math
import re
from collections.abc import Mapping
from dataclasses import replace
from functools import lru_cache
from typing import TYPE_CHECKING, Any

from ...cost_models.specs.cluster import ClusterSpec
from ...errors import InputError, UnknownNameError
from ...profiles.cluster import build as clusters
from ...profiles.cluster.fabric import Fabric, Inter, intra_level, latency, pcie_kind
from ...profiles.cluster.torus import mismatch, read_axes, usual_axes
from ...profiles.io import registry

if TYPE_CHECKING:
    from .row import RowReader

# Starts of words of `inter_node_as_stated` -> kind of link; the first that occurs decides.
_NETWORKS = (
    ("omni", "omni-path"), ("xdr", "xdr-ib"), ("ndr", "ndr-ib"), ("hdr", "hdr-ib"), ("edr", "edr-ib"), ("efa", "efa"),
    ("slingshot", "slingshot"), ("roce", "roce"), ("rdma", "roce"), ("ethernet", "ethernet"), ("tcp", "ethernet"),
    ("infiniband", "ib"),
)  # fmt: skip
_ASSUMED_NIC_BYTES_PER_S = 400e9 / 8  # per GPU, where neither the row nor the GPU's usual node says


def read_cluster(row: RowReader, features: Mapping[str, Any]) -> tuple[int, ClusterSpec | None]:
    """(GPUs, cluster); None with the row's problems for a faulty row."""
    name = row.text("cluster", "gpu")
    num_gpus = row.whole("cluster", "num_gpus")
    nic_gbps = row.number("cluster", "nic_gbps_per_node")
    try:
        entry = registry.gpu_entry(name) if name else None
    except UnknownNameError as error:
        row.fail(("cluster", "gpu"), error.message, error.hint)
        entry = None
    if entry is None:
        return num_gpus, None
    intra, inter = (row.text("cluster", key, default="").lower() for key in ("intra_node", "inter_node_as_stated"))
    domain = _domain(intra)
    usual = registry.load_node(entry.usual_node) if entry.usual_node else None
    per_node = row.whole("cluster", "gpus_per_node", default=usual.gpus_per_node if usual else 8,
                         label="gpus_per_node of the GPU's usual node (not stated)")  # fmt: skip
    axes = _stated_axes(row)
    if row.problems:
        return num_gpus, None
    if _counts_chips(row, entry, num_gpus):
        row.assume(f"num_gpus counts chips of {entry.devices_per_chip} devices")
        num_gpus, per_node = (number * entry.devices_per_chip for number in (num_gpus, per_node))
    if entry.torus_axes and usual:
        return num_gpus, _slices(row, entry, usual, num_gpus, features, axes)
    if num_gpus > per_node and num_gpus % per_node:
        per_node = math.gcd(num_gpus, per_node)
        row.assume("GPUs do not fill the nodes: spread evenly over them")
    per_node = min(per_node, num_gpus)
    if num_gpus > max(domain, per_node) and nic_gbps is None:
        row.assume("network of the GPU's usual node, per GPU (nic_gbps_per_node not stated)")
    kind = next((link for word, link in _NETWORKS if re.search(rf"\b{word}", inter)), "")
    wiring = _wiring(row, entry, intra)
    try:
        return num_gpus, _cluster(entry.spec.name, num_gpus, per_node, domain, nic_gbps or 0.0, kind, wiring)
    except InputError as error:
        row.fail(("cluster",), error.message, error.hint)
        return num_gpus, None


def _wiring(row: RowReader, entry: registry.GpuEntry, intra: str) -> str:
    """How the GPUs of a node are joined: `pcie`, `mesh`, or empty: by their own link.

    HGX boards of four A100 or H100 (H200) have no switch: their NVLinks go pairwise, a third to each other GPU.
    """
    if "pcie" in intra and "nvlink" not in intra:
        return "pcie"
    if row.get("cluster", "gpus_per_node") != 4 or entry.link_kind not in ("nvlink3", "nvlink4") or "switch" in intra:
        return ""
    if row.whole("cluster", "num_gpus") > 1:
        row.assume("four GPUs of a node joined pairwise, without a switch")
    return "mesh"


def _domain(intra: str) -> int:
    """GPUs per rack domain, 0: none."""
    if used := re.search(r"(\d+) used per rack", intra):
        return int(used[1])
    rack = re.search(r"(\d+)[- ]gpu.*domain|nvl ?(\d+)", intra)
    return int(rack[1] or rack[2]) if rack else 0


def _counts_chips(row: RowReader, entry: registry.GpuEntry, num_gpus: int) -> bool:
    """Whether the degrees of the layout make as many devices as so many chips have."""
    degrees = [row.get("layout", name) for name in ("tp", "pp", "cp", "dp")]
    product = math.prod(degree for degree in degrees if isinstance(degree, int))
    return entry.devices_per_chip > 1 and product == num_gpus * entry.devices_per_chip


def _stated_axes(row: RowReader) -> tuple[int, ...] | None:
    value = row.get("cluster", "torus")
    axes = read_axes(value)
    if value is not None and axes is None:
        row.fail(("cluster", "torus"), f"must be lengths of axes in chips, is {value!r}", "`torus: [4, 4, 8]`")
    return axes


def _slices(
    row: RowReader, entry: registry.GpuEntry, usual: registry.NodeEntry, num_gpus: int, features: Mapping[str, Any],
    axes: tuple[int, ...] | None,
) -> ClusterSpec | None:  # fmt: skip
    """Slices of a torus, joined by the network of their hosts: as many as stated, else as few as pods allow."""
    whole = usual.domain or num_gpus
    slices = row.whole("features", "dcn_slices", default=-(-num_gpus // whole))
    if num_gpus % slices:
        row.fail(("features", "dcn_slices"), f"{num_gpus} devices are not {slices} equal slices")
        return None
    size = num_gpus // slices
    chips = size // entry.devices_per_chip
    if axes and (wrong := mismatch(axes, chips)):
        row.fail(("cluster", "torus"), wrong, f"`torus: {list(usual_axes(chips, len(axes)))}`")
        return None
    per_node = math.gcd(usual.gpus_per_node, size)
    return _torus(entry.spec.name, size, slices, per_node, axes or usual_axes(chips, entry.torus_axes or 1))


@lru_cache(maxsize=512)
def _torus(gpu: str, size: int, slices: int, per_node: int, axes: tuple[int, ...]) -> ClusterSpec:
    entry = registry.gpu_entry(gpu)
    usual = registry.load_node(entry.usual_node or "")
    count = size * slices // per_node
    group = clusters.gpu_group(entry, per_node, count)
    level = intra_level("slice", size, entry.spec.link_bw_bytes_per_s, "torus", entry.link_kind, gpu)
    group = replace(group, intra=(replace(level, torus=axes),), inter=clusters.network_of(usual))
    return clusters.build(f"{count}x{group.nodes.node}", [group], Fabric())


@lru_cache(maxsize=512)
def _cluster(
    gpu: str, num_gpus: int, per_node: int, domain: int, nic_gbps: float, kind: str, wiring: str
) -> ClusterSpec:
    """Nodes of `per_node` GPUs, in racks of `domain` where that is more; nic_gbps 0 and kind "": of the usual node.

    wiring: `pcie`, `mesh` (four GPUs, of which per_node are in use), or the GPU's own."""
    entry = registry.gpu_entry(gpu)
    count = num_gpus // per_node
    group = clusters.gpu_group(entry, per_node, count)
    if domain > per_node and count > 1:
        node = registry.NodeEntry(name=group.nodes.node, gpu=gpu, gpus_per_node=per_node, domain=domain)
        levels, _ = clusters.intra_levels(node, entry, count, per_node)
        group = replace(group, intra=levels)
    elif wiring == "mesh":
        level = group.intra[-1]
        bw = level.bw_bytes_per_s * max(per_node - 1, 1) / 3
        group = replace(group, intra=(*group.intra[:-1], replace(level, topology="mesh", bw_bytes_per_s=bw)))
    elif wiring == "pcie":
        bw = entry.spec.pcie_bw_bytes_per_s
        group = replace(group, intra=(intra_level("node", per_node, bw, "pcie", pcie_kind(bw), gpu),))
    usual = clusters.network_of(registry.load_node(entry.usual_node)) if entry.usual_node else None
    bw = nic_gbps * 1e9 / 8 / per_node if nic_gbps else usual.bw_bytes_per_s if usual else _ASSUMED_NIC_BYTES_PER_S
    kind = kind or (usual.kind if usual else "ib")
    seconds, _ = latency(kind)
    inter = Inter(bw_bytes_per_s=bw, latency_s=seconds, kind=kind, source="bandwidth: published run")
    return clusters.build(f"{count}x{group.nodes.node}", [replace(group, inter=inter)], Fabric())
