"""Packs of equal work: algorithm 1 of WLB-LLM (arXiv:2503.17924), without the queue that delays outlier documents."""

from __future__ import annotations

import numpy as np

from ....cost_models.arrays import Array
from ..batch_plan import descending


def packs_of_equal_work(lengths: Array, work: Array, room: float, num_packs: int) -> list[list[int]] | None:
    """Documents [k] by pack; None where `room` tokens per pack do not hold them. work: [k].

    The longest document comes first. It goes to the pack with the least work, or to the one with the fewest tokens if
    the former has no room.
    """
    packs: list[list[int]] = [[] for _ in range(num_packs)]
    loads, tokens = np.zeros(num_packs), np.zeros(num_packs)
    for k in descending(lengths).tolist():
        at = int(loads.argmin())
        if tokens[at] + lengths[k] > room:
            at = int(tokens.argmin())
        if tokens[at] + lengths[k] > room:
            return None
        packs[at].append(k)
        loads[at] += work[k]
        tokens[at] += lengths[k]
    return packs
