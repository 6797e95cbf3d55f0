"""The placement problem: the order of nodes in which communication over unequal links takes least.

Formulation. Node slots k = 0..N-1 hold the ranks k g .. k g + g - 1 of a layout, g to a node; an order pi puts node
pi(k) on slot k. F[i, j] >= 1 is how many times slower node i sends to node j than the fastest pair does. Minimise

    C(pi) = fixed + sum over kinds of groups a of  V_a x_a(pi)
    x_a(pi) = max over rows r of a of  mean over the edges (s, t) of r of  F_a[pi(s), pi(t)]

V_a: seconds that kind a takes longer per time that its links are slower. Rows are those of `node_groups`: one per edge
of a ring (F_a = max(F, F^T): a library sends it round either way, and trees send both), one per member and direction of
an all-to-all (F_a = F), one per pipeline (F_a = (F + F^T) / 2: activations one way, gradients the other). Pipette
minimises the same (arXiv 2405.18093); here, V_a is from the step model of this package.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property

import numpy as np

from ...cost_models.arrays import Array, Ints
from .groups import GroupPattern, NodeGroups


@dataclass(frozen=True)
class OrderProblem:
    """The problem of one layout on one cluster."""

    slowness: Array  # [from, to] F, 1 on the diagonal
    kinds: tuple[tuple[float, NodeGroups], ...]  # (V_a in seconds, groups) of each kind
    fixed: float = 0.0  # seconds

    @property
    def num_nodes(self) -> int:
        return len(self.slowness)

    @cached_property
    def _matrices(self) -> dict[GroupPattern, Array]:
        there, back = self.slowness, self.slowness.T
        return {"ring": np.maximum(there, back), "chain": np.asarray((there + back) / 2), "pairs": there}

    def matrix(self, groups: NodeGroups) -> Array:
        """F_a of a kind of group."""
        return self._matrices[groups.pattern]

    def factors(self, orders: Ints) -> Array:
        """[order, kind] x_a of every order [order, slot]."""
        columns = [self.rows(self.matrix(g), g, orders).max(axis=1) for _, g in self.kinds]
        return np.stack(columns, axis=1) if columns else np.ones((len(orders), 0))

    def seconds(self, orders: Ints) -> Array:
        """[order] C(pi)."""
        return self.fixed + self.factors(orders) @ self.weights

    @property
    def weights(self) -> Array:
        return np.array([weight for weight, _ in self.kinds], dtype=np.float64)

    @staticmethod
    def rows(matrix: Array, groups: NodeGroups, orders: Ints) -> Array:
        """[order, row] mean over the edges of each row."""
        at = matrix[orders[:, groups.edges[:, 0]], orders[:, groups.edges[:, 1]]]
        if len(groups.starts) == len(groups.edges):
            return np.asarray(at)
        lengths = np.diff([*groups.starts, len(groups.edges)])
        return np.asarray(np.add.reduceat(at, groups.starts, axis=1) / lengths)
