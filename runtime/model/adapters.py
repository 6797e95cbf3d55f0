"""LoRA (arXiv 2106.09685): the model's weights are frozen; beside some of its products W x are thin ones that train,
(alpha / r) B (A x), with A [r, in] and B [out, r].

Over tp: of a product split by rows A is on every rank and B split as W is, of one split by columns it is the other way
round. So A x and B (A x) lie as W x does, and what every rank holds has on each a part of its gradient.
"""

from __future__ import annotations

from dataclasses import dataclass

from ...cost_models.specs.workload import Lora


@dataclass(frozen=True)
class Adapters:
    """What trains beside frozen weights."""

    rank: int  # r, the width between A and B
    scale: float  # alpha / r
    targets: frozenset[str]  # products that have one, of q k v o gate up down

    @classmethod
    def of(cls, lora: Lora, alpha: float | None) -> Adapters:
        """alpha None: the rank (section 4.1 of the paper), so that what they make is not scaled."""
        return cls(lora.rank, (lora.rank if alpha is None else alpha) / lora.rank, frozenset(lora.targets))

    def without(self) -> Adapters:
        """For a part of the model that is frozen and has none."""
        return Adapters(self.rank, self.scale, frozenset())


def of_input(name: str) -> str:
    """A's name beside the weight `name`."""
    return f"{name}_lora_a"


def of_output(name: str) -> str:
    """B's name."""
    return f"{name}_lora_b"
