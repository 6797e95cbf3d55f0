"""Links between nodes that differ: the bandwidth that each kind of group of ranks has on them, in bytes/s per GPU."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from functools import cached_property

import numpy as np

from ...cost_models.arrays import Array
from ...cost_models.layouts import Layout
from ...cost_models.rates.rates import GROUPS
from ...cost_models.specs.cluster import ClusterSpec
from ..document.candidate import Candidate
from ..request.resolve import Resolved


@dataclass(frozen=True)
class Network:
    """The links of a cluster whose pairs of nodes differ in bandwidth."""

    cluster: ClusterSpec  # with `links`

    @cached_property
    def _bw(self) -> Array:
        if self.cluster.links is None:
            raise ValueError("all links are alike")
        return np.array(self.cluster.links.bw_bytes_per_s)

    @cached_property
    def fastest(self) -> float:
        """Bytes/s of a GPU's share of the fastest pair of nodes."""
        return float(self._bw.max()) / self.cluster.gpus_per_node

    @cached_property
    def slowness(self) -> Array:
        """[from, to] how many times slower than the fastest each pair of nodes is; 1 on the diagonal."""
        slowness = np.divide(self._bw.max(), self._bw, out=np.ones_like(self._bw), where=self._bw > 0)
        np.fill_diagonal(slowness, 1.0)
        return np.asarray(slowness)

    def group_bandwidths(self, factors: Mapping[str, float]) -> dict[str, float]:
        """Bytes/s per GPU of every kind of group. factors: how many times slower than the fastest link; default 1."""
        return {name: self.fastest / factors.get(name, 1.0) for name in GROUPS}

    @cached_property
    def least(self) -> dict[str, float]:
        """Bytes/s per GPU of every kind of group at most, whatever the layout and the order. Every node has an edge in
        some ring, and in some all-to-all. So the node with the worst links slows these kinds, at least to its best
        link. For pipelines and tied embeddings there is no such bound here."""
        between = self.slowness.copy()
        np.fill_diagonal(between, np.inf)
        ring = float(np.maximum(between, between.T).min(axis=1).max())
        pairs = float(max(between.min(axis=1).max(), between.min(axis=0).max()))
        return self.group_bandwidths({**dict.fromkeys(GROUPS, ring), "ep": pairs, "cp": pairs, "pp": 1.0, "tied": 1.0})

    def between_stages(self, layout: Layout, nodes: tuple[int, ...]) -> Array:
        """[from stage, to stage] bytes/s per GPU of the slowest pair of nodes between two stages, rank by rank.
        nodes[k] sits on slot k."""
        slots = np.arange(layout.num_gpus).reshape(layout.pp, -1) // self.cluster.gpus_per_node
        on = np.array(nodes)[slots]
        return np.asarray(self.fastest / self.slowness[on[:, None], on[None]].max(axis=-1))

    def shares(self) -> Array:
        """[node] bandwidth of its best link, the slower of both directions, over that of the fastest pair."""
        both = np.minimum(self._bw, self._bw.T)
        np.fill_diagonal(both, 0.0)
        return np.asarray(both.max(axis=1) / self._bw.max())

    @property
    def hosts(self) -> tuple[str, ...]:
        return self.cluster.hosts or tuple(f"node-{index}" for index in range(self.cluster.num_nodes))


def optimistic(resolved: Resolved) -> Resolved:
    """The request on a network that is at least as fast for each kind of group as any order of the nodes."""
    return replace(resolved, network=Network(resolved.cluster).least)


def as_placed(resolved: Resolved, candidate: Candidate) -> Resolved:
    """The request on the links of a candidate's groups, where the plan has placed its nodes."""
    order = candidate.placement.order
    if order is None or resolved.cluster.links is None:
        return resolved
    factors = {kind.name: kind.slowdown for kind in order.kinds}
    return replace(resolved, network=Network(resolved.cluster).group_bandwidths(factors), nodes=order.nodes)
