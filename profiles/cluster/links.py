"""Links between nodes that are not all alike, of a cluster file: single slow nodes, or a measured matrix.

The matrix is a text file of N rows with N numbers each, GB/s: row i, column j is what node i sends to node j with all
its NICs, one direction. Separated by commas, semicolons or blanks; `#` starts a comment; the diagonal is not read; a
first row and a first column may hold the names of the hosts.
"""

from __future__ import annotations

import math
import re
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from ...cost_models.specs.cluster import ClusterSpec, NodeLinks
from ...cost_models.specs.notice import Notice
from ...errors import FieldProblem, InputError, did_you_mean, nearest
from ..io.facts import Facts
from ..io.reader import read_text
from .fabric import Fabric, Group, suspicious_ratio

ASYMMETRIC = 10.0  # one direction this many times faster than the other is a wrong cable or a wrong measurement
DIFFER = Notice("cluster", "links between nodes differ: `plan` places the nodes by them; `what-if` uses the slowest")
_SHOWN = 3
_PATH = ("links", "matrix")
Rows = list[list[float]]


@dataclass(frozen=True)
class Matrix:
    """A link matrix as its file has it."""

    bw_bytes_per_s: Rows  # [from][to], of all NICs of a node, one direction
    hosts: tuple[str, ...]  # in the order of the rows; () for none
    warnings: tuple[str, ...]  # texts


def with_links(facts: Facts, cluster: ClusterSpec, groups: Sequence[Group], fabric: Fabric) -> ClusterSpec:
    """`cluster` with the hosts and the node-to-node links that its file gives; what is wrong goes to `facts`."""
    hosts = _hosts(facts, cluster.num_nodes)
    slow, path = facts.document.at(("links", "slow_nodes")), _path(facts)
    slow = None if slow == [] else slow  # all nodes are as fast as the others
    if slow is None and path is None:
        return replace(cluster, hosts=hosts)
    where = _PATH if path is not None else ("links", "slow_nodes")
    if slow is not None and path is not None:
        facts.fail(where, "and `slow_nodes` both give the speed of the links", "leave one of them out")
        return cluster
    if not _is_plain(facts, where, cluster, fabric):
        return cluster
    warnings: tuple[str, ...] = ()
    if path is not None:
        matrix = _matrix(facts, path, cluster)
        if matrix is None:
            return cluster
        rows = matrix.bw_bytes_per_s
        hosts = hosts or matrix.hosts
        warnings = matrix.warnings
    else:
        rows = _of_slow_nodes(facts, groups, hosts)
    return linked(replace(cluster, hosts=hosts), rows, "links.slow_nodes" if path is None else path, warnings)


def linked(cluster: ClusterSpec, rows: Rows, source: str, warnings: tuple[str, ...]) -> ClusterSpec:
    """The network level takes the slowest pair; where all pairs are alike nothing else is kept."""
    pairs = [bw for i, row in enumerate(rows) for j, bw in enumerate(row) if i != j]
    slowest = replace(cluster.levels[-1], bw_bytes_per_s=min(pairs) / cluster.gpus_per_node,
                      source=f"bandwidth: the slowest pair of {source}")  # fmt: skip
    notices = [Notice("cluster", text) for text in warnings]
    cluster = replace(cluster, levels=(*cluster.levels[:-1], slowest), warnings=(*cluster.warnings, *notices))
    if min(pairs) == max(pairs):
        return cluster
    links = NodeLinks(bw_bytes_per_s=tuple(map(tuple, rows)), source=source)
    return replace(cluster, links=links, warnings=(*cluster.warnings, DIFFER))


def _hosts(facts: Facts, num_nodes: int) -> tuple[str, ...]:
    """Names of the nodes in the order of the groups."""
    names = facts.document.at(("hosts",))
    if names is None:
        return ()
    if not isinstance(names, list) or not all(isinstance(name, str) and re.fullmatch(r"[\w.-]+", name)
                                              for name in names):  # fmt: skip
        facts.fail(("hosts",), "must list the names of the nodes", "`hosts: [gpu-00, gpu-01]`")
        return ()
    if twice := sorted({name for name in names if names.count(name) > 1}):
        facts.fail(("hosts",), f"{', '.join(twice)} given twice")
    if len(names) != num_nodes:
        facts.fail(("hosts",), f"{len(names)} names, but the groups have {num_nodes} nodes")
    return tuple(names)


