"""Points of a study as lines of CSV."""

from __future__ import annotations

import csv
import io
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from ..screens.parts import Json

_FIELDS = ("layout_id", "step_s", "device_bytes", "tokens_per_s", "usd_per_ttoken", "mwh_per_ttoken")


def to_csv(result: Json) -> str:
    """A line per point (sweeps) or per number (sensitivity); base units, empty where nothing is known."""
    stream = io.StringIO()
    writer = csv.writer(stream, lineterminator="\n")
    if "points" in result:
        points = result["points"]
        axes = list(points[0]["values"])
        sides = ["held", *(["replanned"] if any(point["replanned"] for point in points) else [])]
        writer.writerow([*axes, *(f"{side}_{field}" for side in sides for field in _FIELDS), "problems"])
        for point in points:
            row = [point["values"][axis] for axis in axes]
            for side in sides:
                row += [(point[side] or {}).get(field) for field in _FIELDS]
            writer.writerow([*row, "; ".join(point["held"]["problems"])])
    else:
        rows = result["rows"]
        writer.writerow(rows[0])
        writer.writerows([row[name] for name in rows[0]] for row in rows)
    return stream.getvalue()
