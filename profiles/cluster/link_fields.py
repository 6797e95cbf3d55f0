"""Links in a cluster file: those inside the nodes of a group, and the network between its nodes and to other groups."""

from __future__ import annotations

import re
from dataclasses import replace
from typing import Any, get_args

from ...cost_models.specs.cluster import Topology
from ..io import registry
from ..io.document import Document, FieldPath
from ..io.facts import Facts
from .fabric import NETWORKS, Fabric, Group, Inter, latency, suspicious_nic, suspicious_ratio
from .torus import mismatch, read_axes, usual_axes

AS_GIVEN = "as given"  # the source of what the file itself gives
_INTRA_KEYS = ("bandwidth", "latency", "topology", "kind", "torus")
_INTER_KEYS = ("bandwidth", "per", "latency", "kind", "shared_by")
_BETWEEN_KEYS = ("bandwidth", "per", "latency", "kind")
_PER = ("gpu", "nic", "node")


def read_nics(
    facts: Facts, path: FieldPath, per_node: int, inter: Inter | None = None
) -> tuple[Inter | None, list[str]]:
    """The network of a group from `nics`, `nic_bandwidth` and `network`, over that of the catalogue."""
    nics, text = facts.whole((*path, "nics")), facts.value((*path, "nic_bandwidth"))
    speed = facts.quantity((*path, "nic_bandwidth"), "B/s")
    kind = facts.text((*path, "network"), NETWORKS)
    warnings: list[str] = []
    if nics is None and text is None:
        if kind and inter:
            inter = _inter(inter.bw_bytes_per_s, kind, inter.nics)
        return inter, warnings
    if inter is not None and inter.nics:  # one of the two given: the other is the node's own
        speed = speed if text is not None else inter.bw_bytes_per_s * per_node / inter.nics
        nics = nics or inter.nics
    elif facts.value((*path, "nics")) is None or text is None:
        missing = "nics" if nics is None else "nic_bandwidth"
        facts.fail(path, f"`{missing}` is missing: the network is `nics` times `nic_bandwidth`")
        return inter, warnings
    if speed is None or nics is None:
        return inter, warnings
    if kind is None and inter is None:
        warnings.append(facts.note(path, "`network` is not given: taken as InfiniBand (`ib`)"))
    kind = kind or (inter.kind if inter else "ib")
    if text is not None and (doubt := suspicious_nic(speed, kind, str(text))):
        warnings.append(facts.note((*path, "nic_bandwidth"), doubt))
    return _inter(nics * speed / per_node, kind, nics), warnings


def read_intra_node(facts: Facts, path: FieldPath, group: Group) -> Group:
    """The outermost level inside the node (or rack), with the values of the file."""
    if not facts.keys(path, _INTRA_KEYS):
        return group
    level, warnings = group.intra[-1], list(group.warnings)
    bw = facts.quantity((*path, "bandwidth"), "B/s")
    seconds = facts.quantity((*path, "latency"), "s")
    topology: Any = facts.text((*path, "topology"), get_args(Topology))
    named = str(facts.value((*path, "kind")))  # of one device: `with_collectives` looks for its constants
    measured = (registry.NODE_KIND, *([named] if registry.is_inside_kind(named) else []))
    kind = facts.text((*path, "kind"), (*registry.INTRA_KINDS, *measured))
    if bw is not None and not group.nodes.gpu.measured:
        text, what = str(facts.value((*path, "bandwidth"))), group.nodes.gpu.name
        expected = level.bw_bytes_per_s
        if doubt := suspicious_ratio(bw, expected, text, what):
            warnings.append(facts.note((*path, "bandwidth"), doubt))
        elif 1.9 <= bw / expected <= 2.1:
            doubt = (f"`{text}` is twice the link of {what}: bandwidths are one direction, "
                     f"{expected / 1e9:g} GB/s here")  # fmt: skip
            warnings.append(facts.note((*path, "bandwidth"), doubt))
    axes = read_axes(facts.value((*path, "torus")))
    if facts.value((*path, "torus")) is not None:
        chips = level.size // _devices_per_chip(group)
        wrong = mismatch(axes, chips) if axes else "must be lengths of axes in chips"
        if wrong:
            facts.fail((*path, "torus"), wrong, f"`torus: {list(usual_axes(chips, len(axes or (0, 0))))}`")
    given = {"bw_bytes_per_s": bw, "latency_s": seconds, "topology": topology, "kind": kind,
             "torus": axes}
    changed: dict[str, Any] = {key: value for key, value in given.items() if value is not None}
    level = replace(level, **changed, source=AS_GIVEN if bw is not None else level.source)
    return replace(group, intra=(*group.intra[:-1], level), warnings=tuple(warnings))


def _devices_per_chip(group: Group) -> int:
    name = group.nodes.gpu.name
    return registry.gpu_entry(name).devices_per_chip if registry.is_gpu(name) else 1


