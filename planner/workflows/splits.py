"""All placements of a step: calls that take turns, and an engine beside the trainer by every split of the GPUs."""

from __future__ import annotations

from dataclasses import dataclass, replace

from .graph import Call
from .meshes import Mesh, sub_meshes
from .prices import Prices
from .problem import RlProblem
from .schedule import Placed
from .search import PlacementResult, PlacementSearch, Tally

MOST_SPLITS = 8  # parts that the GPUs are divided into between engine and trainer


@dataclass(frozen=True, kw_only=True)
class Answer:
    """The fastest placement of every lag and split, and the one with all calls of the trainer on all of its GPUs, the
    fastest first; and the proof."""

    found: tuple[PlacementResult, ...]
    tally: Tally


def split_points(gpus: int, per_node: int) -> list[int]:
    """GPUs that train: whole nodes, or GPUs of a single one, in at most MOST_SPLITS parts."""
    unit = per_node if gpus > per_node else 1
    parts = gpus // unit
    return sorted({unit * (parts * n // MOST_SPLITS) for n in range(1, MOST_SPLITS)} - {0}) if parts > 1 else []


def search_all(prices: Prices, graph: tuple[Call, ...], memory_bytes: float, lags: tuple[int, ...]) -> Answer:
    """lags: those that are compared; 0: all calls take turns on any meshes."""
    cluster, tally, found = prices.rl.cluster, Tally(), list[PlacementResult]()
    target = prices.rl.target
    gpus, per_node = cluster.num_gpus, cluster.gpus_per_node
    # An engine on the GPUs of the trainer takes all of their memory.
    kept = Prices(replace(prices.rl, stays=True))
    parts = [[prices if part is prices.rl else Prices(part)] for part in prices.rl.parts]
    for lag in lags:
        engines = [Mesh(at, gpus - at) for at in split_points(gpus, per_node)] if lag else [None]
        for engine in engines:
            meshes = sub_meshes(Mesh(0, engine.first if engine else gpus), per_node)
            if target is not None:
                takes_turns = engine is None and graph[0].kind == "generate"
                tried = parts if takes_turns else [[kept, prices]]
                found += _together(prices.rl, tried, graph, meshes, memory_bytes, engine, lag, tally)
                continue
            search = PlacementSearch(prices, graph, meshes, memory_bytes, engine, lag, tally=tally)
            best, together = search.run(), search.together()
            found += [best] if best is not None else []
            # What frameworks run that give all calls of the trainer the same GPUs.
            found += [together] if together is not None and best is not None and together.meshes != best.meshes else []
    return Answer(found=tuple(sorted(found, key=lambda it: (it.step_s, it.lag))), tally=tally)


def _together(
    rl: RlProblem, tried: list[list[Prices]], graph: tuple[Call, ...], meshes: tuple[Mesh, ...],
    memory_bytes: float, engine: Mesh | None, lag: int, tally: Tally,
) -> list[PlacementResult]:  # fmt: skip
    """The one placement that a framework runs, by its `misplaced`: all calls of the trainer on all of its GPUs. tried:
    the parts of the layouts; in each those of models that stay there, where they may, then of models that leave."""
    total = len(meshes) ** (len(graph) - bool(lag))
    tally.total += total
    if rl.target is not None and rl.target.cannot_run(rl.step, lag):
        tally.ruled_out += total
        return []
    tally.ruled_out += total - 1
    searches = ((PlacementSearch(prices, graph, meshes[:1], memory_bytes, engine, lag) for prices in part)
                for part in tried)  # fmt: skip
    placements = ((search.together() for search in part) for part in searches)
    first = (next((it for it in part if it is not None and not _breaks(it, rl)), None) for part in placements)
    best = min((it for it in first if it is not None), key=lambda it: it.step_s, default=None)
    if best is None:
        tally.out_of_memory += 1
        return []
    tally.priced += 1
    return [best]


def _breaks(placement: PlacementResult, rl: RlProblem) -> bool:
    """Whether a model that leaves its GPUs has a layout that the framework runs only for models that stay."""
    left = [it for it in placement.placed if it.call.kind == "train" and _leaves(placement, it)]
    if rl.target is None or not left:
        return False
    limits = rl.target.limits.layouts(rl.step, True)
    return any(limit.broken_by(it.option.layout) for limit in limits for it in left if it.option.layout is not None)


def _leaves(placement: PlacementResult, trained: Placed) -> bool:
    """Whether a model that trains goes to the host while another call has its GPUs."""
    role, mesh = trained.call.role, trained.mesh
    return any(role not in it.resident for it in placement.placed
               if (it.call.role != role or it.call.kind == "generate") and it.mesh.overlaps(mesh))  # fmt: skip
