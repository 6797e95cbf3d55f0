"""All placements of a step: calls that take turns, and an engine beside the trainer by every split of the GPUs."""

from __future__ import annotations

from dataclasses import dataclass, replace

from .graph import Call
from .meshes import Mesh, sub_meshes
from .prices import Prices
from .search import Found, PlacementSearch, Tally

MOST_SPLITS = 8  # parts that the GPUs are divided into between engine and trainer


@dataclass(frozen=True, kw_only=True)
class Answer:
    """The fastest placement of every lag and split, and the one with all calls of the trainer on all of its GPUs, the
    fastest first; and the proof."""

    found: tuple[Found, ...]
    tally: Tally


def split_points(gpus: int, per_node: int) -> list[int]:
    """GPUs that train: whole nodes, or GPUs of a single one, in at most MOST_SPLITS parts."""
    unit = per_node if gpus > per_node else 1
    parts = gpus // unit
    return sorted({unit * (parts * n // MOST_SPLITS) for n in range(1, MOST_SPLITS)} - {0}) if parts > 1 else []


def search_all(prices: Prices, graph: tuple[Call, ...], memory_bytes: float, lags: tuple[int, ...]) -> Answer:
    """lags: those that are compared; 0: all calls take turns on any meshes."""
    cluster, tally, found = prices.question.cluster, Tally(), list[Found]()
    target = prices.question.target
    gpus, per_node = cluster.num_gpus, cluster.gpus_per_node
    # By whether the engine has GPUs of its own.
    limited = {apart: Prices(replace(prices.question, apart=apart)) for apart in (False, True)}
    for lag in lags:
        engines = [Mesh(at, gpus - at) for at in split_points(gpus, per_node)] if lag else [None]
        for engine in engines:
            meshes = sub_meshes(Mesh(0, engine.first if engine else gpus), per_node)
            if target is not None:
                found += _together(limited[lag > 0], graph, meshes, memory_bytes, engine, lag, tally)
                continue
            search = PlacementSearch(prices, graph, meshes, memory_bytes, engine, lag, tally=tally)
            best, together = search.run(), search.together()
            found += [best] if best is not None else []
            # What frameworks run that give all calls of the trainer the same GPUs.
            found += [together] if together is not None and best is not None and together.meshes != best.meshes else []
    return Answer(found=tuple(sorted(found, key=lambda it: (it.step_s, it.lag))), tally=tally)


def _together(
    prices: Prices, graph: tuple[Call, ...], meshes: tuple[Mesh, ...], memory_bytes: float, engine: Mesh | None,
    lag: int, tally: Tally,
) -> list[Found]:  # fmt: skip
    """The one placement that a framework runs, by its `misplaced`: all calls of the trainer on all of its GPUs."""
    question = prices.question
    total = len(meshes) ** (len(graph) - bool(lag))
    tally.total += total
    if question.target is not None and question.target.cannot_run(question.step, lag):
        tally.ruled_out += total
        return []
    tally.ruled_out += total - 1
    placement = PlacementSearch(prices, graph, meshes[:1], memory_bytes, engine, lag).together()
    if placement is None:
        tally.out_of_memory += 1
        return []
    tally.priced += 1
    return [placement]
