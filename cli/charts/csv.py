"""Points of a study as lines of CSV."""

from __future__ import annotations

import csv
import io
import math
from collections.abc import Sequence
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from pydantic import BaseModel

    from ...planner.studies.base import Point
    from ...planner.studies.pricing import Priced

_FIELDS = ("layout_id", "step_s", "device_bytes", "tokens_per_s", "usd_per_ttoken", "mwh_per_ttoken")


def points_to_csv(points: Sequence[Point]) -> str:
    """A line per point of a sweep; base units, empty where nothing is known. Columns of axes and numbers stand in the
    order of their names, as keys do in the JSON form."""
    axes = sorted(points[0].values)
    searched = any(point.replanned for point in points)
    sides = ("held", "replanned") if searched else ("held",)
    rows = [
        [*(point.values[axis] for axis in axes), *_cells(point.held), *(_cells(point.replanned) if searched else ()),
         "; ".join(point.held.problems)]
        for point in points
    ]  # fmt: skip
    return _written([*axes, *(f"{side}_{field}" for side in sides for field in _FIELDS), "problems"], rows)


def rows_to_csv(rows: Sequence[BaseModel]) -> str:
    """A line per number of a study that has no points; base units, empty where nothing is known. A layout that is held
    has the columns that it has in a sweep."""
    names = sorted(set(type(rows[0]).model_fields) - {"held"})
    prices = [getattr(row, "held", None) for row in rows]
    columns = names if prices[0] is None else [*names, *(f"held_{field}" for field in _FIELDS)]
    return _written(columns, [[*(getattr(row, name) for name in names), *(_cells(price) if price is not None else ())]
                              for row, price in zip(rows, prices, strict=True)])  # fmt: skip


def _cells(priced: Priced | None) -> list[object]:
    return [getattr(priced, field, None) for field in _FIELDS]


def _written(columns: Sequence[str], rows: Sequence[Sequence[object]]) -> str:
    stream = io.StringIO()
    writer = csv.writer(stream, lineterminator="\n")
    writer.writerow(columns)
    writer.writerows([cell if _known(cell) else None for cell in row] for row in rows)
    return stream.getvalue()


def _known(cell: object) -> bool:
    """A layout that is not legal has no seconds: they are not a number."""
    return not isinstance(cell, float) or math.isfinite(cell)
