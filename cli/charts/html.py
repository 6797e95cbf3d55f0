"""A study as one HTML file: curves or a map that answer to the pointer. No network, no library."""

from __future__ import annotations

import html
import json
import math
from pathlib import Path
from typing import TYPE_CHECKING

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
    changes = "".join(f"<br>{html.escape(line.strip())}" for line in change_lines(result.changes))
    body = f"""<h1>{html.escape(title)}</h1>
<p class="soft">{html.escape(header)}<br>held: <code>{html.escape(result.layout_id)}</code>{changes}</p>
<p><label>Show <select id="metric"></select></label></p>
<div id="chart"></div>
<p id="tip" class="soft" aria-live="polite">Point at the chart.</p>"""
    return page(title, body, f"const data = {embedded(_data(result))};\n{part('chart.js')}")


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


def page(title: str, body: str, script: str = "") -> str:
    """A whole HTML document; everything it needs is in it."""
    behaviour = f"<script>\n{script}</script>" if script else ""
    return f"""<!doctype html>
<html lang="en"><head><meta charset="utf-8"><meta name="viewport" content="width=device-width, initial-scale=1">
<title>{html.escape(title)}</title><link rel="icon" href="data:,">
<style>
{part("style.css")}</style></head><body>
{body}
{behaviour}</body></html>
"""


def part(name: str) -> str:
    """A file of cli/pages."""
    return (Path(__file__).parent.parent / "pages" / name).read_text(encoding="utf-8")


def embedded(data: object) -> str:
    """JSON that is safe inside of a script element."""
    return json.dumps(data, separators=(",", ":"), allow_nan=False).replace("<", "\\u003c")


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
