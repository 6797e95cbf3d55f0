"""Gossip over the links of a graph of replicas: how often its replicas must exchange for each step of their own.

Nabli and Oyallon 2023 (DADAO, arXiv 2208.00779): links exchange at rates of their own, lambda_ij per step. Of the
Laplacian L of these rates, chi_1 is 1 over the smallest eigenvalue above 0 and chi_2 half of the largest effective
resistance of a link. Gossip keeps up with the gradients where chi_1 chi_2 is at most 1/2 (the order is the paper's
theorem; the constant is assumed). Rates that are c times as large have 1/c of both, so that any rates do once they are
scaled by sqrt(2 chi_1 chi_2).
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property

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
    def incidence(self) -> Array:
        """[link, replica] 1 and -1 at the ends of a link."""
        rows, out = np.arange(len(self.links)), np.zeros((len(self.links), self.replicas))
        out[rows, self.ends[0]], out[rows, self.ends[1]] = 1.0, -1.0
        return out

    @cached_property
    def spectrum(self) -> tuple[Array, Array]:
        """Eigenvalues of the Laplacian from the second on, and [replica, eigenvalue] their vectors."""
        values, vectors = np.linalg.eigh(self.incidence.T @ (self.rates[:, None] * self.incidence))
        return values[1:], vectors[:, 1:]

    @cached_property
    def across(self) -> Array:
        """[link, link] the share of a potential over one link that a current over the other makes: b_e' L^+ b_f."""
        values, vectors = self.spectrum
        seen = self.incidence @ vectors
        return np.asarray((seen / values) @ seen.T)

    @property
    def chi_1(self) -> float:
        return float(1.0 / self.spectrum[0][0])

    @property
    def chi_2(self) -> float:
        return float(np.diagonal(self.across).max() / 2)

    @cached_property
    def per_step(self) -> Array:
        """[link] exchanges per step."""
        return np.asarray(self.rates * np.sqrt(2 * self.chi_1 * self.chi_2))

    @property
    def exchanges(self) -> float:
        """Those of the mean replica in a step. Each link has two ends."""
        return float(2 * self.per_step.sum() / self.replicas)


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
