"""Which requests of a study can be searched together: those that differ in rates alone, and in memory per GPU."""

from __future__ import annotations

from collections.abc import Sequence

from ..request.resolve import Resolved
from ..search.rate_sweep import RateSweep


def together(founds: Sequence[Resolved]) -> list[RateSweep | None]:
    """For every request the search that it shares with others; None where it is alone, or memory is what it wants
    least of: then rates do not matter."""
    groups: list[list[int]] = []
    for index, found in enumerate(founds):
        mine = next((group for group in groups if _alike(founds[group[0]], found)), None)
        if mine is None:
            groups.append([index])
        else:
            mine.append(index)
    out: list[RateSweep | None] = [None] * len(founds)
    for group in groups:
        one = founds[group[0]]
        if len(group) > 1 and one.workload.objective != "memory":
            most = max(founds[index].memory_bytes for index in group)
            search = RateSweep(one.space, one.rates, memory_bytes=most, host_bytes=one.host_bytes)
            for index in group:
                out[index] = search
    return out


def _alike(one: Resolved, other: Resolved) -> bool:
    """Whether the same layouts are legal, and take the same bytes."""
    same = one.target is other.target and one.request.fix == other.request.fix
    if not (same and one.host_bytes == other.host_bytes and one.rates.overheads == other.rates.overheads):
        return False
    return one.problem is other.problem or one.problem == other.problem
