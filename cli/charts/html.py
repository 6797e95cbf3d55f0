"""A study as one HTML file: curves or a map that answer to the pointer. No network, no library."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING

from ..pages.templates import render
from ..screens import sweep as sweep_screen
from ..screens.what_if import change_lines

if TYPE_CHECKING:
    from ...planner.studies.pricing import Priced
    from ...planner.studies.sweep import Sweep


METRICS = (
    ("step_s", "step, s", 1.0), ("tokens_per_s", "tokens/s", 1.0), ("device_bytes", "memory, GiB", 2.0**-30),
    ("usd_per_ttoken", "USD per trillion tokens", 1.0), ("mwh_per_ttoken", "GPU MWh per trillion tokens", 1.0),
)  # fmt: skip


def chart_page(result: Sweep, header: str) -> str:
    """The page of a sweep."""
    title = f"What if: {' x '.join(axis.path for axis in result.axes)}"
    changes = [line.strip() for line in change_lines(result.changes)]
    return render("chart.html", title=title, header=header, layout_id=result.layout_id, changes=changes,
                  data=_data(result))  # fmt: skip


def _data(result: Sweep) -> dict[str, object]:
    """The data of chart.js."""
    labels, numbers = sweep_screen.labels, sweep_screen.numbers
    axes = [{"path": axis.path, "labels": labels(axis), "at": numbers(axis), "log": axis.log,
             "words": axis.dimension is None}
            for axis in result.axes]  # fmt: skip
    points = [{"held": _side(point.held), "best": _side(point.replanned)} for point in result.points]
    metrics = [
        {"name": label, "of": [[_value(priced, name, scale) for priced in (point.held, point.replanned)]
                               for point in result.points]}
        for name, label, scale in METRICS
        if any(_known(getattr(point.held, name)) for point in result.points)
    ]  # fmt: skip
    return {"axes": axes, "points": points, "metrics": metrics, "now": _now(result)}


def _side(priced: Priced | None) -> dict[str, object] | None:
    return None if priced is None else {"id": priced.layout_id, "problems": "; ".join(priced.problems)}


def _known(value: float | None) -> bool:
    """A layout that is not legal has no seconds: they are not a number."""
    return value is not None and math.isfinite(value)


def _value(priced: Priced | None, name: str, scale: float) -> float | None:
    value = getattr(priced, name, None)
    if priced is None or not priced.runs or value is None:
        return None
    return float(value) * scale


def _now(result: Sweep) -> list[int]:
    """Index of what the plan has, per axis; -1 where it is not among the values."""
    return [
        next((index for index, value in enumerate(axis.values) if value in (axis.now, "x1")), -1)
        for axis in result.axes
    ]
