"""The screens of `diff`, `show` and `env`: plain lists of facts."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import TYPE_CHECKING

from .. import text
from ..console import table
from .parts import headless, shown

if TYPE_CHECKING:
    from rich.table import Table

    from ..catalogues import Fact, Row
    from .parts import Part

_LONGEST_VALUE = 20  # of a field in a table of differences; longer ones get lines of their own


@dataclass(frozen=True)
class Difference:
    """A field of two plans that differs; None: one of them has no such field."""

    field: str
    before: object
    after: object

    def to_dict(self) -> dict[str, object]:
        return asdict(self)


def diff_screen(changes: Sequence[Difference], names: tuple[str, str]) -> list[Part]:
    """A row per field that differs between two plans."""
    if not changes:
        return ["The plans are equal."]
    rows = [(change.field, shown(change.before), shown(change.after)) for change in changes]
    long = [row for row in rows if max(len(row[1]), len(row[2])) > _LONGEST_VALUE]
    lines = [f"{field}\n  {names[0]}: {before}\n  {names[1]}: {after}" for field, before, after in long]
    short = [row for row in rows if row not in long]
    return [*lines, *([""] if lines and short else []), *([table("field", *names, rows=short)] if short else [])]


def items_table(items: Sequence[Row], columns: Sequence[tuple[str, str, float]]) -> Table:
    """A table of `show`: columns are (header, key, scale); scale 0 means text."""
    rows = [
        [
            _scaled(item.get(key), scale) if scale else shown(item.get(key))
            for _, key, scale in columns
        ]
        for item in items
    ]
    return table(*(head for head, _, _ in columns), rows=rows, right=[head for head, _, scale in columns if scale])


def techniques_screen(items: Sequence[Row]) -> list[Part]:
    """The techniques below the names of their groups: the effect of each, the programs that run it, knobs, checks."""
    lines: list[Part] = []
    for group in dict.fromkeys(item["group"] for item in items):
        lines += [*([""] if lines else []), group]
        for item in items:
            if item["group"] == group:
                lines += [f"  {item['name']}", *_of_technique(item)]
    return lines


def _of_technique(item: Row) -> Iterator[str]:
    runs = f"run by {', '.join(item['run_by'])}" if item["run_by"] else "no runtime"
    facts = [item["title"], f"{runs}; knobs: {item['knobs']}", *(f"check: {check}" for check in item["checks"])]
    for fact in facts:
        yield text.wrapped(f"    {fact}", "      ")


def _scaled(value: float | None, scale: float) -> str:
    if value is None:
        return "-"
    return f"{value:,}" if isinstance(value, int) and scale == 1 else text.significant(value / scale)


def sources_screen(name: str, facts: Mapping[str, Fact]) -> list[Part]:
    """Each fact with its value and the numbers of its sources, which are listed below."""
    numbers: dict[str, int] = {}
    rows = []
    for field, fact in facts.items():
        sources = [part.strip() for part in str(fact.get("source") or "").split("; ") if part.strip()]
        marks = " ".join(f"[{numbers.setdefault(source, len(numbers) + 1)}]" for source in sources)
        doubt = "unconfirmed" if fact.get("confirmed") is False else ""
        rows.append((field, shown(fact["value"]), " ".join(part for part in (marks, doubt) if part)))
    notes = [f"{field}: {fact['note']}" for field, fact in facts.items() if fact.get("note")]
    parts: list[Part] = [name, "", table("fact", "value", "source", rows=rows)]
    parts += ["", *notes] if notes else []
    return [*parts, "", *(f"[{number}] {source}" for source, number in numbers.items())]


def facts_table(facts: Row) -> Table:
    """One thing in full: a row per field, nested fields dotted."""
    return headless([(name, shown(value)) for name, value in flatten(facts).items()])


def environment_screen(facts: Row) -> list[Part]:
    return [facts_table(facts)]


def flatten(data: object, prefix: str = "") -> dict[str, object]:
    """Nested mappings and lists as dotted names -> values: `terms[0].seconds`."""
    if isinstance(data, Mapping) and data:
        pairs = [(f"{prefix}.{key}" if prefix else str(key), value) for key, value in data.items()]
    elif isinstance(data, list | tuple) and any(isinstance(item, Mapping | list | tuple) for item in data):
        pairs = [(f"{prefix}[{index}]", value) for index, value in enumerate(data)]
    elif isinstance(data, list | tuple):
        return {prefix: ", ".join(map(str, data)) or None}
    else:
        return {prefix: None if isinstance(data, Mapping) else data}
    flat: dict[str, object] = {}
    for name, value in pairs:
        flat.update(flatten(value, name))
    return flat