def _is_plain(facts: Facts, where: tuple[str, ...], cluster: ClusterSpec, fabric: Fabric) -> bool:
    """Whether the nodes are joined by one network and nothing else, as links from node to node need it."""
    before = len(facts.problems)
    if len({group.gpus_per_node for group in cluster.groups}) > 1:
        facts.fail(where, "needs nodes with equally many GPUs")
    elif cluster.num_nodes < 2:
        facts.fail(where, "has no meaning for one node")
    elif fabric.sites or fabric.ratio > 1:
        part = "sites" if fabric.sites else "fabric.ratio"
        facts.fail(where, f"and `{part}` both give the speed of the links", f"leave `{part}` out: the links have it")
    elif cluster.levels[-2].size > cluster.gpus_per_node:
        name = cluster.levels[-2].name
        facts.fail(where, f"is for nodes on one network; these share a {name} of {cluster.levels[-2].size} GPUs")
    return len(facts.problems) == before


def _of_slow_nodes(facts: Facts, groups: Sequence[Group], hosts: tuple[str, ...]) -> Rows:
    """The links of nodes whose NICs give only a share: a pair is as fast as the slower of the two."""
    bw = [group.inter.bw_bytes_per_s * group.nodes.gpus_per_node if group.inter else 0.0
          for group in groups for _ in range(group.nodes.num_nodes)]  # fmt: skip
    listed = facts.document.at(("links", "slow_nodes"))
    seen: set[int] = set()
    if not isinstance(listed, list):
        facts.fail(("links", "slow_nodes"), "must list nodes", "`slow_nodes: [{node: 5, share: 0.25}]`, `[]` for none")
        listed = []
    for position in range(len(listed)):
        path = ("links", "slow_nodes", position)
        if not facts.keys(path, ("node", "share")):
            continue
        node = _node(facts, (*path, "node"), len(bw), hosts)
        share = facts.value((*path, "share"), required=True)
        if share is not None and (isinstance(share, bool) or not isinstance(share, int | float) or not 0 < share <= 1):
            facts.fail((*path, "share"), f"`{share}` must be above 0 and at most 1", "0.25 is a quarter of its speed")
            share = None
        if node in seen:
            facts.fail((*path, "node"), f"{facts.value((*path, 'node'))} is given twice")
        if node is not None:
            seen.add(node)
            bw[node] *= share or 1.0
    return [[0.0 if i == j else min(a, b) for j, b in enumerate(bw)] for i, a in enumerate(bw)]


def _node(facts: Facts, path: tuple[str | int, ...], num_nodes: int, hosts: tuple[str, ...]) -> int | None:
    """A node by the name of its host, or by its number."""
    given = facts.value(path, required=True)
    if isinstance(given, str) and given in hosts:
        return hosts.index(given)
    if isinstance(given, int) and not isinstance(given, bool) and 0 <= given < num_nodes:
        return given
    if given is not None:
        hint = did_you_mean(nearest(str(given), hosts), otherwise=f"a name of `hosts`, or 0 to {num_nodes - 1}")
        facts.fail(path, f"`{given}` is no node of this cluster", hint)
    return None


def _path(facts: Facts) -> str | None:
    if isinstance(facts.document.at(_PATH), list):
        facts.fail(_PATH, "must be the path of a file", "put the rows into a file of their own: `matrix: links.txt`")
        return None
    return facts.text(_PATH)


def _matrix(facts: Facts, path: str, cluster: ClusterSpec) -> Matrix | None:
    """The matrix of the file at `path`, which is relative to the cluster file."""
    cluster_file = Path(facts.document.name)
    file = Path(path) if Path(path).is_absolute() or cluster_file.name in ("", "stdin") else cluster_file.parent / path
    try:
        matrix = read_matrix(str(file), read_text(file))
    except InputError as error:
        facts.fail(_PATH, error.message, error.hint)
        return None
    if len(matrix.bw_bytes_per_s) != cluster.num_nodes:
        facts.fail(_PATH, f"{file} has {len(matrix.bw_bytes_per_s)} nodes, but the groups have {cluster.num_nodes}")
        return None
    known, text = cluster.levels[-1].bw_bytes_per_s, f"{max(map(max, matrix.bw_bytes_per_s)) / 1e9:g} GB/s per node"
    doubt = suspicious_ratio(max(map(max, matrix.bw_bytes_per_s)) / cluster.gpus_per_node, known, text, cluster.name)
    return replace(matrix, warnings=(*matrix.warnings, f"{file}: {doubt}")) if doubt else matrix


