"""The network between nodes in a cluster file: `fabric`, `sites` and the `wan` that joins them."""

from __future__ import annotations

from dataclasses import replace
from typing import Any, get_args

from ..io.document import FieldPath
from ..io.facts import Facts
from .fabric import Fabric, FabricType, Group

_FABRIC_KEYS = ("type", "ratio", "pod_nodes")
_SITES = "`sites: [{name: a, nodes: 8}, {name: b, nodes: 8}]`"  # an example


def read_fabric(facts: Facts, groups: list[Group]) -> Fabric:
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
        facts.fail(path, f"`ratio` and `pod_nodes` have no meaning for a {fabric.type} fabric",
                   "`type: oversubscribed`")  # fmt: skip
    return _sites(facts, groups, fabric)


def _sites(facts: Facts, groups: list[Group], fabric: Fabric) -> Fabric:
    listed = facts.document.data.get("sites")
    has_wan = facts.keys(("wan",), ("bandwidth", "latency", "per", "flows", "flow_bandwidth"))
    if listed is None:
        if has_wan:
            facts.fail(("wan",), "has no meaning without `sites`", _SITES)
        return fabric
    if not isinstance(listed, list) or len(listed) < 2:
        facts.fail(("sites",), "must list two sites or more", _SITES)
        return fabric
    sites: list[tuple[str, int]] = []
    for position in range(len(listed)):
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
        bw *= max(nodes for _, nodes in sites)
        bw *= min(group.nodes.gpus_per_node for group in groups) if per == "gpu" else 1
    if bw and (of_flows := _flows(facts)):
        bw = min(bw, of_flows)
    return replace(fabric, sites=tuple(sites), wan_bw_bytes_per_s=bw or 1.0, wan_latency_s=seconds or 0.0)


def _flows(facts: Facts) -> float | None:
    """Bytes/s of a site's connections together, each as fast as one gets over the distance; None: not limited."""
    flows, each = facts.whole(("wan", "flows")), facts.quantity(("wan", "flow_bandwidth"), "B/s")
    given = {name for name in ("flows", "flow_bandwidth") if facts.document.at(("wan", name)) is not None}
    if len(given) == 1:
        absent = ({"flows", "flow_bandwidth"} - given).pop()
        facts.fail(("wan", absent), f"is missing beside `{given.pop()}`",
                   "`flows: 16` connections of `flow_bandwidth: 2.8 Gb/s` each")  # fmt: skip
    return flows * each if flows and each else None


def _check_site_sum(facts: Facts, groups: list[Group], sites: list[tuple[str, int]]) -> None:
    in_groups = sum(group.nodes.num_nodes for group in groups)
    in_sites = sum(nodes for _, nodes in sites)
    if groups and all(nodes for _, nodes in sites) and in_groups != in_sites:
        counted = " + ".join(str(nodes) for _, nodes in sites)
        facts.fail(("sites",), f"{counted} = {in_sites} nodes, but the groups have {in_groups}")
