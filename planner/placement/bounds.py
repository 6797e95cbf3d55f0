"""What no order of the nodes can beat: bounds of the factors of an OrderProblem, on the graph of the links."""

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
    return np.array([max(bounds[g.way](problem.matrix(g), g), 1.0) for _, g in problem.kinds], dtype=np.float64)


def _least_ring(matrix: Array, groups: NodeGroups) -> float:
    """Every node has a slot, and every slot of the rings as many edges as its ring gives it (one in a pair, else two):
    the least t such that over links of at most t every node has that many, and nodes that reach each other are a whole
    number of rings."""
    slots, degrees = np.unique(np.unique(np.sort(groups.edges, axis=1), axis=0), return_counts=True)
    n = len(matrix)
    if len(slots) < n:
        return float(off_diagonal(matrix).min())
    ring = np.gcd.reduce([len(part) for part in nx.connected_components(nx.Graph(groups.edges.tolist()))])
    needed = int(degrees.min())
    nearest = np.sort(_apart(matrix), axis=1)
    levels = np.unique(off_diagonal(matrix))
    low = int(np.searchsorted(levels, nearest[:, needed - 1].max()))
    high = len(levels) - 1
    while low < high:
        middle = (low + high) // 2
        _, part = connected_components(_apart(matrix) <= levels[middle])
        whole = not (np.bincount(part) % ring).any()
        low, high = (low, middle) if whole else (middle + 1, high)
    return float(levels[low])


def _least_pairs(matrix: Array, groups: NodeGroups) -> float:
    """The node with the worst links still has the rows of some slot: at best to its nearest nodes."""
    peers = int(np.diff([*groups.starts, len(groups.edges)]).min())
    if len(np.unique(groups.edges)) < len(matrix):
        return float(off_diagonal(matrix).min())
    apart = _apart(matrix)
    return float(max(np.sort(apart, axis=axis).take(range(peers), axis=axis).mean(axis=axis).max() for axis in (0, 1)))


def _least_chain(matrix: Array, groups: NodeGroups) -> float:
    """The slowest pipeline is no faster than the mean of them, whose edges are a forest on the nodes: at best the
    shortest edges of a minimum spanning tree. And the node with the worst links has an edge in some pipeline."""
    apart = groups.edges[:, 0] != groups.edges[:, 1]
    inside = int((~apart).sum())
    length = len(groups.edges) / len(groups.starts)
    graph: nx.Graph[int] = nx.Graph(groups.edges[apart].tolist())
    forest = graph.number_of_nodes() - nx.number_connected_components(graph)
    distinct = np.unique(np.sort(groups.edges[apart], axis=1), axis=0)
    least = float(off_diagonal(matrix).min())
    if graph.number_of_nodes() < len(matrix):
        return (inside + (len(groups.edges) - inside) * least) / len(groups.edges)
    shortest = np.sort(minimum_spanning_tree(_apart(matrix, 0.0)).data)[:forest]
    # Every distinct edge is used by equally many pipelines or more; those beyond the forest cost the least edge.
    mean = (inside + shortest.sum() + (len(groups.edges) - inside - len(shortest)) * least) / len(groups.edges)
    if len(distinct) != len(groups.edges) - inside:
        mean = 1.0
    leaving = np.add.reduceat(apart, groups.starts, dtype=np.int64)
    per_row = int(leaving[leaving > 0].min())
    worst = float(_apart(matrix).min(axis=1).max())
    one = (length - per_row + worst + (per_row - 1) * least) / length
    return float(max(mean, one))


def _apart(matrix: Array, own: float = np.inf) -> Array:
    """The matrix with `own` on its diagonal."""
    out = matrix.copy()
    np.fill_diagonal(out, own)
    return out


def off_diagonal(matrix: Array) -> Array:
    return matrix[~np.eye(len(matrix), dtype=bool)]
