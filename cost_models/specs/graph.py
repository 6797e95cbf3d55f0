"""Graph networks: the graph that one step trains on."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from ..arrays import Array


@dataclass(frozen=True, slots=True, kw_only=True)
class Graph:
    """A graph whose vertices are the tokens of a step. Its features and classes are both ends of the network."""

    vertices: int
    edges: int  # directed: an undirected edge is two
    features: int  # values of a vertex before the first layer; those after the last are the vocabulary
    # (parts, copies per vertex on other parts) as a partitioner leaves them, in the order of parts
    copies: tuple[tuple[int, float], ...] = ()

    @property
    def degree(self) -> float:
        """Edges that end in a vertex, mean."""
        return self.edges / self.vertices

    def copies_on(self, parts: Array) -> Array:
        """[n] copies of a vertex that other parts of so many hold: the given ones, elsewhere those of vertices that are
        dealt at random, (p - 1) (1 - (1 - 1/p)^degree): a part without a neighbour of a vertex needs no copy of it."""
        p = np.maximum(np.asarray(parts, dtype=np.float64), 1.0)
        dealt = (p - 1) * (1 - (1 - 1 / p) ** self.degree)
        for number, copies in self.copies:
            dealt = np.where(p == number, copies, dealt)
        return np.asarray(dealt)
