"""ReaLHF's search of placements beside branch and bound, by the same prices in the same space.

    python benchmarks/realhf_search.py [SECONDS]

prints, for PPO of LLaMA on 8 to 128 A800, the step that each finds and the seconds that it takes. ReaLHF's is
Metropolis sampling (openpsi-project/ReaLHF@be75fce9, csrc/search/search.cpp and its callers): it starts
where every call is fastest by itself, moves one call to another candidate, evenly drawn, takes a faster placement, and
a slower one with the chance exp(-beta x tenths of a second, rounded down). beta is 0.001 and does not fall. It ends
after 120 s there. Placements that do not fit count three times there, and are never taken here.
"""

from __future__ import annotations

import random
import sys
import time
from collections.abc import Callable
from dataclasses import dataclass
from math import exp, floor, inf

from meshwright.planner.workflows.gains import GainCase, question_for, search_for
from meshwright.planner.workflows.meshes import Mesh
from meshwright.planner.workflows.search import PlacementResult, PlacementSearch, price

BETA = 0.001
TENTH_S = 0.1
MOST_CANDIDATES = 1000  # of a call, the fastest
CASES = (("critic", 8), ("actor", 16), ("critic", 32), ("actor", 64), ("critic", 64), ("both", 128))


@dataclass
class Metropolis:
    """One chain over the placements of a search. rng: draws its moves."""

    search: PlacementSearch
    rng: random.Random
    beta: float = BETA
    best: PlacementResult | None = None
    moves: int = 0

    def run(self, goes_on: Callable[[int], bool]) -> PlacementResult | None:
        """The best placement that it met; goes_on: by the number of moves so far."""
        candidates = {call.name: self._candidates(call.name) for call in self.search.calls}
        if not all(candidates.values()):
            return None
        now = {name: meshes[0] for name, meshes in candidates.items()}
        step_s = self._step_s(now)
        others = [(name, mesh) for name, meshes in candidates.items() for mesh in meshes]
        while goes_on(self.moves):
            self.moves += 1
            name, mesh = self.rng.choice(others)
            if mesh == now[name]:
                continue
            moved = {**now, name: mesh}
            moved_s = self._step_s(moved)
            if moved_s <= step_s or self.rng.random() < self._chance(moved_s - step_s):
                now, step_s = moved, moved_s
        return self.best

    def _chance(self, more_s: float) -> float:
        return 0.0 if more_s == inf else exp(-self.beta * floor(more_s / TENTH_S))

    def _candidates(self, name: str) -> list[Mesh]:
        seconds = self.search.seconds
        able = [mesh for mesh in self.search.meshes if seconds[name, mesh.gpus] < inf]
        return sorted(able, key=lambda mesh: (seconds[name, mesh.gpus], mesh.first))[:MOST_CANDIDATES]

    def _step_s(self, meshes: dict[str, Mesh]) -> float:
        search = self.search
        placement = meshes if search.engine is None else {"generate": search.engine, **meshes}
        found = price(search.prices, search.graph, placement, search.sizes, search.memory_bytes, search.lag)
        if found is not None and (self.best is None or found.step_s < self.best.step_s):
            self.best = found
        return inf if found is None else found.step_s


def timed(run: Callable[[], PlacementResult | None]) -> tuple[float, float]:
    """(step, seconds)"""
    begun = time.perf_counter()
    found = run()
    return inf if found is None else found.step_s, time.perf_counter() - begun


def main() -> None:
    limit_s = float(sys.argv[1]) if len(sys.argv) > 1 else 30.0
    print("grows   GPUs  placements  branch and bound s   step s  gap %  sampled as long  in", f"{limit_s:.0f} s")
    for scaled, gpus in CASES:
        question = question_for(GainCase(
            id="", group="", searched=True, gpus=gpus, scaled=scaled, throughput=1.0))  # fmt: skip
        search = search_for(question)  # its prices are worked out here: neither search pays for them
        exact_s, taken_s = timed(search.run)
        bound = min(search.tally.lower_bound_s, exact_s)
        sampled = [_sampled(search, seconds) for seconds in (taken_s, limit_s)]
        print(f"{scaled:6s}  {gpus:4d}  {search.tally.total:10.1e}  {taken_s:18.2f}  {exact_s:7.2f}  "
              f"{100 * (1 - bound / exact_s):5.1f}  {sampled[0]:15.2f}  {sampled[1]:.2f}", flush=True)  # fmt: skip


def _sampled(search: PlacementSearch, seconds: float) -> float:
    end = time.perf_counter() + seconds
    found = Metropolis(search, random.Random(0)).run(lambda _: time.perf_counter() < end)
    return inf if found is None else found.step_s


if __name__ == "__main__":
    main()
