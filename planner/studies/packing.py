"""Jobs side by side on the nodes of a cluster: how many nodes each has, when it starts, and a bound on the makespan.

Moldable jobs: each takes T(n) seconds on n nodes, chosen before it starts. A deadline D can only hold if every job has
an n with T(n) <= D, and the least work n T(n) of these fits in all nodes until D (Turek, Wolf and Yu 1992, SPAA). The
least such D is the bound; each value of T on the way gives an allotment, which is scheduled longest job first.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

Times = Mapping[int, float]  # nodes -> seconds of a job on so many; never empty


@dataclass(frozen=True, slots=True)
class Placed:
    """A job on the nodes."""

    job: int  # index into the jobs
    nodes: tuple[int, ...]  # numbers from 0
    start_s: float
    end_s: float


@dataclass(frozen=True)
class Packing:
    """A schedule of all jobs."""

    placed: tuple[Placed, ...]  # in the order of the jobs
    bound_s: float  # no schedule with a number of nodes per job is shorter

    @property
    def makespan_s(self) -> float:
        return max(placed.end_s for placed in self.placed)


def pack(jobs: Sequence[Times], nodes: int) -> Packing:
    """The best of the schedules above, of at least one job. Every job has a number of nodes up to `nodes`."""
    bound_s, best = float("inf"), None
    for deadline_s in sorted({seconds for times in jobs for seconds in times.values()}):
        allotment = _allotment(jobs, deadline_s)
        if allotment is None:
            continue
        work = sum(number * times[number] for number, times in zip(allotment, jobs, strict=True))
        bound_s = min(bound_s, max(deadline_s, work / nodes))
        placed = _schedule(jobs, allotment, nodes)
        if best is None or _end(placed) < _end(best):
            best = placed
    return Packing(tuple(best or ()), bound_s)


def _end(placed: Sequence[Placed]) -> float:
    return max(each.end_s for each in placed)


def _allotment(jobs: Sequence[Times], deadline_s: float) -> list[int] | None:
    """Nodes of each job with the least work by then; None where one does not end by then on any number."""
    chosen = []
    for times in jobs:
        able = [(number * seconds, seconds, number) for number, seconds in times.items() if seconds <= deadline_s]
        if not able:
            return None
        chosen.append(min(able)[2])
    return chosen


def _schedule(jobs: Sequence[Times], allotment: Sequence[int], nodes: int) -> list[Placed]:
    """The longest job first, each on the nodes that are free first."""
    free_s = [0.0] * nodes
    placed: dict[int, Placed] = {}
    for job in sorted(range(len(jobs)), key=lambda job: (-jobs[job][allotment[job]], -allotment[job], job)):
        number = allotment[job]
        taken = sorted(range(nodes), key=lambda node: (free_s[node], node))[:number]
        start_s = max(free_s[node] for node in taken)
        end_s = start_s + jobs[job][number]
        for node in taken:
            free_s[node] = end_s
        placed[job] = Placed(job, tuple(sorted(taken)), start_s, end_s)
    return [placed[job] for job in range(len(jobs))]