def with_group_links(facts: Facts, group: Group) -> Group:
    """`links`: the same links for every group."""
    group = read_intra_node(facts, ("links", "intra_node"), group)
    path: FieldPath = ("links", "inter_node")
    if not facts.keys(path, _INTER_KEYS):
        return group
    known, nodes = group.inter, group.nodes
    kind = facts.text((*path, "kind"), (*NETWORKS, registry.NETWORK_KIND))
    bw, warnings = _per_gpu(facts, path, group, kind or (known.kind if known else "ib"))
    seconds = facts.quantity((*path, "latency"), "s")
    if known is None:
        if bw is None:
            return group
        if kind is None:
            warnings.append(facts.note(path, "`kind` is not given: taken as InfiniBand (`ib`)"))
        known = _inter(bw, kind or "ib", None)
    elif kind is not None and kind != known.kind:
        known = _inter(known.bw_bytes_per_s, kind, known.nics)
    if bw is not None:
        known = replace(known, bw_bytes_per_s=bw, source="bandwidth: as given;" + known.source.partition(";")[2])
        nodes = replace(nodes, unconfirmed=tuple(field for field in nodes.unconfirmed if not field.startswith("nics.")))
    if seconds is not None:
        known = replace(known, latency_s=seconds, source=known.source.partition(";")[0] + "; latency: as given")
    known = replace(known, shared_by=facts.ratio((*path, "shared_by")) or known.shared_by)
    return replace(group, nodes=nodes, inter=known, warnings=(*group.warnings, *warnings))


def read_between_groups(facts: Facts, groups: list[Group], fabric: Fabric) -> Fabric:
    """`links.between_groups`: the network from one group to another, where it is slower than their own."""
    path: FieldPath = ("links", "between_groups")
    if not facts.keys(path, _BETWEEN_KEYS):
        return fabric
    if len(groups) == 1:
        facts.fail(path, "there is one group only", "`links.inter_node` is the network inside a group")
        return fabric
    kind, seconds = facts.text((*path, "kind"), NETWORKS), facts.quantity((*path, "latency"), "s")
    if facts.value((*path, "bandwidth")) is None:
        facts.fail(path, "`bandwidth` is missing", "`bandwidth: 25 Gb/s per node`")
    if not groups:
        return fabric
    widest = max(groups, key=lambda group: group.nodes.gpus_per_node)
    bw, _ = _per_gpu(facts, path, replace(widest, inter=None), kind or "ethernet")
    if bw is None:
        return fabric
    # Inter is of one GPU; `nics` records how many GPUs share what a node has.
    of_node = facts.text((*path, "per"), _PER) == "node" or "per node" in str(facts.value((*path, "bandwidth")))
    joined = _inter(bw, kind or "ethernet", widest.nodes.gpus_per_node if of_node else None)
    return replace(fabric, between=joined if seconds is None else replace(joined, latency_s=seconds))


def _inter(bw: float, kind: str, nics: int | None) -> Inter:
    seconds, where = latency(kind)
    return Inter(bw_bytes_per_s=bw, latency_s=seconds, kind=kind, nics=nics,
                 source=f"bandwidth: as given; latency: {where}")  # fmt: skip


def _per_gpu(facts: Facts, path: FieldPath, group: Group, kind: str) -> tuple[float | None, list[str]]:
    """(bytes/s, warnings): `bandwidth` of the network per GPU, given per GPU (the default), per NIC or per node."""
    field = (*path, "bandwidth")
    bw, per = _bandwidth(facts, path)
    if bw is None:
        if per is not None and facts.value(field) is None:
            facts.fail((*path, "per"), "counts a `bandwidth`, which is not given", f"`bandwidth: 400 Gb/s per {per}`")
        return None, []
    nodes, known = group.nodes, group.inter
    nics = known.nics if known else None
    if per == "node":
        bw /= nodes.gpus_per_node
    elif per == "nic" and nics is None:
        facts.fail(field, f"per NIC, but how many NICs {nodes.node} has is not known", "give it per node")
        return None, []
    elif per == "nic" and nics is not None:
        bw *= nics / nodes.gpus_per_node
    text, doubt = str(facts.value(field)), ""
    if known is not None:
        doubt = suspicious_ratio(bw, known.bw_bytes_per_s, text, nodes.node)
    elif nodes.gpus_per_node and per != "node":
        doubt = suspicious_nic(bw, kind, text)
    return bw, [facts.note(field, doubt)] if doubt else []


def _bandwidth(facts: Facts, path: FieldPath) -> tuple[float | None, str | None]:
    """(bytes/s, what it is per) of `bandwidth`, which may hold both: `400 Gb/s per nic`."""
    field = (*path, "bandwidth")
    text, per = facts.value(field), facts.text((*path, "per"), _PER)
    match = re.fullmatch(r"(.*\S)\s+per\s+(\w+)", text.strip(), re.IGNORECASE) if isinstance(text, str) else None
    if match is None:
        return facts.quantity(field, "B/s"), per
    if match[2].lower() not in _PER or per not in (None, match[2].lower()):
        facts.fail(field, f"`{text}`: per gpu, nic or node, and only one of them")
        return None, per
    quantity = Facts(Document(facts.document.name, {"bandwidth": match[1]}))
    bw = quantity.quantity(("bandwidth",), "B/s")
    for problem in quantity.problems:
        facts.fail(field, problem.message, problem.hint)
    return bw, match[2].lower()
