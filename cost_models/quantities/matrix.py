"""A parameter that Muon's ranks have whole, and the work of its update; matrices.py says which there are.

Source of the steps: Emerging-Optimizers fd772926, muon_utils.py.
"""

from __future__ import annotations

from dataclasses import dataclass

STEPS = 5  # of Newton-Schulz: OptimizerConfig.muon_num_ns_steps


@dataclass(frozen=True, slots=True)
class Matrix:
    """A parameter that one rank of those that share optimizer states has whole."""

    parts: tuple[tuple[int, int], ...]  # rows and columns of what is orthogonalised by itself
    split: bool = True  # whether tensor parallelism splits it
    expert: bool = False  # of a routed expert
    orthogonalised: bool = True  # by Muon; else Adam updates it

    @property
    def elements(self) -> int:
        return sum(rows * columns for rows, columns in self.parts)

    @property
    def products(self) -> tuple[tuple[int, int, int], ...]:
        """(m, n, k) of every product [m, k] x [k, n] of one step. With X the part, or its transpose if that has fewer
        rows: A = X X', B = b A + c A A, X = a X + B X."""
        if not self.orthogonalised:
            return ()
        sides = ((min(part), max(part)) for part in self.parts)
        return tuple(product for short, long in sides
                     for product in ((short, short, long), (short, short, short), (short, long, short)))  # fmt: skip

    @property
    def flops(self) -> int:
        """FLOPs of the products of an update: of [m, n], m <= n, STEPS (4 m^2 n + 2 m^3)."""
        return STEPS * sum(2 * m * n * k for m, n, k in self.products)
