"""Clusters: from `dgx-h100:16`, a GPU and a count, or a description in YAML to a ClusterSpec.

Shorthand: `NODE:COUNT` counts nodes, `NxGPU` is one node of N GPUs, `+` joins groups. Everything that is assumed
rather than given, and every value that no source confirms, ends up in `ClusterSpec.warnings`.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import replace

from ...cost_models.specs.cluster import ClusterSpec, NetworkLevel, NodeGroup
from ...cost_models.specs.notice import Notice
from ...errors import InputError
from ..io import registry
from ..io.registry import GpuEntry, NodeEntry
from .fabric import GENERATIONS, Fabric, Group, Inter, assemble, domain_size, intra_level, latency, pcie_kind
from .islands import cut
from .rent import rent_of
from .torus import named_slice, with_axes

DEFAULT_GPUS_PER_NODE = 8
_USED_FACTS = {"memory.capacity": "memory", "memory.bandwidth": "memory bandwidth", "link.bandwidth": "link bandwidth"}
_NIC_FACTS = {"nics.count": "NIC count", "nics.bandwidth": "NIC speed"}


def parse_shorthand(text: str, gpu: str | None = None, num_gpus: int | None = None) -> list[Group]:
    """The groups of `NODE`, `NODE:COUNT`, `NxGPU` or several of them joined by `+`."""
    parts = [part.strip() for part in text.split("+")]
    if not all(parts):
        raise InputError(f"`{text}` is no cluster", hint=_SHORTHAND_HINT)
    if len(parts) > 1:
        return [_one_group(part, gpu, None) for part in parts]
    return [_one_group(text, gpu, num_gpus)]


_SHORTHAND_HINT = "`dgx-h100:16` (16 nodes), `8xh100-sxm-80gb` (one node), or the path of a YAML file"


def _one_group(text: str, gpu: str | None, num_gpus: int | None) -> Group:
    if match := re.fullmatch(r"([+-]?\d+)\s*[x*]\s*(.+)", text):
        count, name = int(match[1]), match[2]
        if count < 1:
            raise InputError(f"`{text}`: a node needs at least 1 GPU")
        return gpu_group(registry.gpu_entry(gpu or name), count, 1)
    name, colon, digits = text.partition(":")
    name = name.strip()
    if colon and not re.fullmatch(r"\s*[+-]?\d+\s*", digits):
        raise InputError(f"`{text}`: `{digits.strip()}` is no number of nodes", hint=_SHORTHAND_HINT)
    if colon and int(digits) < 1:
        raise InputError(f"`{text}`: there must be at least 1 node")
    entry = registry.load_node(name)
    if colon:
        return node_group(entry, int(digits), gpu=gpu)
    if num_gpus is None:
        return node_group(entry, 1, gpu=gpu)
    if num_gpus < entry.gpus_per_node:
        return node_group(entry, 1, gpu=gpu, used_gpus=num_gpus)
    return node_group(entry, _divide(num_gpus, entry.gpus_per_node, entry.name), gpu=gpu)


def _divide(num_gpus: int, per_node: int, name: str) -> int:
    nodes, rest = divmod(num_gpus, per_node)
    if rest:
        raise InputError(
            f"{num_gpus} GPUs are {num_gpus} / {per_node} = {num_gpus / per_node:g} nodes of {name}",
            hint=f"take {nodes * per_node} or {(nodes + 1) * per_node} GPUs, or describe the nodes in a cluster file",
        )
    return nodes


def of_shorthand(text: str, gpu: str | None, num_gpus: int | None) -> ClusterSpec:
    if registry.is_gpu(text) and not registry.is_node(text):
        if num_gpus is None:
            name = registry.gpu_name(text)
            raise InputError(f"`{text}` is a GPU: how many of them?", hint=f"`8x{name}`, or `--gpu {name} --gpus 8`")
        return of_gpus(text, num_gpus)
    if (named := named_slice(text)) is not None:
        if gpu is not None or num_gpus is not None:
            raise InputError(f"`{text}` names {named[1]} x {named[0]}: it takes no other GPU and no number of them",
                             hint="name another slice, such as `v6e-64`, or `--gpu tpu-v6e --gpus 64`")  # fmt: skip
        return of_gpus(*named)
    groups = parse_shorthand(text, gpu, num_gpus)
    return build(_name(groups), groups, Fabric())


def of_gpus(gpu: str, num_gpus: int) -> ClusterSpec:
    """So many GPUs: one node if they fit in one, else the nodes that this GPU is usually built into."""
    entry = registry.gpu_entry(gpu)
    usual = registry.load_node(entry.usual_node) if entry.usual_node else None
    per_node = usual.gpus_per_node if usual else DEFAULT_GPUS_PER_NODE
    if usual and (usual.domain or num_gpus > per_node):
        if num_gpus < per_node:
            return build(f"{num_gpus}x{entry.spec.name}", [gpu_group(entry, num_gpus, 1)], Fabric())
        group = node_group(usual, _divide(num_gpus, per_node, usual.name), gpu=entry.spec.name)
        if group.nodes.num_nodes > 1:
            note = f"{num_gpus} x {entry.spec.name} taken as {group.nodes.num_nodes} nodes of {usual.name}"
            group = replace(group, warnings=(note, *group.warnings))
        return build(_name([group]), [group], Fabric())
    if num_gpus > per_node:
        raise InputError(
            f"{num_gpus} x {entry.spec.name} are more than one node of {per_node}, and no node with this GPU is known",
            hint="describe the nodes and their network in a cluster file (docs/guides/clusters.md)",
        )
    return build(f"{num_gpus}x{entry.spec.name}", [gpu_group(entry, num_gpus, 1)], Fabric())


def node_group(
    entry: NodeEntry, count: int, *, gpu: str | None = None, used_gpus: int | None = None
) -> Group:
    """`count` nodes of a catalogue type, with another GPU in them if `gpu` is given, or with only some GPUs in use."""
    original = registry.gpu_entry(entry.gpu)
    fitted = registry.gpu_entry(gpu or entry.gpu)
    warnings, per_node = [], entry.gpus_per_node
    if fitted.spec.name != original.spec.name:
        warnings.append(f"{fitted.spec.name} in {entry.name} nodes: GPUs and their links of the one, host and network "
                        "of the other")  # fmt: skip
        entry = replace(entry, topology=None, pair_bw_bytes_per_s=None, link_bw_bytes_per_s=None,
                        domain=entry.domain if fitted.link_kind == original.link_kind else None)  # fmt: skip
    if used_gpus is not None and used_gpus < per_node:
        warnings.append(f"{used_gpus} of the {per_node} GPUs of {entry.name} are used")
        per_node = used_gpus
    intra, note = intra_levels(entry, fitted, count, per_node)
    if note:
        warnings.append(f"{entry.name}: {note}")
    nodes = NodeGroup(
        node=entry.name, gpu=fitted.spec, num_nodes=count, gpus_per_node=per_node, unconfirmed=entry.unconfirmed,
        host_memory_bytes=entry.host_memory_bytes, host_memory_bw_bytes_per_s=entry.host_memory_bw_bytes_per_s,
        price_usd_per_node_hour=entry.price_usd_per_node_hour,
    )  # fmt: skip
    return Group(nodes=nodes, intra=intra, inter=network_of(entry), warnings=tuple(warnings))


def gpu_group(entry: GpuEntry, gpus_per_node: int, count: int) -> Group:
    """Nodes of which only the GPU and the number are known: joined by the GPU's own link, as in its usual node."""
    name, gpu = f"{gpus_per_node}x{entry.spec.name}", entry.spec.name
    node = NodeEntry(name=name, gpu=gpu, gpus_per_node=gpus_per_node)
    usual = registry.load_node(entry.usual_node) if entry.usual_node else None
    if usual and usual.gpus_per_node >= gpus_per_node and registry.gpu_name(usual.gpu) == gpu:
        node = replace(node, topology=usual.topology, pair_bw_bytes_per_s=usual.pair_bw_bytes_per_s,
                       link_bw_bytes_per_s=usual.link_bw_bytes_per_s)  # fmt: skip
    # Some links of a mesh lie idle where a node has fewer GPUs than the mesh is made for.
    meshed = usual.gpus_per_node if usual and (node.topology or entry.topology) == "mesh" else gpus_per_node
    intra, _ = intra_levels(replace(node, gpus_per_node=max(meshed, gpus_per_node)), entry, count, gpus_per_node)
    nodes = NodeGroup(node=name, gpu=entry.spec, num_nodes=count, gpus_per_node=gpus_per_node)
    return Group(nodes=nodes, intra=intra, inter=None)


