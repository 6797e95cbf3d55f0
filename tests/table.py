"""The table of the frameworks, which `make test` and `make test-upstream` print at the end.

A row is a property of the report of its test, so that it reaches the process that prints from those that test.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable

# Stores (target, question, answer).
Row = Callable[[str, str, str], None]
PROPERTY = "row"


def lines(properties: Iterable[tuple[str, object]]) -> list[str]:
    """The rows among the properties of reports, in columns, those of a target together."""
    rows = (value for name, value in properties if name == PROPERTY and isinstance(value, list | tuple))
    table = sorted((list(map(str, cells)) for cells in rows), key=lambda cells: cells[0])
    widths = [max(map(len, column)) for column in zip(*table, strict=True)]
    return ["  ".join(cell.ljust(width) for cell, width in zip(cells, widths, strict=True)).rstrip() for cells in table]
