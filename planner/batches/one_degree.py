"""Plans with one degree for all sequences of a batch: the static plan, and the one that adapts from batch to batch.

Sequences fill groups by best fit, the longest first, to a share of what the group holds; groups train in the order of
their seconds. These are the baselines of FlexSP (strategies `fix_sp_bfd` and `adaptive_bfd` of its solver in
AFDWang/Hetu-Galvatron, branch flexsp).
"""

from __future__ import annotations

from bisect import bisect_right, insort
from collections.abc import Iterable, Sequence

import numpy as np

from ...cost_models.arrays import Array
from .batch_plan import BatchPlan, Group, batch_plan, descending
from .costs import GroupCosts

FILL = 0.9  # of the tokens that a group holds, but for a sequence that is longer


def with_degree(lengths: Array, costs: GroupCosts, degree: int) -> BatchPlan | None:
    """The plan of a batch of `lengths` [k] on groups of `degree`; None where such a group does not hold a sequence."""
    room = costs.rank_tokens * degree
    if lengths.max() > room:
        return None
    contents = best_fit(lengths, max(FILL * room, float(lengths.max())))
    seconds = costs.seconds(lengths)[:, list(costs.degrees).index(degree)]
    contents.sort(key=lambda members: (-float(seconds[members].sum()), members))
    side_by_side = costs.num_ranks // degree
    groups = [Group(degree, tuple(members)) for members in contents]
    parts = [groups[start : start + side_by_side] for start in range(0, len(groups), side_by_side)]
    return batch_plan(parts, lengths, costs)


def best_fit(lengths: Array, room: float) -> list[list[int]]:
    """Sequences by group: each goes where it leaves the least room, or to a new group."""
    loads: list[tuple[float, int]] = []  # ascending
    contents: list[list[int]] = []
    for k in descending(lengths).tolist():
        length = float(lengths[k])
        at = bisect_right(loads, (room - length, len(lengths))) - 1
        load, group = loads.pop(at) if at >= 0 else (0.0, len(contents))
        if group == len(contents):
            contents.append([])
        contents[group].append(k)
        insort(loads, (load + length, group))
    return contents


def adaptive(lengths: Array, costs: GroupCosts) -> BatchPlan:
    """The fastest plan of a batch with one degree."""
    return _fastest(plan for degree in costs.degrees if (plan := with_degree(lengths, costs, int(degree))))


def _fastest(plans: Iterable[BatchPlan]) -> BatchPlan:
    return min(plans, key=lambda plan: plan.step_s)  # of equal ones the one of the least degree


def least_degree(longest: float, costs: GroupCosts) -> int:
    """The least degree whose groups hold a sequence of `longest` tokens."""
    return int(costs.degrees[np.searchsorted(costs.degrees * costs.rank_tokens, longest)])


def static_degree(batches: Sequence[Array], costs: GroupCosts, longest: float) -> int:
    """The degree that trains all batches in the least time, of those whose groups hold a sequence of `longest` tokens,
    the longest that a run may meet."""
    least = least_degree(longest, costs)
    able = [int(degree) for degree in costs.degrees if degree >= least]
    return min(able, key=lambda degree: sum(_step_s(lengths, costs, degree) for lengths in batches))


def _step_s(lengths: Array, costs: GroupCosts, degree: int) -> float:
    plan = with_degree(lengths, costs, degree)
    return plan.step_s if plan else np.inf
