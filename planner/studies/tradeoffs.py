"""Trade-offs: layouts and numbers of GPUs that no other beats (`plan --pareto`)."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Any, Literal

import numpy as np
from numpy.typing import NDArray
from pydantic import BaseModel, ConfigDict

from ...errors import InputError, MeshwrightError, NoFeasibleLayoutError, SearchInterrupted, UnknownNameError
from ..document.base import rounded
from ..document.certificate import SpaceCount
from ..drivers.assembly import resolved_part
from ..evaluation.candidates import money
from ..evaluation.infeasible import does_not_fit, no_legal_layout
from ..request.gpu_counts import GpuRange, counts
from ..request.load import Request, request_to_dict
from ..request.resolve import Resolved, resolve
from ..request.target_choice import for_able_target
from ..search.executors import opened
from ..search.tasks import Aim, Progress, Rounds, Task
from ..space.counting import LayoutCounts
from ..space.tree import Count

FORMAT_VERSION = "1.0"
# axis -> field of a Choice; less is better in all of them
AXES: Mapping[str, str] = {"time": "step_s", "memory": "device_bytes", "gpus": "num_gpus", "cost": "usd_per_mtoken"}


class Part(BaseModel):
    model_config = ConfigDict(frozen=True)


class TradeoffChoice(Part):
    """A layout on a number of GPUs."""

    num_gpus: int
    layout_id: str
    step_s: float
    device_bytes: float  # of the fullest GPU
    tokens_per_s: float
    usd_per_mtoken: float | None  # dollars per million tokens; None: no price of a node is known
    days: float | None = None  # of the whole run, as the next two; None: its tokens are not given
    gpu_hours: float | None = None
    cost_usd: float | None = None

    @classmethod
    def of(cls, resolved: Resolved, row: tuple[float, float, str]) -> TradeoffChoice:
        """A row (seconds, bytes, id) of an answer to a search of `resolved`."""
        step_s, num_bytes, name = row
        spent = money(resolved, step_s)
        fields: dict[str, Any] = {
            "num_gpus": resolved.cluster.num_gpus, "layout_id": name, "step_s": step_s, "device_bytes": num_bytes,
            "tokens_per_s": resolved.workload.tokens_per_step / step_s,
            "usd_per_mtoken": spent.pop("cost_usd_per_mtoken"),
        }  # fmt: skip
        return cls.model_validate(rounded({**fields, **spent}))


class GpuCountsResult(Part):
    """The request and the numbers of GPUs, in every result over several of them."""

    format_version: str = FORMAT_VERSION
    request_sha256: str
    request: dict[str, Any]
    resolved: dict[str, Any]  # model, workload and cluster of the smallest number of GPUs
    counts: tuple[int, ...]  # numbers of GPUs that are tried, rising
    whole_nodes_of: int  # GPUs of a node
    stopped: str | None = None  # what cut the searches: `interrupted` or `time limit`
    warnings: tuple[str, ...] = ()


class Frontier(GpuCountsResult):
    """The layouts that no other beats: as good in all axes and better in one."""

    kind: Literal["frontier"] = "frontier"
    axes: tuple[str, ...]  # names of AXES
    points: tuple[TradeoffChoice, ...]  # in the order of the first axis
    overview: tuple[int, ...]  # indices of points, the most different first
    space: SpaceCount  # of all searches together
    proven: bool  # whether the frontier is exact: it is unless the searches were cut


def parse_axes(text: str) -> tuple[str, ...]:
    """`time,memory` -> names of AXES. Raises InputError for less than two, one twice, and UnknownNameError."""
    names = [part.strip() for part in text.split(",") if part.strip()]
    for name in names:
        if name not in AXES:
            error = UnknownNameError("axis", name, AXES, where="--pareto")
            error.hint = error.hint or f"name two or more of {', '.join(AXES)}"
            raise error
    if len(set(names)) < len(names):
        raise InputError(f"--pareto {text} names one of them twice", hint="write `--pareto time,memory`")
    if len(names) < 2:
        others = ", ".join(name for name in AXES if name not in names)
        raise InputError(f"--pareto `{text}`: one thing is traded for another, so name two or more",
                         hint=f"add one of {others}")  # fmt: skip
    return tuple(names)


def frontier(
    request: Request, axes: Sequence[str], gpus: GpuRange | None = None, *, jobs: int = 1, executor: str | None = None,
    progress: Progress | None = None, time_limit_s: float | None = None,
) -> Frontier:  # fmt: skip
    """The exact frontier of `axes` (names of AXES) over the whole space, on every number of GPUs in `gpus`.

    On one number of GPUs cost follows time, so the frontier of a search is that of time and memory; larger numbers of
    GPUs look for what the smaller ones do not beat. Raises InputError and NoFeasibleLayoutError.
    """
    sizes, per_node = sizes_of(request, gpus)
    shared = counts_to_dict(request, sizes, per_node)
    _check(sizes, axes)
    axes, choices, count = tuple(axes), list[TradeoffChoice](), Count()

    def task(resolved: Resolved) -> Task:
        return _task(resolved, axes, choices, rounds.ends_s)

    with opened(jobs, executor) as pool:
        rounds = Rounds(pool, len(sizes), progress, time_limit_s)
        for resolved, answer in rounds.run(sizes, task):
            count.add(answer.count)
            choices[:] = unbeaten([*choices, *(TradeoffChoice.of(resolved, row) for row in answer.rows)], axes)
    if not choices:
        raise nothing(sizes, rounds.stopped)
    values = _values(choices, axes)
    return Frontier(
        **shared, axes=axes, points=tuple(choices), overview=tuple(_overview(values)), stopped=rounds.stopped,
        space=count.to_space_count(), proven=rounds.stopped is None,
    )  # fmt: skip


def sizes_of(request: Request, gpus: GpuRange | None) -> tuple[list[Resolved], int]:
    """The request on every number of GPUs, and the GPUs of a node."""
    if gpus is None:
        resolved = for_able_target(resolve(request))
        return [resolved], resolved.cluster.gpus_per_node
    tried = counts(request, gpus)
    return [tried.on(number) for number in tried.numbers], tried.per_node


def counts_to_dict(request: Request, sizes: Sequence[Resolved], per_node: int) -> dict[str, Any]:
    """The fields of a GpuCountsResult. Raises InputError where links between nodes differ."""
    if sizes[0].cluster.links is not None:
        raise InputError("links between these nodes differ, and only a plan places nodes",
                         hint="leave `links` out of the cluster, or plan each size by itself")  # fmt: skip
    return {
        "request_sha256": request.sha256, "request": request_to_dict(request), "resolved": resolved_part(sizes[0]),
        "counts": tuple(resolved.cluster.num_gpus for resolved in sizes), "whole_nodes_of": per_node,
        "warnings": tuple(warning.text for warning in sizes[-1].warnings),
    }  # fmt: skip


def _check(sizes: Sequence[Resolved], axes: Sequence[str]) -> None:
    """Refuses axes that cannot be told apart, or are not known."""
    if "cost" in axes and sizes[0].cluster.usd_per_hour is None:
        raise InputError(f"cost: no price of {sizes[0].cluster.groups[0].node} is known",
                         hint="take a node type with a price, or give `price` in a cluster file")  # fmt: skip
    if len(sizes) == 1 and not ("memory" in axes and {"time", "cost"} & set(axes)):
        words = "the cheapest layout is the fastest" if "cost" in axes else "nothing can be traded for fewer GPUs"
        raise InputError(f"on one number of GPUs {words}", hint="give a range: `--gpus 64..1024`")


def _task(resolved: Resolved, axes: Sequence[str], choices: Sequence[TradeoffChoice], ends_s: float) -> Task:
    """The search on one number of GPUs, against what fewer GPUs reach: a layout that is no faster than one of them (no
    cheaper, if time is no axis) and no smaller, if memory is one, is beaten."""
    timed, sized = bool({"time", "cost"} & set(axes)), "memory" in axes
    unit = money(resolved, 1.0)["cost_usd_per_mtoken"] or math.nan
    by_time = "time" in axes or not timed
    seconds = [choice.step_s if by_time else (choice.usd_per_mtoken or 0.0) / unit for choice in choices]
    if timed and sized:
        rivals = {(s, choice.device_bytes) for s, choice in zip(seconds, choices, strict=True)}
        return Task.of(resolved, "frontier", rivals=_steps(rivals), ends_s=ends_s)
    aim: Aim = "step" if timed else "memory"
    values = seconds if timed else [choice.device_bytes for choice in choices]
    return Task.of(resolved, aim, limit=min(values, default=math.inf), ends_s=ends_s)


def _steps(rivals: set[tuple[float, float]]) -> tuple[tuple[float, float], ...]:
    """The points that no other point dominates."""
    out: list[tuple[float, float]] = []
    for seconds, num_bytes in sorted(rivals):
        if not out or num_bytes < out[-1][1]:
            out.append((seconds, num_bytes))
    return tuple(out)


def unbeaten(choices: Sequence[TradeoffChoice], axes: Sequence[str]) -> list[TradeoffChoice]:
    """The choices that no other beats, in the order of the axes; of those equal in all the one with the fewest GPUs."""
    ordered = sorted(choices, key=lambda choice: (*(getattr(choice, AXES[name]) for name in axes), choice.num_gpus,
                                               choice.layout_id))  # fmt: skip
    values = _values(ordered, axes)
    best: list[int] = []
    for index in range(len(ordered)):  # in this order only what stands before can be as good in all
        if not best or not (values[best] <= values[index]).all(axis=1).any():
            best.append(index)
    return [ordered[index] for index in best]


def _values(choices: Sequence[TradeoffChoice], axes: Sequence[str]) -> NDArray[np.float64]:
    """[choice, axis]"""
    rows = [[float(getattr(choice, AXES[name])) for name in axes] for choice in choices]
    return np.array(rows).reshape(-1, len(axes))


def _overview(values: NDArray[np.float64]) -> list[int]:
    """Indices of the best of each axis, then always the one farthest from those before it, on logarithmic axes."""
    places = np.log(values)
    spread = places.max(axis=0) - places.min(axis=0)
    places = (places - places.min(axis=0)) / np.where(spread > 0, spread, 1.0)
    order = list(dict.fromkeys(int(index) for index in places.argmin(axis=0)))
    away = np.min([np.abs(places - places[index]).max(axis=1) for index in order], axis=0)
    while len(order) < len(places):
        away[order] = -1.0
        order.append(int(away.argmax()))
        away = np.minimum(away, np.abs(places - places[order[-1]]).max(axis=1))
    return order


def nothing(sizes: Sequence[Resolved], stopped: str | None) -> MeshwrightError:
    """Why no number of GPUs has a layout."""
    if stopped is not None:
        return SearchInterrupted(f"stopped ({stopped}) before any layout was found")
    last, count = sizes[-1], Count()
    meshes = last.space.meshes(count)
    if len(meshes["tp"]):
        LayoutCounts(last.space, meshes).tally(count)
    legal = count.total > sum(count.ruled_out.values())
    error = does_not_fit(last, count) if legal else no_legal_layout(last, count)
    if len(sizes) == 1:
        return error
    tried = f"{len(sizes):,} numbers of GPUs from {sizes[0].cluster.num_gpus:,} to {last.cluster.num_gpus:,}"
    return NoFeasibleLayoutError(f"no layout of {last.model.name} runs on any of {tried}; on the largest:\n\n"
                                 f"{error.message}", hint=error.hint, details=error.details)  # fmt: skip
