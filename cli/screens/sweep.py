"""The screens of sweeps and of sensitivity, made from the JSON form of a study's result."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import pairwise
from typing import TYPE_CHECKING

from .. import text
from ..charts import terminal as charts
from ..console import table
from .what_if import change_lines

if TYPE_CHECKING:
    from rich.table import Table

    from .parts import Json, Part

_MOST_ROWS = 12


def sweep_screen(result: Json, header: str) -> list[Part]:
    """A curve of one axis, or a map of two."""
    lines: list[Part] = [header, *change_lines(result["changes"]), f"held  {result['layout_id']}", ""]
    if len(result["axes"]) == 2:
        return [*lines, *_map(result), ""]
    curve = _curve(result)
    closing = _closing(result)
    return [*lines, *curve, *([""] if curve else []), _points_table(result), "", *closing, *([""] if closing else [])]


def seconds(priced: Json | None) -> float | None:
    """Step seconds of a layout that runs; None for one that does not."""
    return None if priced is None or priced["problems"] else priced["step_s"]


def best(point: Json) -> Json | None:
    """The re-planned layout, else the held one if it runs."""
    held: Json = point["held"]
    chosen: Json | None = point["replanned"]
    return chosen or (None if held["problems"] else held)


def labels(axis: Json) -> list[str]:
    """The values of an axis as people write them."""
    return [text.value_at(axis["path"], value, axis["dimension"]) for value in axis["values"]]


def numbers(axis: Json) -> list[float]:
    """The places of an axis' values: the numbers, or their order where they are words."""
    try:
        return [float(str(value).strip("x×")) for value in axis["values"]]
    except ValueError:
        return [float(index) for index in range(len(axis["values"]))]


def _curve(result: Json) -> list[str]:
    axis, points = result["axes"][0], result["points"]
    held = charts.Line("o", [seconds(point["held"]) for point in points])
    again = charts.Line("x", [seconds(point["replanned"]) for point in points])
    searched = any(y is not None for y in again.ys)
    if len(points) < 3 or axis["dimension"] is None:
        return []  # a few words make no curve
    key = "step s   o layout held" + ("     x re-planned at each point" if searched else "")
    lines = [held, again] if searched else [held]
    return [key, *charts.curve(numbers(axis), labels(axis), lines, log=axis["log"])]


def _points_table(result: Json) -> Table:
    """The points, at most a screenful of them: the ends, what the plan has, and some between."""
    axis, points = result["axes"][0], result["points"]
    named = labels(axis)
    now = text.value_at(axis["path"], axis["now"], axis["dimension"])
    searched = any(point["replanned"] or point["why_not"] for point in points)
    places = text.decimals([s for point in points for s in (seconds(point["held"]), seconds(point["replanned"])) if s])
    by_cost = any(point["held"]["usd_per_ttoken"] is not None for point in points)
    rows = []
    for index in _chosen(numbers(axis), [i for i, name in enumerate(named) if name in (now, "x1")]):
        point = points[index]
        shown = best(point)
        row = [named[index], text.fixed(seconds(point["held"]), places)]
        row += [text.fixed(seconds(point["replanned"]), places)] if searched else []
        row += [] if searched else [text.fixed(shown["tokens_per_s"] if shown else None, 0)]
        row += [text.fixed(shown["usd_per_ttoken"] if shown else None, 0)] if by_cost else []
        row += [point["replanned"]["layout_id"] if point["replanned"] else "none fits"] if searched else []
        row.append("<- plan" if named[index] in (now, "x1") else "" if shown else "does not run")
        rows.append(row)
    name = axis["path"].rpartition(".")[2].replace("_", " ")
    money = ["USD/Ttoken"] if by_cost else []
    middle, layouts = (["re-planned s"], ["layout"]) if searched else (["tokens/s"], [])
    columns = [name, "held s", *middle, *money, *layouts, ""]
    return table(*columns, rows=rows, right=columns[: 3 + by_cost])


def _chosen(xs: Sequence[float], wanted: Sequence[int]) -> list[int]:
    """Every point, or every second, fourth ..., so that doublings stay; the `wanted` and the last one too."""
    if len(xs) <= _MOST_ROWS:
        return list(range(len(xs)))
    ratios = [b / a for a, b in pairwise(xs) if a > 0]
    even = max(ratios, default=0) < 1.01 * min(ratios, default=0)
    own = [index for index in range(len(xs)) if even or index not in wanted]
    stride = 1
    while len(own[::stride]) >= _MOST_ROWS:
        stride *= 2
    return sorted({*own[::stride], own[-1], *wanted})


