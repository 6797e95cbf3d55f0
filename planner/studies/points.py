"""Points of a sweep in one process: what the layout takes at each and, on request, the best layout there."""

from __future__ import annotations

from ...errors import InputError
from ..request.resolve import Resolved
from .base import Point, Question
from .paths import Value, Values, dimension_of
from .pricing import price_held
from .searches import together


def priced(question: Question, grid: list[dict[str, Value]]) -> list[Point]:
    """Every point of the grid: the layout held on all of them together, then one search per point."""
    variants = [at_values(question, values) for values in grid]
    prices = price_held(question.layout, variants)
    points = [Point(values=values, held=price) for values, price in zip(grid, prices, strict=True)]
    if not question.replan:
        return points
    seeds, out = [question.layout.layout], []
    for done, (resolved, point, shared) in enumerate(zip(variants, points, together(variants), strict=True)):
        if question.progress is not None:
            question.progress(done, len(grid), "")
        out.append(question.filled(resolved, point, seeds, search=True, shared=shared))
    return out


def at_values(question: Question, values: Values) -> Resolved:
    try:
        return question.with_values(values)
    except InputError as error:
        at = ", ".join(f"{path}={spelled(path, value)}" for path, value in values.items())
        raise InputError(f"at {at}: {error.message}", hint=error.hint, details=error.details) from None


def spelled(path: str, value: Value) -> str:
    """A value as `--set` takes it."""
    dimension = dimension_of(path)
    if dimension == "B" and isinstance(value, float):
        return f"{value / 2**30:.4g} GiB"
    return f"{value:.6g} {dimension}" if isinstance(value, float) and dimension != "count" else str(value)
