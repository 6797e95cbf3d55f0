"""Ranges: the layout held at every point of one or two axes and, on request, the best layout at each."""

from __future__ import annotations

from itertools import product

from ...errors import InputError, NoFeasibleLayoutError
from ..resolve import Resolved
from .base import Part, Point, Question, Result
from .changes import MOST_POINTS, Value, Values, apply, current, dimension_of
from .pricing import held


class AxisOut(Part):
    """An axis as it was run; `now`: what the plan has there."""

    path: str
    dimension: str | None
    log: bool
    values: tuple[Value, ...]
    now: Value | None


class Sweep(Result):
    """Points in the order of the axes, the last one fastest. saturates: see `Saturation`."""

    axes: tuple[AxisOut, ...]
    points: tuple[Point, ...]


def run(question: Question) -> Sweep:
    """Raises InputError for more than two axes, one axis twice, or too many points, and NoFeasibleLayoutError where
    nothing runs at any point, naming the point that comes closest."""
    axes = question.axes
    if not 1 <= len(axes) <= 2:
        raise InputError(f"{len(axes)} --vary: one is a curve, two are a map", hint="fix the others with `--set`")
    if len({axis.path for axis in axes}) < len(axes) or {axis.path for axis in axes} & set(question.sets):
        raise InputError(f"{axes[0].path} is varied and given a value at once", hint="keep one of them")
    paths = [axis.path for axis in axes]
    grid = [dict(zip(paths, values, strict=True)) for values in product(*(axis.values for axis in axes))]
    if len(grid) > MOST_POINTS:
        counted = " x ".join(f"{len(axis.values):,}" for axis in axes)
        raise InputError(f"{counted} = {len(grid):,} points", hint=f"at most {MOST_POINTS:,}: `--vary path=a..b:20`")
    points = priced(question, grid)
    if not any(point.best for point in points):
        raise _nowhere(points)
    return Sweep(**question.told("sweep"), points=tuple(points), axes=tuple(
        AxisOut(path=axis.path, dimension=dimension_of(axis.path), log=axis.log, values=axis.values,
                now=current(question.base, axis.path)) for axis in axes))  # fmt: skip


def priced(question: Question, grid: list[dict[str, Value]]) -> list[Point]:
    """Every point of the grid: the layout held on all of them together, then one search per point."""
    base, founds = question.base, []
    for values in grid:
        founds.append(_at(base, values))
    points = [Point(values=values, held=one) for values, one in zip(grid, held(question.layout, founds), strict=True)]
    if not question.replan:
        return points
    seeds, out = [question.layout], []
    for done, (found, point) in enumerate(zip(founds, points, strict=True)):
        if question.progress is not None:
            question.progress(done, len(grid), "")
        out.append(question.filled(found, point, seeds, search=True))
    return out


def _at(base: Resolved, values: Values) -> Resolved:
    try:
        return apply(base, values)
    except InputError as error:
        at = ", ".join(f"{path}={value}" for path, value in values.items())
        raise InputError(f"at {at}: {error.message}", hint=error.hint, details=error.details) from None


def _nowhere(points: list[Point]) -> NoFeasibleLayoutError:
    """Nothing runs anywhere: the point where the layout held is nearest to fitting, and by how much it misses."""
    tight = [p for p in points if p.held.device_bytes == p.held.device_bytes]
    if not tight:
        reasons = points[0].why_not or "; ".join(points[0].held.problems)
        hint = "" if points[0].why_not else "`--replan` searches other layouts"
        return NoFeasibleLayoutError(f"no layout runs at any of {len(points)} points\n\n  {reasons}", hint=hint)
    near = min(tight, key=lambda p: p.held.device_bytes / p.held.memory_bytes)
    at = ", ".join(f"{path}={value}" for path, value in near.values.items())
    need, has = near.held.device_bytes / 2**30, near.held.memory_bytes / 2**30
    return NoFeasibleLayoutError(
        f"no layout runs at any of {len(points)} points\n\n  nearest at {at}: {near.held.layout_id} needs "
        f"{need:.1f} GiB per GPU of {has:.1f}",
        hint="`--replan` searches other layouts" if near.why_not is None else near.why_not.splitlines()[0],
        details={"values": near.values, "device_bytes": near.held.device_bytes,
                 "memory_bytes": near.held.memory_bytes},
    )  # fmt: skip