def _generation(entry: NodeEntry) -> str:
    """`ndr-ib` rather than `ib` where efficiencies of that generation are known (measured/assumptions.yaml)."""
    name = entry.fabric.lower().replace("_", "-")
    return name if name in GENERATIONS else entry.fabric_kind


def network_of(entry: NodeEntry) -> Inter | None:
    if entry.nics is None or entry.nic_bw_bytes_per_s is None:
        return None
    seconds, where = latency(entry.fabric_kind)
    if entry.nic_latency_s is not None:
        seconds, where = entry.nic_latency_s, entry.name
    return Inter(
        bw_bytes_per_s=entry.nics * entry.nic_bw_bytes_per_s / entry.gpus_per_node, latency_s=seconds,
        kind=_generation(entry), nics=entry.nics,
        source=f"bandwidth: {entry.nics} NICs of {entry.name}; latency: {where}",
    )  # fmt: skip


def intra_levels(
    node: NodeEntry, gpu: GpuEntry, count: int, used: int
) -> tuple[tuple[NetworkLevel, ...], str]:
    """Levels inside a node (a rack, where the fast link spans it) with `used` of its GPUs, and a warning."""
    whole, topology = node.gpus_per_node, node.topology or gpu.topology
    bw, kind = node.link_bw_bytes_per_s or gpu.spec.link_bw_bytes_per_s, gpu.link_kind
    source = node.name if node.link_bw_bytes_per_s else gpu.spec.name
    if node.domain and node.domain > whole and used == whole:
        size, note = domain_size(whole, count, node.domain)
        level = intra_level("slice" if kind == "ici" else "rack", size, bw, topology, kind, source)
        return (with_axes(level, size // gpu.devices_per_chip, gpu.torus_axes),), note
    pair: tuple[NetworkLevel, ...] = ()
    if gpu.pair_only:
        pair = (intra_level("pair", 2, bw, "switch", kind, source),)
        bw, topology = gpu.spec.pcie_bw_bytes_per_s, "pcie"
        kind = pcie_kind(bw)
    elif node.pair_bw_bytes_per_s:
        pair = (intra_level("pair", 2, node.pair_bw_bytes_per_s, "switch", kind, node.name),)
        bw -= node.pair_bw_bytes_per_s  # the remaining links lead out of the pair
    if pair and used <= 2:
        return (replace(pair[0], name="node", size=used),), ""
    if topology == "mesh" and 1 < used < whole:
        bw *= (used - 1) / (whole - 1)  # the links to the other GPUs lie idle
    level = intra_level("node", used, bw, topology, kind, source)
    return (*pair, with_axes(level, used // gpu.devices_per_chip, gpu.torus_axes)), ""


def build(name: str, groups: Sequence[Group], fabric: Fabric) -> ClusterSpec:
    """Raises InputError if nodes must talk to each other and no network is known."""
    several = len(groups) > 1
    for group in groups:
        if (several or group.needs_network) and group.inter is None:
            count = group.nodes.num_nodes
            reason = f"{count} nodes" if group.needs_network else "several groups"
            raise InputError(
                f"{group.nodes.node}: its NICs are not known, so {reason} cannot be joined",
                hint="give `nics` and `nic_bandwidth`, or `links.inter_node`, in a cluster file",
            )
    levels, warnings = assemble(groups, fabric)
    across = levels[-1].size > groups[0].intra[-1].size or several
    for group in groups:
        warnings += [Notice("cluster", text) for text in (*group.warnings, *_unconfirmed(group, across))]
    islands, bridges = cut(groups, fabric)
    return ClusterSpec(name=name, groups=tuple(replace(group.nodes, rent=rent_of(group.nodes)) for group in groups),
                       levels=levels,
                       warnings=tuple(dict.fromkeys(warnings)), islands=islands, bridges=bridges)  # fmt: skip


def _unconfirmed(group: Group, across: bool) -> list[str]:
    """The values of a plan that no source confirms."""
    warnings, gpu = [], group.nodes.gpu
    peak = "bf16" if "bf16" in gpu.peak_flops_per_s else "fp16"
    used = {f"peak.{peak}": f"{peak} peak", **_USED_FACTS}
    if named := [what for field, what in used.items() if field in gpu.unconfirmed]:
        warnings.append(f"{gpu.name}: no source confirms its {', '.join(named)}")
    if across and (named := [what for field, what in _NIC_FACTS.items() if field in group.nodes.unconfirmed]):
        warnings.append(f"{group.nodes.node}: no source confirms its {', '.join(named)}")
    return warnings


def _name(groups: Sequence[Group]) -> str:
    """The shorthand of the groups."""
    names = []
    for group in groups:
        nodes = group.nodes
        whole = registry.is_node(nodes.node) and registry.load_node(nodes.node).gpus_per_node == nodes.gpus_per_node
        name = f"{nodes.node}:{nodes.num_nodes}" if whole else f"{nodes.gpus_per_node}x{nodes.gpu.name}"
        if whole and registry.gpu_name(registry.load_node(nodes.node).gpu) != nodes.gpu.name:
            name += f" with {nodes.gpu.name}"
        names.append(name)
    return "+".join(names)
