"""Overrides of verl beside its recorded options and beside those of a plan."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from typing import Any

from ....errors import FieldProblem, MeshwrightError
from ....profiles.io.reader import read_document
from ..option_lists import Option, OptionList, option_list

OVERRIDES = "verl.overrides"
_OVERRIDE = re.compile(r"(\+{0,2})([A-Za-z_][\w.-]*)=(.*)")
# Blocks that take further keys, which no dataclass lists.
_OPEN = ("ray_kwargs.ray_init.runtime_env",)


def check(files: Mapping[str, str], expected: Mapping[str, str]) -> list[FieldProblem]:
    """Unknown options, values of wrong types, and options that differ from the plan's. expected: its files."""
    if OVERRIDES not in files:
        return [FieldProblem("missing", file=OVERRIDES, hint="`emit` writes it")]
    options = option_list("verl")[0]
    given, problems = read_overrides(files[OVERRIDES])
    planned, _ = read_overrides(expected[OVERRIDES])
    for name, (line, added, value) in given.items():
        text, hint = _wrong(options, name, value, added=added)
        if not text and name in planned and value != planned[name][2]:
            text = f"is {value}; the plan has {planned[name][2]}"
        if text:
            problems.append(FieldProblem(text, file=OVERRIDES, line=line, field=name, hint=hint))
    return problems + [FieldProblem(f"missing; the plan has {value}", file=OVERRIDES, field=name)
                       for name, (_, _, value) in planned.items() if name not in given]  # fmt: skip


def read_overrides(text: str) -> tuple[dict[str, tuple[int, bool, Any]], list[FieldProblem]]:
    """Option -> line, whether `+` adds it, value; and lines that are no overrides."""
    out: dict[str, tuple[int, bool, Any]] = {}
    problems = []
    for number, line in _lines(text):
        found = _OVERRIDE.fullmatch(line)
        try:
            if found is None:
                raise ValueError
            out[found[2]] = number, bool(found[1]), read_document(OVERRIDES, found[3]).data
        except (MeshwrightError, ValueError):
            problems.append(FieldProblem(f"`{line}` is no override", file=OVERRIDES, line=number,
                                         hint="one `option=value` per line"))  # fmt: skip
    return out, problems


def _lines(text: str) -> Iterator[tuple[int, str]]:
    for number, line in enumerate(text.splitlines(), 1):
        if line.strip() and not line.startswith("#"):
            yield number, line.strip()


def _wrong(options: OptionList, name: str, value: Any, *, added: bool) -> tuple[str, str]:
    """Why verl does not take an option, or its engines a value, and a hint; empty where they do."""
    known = options.options.get(name)
    if known is not None:
        return known.wrong_type(value) or "", ""
    parents = [name.rpartition(".")[0]]
    while parents[-1]:
        parents.append(parents[-1].rpartition(".")[0])
    if any(parent in _OPEN or options.options.get(parent, Option("", "any")).kind == "object" for parent in parents):
        return ("", "") if added else ("is not in verl's YAML", f"`+{name}=` adds it")
    return f"verl {options} has no such option", options.near(name)
