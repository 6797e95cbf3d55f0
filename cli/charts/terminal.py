"""Curves and heat maps as text. They read without colour and in a pipe."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise

_ROWS, _COLUMNS = 12, 60
_SHADES = " .:-=+*#%@"


@dataclass(frozen=True)
class Line:
    """One curve."""

    mark: str  # one character
    ys: Sequence[float | None]  # per x; None: nothing runs there


def curve(xs: Sequence[float], ticks: Sequence[str], lines: Sequence[Line], *, log: bool) -> list[str]:
    """Curves over xs, the first line on top; `ticks`: labels of xs, of which the ends and what fits are written."""
    ys = [y for line in lines for y in line.ys if y is not None]
    low, high = min(ys), max(ys)
    pad = (high - low) * 0.03 or abs(high) * 0.05 or 1.0
    low, high = low - pad, high + pad
    cells = [[" "] * _COLUMNS for _ in range(_ROWS)]
    places = [_column(x, xs, log) for x in xs]
    for line in reversed(lines):  # the first one is drawn last, over the others
        for column, y in _filled(places, line.ys):
            cells[round((high - y) / (high - low) * (_ROWS - 1))][column] = line.mark
    labels = _labels(low, high)
    width = max(map(len, labels))
    out = [f"{label:>{width}} |{''.join(row)}".rstrip() for label, row in zip(labels, cells, strict=True)]
    out.append(f"{'':>{width}} +{'-' * _COLUMNS}")
    out.append(f"{'':>{width}}  {_tick_line(places, ticks)}".rstrip())
    return out


def _column(x: float, xs: Sequence[float], log: bool) -> int:
    low, high = (math.log(min(xs)), math.log(max(xs))) if log else (min(xs), max(xs))
    at = math.log(x) if log else x
    return round((at - low) / (high - low) * (_COLUMNS - 1)) if high > low else 0


def _filled(places: Sequence[int], ys: Sequence[float | None]) -> list[tuple[int, float]]:
    """A y for every column between two neighbouring points that run, on the straight line between them."""
    points = list(zip(places, ys, strict=True))
    filled: list[tuple[int, float]] = []
    for (a, ya), (b, yb) in pairwise(points):
        if ya is None or yb is None:
            continue
        filled += [(column, ya + (yb - ya) * (column - a) / max(b - a, 1)) for column in range(a, b)]
    return filled + [(place, y) for place, y in points if y is not None]


def _labels(low: float, high: float) -> list[str]:
    """The y axis, a number every third row, with as many digits as tell them apart."""
    step = (high - low) / (_ROWS - 1)
    digits = max(0, 1 - math.floor(math.log10(3 * step)))
    return [f"{high - row * step:,.{digits}f}" if row % 3 == 0 else "" for row in range(_ROWS)]


def _tick_line(places: Sequence[int], ticks: Sequence[str]) -> str:
    """Labels under their columns: all of them, or every second, fourth ..., so that doublings stay."""
    stride = 1
    while stride < len(ticks) and (line := _labelled(places, ticks, stride)) is None:
        stride *= 2
    return line or f"{ticks[0]:<{_COLUMNS - len(ticks[-1])}}{ticks[-1]}"


def _labelled(places: Sequence[int], ticks: Sequence[str], stride: int) -> str | None:
    """Every `stride`-th label under its column; None where two would touch."""
    text = [" "] * _COLUMNS
    for index in range(0, len(ticks), stride):
        label = ticks[index]
        start = min(max(places[index] - len(label) // 2, 0), _COLUMNS - len(label))
        if start < 0 or "".join(text[max(start - 2, 0) : start + len(label) + 2]).strip():
            return None
        text[start : start + len(label)] = label
    return "".join(text)


def heat_map(
    rows: Sequence[str], columns: Sequence[str], values: Sequence[Sequence[float | None]], *, width: int = 80
) -> list[str]:
    """A value per row and column: as numbers where they fit in `width`, else as shades from ` ` (low) to `@` (high)."""
    flat = [value for row in values for value in row if value is not None]
    low, high = min(flat), max(flat)
    label = max(map(len, rows))
    digits = max(0, 2 - math.floor(math.log10(low))) if low > 0 else 2
    cells = [["-" if value is None else f"{value:,.{digits}f}" for value in row] for row in values]
    wide = max(max(len(cell) for row in cells for cell in row), max(map(len, columns))) + 2
    if label + wide * len(columns) <= width:
        head = " " * label + "".join(f"{name:>{wide}}" for name in columns)
        padded = ("".join(f"{cell:>{wide}}" for cell in row) for row in cells)
        return [head, *(f"{name:>{label}}{row}" for name, row in zip(rows, padded, strict=True))]
    return _shaded(rows, columns, values, (low, high), label, width)


def _shaded(
    rows: Sequence[str], columns: Sequence[str], values: Sequence[Sequence[float | None]],
    ends: tuple[float, float], label: int, width: int,
) -> list[str]:  # fmt: skip
    """Shades, evenly spaced in the logarithm; `x` where nothing runs."""
    low, high = (math.log(end) for end in ends)
    cell_width = max(1, (width - label - 3) // len(columns))
    lines = []
    for name, row in zip(rows, values, strict=True):
        shades = ("x" if value is None else _SHADES[_shade(math.log(value), low, high)] for value in row)
        lines.append(f"{name:>{label}} |" + "".join(shade * cell_width for shade in shades) + "|")
    axis = f"{columns[0]} .. {columns[-1]}"
    key = f"` ` {ends[0]:.4g} .. `@` {ends[1]:.4g}"
    return [*lines, f"{'':>{label}}  {axis:<{cell_width * len(columns)}}", f"{'':>{label}}  {key}"]


def _shade(value: float, low: float, high: float) -> int:
    return round((value - low) / (high - low) * (len(_SHADES) - 1)) if high > low else 0