def _closing(result: Json) -> list[str]:
    """Where more of it stops to pay."""
    axis = result["axes"][0]
    if result["saturates"] is None:
        return []
    at = text.value_at(axis["path"], result["saturates"], axis["dimension"])
    side = "Below" if axis["path"].endswith("latency") else "Above"
    return [text.wrapped(f"{side} {at}, twice as good buys under {text.share(result['worth'])} with the layout held.")]


def _map(result: Json) -> list[str]:
    rows, columns = result["axes"]
    width = len(columns["values"])
    shown = [best(point) for point in result["points"]]
    values = [[seconds(each) for each in shown[i : i + width]] for i in range(0, len(shown), width)]
    what = "re-planned" if any(point["replanned"] for point in result["points"]) else "layout held"
    layouts = len({each["layout_id"] for each in shown if each})
    lines = [f"step s, {what}: {rows['path']} down, {columns['path']} across", ""]
    lines += charts.heat_map(labels(rows), labels(columns), values)
    missing = sum(each is None for each in shown)
    counted = f"{len(shown):,} points, {layouts:,} layout{'s' if layouts > 1 else ''}"
    return [*lines, "", f"{counted}, {missing:,} points where it does not run" if missing else counted]


def sensitivity_screen(result: Json, header: str) -> list[Part]:
    """The numbers, what helps most first."""
    columns, rows, rest = sensitivity_cells(result)
    lines: list[Part] = [header, *change_lines(result["changes"]), f"held  {result['layout_id']}, {_step(result)}", ""]
    lines += [table(*columns, rows=rows, right=columns[1:]), ""]
    lines.append(text.wrapped(binding(result)))
    if rest:
        lines.append(text.wrapped(f"Without effect on this layout: {', '.join(rest)}."))
    key = "Elasticity -0.5: 1 % more of it makes a step 0.5 % shorter. 2x: half, where less is better."
    searched, worth = "re-planned %" in columns, text.share(result["worth"])
    last = "Re-planned: 2x, with the best layout there." if searched else f"Enough: above it, 2x saves under {worth}."
    lines.append(text.wrapped(f"{key} {last}"))
    return [*lines, ""]


def sensitivity_cells(result: Json) -> tuple[list[str], list[list[str]], list[str]]:
    """Columns, rows of what changes a step, and the labels of what does not."""
    searched = any(row["gain_replanned"] is not None for row in result["rows"])
    rows = []
    for row in filter(_matters, result["rows"]):
        cells = [row["label"], text.value_at(row["path"], row["now"], row["dimension"]), f"{row['elasticity']:+.2f}",
                 text.percent(row["gain"])]  # fmt: skip
        rows.append([*cells, text.percent(row["gain_replanned"]) if searched else _enough(row)])
    columns = ["", "now", "elasticity", "2x saves %", "re-planned %" if searched else "enough at"]
    return columns, rows, [row["label"] for row in result["rows"] if not _matters(row)]


def _matters(row: Json) -> bool:
    return bool(max(abs(row["elasticity"]), row["gain"], row["gain_replanned"] or 0.0) >= 0.0005)


def _step(result: Json) -> str:
    return f"{text.significant(result['step_s'])} s per step"


def _enough(row: Json) -> str:
    return "-" if row["saturates"] is None else text.value_at(row["path"], row["saturates"], row["dimension"])


def binding(result: Json) -> str:
    """What the step follows most, and what to improve after that."""
    rows = [row for row in result["rows"] if _matters(row)]
    if not rows:
        return "Nothing that was tried changes the step."
    binds = max(rows, key=lambda row: abs(row["elasticity"]))
    first = f"What binds: {binds['label']}, which {text.percent(abs(binds['elasticity']), 0)} % of the step follows."
    if len(rows) < 2:
        return first
    after = next((row for row in rows if row["path"] != binds["path"]), rows[0])
    return f"{first} What helps next: {after['label']}, {text.percent(after['gain'])} % for twice as much."
