"""Ranges: the layout held at every point of one or two axes and, on request, the best layout at each."""

from __future__ import annotations

import math
from dataclasses import replace
from itertools import product

from ...cost_models import units
from ...errors import InputError, NoFeasibleLayoutError
from . import parallel
from .axes import MOST_POINTS, Axis
from .base import Part, Point, Question, Result
from .knobs import KNOBS
from .paths import Value, current, dimension_of
from .points import at_values, priced, spelled
from .pricing import replanned
from .sensitivity import WORTH, saturates
from .values import number_of


class AxisOut(Part):
    """An axis as it was run; `now`: what the plan has there."""

    path: str
    dimension: str | None
    log: bool
    values: tuple[Value, ...]
    now: Value | None


class Sweep(Result):
    """Points in the order of the axes, the last one fastest. saturates: on one axis of hardware, from where on twice
    as good buys under `worth` of a step with the layout held."""

    axes: tuple[AxisOut, ...]
    points: tuple[Point, ...]
    worth: float = WORTH
    saturates: float | None = None


def run(question: Question) -> Sweep:
    """Raises InputError for more than two axes, one axis twice, or too many points, and NoFeasibleLayoutError where
    nothing runs at any point, naming the point that comes closest."""
    axes = _with_now(question)
    if not 1 <= len(axes) <= 2:
        raise InputError(f"{len(axes)} --vary: one is a curve, two are a map", hint="fix the others with `--set`")
    if len({axis.path for axis in axes}) < len(axes) or {axis.path for axis in axes} & set(question.sets):
        raise InputError(f"{axes[0].path} is varied and given a value at once", hint="keep one of them")
    paths = [axis.path for axis in axes]
    grid = [dict(zip(paths, values, strict=True)) for values in product(*(axis.values for axis in axes))]
    if len(grid) > MOST_POINTS:
        counted = " x ".join(f"{len(axis.values):,}" for axis in axes)
        raise InputError(f"{counted} = {len(grid):,} points", hint=f"at most {MOST_POINTS:,}: `--vary path=a..b:20`")
    points = points_of(question, grid, search=question.replan)
    if not any(point.best for point in points):
        raise nowhere(question, points)
    knob = KNOBS.get(axes[0].path) if len(axes) == 1 else None
    is_speed = knob is not None and bool(knob.better) and points[0].held.runs
    saturated = saturates(question.base, question.layout, knob) if knob and is_speed else None
    return Sweep(**question.common_fields("sweep"), points=tuple(points), saturates=saturated, axes=tuple(
        AxisOut(path=axis.path, dimension=dimension_of(axis.path), log=axis.log, values=axis.values,
                now=current(question.base, axis.path)) for axis in axes))  # fmt: skip


def _with_now(question: Question) -> tuple[Axis, ...]:
    """A curve also passes through what the plan has, if that lies in its range."""
    if len(question.axes) != 1:
        return question.axes
    (axis,) = question.axes
    now: Value | None = current(question.base, axis.path)
    if isinstance(axis.values[0], str) and axis.path in KNOBS:
        now = "x1"
    if now is None or now in axis.values or len(axis.values) < 3:
        return question.axes
    try:
        at, values = number_of(now), [number_of(value) for value in axis.values]
    except InputError:
        return question.axes
    if not min(values) < at < max(values):
        return question.axes
    others = [v for v, x in zip(axis.values, values, strict=True) if not math.isclose(x, at, rel_tol=1e-9)]
    return (replace(axis, values=tuple(sorted([*others, now], key=number_of))),)


def points_of(question: Question, grid: list[dict[str, Value]], *, search: bool) -> list[Point]:
    """Every point of the grid, searched where, and in as many processes as, was asked for."""
    question = replace(question, replan=search)
    separate = question.jobs > 1 or question.executor is not None or question.resume is not None
    # Held layouts are priced together, in no time.
    return (parallel.priced if separate and search else priced)(question, grid)


def nowhere(question: Question, points: list[Point]) -> NoFeasibleLayoutError:
    """Nothing runs anywhere: the point with most memory in all, what comes closest there, and what would do."""
    near = max(points, key=lambda point: point.held.memory_bytes * point.held.num_gpus)
    at = ", ".join(f"{path}={spelled(path, value)}" for path, value in near.values.items())
    first = f"no layout runs at any of {len(points):,} points; nearest is {at}"
    if question.replan:
        try:
            replanned(at_values(question, near.values), [question.layout.layout])
        except NoFeasibleLayoutError as error:
            return NoFeasibleLayoutError(f"{first}: {error.message}", hint=error.hint,
                                         details={**error.details, "values": near.values})  # fmt: skip
    need, has = units.gib(near.held.device_bytes), units.gib(near.held.memory_bytes)
    too_large = f"needs {need} GiB per GPU of {has}"
    reasons = [too_large if problem == "out of memory" else problem for problem in near.held.problems]
    return NoFeasibleLayoutError(f"{first}\n\n  {near.held.layout_id}: {'; '.join(reasons)}",
                                 hint="`--replan` searches other layouts", details={"values": near.values})  # fmt: skip
