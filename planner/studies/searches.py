"""Requests of a study that can be searched together: those that differ in rates alone, and in memory per GPU."""

from __future__ import annotations

from collections.abc import Sequence

from ..request.resolve import Resolved
from ..search.rate_sweep import RateSweep


def together(variants: Sequence[Resolved]) -> list[RateSweep | None]:
    """For every request the search that it shares with others; None where it is alone, or memory is what it wants
    least of: then rates do not matter."""
    groups: list[list[int]] = []
    for index, resolved in enumerate(variants):
        members = next((group for group in groups if _same_layouts(variants[group[0]], resolved)), None)
        if members is None:
            groups.append([index])
        else:
            members.append(index)
    out: list[RateSweep | None] = [None] * len(variants)
    for group in groups:
        first = variants[group[0]]
        if len(group) > 1 and first.workload.objective != "memory":
            most = max(variants[index].budget_bytes for index in group)
            search = RateSweep(first.space, first.rates, memory_bytes=most, host_bytes=first.host_bytes)
            for index in group:
                out[index] = search
    return out


def _same_layouts(resolved: Resolved, other: Resolved) -> bool:
    """Whether the same layouts are legal, and take the same bytes."""
    same = resolved.target is other.target and resolved.request.fix == other.request.fix
    if not (same and resolved.host_bytes == other.host_bytes and resolved.rates.overheads == other.rates.overheads):
        return False
    return resolved.problem is other.problem or resolved.problem == other.problem
