"""The screen of the sensitivity study, and its cells for the report page."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from .. import text
from ..console import table
from .what_if import change_lines

if TYPE_CHECKING:
    from ...planner.studies.sensitivity import Row, Sensitivity
    from .parts import Part

_SHOWS = 0.0005  # share of a step that is not drawn as 0.0 %


@dataclass(frozen=True)
class SensitivityCells:
    """The table of a study as text."""

    columns: list[str]
    rows: list[list[str]]  # numbers that change the step
    without_effect: list[str]  # labels of the others


def sensitivity_screen(result: Sensitivity, header: str) -> list[Part]:
    """The numbers, what helps most first."""
    cells = sensitivity_cells(result)
    subject = f"held  {result.layout_id}, {text.significant(result.step_s)} s per step"
    lines: list[Part] = [header, *change_lines(result.changes), subject, ""]
    lines += [table(*cells.columns, rows=cells.rows, right=cells.columns[1:]), ""]
    lines.append(text.wrapped(binding(result)))
    if cells.without_effect:
        lines.append(text.wrapped(f"Without effect on this layout: {', '.join(cells.without_effect)}."))
    key = "Elasticity -0.5: 1 % more of it makes a step 0.5 % shorter. 2x: half, where less is better."
    worth = text.share(result.worth)
    last = "Re-planned: 2x, with the best layout there."
    if not _searched(result):
        last = f"Enough: above it, 2x saves under {worth}."
    return [*lines, text.wrapped(f"{key} {last}"), ""]


def sensitivity_cells(result: Sensitivity) -> SensitivityCells:
    """The cells of what changes a step, and the labels of what does not."""
    searched = _searched(result)
    rows = [
        [row.label, text.value_at(row.path, row.now, row.dimension), f"{row.elasticity:+.2f}", text.percent(row.gain),
         text.percent(row.gain_replanned) if searched else _enough(row)]
        for row in result.rows if _matters(row)
    ]  # fmt: skip
    columns = ["", "now", "elasticity", "2x saves %", "re-planned %" if searched else "enough at"]
    return SensitivityCells(columns, rows, [row.label for row in result.rows if not _matters(row)])


def _searched(result: Sensitivity) -> bool:
    return any(row.gain_replanned is not None for row in result.rows)


def _matters(row: Row) -> bool:
    return max(abs(row.elasticity), row.gain, row.gain_replanned or 0.0) >= _SHOWS


def _enough(row: Row) -> str:
    return "-" if row.saturates is None else text.value_at(row.path, row.saturates, row.dimension)


def binding(result: Sensitivity) -> str:
    """The number that the step follows most, and the next one to improve."""
    rows = [row for row in result.rows if _matters(row)]
    if not rows:
        return "Nothing that was tried changes the step."
    binds = max(rows, key=lambda row: abs(row.elasticity))
    first = f"What binds: {binds.label}, which {text.percent(abs(binds.elasticity), 0)} % of the step follows."
    if len(rows) < 2:
        return first
    after = next((row for row in rows if row.path != binds.path), rows[0])
    return f"{first} What helps next: {after.label}, {text.percent(after.gain)} % for twice as much."
