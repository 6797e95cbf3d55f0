"""The parts that screens are made of (text and tables), and the cells that several tables share.

A part that is text is printed as it is; tables go at their natural width (`console.print_part`).
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import TYPE_CHECKING

from .. import text
from ..console import table

if TYPE_CHECKING:
    from rich.table import Table

    Part = str | Table


def headless(rows: Sequence[Sequence[str]], numbers: Iterable[int] = ()) -> Table:
    """A table without a header; `numbers`: indices of the columns to align on the right."""
    names = [f"column {index}" for index in range(max((len(row) for row in rows), default=1))]
    result = table(*names, rows=rows, right=[names[index] for index in numbers if index < len(names)])
    result.show_header = False
    return result


def shown(value: object) -> str:
    """A value of a document as a cell."""
    if value is None or value == "":
        return "-"
    if isinstance(value, bool):
        return "yes" if value else "no"
    if isinstance(value, list | tuple):
        return ", ".join(shown(item) for item in value) or "-"
    return text.significant(value) if isinstance(value, float) else str(value)
