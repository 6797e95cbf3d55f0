"""Lower bounds of the factors of an OrderProblem over all orders of the nodes, on the graph of the links.

Each bound forgets most of the pattern of a kind and keeps a property that every order has, such as the number of edges
at each node. A graph with this property and the fastest links is found directly.
"""

from __future__ import annotations

import networkx as nx
import numpy as np
from scipy.sparse.csgraph import connected_components, minimum_spanning_tree

from ...cost_models.arrays import Array
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
    ring = np.gcd.reduce([len(part) for part in nx.connected_components(nx.Graph(groups.edges.tolist()))])
    needed = int(degrees.min())
    nearest = np.sort(_between(matrix), axis=1)
    levels = np.unique(off_diagonal(matrix))
    low = int(np.searchsorted(levels, nearest[:, needed - 1].max()))
    high = len(levels) - 1
    while low < high:
        middle = (low + high) // 2
        _, part = connected_components(_between(matrix) <= levels[middle])
        whole = not (np.bincount(part) % ring).any()
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
    graph: nx.Graph[int] = nx.Graph(groups.edges[leaves].tolist())
    forest = graph.number_of_nodes() - nx.number_connected_components(graph)
    distinct = np.unique(np.sort(groups.edges[leaves], axis=1), axis=0)
    least = float(off_diagonal(matrix).min())
    if graph.number_of_nodes() < len(matrix):
        return (inside + (len(groups.edges) - inside) * least) / len(groups.edges)
    shortest = np.sort(minimum_spanning_tree(_between(matrix, 0.0)).data)[:forest]
    # Every distinct edge is used by equally many pipelines or more; those beyond the forest cost the least edge.
    mean = (inside + shortest.sum() + (len(groups.edges) - inside - len(shortest)) * least) / len(groups.edges)
    if len(distinct) != len(groups.edges) - inside:
        mean = 1.0
    leaving = np.add.reduceat(leaves, groups.starts, dtype=np.int64)
    per_row = int(leaving[leaving > 0].min())
    worst = float(_between(matrix).min(axis=1).max())
    of_worst = (length - per_row + worst + (per_row - 1) * least) / length
    return float(max(mean, of_worst))


def _between(matrix: Array, diagonal: float = np.inf) -> Array:
    """The matrix between nodes, with `diagonal` for a node and itself."""
    out = matrix.copy()
    np.fill_diagonal(out, diagonal)
    return out


def off_diagonal(matrix: Array) -> Array:
    return matrix[~np.eye(len(matrix), dtype=bool)]
