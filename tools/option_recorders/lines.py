"""Lines of an option list, `option kind [value|value] [= default] [# file]`, by the declarations of frameworks."""

from __future__ import annotations

import collections.abc
import dataclasses
import enum
import json
import re
import typing
from collections.abc import Iterator
from pathlib import Path


def of_dataclass(kind: type, prefix: str) -> Iterator[str]:
    """`option kind` for each public field of a config dataclass."""
    hints = typing.get_type_hints(kind)
    for field in dataclasses.fields(kind):
        if not field.name.startswith("_"):
            yield f"{prefix}{field.name} {kind_of(hints[field.name])}"


def with_default(line: str, default: object) -> str:
    """A line with the value of its option where nothing sets it: a number, a word or a list of them in JSON."""
    if default is None or not isinstance(default, bool | int | float | str | list):
        return line
    entry, hash_sign, file = line.partition(" # ")
    return f"{entry} = {json.dumps(default)}{hash_sign}{file}"


def kind_of(hint: object) -> str:
    """The kind of an option with this type hint, and the values of an enumeration."""
    arguments = typing.get_args(hint)
    if typing.get_origin(hint) is typing.Literal:
        return f"str {'|'.join(map(str, arguments))}"
    if any(typing.get_origin(argument) is collections.abc.Callable for argument in arguments):
        return "code"
    if arguments and type(None) in arguments:  # optional
        rest = [argument for argument in arguments if argument is not type(None)]
        return kind_of(rest[0]) if len(rest) == 1 else "any"
    if typing.get_origin(hint) in (list, tuple):
        return "any"
    if isinstance(hint, type) and issubclass(hint, enum.Enum):
        return f"{'int' if issubclass(hint, int) else 'str'} {'|'.join(str(member.value) for member in hint)}"
    names = {int: "int", float: "float", str: "str", bool: "bool"}
    return names.get(hint, "any") if isinstance(hint, type) else "any"


def values_in(file: Path, candidates: str) -> str:
    """`value|value` of the candidates (words) that a source file has as strings."""
    text = file.read_text(encoding="utf-8")
    return "|".join(value for value in candidates.split() if re.search(f"[\"'`]{re.escape(value)}[\"'`]", text))
