"""LoRA (arXiv 2106.09685): frozen weights W, and trained adapters that add (alpha / r) B (A x) to some products W x.

A is [r, in] and B is [out, r]. Under tp, W split by outputs has a replicated A and a B split like W; W split by inputs
has a split A and a replicated B. A x and B (A x) are then distributed like W x, and each rank holds a partial gradient
of the replicated factor.
"""

from __future__ import annotations

from dataclasses import dataclass

from ...cost_models.specs.workload import Lora


@dataclass(frozen=True)
class Adapters:
    """The adapters that train beside frozen weights."""

    rank: int  # r, the width between A and B
    scale: float  # alpha / r
    targets: frozenset[str]  # products with an adapter, among q k v o gate up down

    @classmethod
    def of(cls, lora: Lora, alpha: float | None) -> Adapters:
        """The adapters of a workload. alpha None: the rank (section 4.1 of the paper), which is a scale of 1."""
        return cls(lora.rank, (lora.rank if alpha is None else alpha) / lora.rank, frozenset(lora.targets))

    def without(self) -> Adapters:
        """No adapters, for a frozen part of the model."""
        return Adapters(self.rank, self.scale, frozenset())


def of_input(name: str) -> str:
    """A's name beside the weight `name`."""
    return f"{name}_lora_a"


def of_output(name: str) -> str:
    """B's name."""
    return f"{name}_lora_b"
