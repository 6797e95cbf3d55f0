"""A study as one HTML file: curves or a map that answer to the pointer. No network, no library."""

from __future__ import annotations

import html
import json
from pathlib import Path
from typing import TYPE_CHECKING, Any

from ..screens import sweep as sweep_screen
from ..screens.what_if import change_lines

if TYPE_CHECKING:
    from ..screens.parts import Json


METRICS = (
    ("step_s", "step, s", 1.0), ("tokens_per_s", "tokens/s", 1.0), ("device_bytes", "memory, GiB", 2.0**-30),
    ("usd_per_ttoken", "USD per trillion tokens", 1.0), ("mwh_per_ttoken", "GPU MWh per trillion tokens", 1.0),
)  # fmt: skip


def chart_page(result: Json, header: str) -> str:
    """The page of a sweep."""
    labels, numbers = sweep_screen.labels, sweep_screen.numbers
    axes = [{"path": axis["path"], "labels": labels(axis), "at": numbers(axis), "log": axis["log"],
             "words": axis["dimension"] is None}
            for axis in result["axes"]]  # fmt: skip
    points = [{"held": _side(point["held"]), "best": _side(point["replanned"])} for point in result["points"]]
    metrics = [
        {"name": label, "of": [[_value(point[side], name, scale) for side in ("held", "replanned")]
                               for point in result["points"]]}
        for name, label, scale in METRICS
        if any(point["held"][name] is not None for point in result["points"])
    ]  # fmt: skip
    data = {"axes": axes, "points": points, "metrics": metrics, "now": _now(result)}
    title = f"What if: {' x '.join(axis['path'] for axis in result['axes'])}"
    changes = "".join(f"<br>{html.escape(line.strip())}" for line in change_lines(result["changes"]))
    body = f"""<h1>{html.escape(title)}</h1>
<p class="soft">{html.escape(header)}<br>held: <code>{html.escape(result["layout_id"])}</code>{changes}</p>
<p><label>Show <select id="metric"></select></label></p>
<div id="chart"></div>
<p id="tip" class="soft" aria-live="polite">Point at the chart.</p>"""
    return page(title, body, f"const data = {embedded(data)};\n{part('chart.js')}")


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


def _side(priced: Json | None) -> dict[str, Any] | None:
    return None if priced is None else {"id": priced["layout_id"], "problems": "; ".join(priced["problems"])}


def _value(priced: Json | None, name: str, scale: float) -> float | None:
    if priced is None or priced["problems"] or priced[name] is None:
        return None
    return float(priced[name]) * scale


def _now(result: Json) -> list[int]:
    """Index of what the plan has, per axis; -1 where it is not among the values."""
    out = []
    for axis in result["axes"]:
        wanted = [axis["now"], "x1"]
        out.append(next((i for i, value in enumerate(axis["values"]) if value in wanted), -1))
    return out
