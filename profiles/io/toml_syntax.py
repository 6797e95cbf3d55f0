"""TOML files: tomllib keeps no positions, so the headers are read again for the lines of fields."""

from __future__ import annotations

import re
import tomllib
from functools import cached_property

from .document import WRONG_FILE, Document, FieldPath, file_error, value_fault

_KEY = r"(?:[\w-]+|\"[^\"]*\"|'[^']*')"
_HEADER_LINE = re.compile(r"\s*(\[\[?)\s*([^\]]+?)\s*\]")
_KEY_LINE = re.compile(rf"\s*({_KEY}(?:\s*\.\s*{_KEY})*)\s*=")


def parse_toml(name: str, text: str) -> Document:
    try:
        return Document(name, tomllib.loads(text), "toml", line_of=_Lines(text).line)
    except tomllib.TOMLDecodeError as error:
        match = re.match(r"(.*?) \(at (?:line (\d+), column \d+|end of document)\)$", str(error))
        message, line = (match[1], int(match[2] or text.count("\n") + 1)) if match else (str(error), 0)
        message = f"not valid TOML: {message[:1].lower()}{message[1:]}"
        raise file_error(name, line, message, "strings need double quotes, tables a `[header]`") from None
    except ValueError as error:
        raise file_error(name, 0, f"not valid TOML: {value_fault(error)}", WRONG_FILE) from None
    except RecursionError:
        raise file_error(name, 0, "nested too deeply to be read", WRONG_FILE) from None


class _Lines:
    """The lines of a TOML text, read when the first is asked for."""

    def __init__(self, text: str) -> None:
        self.text = text

    @cached_property
    def table(self) -> dict[FieldPath, int]:
        return _lines(self.text)

    def line(self, path: FieldPath) -> int:
        around = (path[:depth] for depth in range(len(path), 0, -1))
        return next((self.table[part] for part in around if part in self.table), 1)


def _lines(text: str) -> dict[FieldPath, int]:
    """Lines (from 1) of tables and keys. A key inside a multi-line string can be taken for a real one, which only costs
    a wrong line in a message."""
    lines: dict[FieldPath, int] = {}
    table: FieldPath = ()
    counts: dict[FieldPath, int] = {}  # index of the last item of each array of tables
    for number, line in enumerate(text.splitlines(), 1):
        if header := _HEADER_LINE.match(line):
            table = ()
            for part in _parts(header[2]):
                table = (*table, part)
                if table in counts:
                    table = (*table, counts[table])
            if header[1] == "[[":
                array = table[:-1] if table and isinstance(table[-1], int) else table
                counts[array] = counts.get(array, -1) + 1
                lines.setdefault(array, number)
                table = (*array, counts[array])
            lines.setdefault(table, number)
        elif key := _KEY_LINE.match(line):
            lines.setdefault((*table, *_parts(key[1])), number)
    return lines


def _parts(text: str) -> FieldPath:
    """`links."inter node"` -> `("links", "inter node")`."""
    return tuple(part.strip("\"'") for part in re.findall(_KEY, text))
