"""The table that `make test-upstream` prints at the end."""

from __future__ import annotations

# (target, question, answer) in the order of the tests.
TABLE: list[tuple[str, str, str]] = []


def row(target: str, what: str, result: str) -> None:
    TABLE.append((target, what, result))


def lines() -> list[str]:
    """The table in columns."""
    widths = [max(len(each[column]) for each in TABLE) for column in range(3)] if TABLE else []
    return ["  ".join(cell.ljust(width) for cell, width in zip(line, widths, strict=True)).rstrip() for line in TABLE]
