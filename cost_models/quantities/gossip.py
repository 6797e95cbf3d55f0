"""Gossip over the links of a graph of replicas: how often its replicas must exchange for each step of their own.

Nabli and Oyallon 2023 (DADAO, arXiv 2208.00779): links exchange at rates of their own, lambda_ij per step. chi_1 is 1
over the smallest eigenvalue above 0 of the Laplacian L of these rates, and chi_2 half of the largest effective
resistance of a link. Gossip keeps up with the gradients where chi_1 chi_2 is at most 1/2 (the order is the paper's
theorem; the constant is assumed). Rates that are c times as large have 1/c of both, so that any rates do once they are
scaled by sqrt(2 chi_1 chi_2).
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from math import sqrt

import numpy as np

from ..arrays import Array, Ints

Link = tuple[int, int]  # two replicas


@dataclass(frozen=True, eq=False)
class Gossip:
    """Links of a connected graph with a rate each."""

    replicas: int
    links: Sequence[Link]
    rates: Array  # [link] in proportion: their sum is not read

    @cached_property
    def ends(self) -> Ints:
        """[2, link] replicas of each link."""
        return np.array(self.links, dtype=np.int64).T

    @cached_property
    def spectrum(self) -> tuple[Array, Array]:
        """Eigenvalues of the Laplacian from the second on, and [replica, eigenvalue] their vectors."""
        laplacian = np.zeros((self.replicas, self.replicas))
        for sign, (i, j) in ((1.0, (0, 0)), (1.0, (1, 1)), (-1.0, (0, 1)), (-1.0, (1, 0))):
            np.add.at(laplacian, (self.ends[i], self.ends[j]), sign * self.rates)
        values, vectors = np.linalg.eigh(laplacian)
        return values[1:], vectors[:, 1:]

    @cached_property
    def seen(self) -> Array:
        """[link, eigenvalue] differences of the vectors over the links."""
        return np.asarray(self.spectrum[1][self.ends[0]] - self.spectrum[1][self.ends[1]])

    @cached_property
    def resistances(self) -> Array:
        """[link] effective resistances b_e' L^+ b_e."""
        return np.asarray((self.seen**2 / self.spectrum[0]).sum(1))

    def across(self, link: int) -> Array:
        """[link] potentials over all links that a current over one makes: b_e' L^+ b_f."""
        return np.asarray(self.seen @ (self.seen[link] / self.spectrum[0]))

    @property
    def chi_1(self) -> float:
        return float(1.0 / self.spectrum[0][0])

    @property
    def chi_2(self) -> float:
        return float(self.resistances.max() / 2)

    @cached_property
    def per_step(self) -> Array:
        """[link] exchanges per step."""
        return np.asarray(self.rates * np.sqrt(2 * self.chi_1 * self.chi_2))

    @property
    def exchanges(self) -> float:
        """Exchanges of the mean replica in a step. Each link has two ends."""
        return float(2 * self.per_step.sum() / self.replicas)

    @property
    def busiest(self) -> float:
        """Exchanges in a step of the replica that has most of them, which paces all."""
        return float(np.bincount(self.ends.ravel(), weights=np.tile(self.per_step, 2)).max())


def complete(replicas: int) -> tuple[float, float]:
    """(chi_1 = chi_2, exchanges) of a complete graph at the rates at which gossip keeps up with gradients.

    All eigenvalues of equal rates r are n r, and a resistance is 2 / (n r): both are 1 / (n r), which is sqrt(1/2).
    """
    return sqrt(1 / 2), sqrt(2) * (replicas - 1) / replicas


def parts(replicas: int, links: Sequence[Link]) -> list[list[int]]:
    """The connected parts of a graph, each a list of its replicas."""
    part = list(range(replicas))
    for one, other in links:
        old, new = part[one], part[other]
        part = [new if of == old else of for of in part]
    return [[i for i in range(replicas) if part[i] == of] for of in dict.fromkeys(part)]


def of_shape(shape: str, replicas: int) -> list[Link]:
    """Links of a `complete` graph, a `ring`, a `line` or a `star`."""
    if shape == "complete":
        return [(i, j) for i in range(replicas) for j in range(i + 1, replicas)]
    if shape == "star":
        return [(0, i) for i in range(1, replicas)]
    line = [(i, i + 1) for i in range(replicas - 1)]
    return [*line, (0, replicas - 1)] if shape == "ring" and replicas > 2 else line


SHAPES = ("complete", "ring", "line", "star")
