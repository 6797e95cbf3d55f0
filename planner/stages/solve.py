"""The best stages of one layout: the program of `partition_ilp`, the simulator, and moves of single layers by turns."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field

import numpy as np

from ...cost_models.quantities.stages import Partition
from ...cost_models.schedules.critical_path import Path, device_path
from .ilp import GAP, NODES, Program, Stages, counts

Score = Callable[[Partition], float]

_PATHS_PER_ROUND, _PATHS_PER_MOVE = 16, 3
_RELAXED_ROUNDS, _RELAXED_GAIN = 40, 1e-3
_TIGHT = 1e-6  # relative: a path as long as the step of a program bounds it
ROUNDS = 12  # integer programs per layout; a count, so that equal inputs give equal plans
_MOVES = 24  # simulated per proposal
_KNOWN = 192  # paths that are handed on to the next layout of the same order
# Rounds in a row in which neither split nor bound gain so much are the last, once the split is worth it.
_LEAST_GAIN, _IDLE = 1e-3, 2
_MANY_NODES = 10 * NODES  # of DeepSeek-V3 on 16 stages NODES leave a gap of 13 %, these 0.1 %


@dataclass(frozen=True)
class Solved:
    """The best split that was simulated, and the bound that no split beats (both whole seconds of a step).

    rounds: integer programs solved; solver: who solved them; note: what went wrong on the way.
    """

    partition: Partition | None
    step_s: float
    bound_s: float
    rounds: int
    solver: str
    note: str = ""

    @property
    def gap(self) -> float:
        """Share of the step that a better split could save at most."""
        return max(0.0, 1.0 - self.bound_s / self.step_s) if self.partition else 0.0


def solve(
    stages: Stages, score: Score, *, incumbent: Partition | None = None, rounds: int = ROUNDS,
    good_enough: float = GAP, worth_s: float = np.inf, left_s: Callable[[], float] = lambda: np.inf,
    known: list[Path] | None = None,
) -> Solved:  # fmt: skip
    """The fastest split by simulation. score: seconds of a step of a split, infinite if it does not fit.

    incumbent: a split to start from, and to improve before any program. rounds: integer programs at most. good_enough:
    gap to stop at. worth_s: stop once no split can be faster than this. left_s: seconds until the time limit. known:
    paths through the same order that bound other layouts; those that bound this one are added.
    """
    search = _Search(stages, score, good_enough, worth_s, left_s)
    search.paths = [device_path(stages.order, device) for device in range(max(stages.devices) + 1)]
    search.paths += known or []
    if incumbent is not None:
        search.offer(incumbent, _PATHS_PER_ROUND)
        search.polish(incumbent)
    search.relaxed()
    idle = 0
    for _ in range(rounds):
        before, bound_s = min(search.best[0], worth_s), search.bound_s
        if search.closed or left_s() <= 0 or not search.whole():
            break
        faster = search.best[0] <= before * (1.0 - _LEAST_GAIN)
        idle = 0 if faster or search.bound_s >= bound_s * (1.0 + _LEAST_GAIN) else idle + 1
        if idle == _IDLE and search.best[0] <= worth_s:
            break
    if known is not None:
        known += [path for path in search.tight if path not in known]
        del known[:-_KNOWN]
    return search.result()


@dataclass
class _Search:
    """The state of one solve: paths found, best split simulated, bound."""

    stages: Stages
    score: Score
    good_enough: float
    worth_s: float
    left_s: Callable[[], float]
    paths: list[Path] = field(default_factory=list)
    best: tuple[float, Partition | None] = (np.inf, None)
    tight: list[Path] = field(default_factory=list)
    bound_s: float = 0.0
    seen: set[Partition] = field(default_factory=set)
    rounds: int = 0
    nodes: int = NODES
    solver: str = ""
    note: str = ""
    empty: bool = False

    @property
    def closed(self) -> bool:
        return self.empty or self.bound_s >= min(self.best[0] * (1.0 - self.good_enough), self.worth_s)

    def result(self) -> Solved:
        bound_s = np.inf if self.empty else self.bound_s
        return Solved(self.best[1], self.best[0], min(bound_s, self.best[0]), self.rounds, self.solver, self.note)

    def offer(self, partition: Partition, number: int) -> None:
        """Simulate a split and keep it if it is the best."""
        self.seen.add(partition)
        sizes, redone = np.array(partition.sizes, dtype=np.float64), partition.redone
        n, q = counts(self.stages, sizes, None if redone is None else np.array(redone))
        found = self.stages.paths(n, q, number)
        self.paths += found
        if self.stages.step_s(found, n, q) >= self.best[0]:
            return
        step_s = self.score(partition)
        if step_s < self.best[0]:
            self.best = (step_s, partition)

    def polish(self, partition: Partition) -> None:
        """Move single layers from chunk to chunk: the move that all known paths like best is simulated, which adds the
        paths that dislike it; until no move is better."""
        for _ in range(_MOVES):
            moved = self._best_move(self.best[1] or partition)
            if moved is None or self.closed or self.left_s() <= 0:
                return
            self.offer(moved, _PATHS_PER_MOVE)

    def _best_move(self, partition: Partition) -> Partition | None:
        chunks = len(partition.sizes)
        sources, targets = (x.ravel() for x in np.indices((chunks, chunks)))
        sizes = np.array(partition.sizes, dtype=np.float64) + np.eye(chunks)[targets] - np.eye(chunks)[sources]
        least = np.ones(chunks)
        least[[0, -1]] = 0.0
        possible = (sizes >= least).all(axis=1) & (sources != targets)
        possible &= (sizes >= sizes[:, ::-1])[:, : self.stages.num_folded].all(axis=1)
        sizes = sizes[possible]
        redone = None if partition.redone is None else np.minimum(np.array(partition.redone, dtype=np.float64), sizes)
        n, q = counts(self.stages, sizes, redone)
        if not self.stages.chooses_recompute:
            q = np.zeros_like(n)
        least_s = np.where(self.stages.fits(n, q), self.stages.step_s(self.paths, n, q), np.inf)
        for row in np.argsort(least_s, kind="stable").tolist():
            if least_s[row] >= self.best[0]:
                return None
            again = None if redone is None else tuple(int(x) for x in redone[row])
            moved = Partition(tuple(int(x) for x in sizes[row]), again)
            if moved not in self.seen:
                return moved
        return None

    def relaxed(self) -> None:
        """Paths for the continuous program, which is quick: most that the integer one needs."""
        for _ in range(_RELAXED_ROUNDS):
            program, before = Program(self.stages, self.paths, whole=False), self.bound_s
            if not self._solved(program):
                return
            n, q = program.values()
            lengths = self.stages.lengths(self.paths, n, q)
            self.tight = [self.paths[i] for i in np.flatnonzero(lengths >= program.pipeline_s * (1.0 - _TIGHT))]
            if self.closed or self.bound_s < before * (1.0 + _RELAXED_GAIN):
                return
            found = self.stages.paths(n, q, _PATHS_PER_ROUND)
            self.paths += found
            if program.pipeline_s >= self.stages.lengths(found, n, q).max() * (1.0 - GAP):
                return

    def whole(self) -> bool:
        """One round: False when the program proposes a split that is known, and has proven that none is faster. Where
        its limit of nodes kept it from that, the next round has more of them, once."""
        program = Program(self.stages, self.paths, whole=True)
        self.rounds += 1
        if not self._solved(program):
            return False
        n, q = (np.rint(x) for x in program.values())
        redone = tuple(int(x) for x in q.sum(axis=1)) if self.stages.chooses_recompute else None
        partition = Partition(tuple(int(x) for x in n.sum(axis=1)), redone)
        if partition in self.seen:
            proven = self.nodes == _MANY_NODES or self._of_step(program.value_s * (1.0 - GAP)) <= self.bound_s
            self.nodes = _MANY_NODES
            return not proven
        self.offer(partition, _PATHS_PER_ROUND)
        self.polish(partition)
        return True

    def _solved(self, program: Program) -> bool:
        status, bound_s, self.solver, note = program.solve(self.left_s(), self.nodes)
        self.note = self.note or note
        if status == "infeasible":
            self.empty = True
        if status == "solved":
            self.bound_s = max(self.bound_s, self._of_step(bound_s))
        return status == "solved"

    def _of_step(self, program_s: float) -> float:
        """Seconds of a step whose pipeline and optimizer take program_s."""
        return (program_s + self.stages.fixed_s) * self.stages.growth
