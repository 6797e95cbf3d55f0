"""The cluster file: groups of nodes, the links between them, the fabric, and sites far apart.

All problems of a file are reported together, each with line and field. docs/guides/clusters.md is its manual.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any

from ...cost_models.specs.cluster import ClusterSpec
from ...errors import InputError
from ..io import registry
from ..io.document import Document, FieldPath
from ..io.facts import Facts
from . import device_files
from .build import build, gpu_group, node_group, parse_shorthand
from .fabric import Group
from .fabric_fields import read_fabric
from .left_out import without_nodes
from .link_fields import AS_GIVEN, read_between_groups, read_intra_node, read_nics, with_group_links
from .link_file import with_collectives
from .links import with_links

_KEYS = ("name", "groups", "hosts", "links", "fabric", "sites", "wan", "collectives", "measured", "profiles")
_GROUP_KEYS = ("node", "count", "name", "gpu", "gpus_per_node", "intra_node", "domain", "nics", "nic_bandwidth",
               "network", "host_memory", "host_memory_bandwidth", "price", "slowdown")  # fmt: skip
_GROUPS_HINT = ("`groups: [{node: dgx-h100, count: 16}]`, or of your own nodes "
                "`[{gpu: h100-sxm-80gb, gpus_per_node: 8, count: 2}]`")  # fmt: skip
_LINK_KEYS = ("intra_node", "inter_node", "between_groups", "slow_nodes", "matrix")
LoadGpu = Callable[[str], registry.GpuEntry]


def read_cluster(document: Document, gpu: str | None = None, exclude: Sequence[str] = ()) -> ClusterSpec:
    """The cluster that a document describes. gpu: in place of the GPUs it names. exclude: nodes that it has and that
    are not planned on, by name or number.

    Raises InputError with every problem found.
    """
    facts = Facts(document)
    stray = [key for key in _GROUP_KEYS if key not in _KEYS and document.at((key,)) is not None]
    for key in stray:
        facts.fail((key,), "belongs to a group of nodes", _GROUPS_HINT)
    if not facts.keys((), (*_KEYS, *stray)):
        facts.finish()
    known = device_files.devices(facts)
    groups = _groups(facts, gpu, lambda name: known.get(name) or registry.gpu_entry(name))
    if facts.keys(("links",), _LINK_KEYS):
        groups = [with_group_links(facts, group) for group in groups]
    for position, group in enumerate(groups):
        if group.nodes.gpu.measured and group.nodes.gpus_per_node > 1 and group.intra[-1].source != AS_GIVEN:
            facts.fail(("groups", position), f"how {group.nodes.gpus_per_node} x {group.nodes.gpu.name} are joined is "
                       "not known", "`links.intra_node`, as `profile links` writes it")  # fmt: skip
    fabric = read_between_groups(facts, groups, read_fabric(facts, groups))
    name = facts.text(("name",)) or "cluster"
    facts.finish()
    try:
        cluster = build(name, groups, fabric)
    except InputError as error:
        raise InputError.of([document.problem(("groups",), error.message, error.hint)]) from None
    cluster = with_links(facts, cluster, groups, fabric)
    if exclude and not facts.problems:
        cluster = without_nodes(cluster, groups, fabric, exclude)
    cluster = device_files.with_profiles(facts, with_collectives(facts, cluster))
    facts.finish()
    return cluster


def _groups(facts: Facts, gpu: str | None, load_gpu: LoadGpu) -> list[Group]:
    listed = facts.document.data.get("groups")
    if isinstance(listed, str):
        return _shorthand(facts, ("groups",), listed, gpu)
    if not isinstance(listed, list) or not listed:
        absent = listed is None
        facts.fail(("groups",), "`groups` is missing" if absent else "must list the groups of nodes", _GROUPS_HINT)
        return []
    groups: list[Group] = []
    for position, item in enumerate(listed):
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
    node = facts.text((*path, "node"))
    named_gpu = facts.text((*path, "gpu"))
    count = facts.whole((*path, "count"), required=True)
    per_node = facts.whole((*path, "gpus_per_node"))
    if node is None and named_gpu is None and len(facts.problems) == before:
        facts.fail(path, "names neither a `node` nor a `gpu`", "`node: dgx-h100`, or `gpu` with `gpus_per_node`")
    if node is None and named_gpu is not None and facts.document.at((*path, "gpus_per_node")) is None:
        facts.fail(path, "`gpus_per_node` is missing")
    entry = _known(facts, (*path, "node"), node, registry.load_node)
    gpu_entry = _known(facts, (*path, "gpu"), named_gpu or gpu, load_gpu)
    gpu_name = gpu or (gpu_entry.spec.name if gpu_entry else None)
    domain = facts.whole((*path, "domain"))
    if len(facts.problems) > before or count is None:
        read_nics(facts, path, per_node or 8)  # for what else is wrong
        _given(facts, path)
        facts.quantity((*path, "slowdown"), "count")
        return None
    if entry is not None:
        changed = {"gpus_per_node": per_node, "domain": domain}
        entry = replace(entry, **{key: value for key, value in changed.items() if value is not None})
        if entry.domain is not None and entry.domain < entry.gpus_per_node:
            facts.fail((*path, "domain"), f"`{entry.domain}` is less than the {entry.gpus_per_node} GPUs of a node")
            return None
        group = node_group(entry, count, gpu=gpu_name)
    else:
        group = gpu_group(load_gpu(gpu_name or ""), per_node or 1, count)
    return _changed(facts, path, group)


def _known(facts: Facts, path: FieldPath, name: str | None, load: Any) -> Any:
    if name is None:
        return None
    try:
        return load(name)
    except InputError as error:
        facts.fail(path, error.message, error.hint)
        return None


def _given(facts: Facts, path: FieldPath) -> dict[str, Any]:
    """Fields of nodes that the file gives for a group."""
    given = {
        "node": facts.text((*path, "name")),
        "host_memory_bytes": facts.quantity((*path, "host_memory"), "B"),
        "host_memory_bw_bytes_per_s": facts.quantity((*path, "host_memory_bandwidth"), "B/s"),
        "price_usd_per_node_hour": facts.quantity((*path, "price"), "USD/h"),
    }
    return {key: value for key, value in given.items() if value is not None}


def _changed(facts: Facts, path: FieldPath, group: Group) -> Group:
    """The group with the values that the file gives for it."""
    nodes = group.nodes
    nodes = replace(nodes, **_given(facts, path))
    if slowdown := facts.quantity((*path, "slowdown"), "count"):
        nodes = replace(nodes, gpu=nodes.gpu.slower(slowdown))
    inter, warnings = read_nics(facts, path, nodes.gpus_per_node, group.inter)
    given_nics = {f"nics.{fact}" for fact, key in (("count", "nics"), ("bandwidth", "nic_bandwidth"))
                  if facts.value((*path, key)) is not None}  # fmt: skip
    nodes = replace(nodes, unconfirmed=tuple(field for field in nodes.unconfirmed if field not in given_nics))
    group = replace(group, nodes=nodes, inter=inter, warnings=(*group.warnings, *warnings))
    return read_intra_node(facts, (*path, "intra_node"), group)
