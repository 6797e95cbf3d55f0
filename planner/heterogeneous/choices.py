"""Priced manners of using the islands of a cluster: the best of each family."""

from __future__ import annotations

import math
from dataclasses import dataclass, field
from typing import Any

from ..evaluation.staged import Staged
from ..search.top_k import FAMILY
from .islands import IslandPart


@dataclass(frozen=True)
class IslandChoice:
    """A priced manner of using some islands."""

    manner: str  # `across`, `replicas` or `together`
    parts: tuple[IslandPart, ...]  # in the order of the pipeline
    staged: Staged

    @property
    def way(self) -> str:
        """Its manner as plans name it: on one island alone, `across` runs as `together` does."""
        return self.manner if len(self.parts) > 1 else "together"

    @property
    def family(self) -> tuple[Any, ...]:
        numbers = tuple(sorted(part.number for part in self.parts))
        return (self.manner, numbers, *(getattr(self.staged.layout, name) for name in FAMILY))


@dataclass
class Choices:
    """The choices that a search has priced so far."""

    best: dict[tuple[Any, ...], IslandChoice] = field(default_factory=dict)  # of each family
    priced: int = 0  # all partitions counted

    def record(self, choice: IslandChoice) -> None:
        """Count a choice, and remember it if it is the best of its family."""
        self.priced += 1
        known = self.best.get(choice.family)
        if known is None or choice.staged.step_s < known.staged.step_s:
            self.best[choice.family] = choice

    def __bool__(self) -> bool:
        return bool(self.best)

    @property
    def ranked(self) -> list[IslandChoice]:
        """Fastest first."""
        def rank(choice: IslandChoice) -> tuple[float, str]:
            return float(f"{choice.staged.step_s:.9g}"), choice.staged.id

        return sorted(self.best.values(), key=rank)

    @property
    def distinct(self) -> list[IslandChoice]:
        """The same without those that run as a faster or equal one: a search goes on from each, a plan lists one."""
        once: dict[tuple[Any, ...], IslandChoice] = {}
        for choice in self.ranked:
            once.setdefault((choice.way, choice.parts, choice.staged.id), choice)
        return list(once.values())

    @property
    def best_s(self) -> float:
        return min((choice.staged.step_s for choice in self.best.values()), default=math.inf)
