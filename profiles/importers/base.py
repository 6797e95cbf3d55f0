"""The result of every importer, and the cluster file that it becomes."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any

import yaml

from ...errors import FieldProblem, InputError
from ..io import registry


@dataclass(frozen=True, kw_only=True)
class Nodes:
    """Equal nodes."""

    gpus_per_node: int | None = None  # None: not in the file
    hosts: tuple[str, ...] = ()  # their names; (): `count` of them
    count: int = 1  # where `hosts` is empty
    gpu: str = ""  # as the tool spells it; empty: not in the file
    nics: int | None = None  # per node
    nic_bits_per_s: float | None = None  # of one NIC, one direction
    host_memory_bytes: float | None = None  # of a node
    intra: dict[str, str] = field(default_factory=dict)  # fields of `intra_node`

    @property
    def number(self) -> int:
        return len(self.hosts) or self.count


@dataclass(frozen=True, kw_only=True)
class Imported:
    """The content of an imported file."""

    groups: tuple[Nodes, ...]  # in the order of the file
    inter: dict[str, str] = field(default_factory=dict)  # fields of `links.inter_node`
    matrix: tuple[tuple[float, ...], ...] = ()  # [from][to] bytes/s, in the order of the hosts
    notes: tuple[str, ...] = ()  # what was assumed, left out or is missing


@dataclass(frozen=True)
class Importer:
    """One format of files."""

    summary: str  # where such a file comes from
    recognises: Callable[[str], bool]  # whether a text is of this format
    read: Callable[[str, str], Imported]  # (file name, text); raises InputError with the line


def fail(name: str, line: int, message: str, hint: str = "") -> InputError:
    return InputError.of([FieldProblem(message, file=name, line=line, hint=hint)])


def catalogue_name(gpu: str) -> str:
    """The GPU's name in the catalogue; empty for one that it does not know."""
    return registry.gpu_name(gpu) if gpu and registry.is_gpu(gpu) else ""


def grouped(nodes: Sequence[Nodes]) -> tuple[Nodes, ...]:
    """Single nodes as groups of those that are alike, in the order of the first of each."""
    hosts_by_kind: dict[tuple[Any, ...], list[str]] = {}
    first: dict[tuple[Any, ...], Nodes] = {}
    for node in nodes:
        key = (node.gpu, node.gpus_per_node, node.nics, node.nic_bits_per_s, node.host_memory_bytes)
        hosts_by_kind.setdefault(key, []).extend(node.hosts)
        first.setdefault(key, node)
    return tuple(Nodes(gpus_per_node=first[key].gpus_per_node, hosts=tuple(hosts), gpu=first[key].gpu,
                       nics=first[key].nics, nic_bits_per_s=first[key].nic_bits_per_s,
                       host_memory_bytes=first[key].host_memory_bytes)
                 for key, hosts in hosts_by_kind.items())  # fmt: skip


def twice(name: str, hosts: Sequence[str]) -> None:
    """Raises InputError where a host is there twice."""
    if again := sorted(host for host, times in Counter(hosts).items() if times > 1):
        raise fail(name, 0, f"{', '.join(again)} given twice")


def cluster_document(
    imported: Imported, *, gpu: str | None, per_node: int | None, count: int | None, matrix: str
) -> dict[str, Any]:
    """The cluster file as plain values. gpu, per_node, count: given by the user where the file has none (or over it);
    matrix: the name of the file that the matrix goes into. Raises InputError with everything that is missing."""
    problems, groups = [], []
    for nodes in imported.groups:
        name = registry.gpu_name(gpu) if gpu else catalogue_name(nodes.gpu)
        size, number = per_node or nodes.gpus_per_node, nodes.number if nodes.hosts or not count else count
        if not name:
            message = f"`{nodes.gpu}` is no GPU of the catalogue" if nodes.gpu else "the file does not name the GPU"
            problems.append(FieldProblem(message, hint="`--gpu h100`; `meshwright show gpus` lists them"))
        if not size:
            problems.append(FieldProblem("the file lacks the number of GPUs of a node", hint="`--gpus-per-node 8`"))
        groups.append({"gpu": name, "gpus_per_node": size, "count": number, **_node_fields(nodes)})
    if problems:
        raise InputError.of(list(dict.fromkeys(problems)))
    hosts = [host for nodes in imported.groups for host in nodes.hosts]
    links: dict[str, Any] = {**({"inter_node": imported.inter} if imported.inter else {}),
                             **({"matrix": matrix} if imported.matrix else {})}  # fmt: skip
    whole = hosts and len(hosts) == sum(group["count"] for group in groups)
    return {"name": "imported", "groups": groups, **({"hosts": hosts} if whole else {}),
            **({"links": links} if links else {})}  # fmt: skip


def _node_fields(nodes: Nodes) -> dict[str, Any]:
    """The optional fields of a group."""
    fields: dict[str, Any] = {}
    if nodes.nics and nodes.nic_bits_per_s:
        fields |= {"nics": nodes.nics, "nic_bandwidth": f"{nodes.nic_bits_per_s / 1e9:g} Gb/s"}
    if nodes.host_memory_bytes:
        fields["host_memory"] = f"{nodes.host_memory_bytes / 2**30:.0f} GiB"
    return {**fields, **({"intra_node": nodes.intra} if nodes.intra else {})}


def cluster_text(document: dict[str, Any], head: str) -> str:
    """The file."""
    return head + yaml.safe_dump(document, sort_keys=False, width=120, allow_unicode=True)
