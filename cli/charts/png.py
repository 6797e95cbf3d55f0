"""A study as a PNG, by matplotlib (the `plot` extra)."""

from __future__ import annotations

import io
import math
from typing import TYPE_CHECKING

from ...errors import MissingExtraError
from ..screens import sweep as sweep_screen

if TYPE_CHECKING:
    from matplotlib.axes import Axes

    from ...planner.studies.sweep import Sweep


def chart_png(result: Sweep, header: str) -> bytes:
    """The picture of a sweep: curves of one axis, a map of two. Raises MissingExtraError without matplotlib."""
    try:
        from matplotlib.figure import Figure
    except ImportError:
        raise MissingExtraError("plot", "a PNG") from None
    figure = Figure(figsize=(9, 5.4), layout="constrained")
    axes = figure.add_subplot()
    (_map if len(result.axes) == 2 else _curves)(axes, result)
    axes.set_title(f"{header}\nheld: {result.layout_id}", fontsize=9, loc="left")
    stream = io.BytesIO()
    figure.savefig(stream, format="png", dpi=130, metadata={"Software": None})
    return stream.getvalue()


def _curves(axes: Axes, result: Sweep) -> None:
    (axis,) = result.axes
    xs, names = sweep_screen.numbers(axis), sweep_screen.labels(axis)
    baseline = [sweep_screen.seconds(point.held) for point in result.points]
    replanned = [sweep_screen.seconds(point.replanned) for point in result.points]
    for ys, word, style in ((baseline, "layout held", "o-"), (replanned, "re-planned at each point", "x--")):
        if any(y is not None for y in ys):
            axes.plot(xs, [math.nan if y is None else y for y in ys], style, label=word, markersize=4)
    if axis.log:
        axes.set_xscale("log")
    shown = range(0, len(xs), max(1, len(xs) // 8))
    axes.set_xticks([xs[i] for i in shown], [names[i] for i in shown])
    axes.minorticks_off()
    axes.set_xlabel(axis.path)
    axes.set_ylabel("step, s")
    axes.grid(alpha=0.3)
    axes.legend()


def _map(axes: Axes, result: Sweep) -> None:
    rows, columns = result.axes
    width = len(columns.values)
    values = [math.nan if point.best is None else point.best.step_s for point in result.points]
    image = axes.imshow([values[i : i + width] for i in range(0, len(values), width)], norm="log", aspect="auto")
    for axis, set_ticks in ((columns, axes.set_xticks), (rows, axes.set_yticks)):
        names = sweep_screen.labels(axis)
        shown = range(0, len(names), max(1, len(names) // 8))
        set_ticks(list(shown), [names[i] for i in shown])
    axes.set_xlabel(columns.path)
    axes.set_ylabel(rows.path)
    axes.figure.colorbar(image, label="step, s")
