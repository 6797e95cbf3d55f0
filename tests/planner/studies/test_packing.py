"""Jobs side by side: schedules are possible, bounds hold against all schedules of small cases."""

from __future__ import annotations

import random
from itertools import permutations, product

import pytest
from meshwright.planner.studies.packing import Packing, Times, pack


def is_possible(packing: Packing, jobs: list[Times], nodes: int) -> bool:
    """Each job on its own nodes, for its time."""
    taken: list[list[tuple[float, float]]] = [[] for _ in range(nodes)]
    for placed in packing.placed:
        if placed.end_s - placed.start_s != pytest.approx(jobs[placed.job][len(placed.nodes)]):
            return False
        for node in placed.nodes:
            taken[node].append((placed.start_s, placed.end_s))
    return all(before[1] <= after[0] + 1e-9 for spans in taken for before, after in
               zip(sorted(spans), sorted(spans)[1:], strict=False))  # fmt: skip


def best_of_all(jobs: list[Times], nodes: int) -> float:
    """The shortest makespan over every allotment and every order of list schedules."""
    best = float("inf")
    for allotment in product(*(sorted(times) for times in jobs)):
        for order in permutations(range(len(jobs))):
            free = [0.0] * nodes
            for job in order:
                free.sort()
                number = allotment[job]
                end = free[number - 1] + jobs[job][number]
                free[:number] = [end] * number
            best = min(best, max(free))
    return best


@pytest.mark.parametrize("seed", range(20))
def test_small_cases_against_all_schedules(seed: int) -> None:
    draw = random.Random(seed)
    nodes = 4
    jobs: list[Times] = []
    for _ in range(draw.choice([1, 2, 3, 4])):
        one, loss = draw.uniform(1, 10), draw.uniform(0.6, 1.0)
        least = draw.choice([1, 1, 2])
        jobs.append({number: one / number**loss for number in (1, 2, 4) if number >= least})
    packing, best = pack(jobs, nodes), best_of_all(jobs, nodes)

    assert is_possible(packing, jobs, nodes)
    assert packing.bound_s <= best * (1 + 1e-9)
    assert best <= packing.makespan_s * (1 + 1e-9)
    assert packing.makespan_s <= 1.5 * best


def test_equal_jobs_fill_the_nodes() -> None:
    """Eight jobs that lose by every split: one node each."""
    packing = pack([{1: 8.0, 2: 5.0, 8: 2.0}] * 8, 8)
    assert packing.makespan_s == packing.bound_s == 8.0
    assert sorted(placed.nodes for placed in packing.placed) == [(node,) for node in range(8)]


def test_a_long_job_gets_more_nodes() -> None:
    """By 8 s on two nodes beside the others. On four nodes it is 18 + 8 node seconds of work: 6.5 s at least."""
    packing = pack([{1: 16.0, 2: 8.0, 4: 4.5}, {1: 4.0}, {1: 4.0}], 4)
    assert packing.makespan_s == 8.0
    assert packing.bound_s == 6.5
