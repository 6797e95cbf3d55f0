"""The common part of Megatron's rules of context parallelism by document: groups of ranks that fill, and micro-batches
until no document is left."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Protocol

from ...cost_models.arrays import Array
from .batch_plan import Group, descending

Document = tuple[int, float]  # number, tokens


def needed_ranks(tokens: float, rank_tokens: int) -> int:
    """The degree of a document, before groups grow."""
    return 1 << max(0, math.ceil(math.log2(tokens / rank_tokens)))


@dataclass
class FillingGroup:
    """A group as it fills."""

    degree: int
    tokens: float = 0.0  # of a rank
    load: float = 0.0  # squared tokens over ranks
    documents: list[Document] = field(default_factory=list)


class Filling(Protocol):
    """A micro-batch of a rule."""

    groups: list[FillingGroup]

    def fill(self, documents: Sequence[Document]) -> list[Document]:
        """Places documents; returns those that are left, in the order in which the next micro-batch gets them."""
        ...


def micro_batches(lengths: Array, make: Callable[[], Filling]) -> list[list[Group]]:
    """The groups of each micro-batch of a batch of `lengths` [k] tokens, which come in descending length."""
    left: Sequence[Document] = [(k, float(lengths[k])) for k in descending(lengths).tolist()]
    out = list[list[Group]]()
    while left:
        micro_batch = make()
        left = micro_batch.fill(left)
        out.append([Group(group.degree, tuple(k for k, _ in group.documents)) for group in micro_batch.groups])
    return out
