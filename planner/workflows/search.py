"""Branch and bound over the meshes of all calls of a step.

A node places the first calls of the graph. Its bound is below the step of all placements under it: the calls that are
not placed take their least seconds on any mesh and wait for no GPU, no model moves, and all GPUs are busy all the time.
An engine beside the others has its GPUs already: no step is shorter than its part and the new weights that it gets
from the nearest mesh. Meshes that an exchange of equal
free parts of the cluster makes equal are tried once.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, field
from functools import cache
from math import inf

from .graph import Call
from .meshes import Mesh, distinct
from .prices import Prices
from .schedule import Placed, new_weights_s, schedule, sync_s, trains

MOST_NODES = 2_000  # of a search; beyond it the plan states its gap
TOLERANCE = 0.01  # relative: placements that are at most so much faster are not looked for
TIE = 1e-9  # relative: nearer values are equal


@dataclass(frozen=True, kw_only=True)
class PlacementResult:
    """A placement of all calls and its step."""

    step_s: float
    lag: int
    placed: tuple[Placed, ...]  # calls on the clock; with lag each side starts at 0
    sync_s: float  # new weights to the engine, after all calls of the trainer
    controller_s: float  # data, rewards, scheduling, logs

    @property
    def meshes(self) -> dict[str, Mesh]:
        """The mesh of every call, by name."""
        return {it.call.name: it.mesh for it in self.placed}


@dataclass
class Tally:
    """Placements of a search and what became of them."""

    total: int = 0
    ruled_out: int = 0  # by the framework
    equal: int = 0  # by an exchange of equal parts
    out_of_memory: int = 0  # a call of them fits on no layout
    bounded: int = 0
    priced: int = 0
    unvisited: int = 0
    lower_bound_s: float = inf  # of what was bounded away or left unvisited


@dataclass
class PlacementSearch:
    """One search. engine: the mesh of the call that generates, where it runs beside the others: a step then takes as
    long as the slower side."""

    prices: Prices
    graph: tuple[Call, ...]
    meshes: tuple[Mesh, ...]
    memory_bytes: float
    engine: Mesh | None = None
    lag: int = 0
    incumbent: float = inf
    tolerance: float = TOLERANCE
    tally: Tally = field(default_factory=Tally)
    best: PlacementResult | None = None
    nodes: int = 0
    started: Counter[tuple[Mesh, ...]] = field(default_factory=Counter)  # meshes of the first calls -> placements below
    # that the start of the search priced

    def __post_init__(self) -> None:
        self.calls = [call for call in self.graph if self.engine is None or call.kind != "generate"]
        self.sizes = sorted({mesh.gpus for mesh in self.meshes})
        self.seconds = {(call.name, gpus): self._seconds(call, gpus) for call in self.calls for gpus in self.sizes}
        self.least = {call.name: self._least(call) for call in self.calls}
        self.kinds = cache(lambda placed: distinct(self.meshes, self.sizes, placed))
        self.engine_s = 0.0 if self.engine is None else self._engine_s(self.engine)
        self.least_sync_s = 0.0 if self.engine is None else min(
            new_weights_s(self.prices, self.engine, mesh, self.sizes) for mesh in self.meshes)  # fmt: skip

    def run(self) -> PlacementResult | None:
        """The best placement that beats the incumbent."""
        every = len(self.meshes) ** len(self.calls)
        self.tally.total += every
        if self.engine_s == inf:
            self.tally.out_of_memory += every
            return None
        self._start({call.name: self.meshes[0] for call in self.calls})
        self._descend({})
        return self.best

    def together(self) -> PlacementResult | None:
        """The placement of all calls on all GPUs; None where one does not fit."""
        return self._found({call.name: self.meshes[0] for call in self.calls}) if self.engine_s < inf else None

    def _start(self, placed: dict[str, Mesh]) -> None:
        """Sets the incumbent: from these meshes, moves one call after another to where the step is shortest, until none
        shortens it."""
        step_s = self._started_s(placed)
        while True:
            moves = [{**placed, call.name: mesh} for call in self.calls
                     for mesh in self.kinds(frozenset(mesh for name, mesh in placed.items() if name != call.name))
                     if self.seconds[call.name, mesh.gpus] < inf]  # fmt: skip
            best_s, best = min(((self._started_s(move), n) for n, move in enumerate(moves)), default=(inf, 0))
            if best_s >= step_s * (1 - TIE):
                return
            step_s, placed = best_s, moves[best]

    def _started_s(self, placed: dict[str, Mesh]) -> float:
        """Seconds of a placement of the start, which is counted once."""
        step_s, meshes = self._step_s(placed), tuple(placed.values())
        if step_s < inf and meshes not in self.started:
            self.tally.priced += 1
            self.started.update(meshes[:depth] for depth in range(len(meshes) + 1))
        return step_s

    def _left(self, placed: dict[str, Mesh], number: int) -> int:
        """How many of the placements below a node the start has not counted."""
        return number - self.started[tuple(placed.values())]

    def _engine_s(self, mesh: Mesh) -> float:
        """Seconds of the call that generates beside the others; infinite where no layout fits."""
        generate = next(call for call in self.graph if call.kind == "generate")
        option = self.prices.of(generate, mesh.gpus, self.lag)
        return inf if option is None else option.seconds

    def _least(self, call: Call) -> tuple[float, float]:
        """(seconds, seconds x GPUs) of a call at least, on any mesh."""
        options = [(self.seconds[call.name, gpus], gpus) for gpus in self.sizes]
        return min(s for s, _ in options), min(s * gpus for s, gpus in options)

    def _seconds(self, call: Call, gpus: int) -> float:
        """A lower bound of seconds; infinite where nothing fits."""
        option = self.prices.of(call, gpus)
        seconds = option.seconds if option is not None else inf
        if call.kind == "infer" and trains(self.graph, call.role):
            home = self.prices.at_home(call, gpus)
            return min(seconds, *(it.seconds for it in (home, *home.leaner))) if home is not None else seconds
        return seconds

    def _descend(self, placed: dict[str, Mesh]) -> None:
        depth = len(placed)
        if depth == len(self.calls):
            self._price(placed)
            return
        call, below = self.calls[depth], len(self.meshes) ** (len(self.calls) - depth - 1)
        kinds = self.kinds(frozenset(placed.values()))
        self.tally.equal += self._left(placed, len(self.meshes) * below)
        children = []
        for mesh in kinds:
            child = {**placed, call.name: mesh}
            self.tally.equal -= self._left(child, below)
            if self.seconds[call.name, mesh.gpus] == inf:
                self.tally.out_of_memory += below
            else:
                children.append((self._bound(child), -mesh.gpus, mesh.first, child))
        for bound, _, _, child in sorted(children, key=lambda item: item[:3]):
            if bound >= self.incumbent * (1 - self.tolerance):
                self.tally.bounded += self._left(child, below)
                self.tally.lower_bound_s = min(self.tally.lower_bound_s, bound)
            elif self.nodes >= MOST_NODES:
                self.tally.unvisited += self._left(child, below)
                self.tally.lower_bound_s = min(self.tally.lower_bound_s, bound)
            else:
                self.nodes += 1
                self._descend(child)

    def _bound(self, placed: dict[str, Mesh]) -> float:
        """Seconds that no placement below these is faster than."""
        ends, work, gpus = dict[str, float](), 0.0, max(mesh.end for mesh in self.meshes)
        for call in self.calls:
            mesh = placed.get(call.name)
            seconds, least_work = self.least[call.name]
            if mesh is not None:
                seconds = self.seconds[call.name, mesh.gpus]
                least_work = seconds * mesh.gpus
            busy = {name for name, other in placed.items() if mesh is not None and other.overlaps(mesh)}
            start = max((end for name, end in ends.items() if name in call.after or name in busy), default=0.0)
            ends[call.name] = start + seconds
            work += least_work
        side = max(max(ends.values()), work / gpus) + self.prices.controller_s
        return max(side, self.engine_s) + self.least_sync_s

    def _price(self, placed: dict[str, Mesh]) -> None:
        if self._step_s(placed) < inf:
            self.tally.priced += self._left(placed, 1)
        else:
            self.tally.out_of_memory += 1

    def _step_s(self, placed: dict[str, Mesh]) -> float:
        """Seconds of a placement, infinite where a call does not fit. Remembers the best."""
        result = self._found(placed)
        if result is not None and result.step_s < self.incumbent * (1 - TIE):
            self.incumbent, self.best = result.step_s, result
        return inf if result is None else result.step_s

    def _found(self, placed: dict[str, Mesh]) -> PlacementResult | None:
        every = placed if self.engine is None else {"generate": self.engine, **placed}
        return price(self.prices, self.graph, every, self.sizes, self.memory_bytes, self.lag)


def price(
    prices: Prices, graph: Sequence[Call], placement: dict[str, Mesh], sizes: Sequence[int], memory_bytes: float,
    lag: int,
) -> PlacementResult | None:  # fmt: skip
    """The step of one placement. Without lag all calls follow one another; with it the engine generates the answers of
    later steps while the others run on those of earlier ones, and both wait for the new weights that reach it: vLLM
    loads them between two iterations (NVIDIA-NeMo/RL@5fb58893, update_weights_from_collective)."""
    sides = [graph]
    if lag:
        sides = [[call for call in graph if (call.kind == "generate") == generates] for generates in (True, False)]
    placed = list[Placed]()
    for side in sides:
        calls = schedule(prices, side, placement, sizes, memory_bytes, lag)
        if calls is None:
            return None
        placed += calls
    sync, controller = sync_s(prices, placed, sizes), prices.controller_s
    generated = max((it.end_s for it in placed if lag and it.call.kind == "generate"), default=0.0)
    others = max(it.end_s for it in placed if not (lag and it.call.kind == "generate"))
    return PlacementResult(
        step_s=max(generated, others + controller) + sync, lag=lag, placed=tuple(placed), sync_s=sync,
        controller_s=controller,
    )  # fmt: skip
