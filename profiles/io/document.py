"""A file that has been read: its content in plain Python, and the line of every field."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field, replace
from typing import Any

from ...errors import FieldProblem, InputError, did_you_mean, nearest

FieldPath = tuple[str | int, ...]
WRONG_FILE = "is this the right file?"  # the hint where nobody writes such a text by hand
LineOf = Callable[[FieldPath], int]  # line (from 1) of a field, or of the nearest one around it; 0: not known


def no_line(_path: FieldPath) -> int:
    """The lines of data that comes from no file."""
    return 0


def dotted(path: FieldPath) -> str:
    """`("groups", 0, "node")` -> `groups[0].node`, the spelling of `--set`."""
    text = ""
    for part in path:
        text += f"[{part}]" if isinstance(part, int) else f".{part}" if text else str(part)
    return text


@dataclass(frozen=True)
class Document:
    """A file, or a part of one, as plain Python with the line of every field."""

    name: str  # the file as messages name it
    data: Any  # mappings, lists and scalars
    syntax: str = "yaml"  # yaml | json | toml
    prefix: FieldPath = ()  # before its fields in messages (`cluster` for a cluster file), as `--set` names them
    base: FieldPath = ()  # where in the file this part lies, if it is not all of it
    line_of: LineOf = field(default=no_line, repr=False, compare=False)  # takes paths from the top of the file
    # The file of a field where several are merged; takes paths from the top.
    file_of: Callable[[FieldPath], str] | None = field(default=None, repr=False, compare=False)
    repeated: str = ""  # a sentence on keys that are given twice, where the last of them counts

    def line(self, path: FieldPath = ()) -> int:
        """Line (from 1) of the field, or of the nearest field around it that is there; 0: not known."""
        return self.line_of((*self.base, *path))

    def file(self, path: FieldPath = ()) -> str:
        """The file of the field, as messages name it."""
        return self.name if self.file_of is None else self.file_of((*self.base, *path))

    def problem(self, path: FieldPath, message: str, hint: str = "") -> FieldProblem:
        return FieldProblem(message, dotted((*self.prefix, *path)), self.file(path), self.line(path), hint)

    def part(self, path: FieldPath) -> Document:
        """The document below a field, as one of its own; messages keep the file, the lines and the full field path."""
        return replace(self, data=self.at(path), prefix=(*self.prefix, *path), base=(*self.base, *path))

    def at(self, path: FieldPath, default: Any = None) -> Any:
        """The value of a field, `default` where there is none."""
        value = self.data
        for part in path:
            try:
                value = value[part]
            except (LookupError, TypeError):
                return default
        return value


def check_keys(document: Document, path: FieldPath, allowed: Iterable[str]) -> list[FieldProblem]:
    """A problem for each key at `path` that is not in `allowed`, with the nearest one that is."""
    value, known = document.at(path) if path else document.data, sorted(allowed)
    if not isinstance(value, Mapping):
        return [document.problem(path, f"must be a mapping with the keys {', '.join(known)}")]
    problems = []
    for key in value:
        if key in known:
            continue
        hint = did_you_mean(nearest(str(key).lower(), known), otherwise=f"known here: {', '.join(known)}")
        problems.append(document.problem((*path, key), f"unknown key `{key}`", hint))
    return problems


def value_fault(error: ValueError) -> str:
    """The words for a value that a parser takes as written but Python cannot hold."""
    limit = sys.get_int_max_str_digits()
    return f"holds a whole number of more than {limit:,} digits" if "digits" in str(error) else str(error)


def file_error(name: str, line: int, message: str, hint: str = "", path: FieldPath = ()) -> InputError:
    """The one thing wrong with a file that cannot be read to its end; line 0: not known."""
    return InputError.of([FieldProblem(message, dotted(path), name, line, hint)])
