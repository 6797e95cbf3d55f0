"""A lower bound on the makespans of a batch out of rank-seconds, and the makespans at which it changes.

Let C be the longest makespan. A sequence trains on a degree d with t(s, d) <= C, so it takes at least
a(s, C) = min over these d of d t(s, d) rank-seconds, and the micro-batches together take at least
max(C, sum a(s, C) / ranks). The least of that over all C holds for every plan. a falls where C reaches a t(s, d).
"""

from __future__ import annotations

import numpy as np

from ...cost_models.arrays import Array
from .packing import Batch


def area_s(batch: Batch, longest_s: float) -> float:
    """Least seconds of the micro-batches together, if the longest takes at most `longest_s`."""
    area = np.where(batch.seconds <= longest_s, batch.seconds * batch.costs.degrees, np.inf)
    return float(area.min(axis=1).sum()) / batch.costs.num_ranks


def least_makespan_s(batch: Batch) -> float:
    """Seconds of the longest sequence where it trains fastest."""
    return float(batch.seconds.min(axis=1).max())


def area_bound(batch: Batch) -> tuple[float, Array]:
    """The bound, and the makespans up to the one that gives it, ascending."""
    least = least_makespan_s(batch)
    steps = np.unique(batch.seconds[np.isfinite(batch.seconds)])
    bound, passed = np.inf, []
    for longest_s in steps[steps >= least].tolist():
        passed.append(longest_s)
        bound = min(bound, max(longest_s, area_s(batch, longest_s)))
        if longest_s > bound:
            break
    return bound, np.array(passed)
