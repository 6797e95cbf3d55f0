"""JSON files: read by the strict parser of the standard library, whose lines come from YAML nodes when asked for."""

from __future__ import annotations

import json
from collections.abc import Sequence
from functools import cached_property
from typing import Any

import yaml

from ...errors import InputError
from .document import WRONG_FILE, Document, FieldPath, file_error, value_fault
from .yaml_syntax import compose, line_in, reject_duplicates


def parse_json(name: str, text: str) -> Document:
    """Raises InputError for broken syntax and for a key given twice, which `json` takes without a word."""
    repeated: list[str] = []

    def mapping(pairs: Sequence[tuple[str, Any]]) -> dict[str, Any]:
        table = dict(pairs)
        if len(table) < len(pairs):
            keys = [key for key, _ in pairs]
            repeated.append(next(key for key in keys if keys.count(key) > 1))
        return table

    try:
        data = json.loads(text, object_pairs_hook=mapping)
    except json.JSONDecodeError as error:
        message = f"not valid JSON: {error.msg[:1].lower()}{error.msg[1:]} (column {error.colno})"
        hint = "JSON takes no comments, no trailing commas and double quotes only; YAML takes all three"
        raise file_error(name, error.lineno, message, hint) from None
    except ValueError as error:
        raise file_error(name, 0, f"not valid JSON: {value_fault(error)}", WRONG_FILE) from None
    except RecursionError:
        raise file_error(name, 0, "nested too deeply to be read", WRONG_FILE) from None
    lines = _Lines(name, text)
    if repeated:
        if lines.root is not None:
            reject_duplicates(name, lines.root)
        raise file_error(name, 0, f"key `{repeated[0]}` is given twice", "keep one of them")
    return Document(name, data, "json", line_of=lines.line)


def parse_json_line(name: str, number: int, line: str) -> Any:
    """One line of a file of JSON lines. Raises InputError."""
    try:
        return json.loads(line)
    except (ValueError, RecursionError):
        raise file_error(name, number, "not JSON", "each line is one JSON value") from None


class _Lines:
    """The lines of a JSON text. Composing nodes takes longer than `json` does, so it waits for the first question."""

    def __init__(self, name: str, text: str) -> None:
        self.name = name
        self.text = text

    @cached_property
    def root(self) -> yaml.Node | None:
        """None for JSON that YAML cannot read (surrogate escapes): the file is good, its lines are not known."""
        try:
            return compose(self.name, self.text)
        except (yaml.YAMLError, ValueError, RecursionError, InputError):
            return None

    def line(self, path: FieldPath) -> int:
        return line_in(self.root, path) if self.root is not None else 0
