"""Stages of DeepSpeed's pipeline where they do not divide the layers.

Source: DeepSpeed edaa7221 (2026-08-22), runtime/utils.py (partition_balanced: the least difference between the heaviest
and the lightest stage; of equal ones the last) and runtime/pipe/module.py (_partition_layers, `type:transformer`).
"""

from __future__ import annotations

from itertools import pairwise

import numpy as np

# Modules of Megatron-DeepSpeed's GPTModelPipe in front of the layers and behind them, which weigh nothing.
_FRONT, _BACK = 2, 2


def balanced(layers: int, stages: int) -> list[int]:
    """The layers of each stage."""
    sums = np.cumsum([0, *[0] * _FRONT, *[1] * layers, *[0] * _BACK])
    items = len(sums) - 1
    heaviest, lightest, cost = (np.full((items + 1, stages + 1), np.inf) for _ in range(3))
    place = np.zeros((items + 1, stages + 1), dtype=int)
    heaviest[0, 0] = cost[0, 0] = 0
    for end in range(1, items + 1):
        last = sums[end] - sums[:end]
        for stage in range(1, min(end, stages) + 1):
            most, least = np.maximum(heaviest[:end, stage - 1], last), np.minimum(lightest[:end, stage - 1], last)
            differences = most - least
            start = end - 1 - int(np.argmin(differences[::-1]))
            cost[end, stage], place[end, stage] = differences[start], start
            heaviest[end, stage], lightest[end, stage] = most[start], least[start]
    ends = [items]
    for stage in range(stages, 0, -1):
        ends.append(int(place[ends[-1], stage]))
    ends.reverse()
    return [int(sums[end] - sums[start]) for start, end in pairwise(ends)]