def read_matrix(name: str, text: str) -> Matrix:
    """The link matrix in `text` (see above). Raises InputError with every entry that is wrong, each with its line."""
    lines = [(number, [cell for cell in re.split(r"[,;\s]+", line.partition("#")[0].strip(" ,;\t")) if cell])
             for number, line in enumerate(text.splitlines(), 1)]  # fmt: skip
    lines = [(number, cells) for number, cells in lines if cells]
    hosts: tuple[str, ...] = ()
    if lines and not any(_is_number(cell) for cell in lines[0][1][1:] or lines[0][1]):
        hosts, lines = tuple(lines[0][1]), lines[1:]
    size = len(lines)
    if len(hosts) == size + 1:  # the corner above the names of the rows
        hosts = hosts[1:]
    if lines and all(len(cells) == size + 1 and not _is_number(cells[0]) for _, cells in lines):
        hosts = hosts or tuple(cells[0] for _, cells in lines)
        lines = [(number, cells[1:]) for number, cells in lines]
    problems = _shape_problems(name, lines, hosts)
    for row, (number, cells) in enumerate(lines):
        for column, cell in enumerate(cells):
            if row != column and (what := _entry_problem(cell)):
                problems.append(FieldProblem(f"{row} to {column}: {what}", file=name, line=number))
    if problems:
        raise InputError.of(sorted(problems, key=lambda problem: problem.line))
    rows = [[0.0 if i == j else float(cell) * 1e9 for j, cell in enumerate(cells)]
            for i, (_, cells) in enumerate(lines)]  # fmt: skip
    return Matrix(rows, hosts, _asymmetries(name, rows, hosts, [number for number, _ in lines]))


def matrix_text(hosts: Sequence[str], bw_bytes_per_s: Sequence[Sequence[float]]) -> str:
    """The text that `read_matrix` reads."""
    rows = [",".join([host, *("0" if i == j else f"{bw / 1e9:.4g}" for j, bw in enumerate(row))])
            for i, (host, row) in enumerate(zip(hosts, bw_bytes_per_s, strict=True))]  # fmt: skip
    return "\n".join([",".join(["GB/s", *hosts]), *rows, ""])


def _shape_problems(name: str, lines: list[tuple[int, list[str]]], hosts: tuple[str, ...]) -> list[FieldProblem]:
    size = len(lines)
    hint = "one row and one column per node"
    out = [FieldProblem(f"{len(cells)} entries, but the matrix has {size} rows", file=name, line=number, hint=hint)
           for number, cells in lines if len(cells) != size]  # fmt: skip
    if size < 2:
        out.append(FieldProblem(f"{size} rows: a matrix of links joins two nodes or more", file=name, hint=hint))
    if hosts and len(hosts) != size:
        out.append(FieldProblem(f"{len(hosts)} names, but the matrix has {size} rows", file=name, line=1, hint=hint))
    return out


def _entry_problem(cell: str) -> str:
    try:
        value = float(cell)
    except ValueError:
        return f"`{cell}` is not a number of GB/s"
    return "" if 0 < value < math.inf else f"`{cell}` must be a number of GB/s above zero"


def _is_number(cell: str) -> bool:
    try:
        float(cell)
    except ValueError:
        return False
    return True


def _asymmetries(name: str, rows: Rows, hosts: tuple[str, ...], lines: list[int]) -> tuple[str, ...]:
    """A warning for the pairs that are ASYMMETRIC or more, worst first."""
    pairs = []
    for i in range(len(rows)):
        for j in range(i):
            fast, slow = max(rows[i][j], rows[j][i]), min(rows[i][j], rows[j][i])
            if fast >= ASYMMETRIC * slow:
                pairs.append((fast / slow, *((i, j) if rows[i][j] == slow else (j, i))))
    pairs.sort(key=lambda pair: (-pair[0], pair[1:]))

    def named(node: int) -> str:
        return hosts[node] if hosts else str(node)

    out = [f"{name}, line {lines[i]}: {named(i)} to {named(j)} {rows[i][j] / 1e9:g} GB/s, back {rows[j][i] / 1e9:g}: "
           f"{ratio:.3g} times as fast" for ratio, i, j in pairs[:_SHOWN]]  # fmt: skip
    more = len(pairs) - _SHOWN
    return (*out, *([f"{name}: {more} more pairs of which one direction is {ASYMMETRIC:g} times as fast"]
                    if more > 0 else []))  # fmt: skip
