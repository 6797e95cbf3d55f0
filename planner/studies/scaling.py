"""Scaling curves: the best layout on every number of GPUs, with the batch kept (strong) or growing with them (weak).

efficiency: tokens per second and GPU over those of the smallest number of GPUs that runs.
"""

from __future__ import annotations

from typing import Literal

from ...errors import InputError
from .base import Point, Question
from .paths import Value
from .sweep import AxisOut, Sweep, nowhere, points_of
from .values import number_of

_DOUBLINGS = range(-3, 4)  # of the GPUs that the plan has


class Scaling(Sweep):
    """Points by number of GPUs. efficiency: per point; None where nothing runs."""

    mode: Literal["strong", "weak"]
    efficiency: tuple[float | None, ...]


def strong(question: Question) -> Scaling:
    """The same step on more GPUs."""
    return _scaling(question, "strong")


def weak(question: Question) -> Scaling:
    """A batch that grows with the GPUs: sequences per GPU stay."""
    return _scaling(question, "weak")


def _scaling(question: Question, mode: Literal["strong", "weak"]) -> Scaling:
    """Raises InputError for another axis than `gpus`, and NoFeasibleLayoutError where nothing runs on any number."""
    now, batch = question.base.cluster.num_gpus, question.base.workload.global_batch
    counts = _counts(question, now)
    grid: list[dict[str, Value]] = []
    for count in counts:
        values: dict[str, Value] = {"gpus": str(count)}
        if mode == "weak":
            if batch * count % now:
                raise InputError(f"gpus={count}: {batch} x {count} / {now} = {batch * count / now:g} sequences",
                                 hint="take numbers of GPUs that divide the batch: `--vary gpus=64,128`")  # fmt: skip
            values["workload.global_batch"] = str(batch * count // now)
        grid.append(values)
    points = points_of(question, grid, search=True)
    if not any(point.best for point in points):
        raise nowhere(question, points)
    axis = AxisOut(path="gpus", dimension="count", log=True, values=tuple(str(count) for count in counts), now=str(now))
    return Scaling(**question.common_fields(f"{mode}-scaling"), mode=mode, axes=(axis,), points=tuple(points),
                   efficiency=_efficiency(points))  # fmt: skip


def _counts(question: Question, now: int) -> list[int]:
    """The numbers asked for, else doublings around the plan's that are whole GPUs and, beyond one node, whole nodes."""
    if question.axes:
        if [axis.path for axis in question.axes] != ["gpus"]:
            raise InputError("scaling is over `gpus`", hint="`--vary gpus=64..1024`, or leave it out")
        return sorted(round(number_of(value)) for value in question.axes[0].values)
    node = question.base.cluster.gpus_per_node
    around = [now * 2**k if k >= 0 else now // 2**-k for k in _DOUBLINGS if k >= 0 or now % 2**-k == 0]
    return [count for count in around if count <= node or count % node == 0]


def _efficiency(points: list[Point]) -> tuple[float | None, ...]:
    rates = [point.best.tokens_per_s / point.best.num_gpus if point.best else None for point in points]
    first = next(value for value in rates if value is not None)
    return tuple(None if value is None else value / first for value in rates)
