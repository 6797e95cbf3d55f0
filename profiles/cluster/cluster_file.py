"""The cluster file: groups of nodes, the links between them, the fabric, and sites far apart.

All problems of a file are reported together, each with line and field. docs/guides/clusters.md is its manual.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from dataclasses import replace
from typing import Any, get_args

from ...cost_models.specs.cluster import ClusterSpec, Topology
from ...errors import InputError
from ..io import registry
from ..io.document import Document, FieldPath
from ..io.facts import Facts
from . import device_files
from .build import build, gpu_group, node_group, parse_shorthand
from .fabric import Fabric, FabricType, Group, Inter, latency, suspicious_nic, suspicious_ratio
from .link_file import with_collectives
from .links import with_links

_KEYS = ("name", "groups", "hosts", "links", "fabric", "sites", "wan", "collectives", "measured", "profiles")
_GROUP_KEYS = ("node", "count", "name", "gpu", "gpus_per_node", "intra_node", "domain", "nics", "nic_bandwidth",
               "network", "host_memory", "host_memory_bandwidth", "price")  # fmt: skip
_INTRA_KEYS = ("bandwidth", "latency", "topology", "kind")
_FABRIC_KEYS = ("type", "ratio", "pod_nodes")
_PER = ("gpu", "nic", "node")
_GIVEN = "as given"
LoadGpu = Callable[[str], registry.GpuEntry]


def read_cluster(document: Document, gpu: str | None = None) -> ClusterSpec:
    """The cluster that a document describes. gpu: in place of the GPUs it names.

    Raises InputError with every problem found.
    """
    facts = Facts(document)
    if not facts.keys((), _KEYS):
        facts.finish()
    known = device_files.devices(facts)
    groups = _groups(facts, gpu, lambda name: known.get(name) or registry.gpu_entry(name))
    links = facts.keys(("links",), ("intra_node", "inter_node", "between_groups", "slow_nodes", "matrix"))
    if links and groups:
        groups = [_with_links(facts, group) for group in groups]
    for position, group in enumerate(groups):
        if group.nodes.gpu.measured and group.nodes.gpus_per_node > 1 and group.intra[-1].source != _GIVEN:
            facts.fail(("groups", position), f"how {group.nodes.gpus_per_node} x {group.nodes.gpu.name} are joined is "
                       "not known", "`links.intra_node`, as `profile links` writes it")  # fmt: skip
    fabric = _between(facts, groups, _fabric(facts, groups))
    name = facts.text(("name",)) or "cluster"
    facts.finish()
    try:
        cluster = build(name, groups, fabric)
    except InputError as error:
        raise InputError.of([document.problem(("groups",), error.message, error.hint)]) from None
    cluster = device_files.with_profiles(facts, with_collectives(facts, with_links(facts, cluster, groups, fabric)))
    facts.finish()
    return cluster


def _groups(facts: Facts, gpu: str | None, load_gpu: LoadGpu) -> list[Group]:
    found = facts.document.data.get("groups")
    if isinstance(found, str):
        return _shorthand(facts, ("groups",), found, gpu)
    if not isinstance(found, list) or not found:
        facts.fail(("groups",), "must list the groups of nodes" if found is not None else "`groups` is missing",
                   "`groups: [{node: dgx-h100, count: 16}]`")  # fmt: skip
        return []
    groups: list[Group] = []
    for position, item in enumerate(found):
        path: FieldPath = ("groups", position)
        if isinstance(item, str):
            groups += _shorthand(facts, path, item, gpu)
        elif item is None:
            facts.fail(path, "is empty", "`{node: dgx-h100, count: 16}`")
        elif facts.keys(path, _GROUP_KEYS):
            group = _group(facts, path, gpu, load_gpu)
            groups += [group] if group else []
    return groups


def _shorthand(facts: Facts, path: FieldPath, text: str, gpu: str | None) -> list[Group]:
    try:
        return parse_shorthand(text, gpu)
    except InputError as error:
        facts.fail(path, error.message, error.hint)
        return []


def _group(facts: Facts, path: FieldPath, gpu: str | None, load_gpu: LoadGpu) -> Group | None:
    """One group: a node of the catalogue, of which single values can be replaced, or a node written out."""
    before = len(facts.problems)
    node, own_gpu = facts.text((*path, "node")), facts.text((*path, "gpu"))
    count = facts.whole((*path, "count"), required=True)
    per_node = facts.whole((*path, "gpus_per_node"))
    if node is None and own_gpu is None and len(facts.problems) == before:
        facts.fail(path, "names neither a `node` nor a `gpu`", "`node: dgx-h100`, or `gpu` with `gpus_per_node`")
    if node is None and own_gpu is not None and per_node is None:
        facts.fail(path, "`gpus_per_node` is missing")
    entry = _known(facts, (*path, "node"), node, registry.load_node)
    built = _known(facts, (*path, "gpu"), own_gpu or gpu, load_gpu)
    chosen = gpu or (built.spec.name if built else None)
    domain = facts.whole((*path, "domain"))
    if len(facts.problems) > before or count is None:
        _network(facts, path, per_node or 8)
        return None
    if entry is not None:
        changed = {"gpus_per_node": per_node, "domain": domain}
        entry = replace(entry, **{key: value for key, value in changed.items() if value is not None})
        if entry.domain is not None and entry.domain < entry.gpus_per_node:
            facts.fail((*path, "domain"), f"`{entry.domain}` is less than the {entry.gpus_per_node} GPUs of a node")
            return None
        group = node_group(entry, count, gpu=chosen)
    else:
        group = gpu_group(load_gpu(chosen or ""), per_node or 1, count)
    return _changed(facts, path, group)


def _known(facts: Facts, path: FieldPath, name: str | None, load: Any) -> Any:
    if name is None:
        return None
    try:
        return load(name)
    except InputError as error:
        facts.fail(path, error.message, error.hint)
        return None


def _changed(facts: Facts, path: FieldPath, group: Group) -> Group:
    """The group with the values that the file gives for it."""
    nodes = group.nodes
    given = {
        "node": facts.text((*path, "name")),
        "host_memory_bytes": facts.quantity((*path, "host_memory"), "B"),
        "host_memory_bw_bytes_per_s": facts.quantity((*path, "host_memory_bandwidth"), "B/s"),
        "price_usd_per_node_hour": facts.quantity((*path, "price"), "USD/h"),
    }
    nodes = replace(nodes, **{key: value for key, value in given.items() if value is not None})  # type: ignore[arg-type]
    inter, warnings = _network(facts, path, nodes.gpus_per_node, group.inter)
    given_nics = {f"nics.{fact}" for fact, key in (("count", "nics"), ("bandwidth", "nic_bandwidth"))
                  if facts.value((*path, key)) is not None}  # fmt: skip
    nodes = replace(nodes, unconfirmed=tuple(field for field in nodes.unconfirmed if field not in given_nics))
    group = replace(group, nodes=nodes, inter=inter, warnings=(*group.warnings, *warnings))
    return _intra(facts, (*path, "intra_node"), group)


def _network(
    facts: Facts, path: FieldPath, per_node: int, inter: Inter | None = None
) -> tuple[Inter | None, list[str]]:
    """The network of a group from `nics`, `nic_bandwidth` and `network`, over what the catalogue says."""
    nics, text = facts.whole((*path, "nics")), facts.value((*path, "nic_bandwidth"))
    speed = facts.quantity((*path, "nic_bandwidth"), "B/s")
    kind = facts.text((*path, "network"), registry.INTER_KINDS)
    warnings: list[str] = []
    if nics is None and text is None:
        if kind and inter:
            inter = _inter(inter.bw_bytes_per_s, kind, inter.nics)
        return inter, warnings
    if inter is not None and inter.nics:  # one of the two given: the other is the node's own
        speed = speed if text is not None else inter.bw_bytes_per_s * per_node / inter.nics
        nics = nics or inter.nics
    elif nics is None or text is None:
        missing = "nics" if nics is None else "nic_bandwidth"
        facts.fail(path, f"`{missing}` is missing: the network is `nics` times `nic_bandwidth`")
        return inter, warnings
    if speed is None or nics is None:
        return inter, warnings
    if kind is None and inter is None:
        warnings.append(f"{_where(facts, path)}: `network` is not given: taken as InfiniBand (`ib`)")
    kind = kind or (inter.kind if inter else "ib")
    if text is not None and (doubt := suspicious_nic(speed, kind, str(text))):
        warnings.append(f"{_where(facts, (*path, 'nic_bandwidth'))}: {doubt}")
    return _inter(nics * speed / per_node, kind, nics), warnings


def _intra(facts: Facts, path: FieldPath, group: Group) -> Group:
    """The outermost level inside the node (or rack), with what the file says of it."""
    if not facts.keys(path, _INTRA_KEYS):
        return group
    level, warnings = group.intra[-1], list(group.warnings)
    bw = facts.quantity((*path, "bandwidth"), "B/s")
    seconds = facts.quantity((*path, "latency"), "s")
    topology: Any = facts.text((*path, "topology"), get_args(Topology))
    own = str(facts.value((*path, "kind")))  # of a device; whether `collectives` has it is looked at there
    measured = (registry.NODE_KIND, *([own] if registry.is_inside_kind(own) else []))
    kind = facts.text((*path, "kind"), (*registry.INTRA_KINDS, *measured))
    if bw is not None and not group.nodes.gpu.measured:
        text, expected, what = str(facts.value((*path, "bandwidth"))), level.bw_bytes_per_s, group.nodes.gpu.name
        if doubt := suspicious_ratio(bw, expected, text, what):
            warnings.append(f"{_where(facts, (*path, 'bandwidth'))}: {doubt}")
        elif 1.9 <= bw / expected <= 2.1:
            warnings.append(f"{_where(facts, (*path, 'bandwidth'))}: `{text}` is twice the link of {what}: bandwidths "
                            f"are one direction, {expected / 1e9:g} GB/s here")  # fmt: skip
    given = {"bw_bytes_per_s": bw, "latency_s": seconds, "topology": topology, "kind": kind}
    changed: dict[str, Any] = {key: value for key, value in given.items() if value is not None}
    level = replace(level, **changed, source=_GIVEN if bw is not None else level.source)
    return replace(group, intra=(*group.intra[:-1], level), warnings=tuple(warnings))


def _with_links(facts: Facts, group: Group) -> Group:
    """`links`: the same links for every group."""
    group = _intra(facts, ("links", "intra_node"), group)
    path: FieldPath = ("links", "inter_node")
    if not facts.keys(path, ("bandwidth", "per", "latency", "kind", "shared_by")):
        return group
    known, nodes = group.inter, group.nodes
    kind = facts.text((*path, "kind"), (*registry.INTER_KINDS, registry.NETWORK_KIND))
    bw, warnings = _per_gpu(facts, path, group, kind or (known.kind if known else "ib"))
    seconds = facts.quantity((*path, "latency"), "s")
    if known is None:
        if bw is None:
            return group
        if kind is None:
            warnings.append(f"{_where(facts, path)}: `kind` is not given: taken as InfiniBand (`ib`)")
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


def _between(facts: Facts, groups: list[Group], fabric: Fabric) -> Fabric:
    """`links.between_groups`: the network from one group to another, where it is slower than their own."""
    path: FieldPath = ("links", "between_groups")
    if not facts.keys(path, ("bandwidth", "per", "latency", "kind")):
        return fabric
    if len(groups) == 1:
        facts.fail(path, "there is one group only", "`links.inter_node` is the network inside a group")
        return fabric
    kind, seconds = facts.text((*path, "kind"), registry.INTER_KINDS), facts.quantity((*path, "latency"), "s")
    if facts.value((*path, "bandwidth")) is None:
        facts.fail(path, "`bandwidth` is missing", "`bandwidth: 25 Gb/s per node`")
    if not groups:
        return fabric
    widest = max(groups, key=lambda group: group.nodes.gpus_per_node)
    bw, _ = _per_gpu(facts, path, replace(widest, inter=None), kind or "ethernet")
    if bw is None:
        return fabric
    # What a node has to share: `nics` says how many GPUs share it, as Inter is of one GPU.
    of_node = facts.text((*path, "per"), _PER) == "node" or "per node" in str(facts.value((*path, "bandwidth")))
    joined = _inter(bw, kind or "ethernet", widest.nodes.gpus_per_node if of_node else None)
    return replace(fabric, between=joined if seconds is None else replace(joined, latency_s=seconds))


def _inter(bw: float, kind: str, nics: int | None) -> Inter:
    seconds, where = latency(kind)
    return Inter(bw_bytes_per_s=bw, latency_s=seconds, kind=kind, nics=nics,
                 source=f"bandwidth: as given; latency: {where}")  # fmt: skip


def _per_gpu(facts: Facts, path: FieldPath, group: Group, kind: str) -> tuple[float | None, list[str]]:
    """`bandwidth` of the network per GPU, given per GPU (the default), per NIC or per node."""
    field = (*path, "bandwidth")
    text, per = facts.value(field), facts.text((*path, "per"), _PER)
    document = facts.document
    if isinstance(text, str) and (match := re.fullmatch(r"(.*\S)\s+per\s+(\w+)", text.strip(), re.IGNORECASE)):
        if match[2].lower() not in _PER or per not in (None, match[2].lower()):
            facts.fail(field, f"`{text}`: per gpu, nic or node, and only one of them")
            return None, []
        per, document = match[2].lower(), Document(document.name, {"bandwidth": match[1]})
        parsed = Facts(document)
        bw = parsed.quantity(("bandwidth",), "B/s")
        for problem in parsed.problems:
            facts.fail(field, problem.message, problem.hint)
    else:
        bw = facts.quantity(field, "B/s")
    if bw is None:
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
    doubt = ""
    if known is not None:
        doubt = suspicious_ratio(bw, known.bw_bytes_per_s, str(text), nodes.node)
    elif nodes.gpus_per_node and per != "node":
        doubt = suspicious_nic(bw, kind, str(text))
    return bw, [f"{_where(facts, field)}: {doubt}"] if doubt else []


def _fabric(facts: Facts, groups: list[Group]) -> Fabric:
    """`fabric`, `sites` and `wan`."""
    path: FieldPath = ("fabric",)
    fabric = Fabric()
    if isinstance(facts.document.data.get("fabric"), str):
        kind: Any = facts.text(path, get_args(FabricType))
        fabric = replace(fabric, type=kind or "non-blocking")
    elif facts.keys(path, _FABRIC_KEYS):
        kind = facts.text((*path, "type"), get_args(FabricType), required=True) or "non-blocking"
        ratio, pods = facts.ratio((*path, "ratio")), facts.whole((*path, "pod_nodes"))
        fabric = Fabric(type=kind, ratio=ratio or 1.0, pod_nodes=pods)
    if fabric.type == "oversubscribed" and facts.document.at((*path, "ratio")) is None:
        facts.fail(path, "`ratio` is missing", "`ratio: 7` for 1:7 between pods; with `pod_nodes` in each")
    if fabric.type not in ("oversubscribed", "dragonfly") and (fabric.pod_nodes or fabric.ratio != 1):
        facts.fail(path, f"`ratio` and `pod_nodes` say nothing of a {fabric.type} fabric", "`type: oversubscribed`")
    return _sites(facts, groups, fabric)


def _sites(facts: Facts, groups: list[Group], fabric: Fabric) -> Fabric:
    found = facts.document.data.get("sites")
    has_wan = facts.keys(("wan",), ("bandwidth", "latency", "per"))
    if found is None:
        if has_wan:
            facts.fail(("wan",), "says nothing without `sites`")
        return fabric
    if not isinstance(found, list) or len(found) < 2:
        facts.fail(("sites",), "must list two sites or more", "`sites: [{name: a, nodes: 8}, {name: b, nodes: 8}]`")
        return fabric
    sites: list[tuple[str, int]] = []
    for position in range(len(found)):
        path: FieldPath = ("sites", position)
        if facts.keys(path, ("name", "nodes")):
            nodes = facts.whole((*path, "nodes"), required=True)
            sites.append((facts.text((*path, "name")) or f"site {position + 1}", nodes or 0))
    if not has_wan:
        hint = "`wan: {bandwidth: 100 Gb/s, latency: 10 ms}`"
        facts.fail(("sites",), "are joined by a `wan`, which is missing", hint)
        return fabric
    bw = facts.quantity(("wan", "bandwidth"), "B/s", required=True)
    seconds = facts.quantity(("wan", "latency"), "s", required=True)
    _check_site_sum(facts, groups, sites)
    per = facts.text(("wan", "per"), ("site", "gpu", "node")) or "site"
    if bw and sites and groups and per != "site":
        gpus = max(nodes for _, nodes in sites) * (min(g.nodes.gpus_per_node for g in groups) if per == "gpu" else 1)
        bw *= gpus
    return replace(fabric, sites=tuple(sites), wan_bw_bytes_per_s=bw or 1.0, wan_latency_s=seconds or 0.0)


def _check_site_sum(facts: Facts, groups: list[Group], sites: list[tuple[str, int]]) -> None:
    have, told = sum(group.nodes.num_nodes for group in groups), sum(nodes for _, nodes in sites)
    if groups and all(nodes for _, nodes in sites) and have != told:
        counted = " + ".join(str(nodes) for _, nodes in sites)
        facts.fail(("sites",), f"{counted} = {told} nodes, but the groups have {have}")


def _where(facts: Facts, path: FieldPath) -> str:
    """Field (and line) of a warning."""
    problem = facts.document.problem(path, "")
    line = f"line {problem.line}" if problem.line else ""
    return ", ".join(part for part in (problem.file, line, problem.field) if part)


