"""ReaLHF's search of placements never beats branch and bound where both see the same prices."""

from __future__ import annotations

import random
import sys
from pathlib import Path

import pytest
from meshwright.planner.workflows.meshes import Mesh, sub_meshes
from meshwright.planner.workflows.search import PlacementSearch

from .test_plan_rl import GRAPH, Drawn

sys.path.insert(0, str(Path(__file__).parents[3] / "benchmarks"))

from realhf_search import BETA, Metropolis

MOVES = 400


def searches(seed: int) -> PlacementSearch:
    return PlacementSearch(Drawn(seed), GRAPH, sub_meshes(Mesh(0, 8), 8), 80e9, tolerance=0.0)


@pytest.mark.parametrize("seed", range(8))
def test_branch_and_bound_is_never_worse(seed: int) -> None:
    exact, chain = searches(seed).run(), Metropolis(searches(seed), random.Random(seed))
    sampled = chain.run(lambda moves: moves < MOVES)
    assert (exact is None) == (sampled is None)
    if exact is not None and sampled is not None:
        assert chain.moves == MOVES
        assert exact.step_s <= sampled.step_s * (1 + 1e-9)


def test_a_chain_starts_where_every_call_is_fastest_by_itself() -> None:
    search = searches(3)
    start = Metropolis(search, random.Random(0)).run(lambda moves: False)
    assert start is not None
    for name, mesh in start.meshes.items():
        assert search.seconds[name, mesh.gpus] == min(search.seconds[name, gpus] for gpus in search.sizes)


def test_slower_placements_are_taken_by_their_tenths_of_a_second() -> None:
    chain = Metropolis(searches(0), random.Random(0), beta=0.5)
    assert [chain._chance(more_s) for more_s in (0.05, 0.25, float("inf"))] == pytest.approx([1.0, 0.3678794, 0.0])


def test_a_colder_chain_finds_the_best() -> None:
    exact = searches(3).run()
    walk, colder = (Metropolis(searches(3), random.Random(1), beta=beta).run(lambda moves: moves < 5 * MOVES)
                    for beta in (BETA, 20 * BETA))  # fmt: skip
    assert exact is not None
    assert walk is not None
    assert colder is not None
    assert colder.step_s == pytest.approx(exact.step_s, rel=1e-9)
    assert walk.step_s > 1.01 * exact.step_s
