"""The plan of one batch: which sequences train together, on groups of which degree, in which micro-batch."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from ...cost_models.arrays import Array, Ints
from .costs import GroupCosts


@dataclass(frozen=True, order=True)
class Group:
    """Ranks that share sequences."""

    degree: int  # ranks
    sequences: tuple[int, ...]  # indices in the batch


MicroBatch = tuple[Group, ...]  # side by side, on no more ranks than there are


@dataclass(frozen=True)
class BatchPlan:
    """The micro-batches of a step, and its seconds."""

    micro_batches: tuple[MicroBatch, ...]
    step_s: float

    @property
    def degrees(self) -> tuple[int, ...]:
        """The distinct degrees of its groups, ascending."""
        return tuple(sorted({group.degree for groups in self.micro_batches for group in groups}))

    @property
    def num_micro_batches(self) -> int:
        return len(self.micro_batches)


def batch_plan(micro_batches: Sequence[Sequence[Group]], lengths: Array, costs: GroupCosts) -> BatchPlan:
    """The plan in its canonical order, priced: equal plans are equal objects. Empty micro-batches are left out.

    lengths: [k] tokens of the sequences that groups number. Groups stand in descending degree, so that each begins at
    a multiple of its degree when ranks are dealt out in this order.
    """
    seconds = costs.seconds(lengths)
    column = {int(degree): at for at, degree in enumerate(costs.degrees)}

    def group_s(group: Group) -> float:
        return float(seconds[list(group.sequences), column[group.degree]].sum())

    def ordered(group: Group) -> Group:
        return Group(group.degree, tuple(sorted(group.sequences, key=lambda k: (-lengths[k], k))))

    out = []
    for groups in micro_batches:
        members = sorted(map(ordered, groups), key=lambda group: (-group.degree, group.sequences))
        if members:
            out.append((max(map(group_s, members)), tuple(members)))
    out.sort(key=lambda micro_batch: (-round(micro_batch[0], 12), micro_batch[1]))
    step_s = costs.once_s + sum(costs.micro_batch_s + makespan_s for makespan_s, _ in out)
    return BatchPlan(tuple(groups for _, groups in out), float(step_s))


def peak_tokens(plan: BatchPlan, lengths: Array) -> float:
    """Tokens of a micro-batch on the fullest rank."""
    return max(float(lengths[list(group.sequences)].sum()) / group.degree
               for groups in plan.micro_batches for group in groups)  # fmt: skip


def descending(lengths: Array) -> Ints:
    """[k] indices of the sequences, the longest first; equal ones in their order."""
    return np.argsort(-lengths, kind="stable")
