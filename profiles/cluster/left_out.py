"""A cluster without some of its nodes: those that are reserved, busy or broken."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from ...cost_models.specs.cluster import ClusterSpec
from ...cost_models.specs.notice import Notice
from ...errors import InputError
from .build import build
from .fabric import Fabric, Group
from .links import DIFFER, linked

_SHOWN = 4


def without_nodes(cluster: ClusterSpec, groups: Sequence[Group], fabric: Fabric, nodes: Sequence[str]) -> ClusterSpec:
    """`cluster`, which was built of `groups` and `fabric`, without `nodes`: names of its hosts, or numbers from 0.

    Names that the cluster does not have are named in a warning, since `sinfo` shows all nodes of a site. Raises
    InputError for a name where the cluster names no hosts, a number beyond its nodes, and where nothing remains.
    """
    out, unknown = _indices(cluster, nodes)
    if len(out) == cluster.num_nodes:
        raise InputError(f"exclude: all {cluster.num_nodes} nodes of {cluster.name} are left out",
                         hint="keep at least one of them")  # fmt: skip
    notices = [Notice("cluster", f"exclude: no nodes of this cluster: {_listed(unknown)}")] if unknown else []
    if not out:
        return replace(cluster, warnings=(*cluster.warnings, *notices))
    kept = [node for node in range(cluster.num_nodes) if node not in out]
    whole = build(cluster.name, groups, fabric)
    small = build(cluster.name, _fewer(groups, out), _fewer_at_sites(fabric, out))
    small = replace(small, hosts=tuple(cluster.hosts[node] for node in kept) if cluster.hosts else ())
    if cluster.links is not None and len(kept) > 1:
        rows = [[cluster.links.bw_bytes_per_s[a][b] for b in kept] for a in kept]
        small = linked(small, rows, cluster.links.source, ())
    elif cluster.levels != whole.levels and len(kept) > 1:  # equal links, by a matrix
        network = replace(cluster.levels[-1], size=small.levels[-1].size)
        small = replace(small, levels=(*small.levels[:-1], network))
    names = [cluster.hosts[node] if cluster.hosts else f"node {node}" for node in sorted(out)]
    verb = "is" if len(out) == 1 else "are"
    text = f"{len(out)} of {cluster.num_nodes} nodes {verb} left out: {_listed(names)}"
    of_links = [notice for notice in cluster.warnings if notice not in (*whole.warnings, *small.warnings, DIFFER)]
    return replace(small, warnings=(*small.warnings, *of_links, Notice("cluster", text), *notices))


def _indices(cluster: ClusterSpec, nodes: Sequence[str]) -> tuple[set[int], list[str]]:
    """(indices of the nodes, names that the cluster does not have)."""
    numbers = {host: index for index, host in enumerate(cluster.hosts)}
    out, unknown = set[int](), list[str]()
    for node in nodes:
        if node in numbers:
            out.add(numbers[node])
        elif node.isdigit() and int(node) < cluster.num_nodes:
            out.add(int(node))
        elif node.isdigit():
            raise InputError(f"exclude: there is no node {node}, {cluster.name} has {cluster.num_nodes}",
                             hint="numbers count from 0")  # fmt: skip
        elif not numbers:
            raise InputError(f"exclude: `{node}` is a name, and {cluster.name} names no nodes",
                             hint="list `hosts` in a cluster file (`profile import slurm` writes one), or give node "
                             "numbers from 0")  # fmt: skip
        else:
            unknown.append(node)
    return out, unknown


def _fewer(groups: Sequence[Group], out: set[int]) -> list[Group]:
    """The groups with the nodes that remain. Raises InputError where nodes are parts of a rack or a slice."""
    remaining, first = list[Group](), 0
    for group in groups:
        after = first + group.nodes.num_nodes
        number = sum(node not in out for node in range(first, after))
        joined = group.intra[-1].size
        if number < group.nodes.num_nodes and joined > group.nodes.gpus_per_node:
            raise InputError(f"exclude: nodes of {group.nodes.node} share one link of {joined} GPUs",
                             hint="give the nodes that remain, and the GPUs that a rack keeps as `domain`")  # fmt: skip
        if number:
            remaining.append(replace(group, nodes=replace(group.nodes, num_nodes=number)))
        first = after
    return remaining


def _fewer_at_sites(fabric: Fabric, out: set[int]) -> Fabric:
    sites, first = list[tuple[str, int]](), 0
    for name, number in fabric.sites:
        remaining = sum(node not in out for node in range(first, first + number))
        sites += [(name, remaining)] if remaining else []
        first += number
    return replace(fabric, sites=tuple(sites) if len(sites) > 1 else ())


def _listed(names: Sequence[str]) -> str:
    more = len(names) - _SHOWN
    return ", ".join(names[:_SHOWN]) + (f" and {more:,} more" if more > 0 else "")
