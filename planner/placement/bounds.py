"""Lower bounds of the factors of an OrderProblem over all orders of the nodes, on the graph of the links.

Each bound forgets most of the pattern of a kind and keeps a property that every order has, such as the number of edges
at each node. A graph with this property and the fastest links is found directly.
"""

from __future__ import annotations

import numpy as np

from ...cost_models.arrays import Array, Ints
from .graphs import connected_parts, spanning_tree
from .groups import NodeGroups
from .problem import OrderProblem


def least_factors(problem: OrderProblem) -> Array:
    """[kind] a lower bound of x_a over all orders, each kind by itself."""
    bounds = {"ring": _least_ring, "pairs": _least_pairs, "chain": _least_chain}
    return np.array([max(bounds[g.pattern](problem.matrix(g), g), 1.0) for _, g in problem.kinds], dtype=np.float64)


def _least_ring(matrix: Array, groups: NodeGroups) -> float:
    """Every node is in a ring, with one edge (in a pair) or two. So the bound is the least t such that over links of at
    most t every node has that many edges, and each set of nodes that reach each other is a whole number of rings."""
    slots, degrees = np.unique(np.unique(np.sort(groups.edges, axis=1), axis=0), return_counts=True)
    n = len(matrix)
    if len(slots) < n:
        return float(off_diagonal(matrix).min())
    ring = np.gcd.reduce(np.bincount(_parts(groups.edges)))
    needed = int(degrees.min())
    nearest = np.sort(_between(matrix), axis=1)
    levels = np.unique(off_diagonal(matrix))
    low = int(np.searchsorted(levels, nearest[:, needed - 1].max()))
    high = len(levels) - 1
    while low < high:
        middle = (low + high) // 2
        parts = connected_parts(_between(matrix) <= levels[middle])
        whole = not (np.bincount(parts) % ring).any()
        low, high = (low, middle) if whole else (middle + 1, high)
    return float(levels[low])


def _least_pairs(matrix: Array, groups: NodeGroups) -> float:
    """The node with the worst links has the rows of some slot: at best to the nodes that it reaches fastest."""
    peers = int(np.diff([*groups.starts, len(groups.edges)]).min())
    if len(np.unique(groups.edges)) < len(matrix):
        return float(off_diagonal(matrix).min())
    between = _between(matrix)
    fastest = (np.sort(between, axis=axis).take(range(peers), axis=axis).mean(axis=axis) for axis in (0, 1))
    return float(max(of_nodes.max() for of_nodes in fastest))


def _least_chain(matrix: Array, groups: NodeGroups) -> float:
    """Two bounds. The slowest pipeline is no faster than the mean of them, whose edges contain a forest on the nodes:
    at best the shortest edges of a minimum spanning tree. And the node with the worst links has an edge in some
    pipeline."""
    leaves = groups.edges[:, 0] != groups.edges[:, 1]
    inside = int((~leaves).sum())
    length = len(groups.edges) / len(groups.starts)
    parts = _parts(groups.edges[leaves])
    forest = len(parts) - len(np.unique(parts))
    distinct = np.unique(np.sort(groups.edges[leaves], axis=1), axis=0)
    least = float(off_diagonal(matrix).min())
    if len(parts) < len(matrix):
        return (inside + (len(groups.edges) - inside) * least) / len(groups.edges)
    shortest = np.sort(spanning_tree(matrix))[:forest]
    # Every distinct edge is used by equally many pipelines or more; those beyond the forest cost the least edge.
    mean = (inside + shortest.sum() + (len(groups.edges) - inside - len(shortest)) * least) / len(groups.edges)
    if len(distinct) != len(groups.edges) - inside:
        mean = 1.0
    leaving = np.add.reduceat(leaves, groups.starts, dtype=np.int64)
    per_row = int(leaving[leaving > 0].min())
    worst = float(_between(matrix).min(axis=1).max())
    of_worst = (length - per_row + worst + (per_row - 1) * least) / length
    return float(max(mean, of_worst))


def _parts(edges: Ints) -> Ints:
    """[end] the connected part of every node that an edge [n, 2] has."""
    ends, edge = np.unique(edges, return_inverse=True)
    joined = np.zeros((len(ends), len(ends)), dtype=bool)
    joined[tuple(edge.reshape(-1, 2).T)] = True
    return connected_parts(joined)


def _between(matrix: Array) -> Array:
    """The matrix between nodes, infinite for a node and itself."""
    out = matrix.copy()
    np.fill_diagonal(out, np.inf)
    return out


def off_diagonal(matrix: Array) -> Array:
    return matrix[~np.eye(len(matrix), dtype=bool)]
