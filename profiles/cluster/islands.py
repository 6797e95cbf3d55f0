"""A cluster cut where it is not alike: islands of equal nodes on one network, and the bridges between them."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from itertools import combinations

from ...cost_models.specs.cluster import Bridge, Island, NetworkLevel
from .fabric import Fabric, Group, assemble

UNSHARED = 1e18  # bytes/s of a line that nothing narrows (JSON has no infinity)


def cut(groups: Sequence[Group], fabric: Fabric) -> tuple[tuple[Island, ...], tuple[Bridge, ...]]:
    """The islands of a cluster in the order of its nodes, and what joins every two; none where all nodes are alike.

    Sites fill up in the order of the groups, so a group may lie in several of them. Islands of one site meet in its
    network, of which each GPU has the slower of its two ends, or `between_groups`; of two sites, in the line between
    them, which all that cross it share.
    """
    total = sum(group.nodes.num_nodes for group in groups)
    sites = fabric.sites or (("", total),)
    if len(groups) == len(sites) == 1 or any(group.inter is None for group in groups):
        return (), ()
    islands: list[Island] = []
    places: list[tuple[int, int]] = []  # (group, site)
    starts = [sum(nodes for _, nodes in sites[:site]) for site in range(len(sites) + 1)]
    before = 0
    for index, group in enumerate(groups):
        after = before + group.nodes.num_nodes
        for site, (name, _) in enumerate(sites):
            first, last = max(before, starts[site]), min(after, starts[site + 1])
            if first < last:
                islands.append(_island(groups, index, name, first, last - first, fabric))
                places.append((index, site))
        before = after
    pairs = combinations(range(len(islands)), 2)
    return tuple(islands), tuple(_bridge(groups, fabric, islands, places, pair) for pair in pairs)


def _island(groups: Sequence[Group], index: int, site: str, first: int, number: int, fabric: Fabric) -> Island:
    group = groups[index]
    alone = replace(group, nodes=replace(group.nodes, num_nodes=number))
    inside = replace(fabric, sites=(), between=None)
    levels, _ = assemble([alone], inside)
    twice = [other.nodes.node for other in groups].count(group.nodes.node) > 1
    words = (site, f"{group.nodes.node}#{index + 1}" if twice else group.nodes.node if len(groups) > 1 else "")
    return Island(name=" ".join(word for word in words if word), group=index, first_node=first, num_nodes=number,
                  levels=levels)  # fmt: skip


def _bridge(
    groups: Sequence[Group], fabric: Fabric, islands: Sequence[Island], places: Sequence[tuple[int, int]],
    ends: tuple[int, int],
) -> Bridge:  # fmt: skip
    """The bridge between two islands. size of the link: the GPUs of both."""
    inters = [inter for end in ends if (inter := groups[places[end][0]].inter) is not None]
    per_node = [groups[places[end][0]].nodes.gpus_per_node for end in ends]
    size = sum(islands[end].num_nodes * gpus for end, gpus in zip(ends, per_node, strict=True))
    slower = min(inters, key=lambda inter: inter.bw_bytes_per_s)
    latency_s = max(inter.latency_s for inter in inters)
    link = NetworkLevel(name="between", size=size, bw_bytes_per_s=slower.bw_bytes_per_s, latency_s=latency_s,
                        kind=slower.kind, source=slower.source)  # fmt: skip
    if places[ends[0]][1] != places[ends[1]][1]:
        link = fabric.wan(size, slower.bw_bytes_per_s)
        return Bridge(ends=ends, link=link, gpus_per_node=min(per_node), node_bytes_per_s=UNSHARED,
                      trunk_bytes_per_s=fabric.wan_bw_bytes_per_s)  # fmt: skip
    if fabric.between is not None:
        joined, shared = fabric.between, UNSHARED
        widest = joined.bw_bytes_per_s
        if joined.nics:  # of a node: a GPU that sends alone has all of it
            shared = widest = joined.bw_bytes_per_s * joined.nics
        link = replace(link, bw_bytes_per_s=min(widest, slower.bw_bytes_per_s), latency_s=joined.latency_s,
                       kind=joined.kind, source=joined.source)  # fmt: skip
        return Bridge(ends=ends, link=link, gpus_per_node=max(per_node), node_bytes_per_s=shared,
                      trunk_bytes_per_s=UNSHARED)  # fmt: skip
    return Bridge(ends=ends, link=link, gpus_per_node=min(per_node), node_bytes_per_s=UNSHARED,
                  trunk_bytes_per_s=UNSHARED)  # fmt: skip
