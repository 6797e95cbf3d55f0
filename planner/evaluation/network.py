"""Links between nodes that differ, as groups of ranks find them: bytes/s per GPU of every kind of group."""

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
    """The links of a cluster: bytes/s of a GPU's share of the fastest pair, and how many times slower each pair is."""

    cluster: ClusterSpec

    @cached_property
    def _bw(self) -> Array:
        if self.cluster.links is None:
            raise ValueError("all links are alike")
        return np.array(self.cluster.links.bw_bytes_per_s)

    @cached_property
    def fastest(self) -> float:
        return float(self._bw.max()) / self.cluster.gpus_per_node

    @cached_property
    def slowness(self) -> Array:
        """[from, to] >= 1; 1 on the diagonal."""
        found = np.divide(self._bw.max(), self._bw, out=np.ones_like(self._bw), where=self._bw > 0)
        np.fill_diagonal(found, 1.0)
        return np.asarray(found)

    def found_by(self, factors: Mapping[str, float]) -> dict[str, float]:
        """Bytes/s per GPU of every kind of group; those not in `factors` find the fastest link."""
        return {name: self.fastest / factors.get(name, 1.0) for name in GROUPS}

    @cached_property
    def least(self) -> dict[str, float]:
        """Bytes/s per GPU of every kind of group at best, whatever the layout and the order: a group that leaves its
        nodes has an edge from every node, and the node with the worst links has none better than its best."""
        apart = self.slowness.copy()
        np.fill_diagonal(apart, np.inf)
        ring = float(np.maximum(apart, apart.T).min(axis=1).max())
        pairs = float(max(apart.min(axis=1).max(), apart.min(axis=0).max()))
        return self.found_by({**dict.fromkeys(GROUPS, ring), "ep": pairs, "cp": pairs, "pp": 1.0, "tied": 1.0})

    def between_stages(self, layout: Layout, nodes: tuple[int, ...]) -> Array:
        """[from stage, to stage] bytes/s per GPU of the slowest pair of nodes that two stages have at the same place,
        where nodes[k] sits on slot k."""
        slots = np.arange(layout.num_gpus).reshape(layout.pp, -1) // self.cluster.gpus_per_node
        on = np.array(nodes)[slots]
        return np.asarray(self.fastest / self.slowness[on[:, None], on[None]].max(axis=-1))

    def shares(self) -> Array:
        """[node] speed of its best link, both ways, over that of the fastest pair."""
        both = np.minimum(self._bw, self._bw.T)
        np.fill_diagonal(both, 0.0)
        return np.asarray(both.max(axis=1) / self._bw.max())

    @property
    def hosts(self) -> tuple[str, ...]:
        return self.cluster.hosts or tuple(f"node-{index}" for index in range(self.cluster.num_nodes))


def optimistic(resolved: Resolved) -> Resolved:
    """The request on the best network that any order can give each kind of group."""
    return replace(resolved, network=Network(resolved.cluster).least)


def as_placed(resolved: Resolved, candidate: Candidate) -> Resolved:
    """The request on the links that the groups of a candidate find, where the plan has placed its nodes."""
    order = candidate.placement.order
    if order is None or resolved.cluster.links is None:
        return resolved
    factors = {kind.name: kind.slowdown for kind in order.kinds}
    return replace(resolved, network=Network(resolved.cluster).found_by(factors), nodes=order.nodes)
