"""The screens of sweeps."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import pairwise
from typing import TYPE_CHECKING

from .. import text
from ..charts import terminal as charts
from ..console import table
from .what_if import change_lines, kilo_dollars, price_line

if TYPE_CHECKING:
    from rich.table import Table

    from ...planner.studies.pricing import Priced
    from ...planner.studies.sweep import AxisOut, Sweep
    from .parts import Part

_MOST_ROWS = 12


def sweep_screen(result: Sweep, header: str) -> list[Part]:
    """A curve of one axis, or a map of two."""
    lines: list[Part] = [header, *change_lines(result.changes), f"held  {result.layout_id}", ""]
    if len(result.axes) == 2:
        return [*lines, *_map(result), ""]
    curve = _curve(result)
    closing = [*_dollars(result), *_closing(result)]
    return [*lines, *curve, *([""] if curve else []), _points_table(result), "", *closing, *([""] if closing else [])]


def _dollars(result: Sweep) -> list[str]:
    """The unit of the column kUSD, and where its dollars come from."""
    lines = price_line(point.held.price_source for point in result.points)
    return ["kUSD: thousand dollars per trillion tokens.", *lines] if lines else []


def seconds(priced: Priced | None) -> float | None:
    """Step seconds of a layout that runs; None for one that does not."""
    return priced.step_s if priced is not None and priced.runs else None


def labels(axis: AxisOut) -> list[str]:
    """The values of an axis as people write them."""
    return [text.value_at(axis.path, value, axis.dimension) for value in axis.values]


def numbers(axis: AxisOut) -> list[float]:
    """The places of an axis' values: the numbers, or their order where they are words."""
    try:
        return [float(str(value).strip("x×")) for value in axis.values]
    except ValueError:
        return [float(index) for index in range(len(axis.values))]


def _curve(result: Sweep) -> list[str]:
    axis, points = result.axes[0], result.points
    baseline = charts.Line("o", [seconds(point.held) for point in points])
    replanned = charts.Line("x", [seconds(point.replanned) for point in points])
    searched = any(y is not None for y in replanned.ys)
    if len(points) < 3 or axis.dimension is None:
        return []  # a few words make no curve
    key = "step s   o layout held" + ("     x re-planned at each point" if searched else "")
    lines = [baseline, replanned] if searched else [baseline]
    return [key, *charts.curve(numbers(axis), labels(axis), lines, log=axis.log)]


def _points_table(result: Sweep) -> Table:
    """The points, at most a screenful of them: the ends, what the plan has, and some between."""
    axis, points = result.axes[0], result.points
    names = labels(axis)
    now = (text.value_at(axis.path, axis.now, axis.dimension), "x1")
    searched = any(point.replanned or point.why_not for point in points)
    by_cost = any(point.held.usd_per_ttoken is not None for point in points)
    known = [s for point in points for s in (seconds(point.held), seconds(point.replanned)) if s]
    places = text.decimals(known)
    rows = []
    for index in _chosen(numbers(axis), [i for i, name in enumerate(names) if name in now]):
        point = points[index]
        best = point.best
        row = [names[index], text.fixed(seconds(point.held), places)]
        if searched:
            row.append(text.fixed(seconds(point.replanned), places))
        else:
            row.append(text.fixed(best.tokens_per_s if best else None, 0))
        if by_cost:
            row.append(kilo_dollars(best))
        if searched:
            row.append(point.replanned.layout_id if point.replanned else "none fits")
        rows.append([*row, "<- plan" if names[index] in now else _remark(best)])
    name = axis.path.rpartition(".")[2].replace("_", " ")
    money = ["kUSD"] if by_cost else []
    middle, layouts = (["re-plan s"], ["layout"]) if searched else (["tokens/s"], [])
    columns = [name, "held s", *middle, *money, *layouts, ""]
    return table(*columns, rows=rows, right=columns[: 3 + by_cost])


def _remark(best: Priced | None) -> str:
    """A remark on the best layout of a point, empty for none."""
    if best is None:
        return "does not run"
    return "" if best.eligible else "less headroom"


def _chosen(xs: Sequence[float], wanted: Sequence[int]) -> list[int]:
    """Every point, or every second, fourth ..., so that doublings stay; the `wanted` and the last one too."""
    if len(xs) <= _MOST_ROWS:
        return list(range(len(xs)))
    ratios = [b / a for a, b in pairwise(xs) if a > 0]
    even = max(ratios, default=0) < 1.01 * min(ratios, default=0)
    # A wanted point between evenly spaced ones would shift every second of those behind it.
    spaced = [index for index in range(len(xs)) if even or index not in wanted]
    stride = 1
    while len(spaced[::stride]) >= _MOST_ROWS:
        stride *= 2
    return sorted({*spaced[::stride], spaced[-1], *wanted})


def _closing(result: Sweep) -> list[str]:
    """The point of diminishing returns."""
    axis = result.axes[0]
    if result.saturates is None:
        return []
    at = text.value_at(axis.path, result.saturates, axis.dimension)
    side = "Below" if axis.path.endswith("latency") else "Above"
    return [text.wrapped(f"{side} {at}, twice as good buys under {text.share(result.worth)} with the layout held.")]


def _map(result: Sweep) -> list[str]:
    rows, columns = result.axes
    width = len(columns.values)
    best = [point.best for point in result.points]
    values = [[seconds(priced) for priced in best[i : i + width]] for i in range(0, len(best), width)]
    what = "re-planned" if any(point.replanned for point in result.points) else "layout held"
    layouts = len({priced.layout_id for priced in best if priced})
    lines = [f"step s, {what}: {rows.path} down, {columns.path} across", ""]
    lines += charts.heat_map(labels(rows), labels(columns), values)
    missing = sum(priced is None for priced in best)
    counted = f"{len(best):,} points, {layouts:,} layout{'s' if layouts > 1 else ''}"
    return [*lines, "", f"{counted}, {missing:,} points where it does not run" if missing else counted]
