"""The best stages of one layout: the integer program, the simulator, and moves of single layers by turns.

The program (ilp.py) knows few paths through the schedule at first, so it proposes partitions that look too good. Each
proposal is simulated; the simulation gives the paths that make it slow, and these enter the next program. Bound and
best partition approach each other until their gap is small, or the budget of programs is spent. The continuous program
is cheap and finds most of the paths that the integer one needs, so it goes first. Moves of single layers find good
partitions early, which ends the integer programs sooner.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field

import numpy as np

from ...cost_models.arrays import Array
from ...cost_models.quantities.stages import Partition
from ...cost_models.schedules.critical_path import Path, device_path
from .ilp import NODES, Program
from .problem import GAP, PartitionProblem

Score = Callable[[Partition], float]

_PATHS_PER_ROUND = 16  # longest paths of a proposal that enter the next program
_PATHS_PER_MOVE = 3  # the same of a moved layer
_RELAXED_ROUNDS = 40  # continuous programs at most
_RELAXED_GAIN = 1e-3  # relative: they end once the bound gains less
_TIGHT = 1e-6  # relative: a path as long as the step of a program bounds it
ROUNDS = 12  # integer programs per layout; a count, so that equal inputs give equal plans
_MOVES = 24  # simulated per proposal
_KNOWN = 192  # paths that the next layout of the same order starts with
# After _IDLE rounds in a row that gain less than this on partition and bound, the search ends if the partition is worth
# it.
_LEAST_GAIN, _IDLE = 1e-3, 2
_MANY_NODES = 10 * NODES  # for DeepSeek-V3 on 16 stages, NODES leave a gap of 13 %, and these 0.1 %


@dataclass(frozen=True)
class Solved:
    """The best partition that was simulated, and the bound that no partition beats."""

    partition: Partition | None  # None: none fits, or none was found
    step_s: float  # of it, by simulation; inf without one
    bound_s: float  # seconds of a step
    rounds: int  # integer programs solved
    solver: str  # that solved the last program
    note: str = ""  # what went wrong on the way

    @property
    def gap(self) -> float:
        """Share of the step that a better partition could save at most."""
        return max(0.0, 1.0 - self.bound_s / self.step_s) if self.partition else 0.0


def solve(
    problem: PartitionProblem, score: Score, *, incumbent: Partition | None = None, rounds: int = ROUNDS,
    good_enough: float = GAP, worth_s: float = np.inf, beat_s: float = np.inf,
    left_s: Callable[[], float] = lambda: np.inf, known: list[Path] | None = None,
) -> Solved:  # fmt: skip
    """The fastest partition by simulation. score: seconds of a step of a partition, infinite if it does not fit.

    incumbent: a partition to start from, and to improve before any program. rounds: integer programs at most.
    good_enough: gap to stop at. worth_s: stop once no partition can be faster than this. beat_s: only faster partitions
    are of use, so no other is scored. left_s: seconds until the time limit. known: paths through the same order that
    bound other layouts; those that bound this one are added.
    """
    search = _Search(problem, score, good_enough, worth_s, beat_s, left_s)
    search.paths = [device_path(problem.schedule, device) for device in range(problem.num_devices)]
    search.paths += known or []
    if incumbent is not None:
        search.offer(incumbent, _PATHS_PER_ROUND)
        if np.isinf(beat_s):
            search.polish(incumbent)
    search.relaxed()
    idle = 0
    for number in range(1, rounds + 1):
        if number == rounds:  # it has to prove what the others found, also where they proposed no partition again
            search.nodes = _MANY_NODES
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


def improved(problem: PartitionProblem, partition: Partition) -> Partition:
    """A partition after moves of single layers, each of which makes its pipeline faster."""
    search = _Search(problem, lambda _: np.inf, good_enough=0.0, worth_s=np.inf, beat_s=0.0, left_s=lambda: np.inf)
    search.paths = [device_path(problem.schedule, device) for device in range(problem.num_devices)]
    search.offer(partition, _PATHS_PER_ROUND)
    search.polish(partition)
    return search.fastest[1] or partition


@dataclass
class _Search:
    """The state of one solve."""

    problem: PartitionProblem
    score: Score
    good_enough: float
    worth_s: float
    beat_s: float
    left_s: Callable[[], float]
    paths: list[Path] = field(default_factory=list)  # in the next program
    best: tuple[float, Partition | None] = (np.inf, None)  # seconds of a step by `score`, and the partition
    fastest: tuple[float, Partition | None] = (np.inf, None)  # the same without collectives
    tight: list[Path] = field(default_factory=list)  # paths that bound the last continuous program
    bound_s: float = 0.0  # seconds of a step that no partition beats
    seen: set[Partition] = field(default_factory=set)  # simulated
    rounds: int = 0  # integer programs so far
    nodes: int = NODES  # of the next integer program
    solver: str = ""
    note: str = ""
    empty: bool = False  # no partition fits

    @property
    def closed(self) -> bool:
        return self.empty or self.bound_s >= min(self.best[0] * (1.0 - self.good_enough), self.worth_s)

    @property
    def _to_improve(self) -> tuple[float, Partition | None]:
        """The starts of moves of layers: the best by `score`, unless only some partitions are scored."""
        return self.best if np.isinf(self.beat_s) else self.fastest

    def result(self) -> Solved:
        bound_s = np.inf if self.empty else self.bound_s
        return Solved(self.best[1], self.best[0], min(bound_s, self.best[0]), self.rounds, self.solver, self.note)

    def offer(self, partition: Partition, number: int) -> None:
        """Simulate a partition and keep it if it is the best; its `number` longest paths enter the next program."""
        self.seen.add(partition)
        sizes, recomputed = np.array(partition.sizes, dtype=np.float64), partition.recomputed
        n, q = self.problem.layers_by_run(sizes, None if recomputed is None else np.array(recomputed))
        paths = self.problem.critical_paths(n, q, number)
        self.paths += paths
        pipeline_s = float(self.problem.step_s(paths, n, q))
        if pipeline_s < min(self.best[0], self.beat_s):  # collectives only make it longer
            step_s = self.score(partition)
            if np.isinf(step_s):
                return
            if step_s < self.best[0]:
                self.best = (step_s, partition)
        if pipeline_s < self.fastest[0]:
            self.fastest = (pipeline_s, partition)

    def polish(self, partition: Partition) -> None:
        """Move single layers from chunk to chunk. The move that is fastest by the known paths is simulated, which adds
        the paths that make it slower; until no move is better."""
        for _ in range(_MOVES):
            moved = self._best_move(self._to_improve[1] or partition)
            if moved is None or self.closed or self.left_s() <= 0:
                return
            self.offer(moved, _PATHS_PER_MOVE)

    def _best_move(self, partition: Partition) -> Partition | None:
        """The partition that is fastest by the known paths, of those that move one layer and were not simulated."""
        sizes = self._moved_sizes(partition)
        recomputed = None
        if partition.recomputed is not None:
            recomputed = np.minimum(np.array(partition.recomputed, dtype=np.float64), sizes)
        n, q = self.problem.layers_by_run(sizes, recomputed)
        if not self.problem.chooses_recompute:
            q = np.zeros_like(n)
        least_s = np.where(self.problem.fits(n, q), self.problem.step_s(self.paths, n, q), np.inf)
        for row in np.argsort(least_s, kind="stable").tolist():
            if least_s[row] >= self._to_improve[0]:
                return None
            moved = Partition(_whole(sizes[row]), None if recomputed is None else _whole(recomputed[row]))
            if moved not in self.seen:
                return moved
        return None

    def _moved_sizes(self, partition: Partition) -> Array:
        """[move, chunk] layers after each move of one layer that keeps `least_layers` and the order of a V."""
        chunks = len(partition.sizes)
        sources, targets = (index.ravel() for index in np.indices((chunks, chunks)))
        sizes = np.array(partition.sizes, dtype=np.float64) + np.eye(chunks)[targets] - np.eye(chunks)[sources]
        possible = (sizes >= self.problem.least_layers).all(axis=1) & (sources != targets)
        possible &= (sizes >= sizes[:, ::-1])[:, : self.problem.num_folded].all(axis=1)
        return np.asarray(sizes[possible])

    def relaxed(self) -> None:
        """Solve the continuous program with more and more paths: most of them are those that the integer one needs."""
        for _ in range(_RELAXED_ROUNDS):
            program, before = Program(self.problem, self.paths, whole=False), self.bound_s
            if not self._solved(program):
                return
            n, q = program.values()
            lengths = self.problem.path_seconds(self.paths, n, q)
            self.tight = [self.paths[i] for i in np.flatnonzero(lengths >= program.pipeline_s * (1.0 - _TIGHT))]
            if self.closed or self.bound_s < before * (1.0 + _RELAXED_GAIN):
                return
            longest = self.problem.critical_paths(n, q, _PATHS_PER_ROUND)
            self.paths += longest
            if program.pipeline_s >= self.problem.path_seconds(longest, n, q).max() * (1.0 - GAP):
                return

    def whole(self) -> bool:
        """One integer program; False when it is the last. It is, if it proposes a partition that was simulated before:
        then none is faster. Where the limit of nodes kept it from proving that, the next program has more nodes, once.
        """
        program = Program(self.problem, self.paths, whole=True)
        self.rounds += 1
        if not self._solved(program):
            return False
        n, q = (np.rint(layers) for layers in program.values())
        recomputed = _whole(q.sum(axis=1)) if self.problem.chooses_recompute else None
        partition = Partition(_whole(n.sum(axis=1)), recomputed)
        if partition in self.seen:
            proven = self.nodes == _MANY_NODES or self._step_s(program.value_s * (1.0 - GAP)) <= self.bound_s
            self.nodes = _MANY_NODES
            return not proven
        self.offer(partition, _PATHS_PER_ROUND)
        self.polish(partition)
        return True

    def _solved(self, program: Program) -> bool:
        solution = program.solve(self.left_s(), self.nodes)
        self.solver, self.note = solution.solver, self.note or solution.note
        if solution.status == "infeasible":
            self.empty = True
        if solution.status == "solved":
            self.bound_s = max(self.bound_s, self._step_s(solution.bound_s))
        return solution.status == "solved"

    def _step_s(self, program_s: float) -> float:
        """Seconds of a step whose pipeline and optimizer take program_s."""
        return (program_s + self.problem.once_s) * self.problem.growth


def _whole(layers: Array) -> tuple[int, ...]:
    return tuple(int(number) for number in layers)
