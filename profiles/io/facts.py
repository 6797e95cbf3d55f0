"""Facts in a file: a value with its unit, where it comes from and whether a source confirms it.

A fact is a mapping `{value, source, confirmed, note}`, or in a user's file just the value (`bandwidth: 3.35 TB/s`).
`Facts` reads them one by one and gathers everything that is wrong, so that one error names it all.
"""

from __future__ import annotations

import math
import sys
from collections.abc import Collection, Mapping
from typing import Any

from ...cost_models import units
from ...errors import FieldProblem, InputError, did_you_mean, nearest
from .document import Document, FieldPath, check_keys, dotted

FACT_KEYS = ("value", "source", "confirmed", "note")
# Spelled out, these look like none of the names.
_ABBREVIATED = {"infiniband": "ib", "infinity-fabric": "xgmi"}
# More than a thousand times the largest of the catalogues: whoever writes that meant another unit.
_MOST: dict[units.Dimension, float] = {"B/s": 1e17, "B": 1e16, "FLOP/s": 1e20, "s": 1e4, "W": 1e7, "Hz": 1e13,
                                       "USD/h": 1e6}  # fmt: skip


class Facts:
    """The values of one document. A reading that fails adds to `problems` and gives None.

    unconfirmed: dotted paths of the facts read so far that say `confirmed: false`.
    """

    def __init__(self, document: Document) -> None:
        self.document = document
        self.problems: list[FieldProblem] = []
        self.unconfirmed: list[str] = []

    def fail(self, path: FieldPath, message: str, hint: str = "") -> None:
        self.problems.append(self.document.problem(path, message, hint))

    def note(self, path: FieldPath, text: str) -> str:
        """The text of a warning on a field, with file, line and field before it."""
        return str(self.document.problem(path, text))

    def keys(self, path: FieldPath, allowed: Collection[str]) -> bool:
        """Check that there is a mapping at `path` (or nothing) with no other keys."""
        if path and self.document.at(path) is None:
            return False
        self.problems += check_keys(self.document, path, allowed)
        return isinstance(self.document.at(path), Mapping)

    def value(self, path: FieldPath, required: bool = False) -> Any:
        """The bare value of the fact at `path`; None where there is none."""
        value = self.document.at(path)
        if isinstance(value, Mapping):
            self.problems += check_keys(self.document, path, FACT_KEYS)
            if value.get("confirmed") is False:
                self.unconfirmed.append(dotted(path))
            value = value.get("value")
        if value is None and required:
            self.fail(path, f"`{path[-1]}` is missing")
        return value

    def quantity(self, path: FieldPath, dimension: units.Dimension, required: bool = False) -> float | None:
        """A positive quantity in base units."""
        value = self.value(path, required)
        if value is None:
            return None
        try:
            number = units.parse(value, dimension)
        except InputError as error:
            self.fail(path, error.message, error.hint)
            return None
        if not 0 < number <= _MOST.get(dimension, sys.float_info.max):
            self.fail(path, f"`{value}` must be above zero" if number <= 0 else f"`{value}` is too large")
            return None
        return number

    def whole(self, path: FieldPath, required: bool = False) -> int | None:
        """A whole number of at least 1."""
        value = self.value(path, required)
        if value is None:
            return None
        if isinstance(value, bool) or not isinstance(value, int) or value < 1:
            self.fail(path, f"`{value}` must be a whole number of at least 1")
            return None
        return value

    def ratio(self, path: FieldPath) -> float | None:
        """A plain number of at least 1, such as the 7 of `7:1`."""
        value = self.value(path)
        if isinstance(value, str) and value.strip().endswith(":1"):
            value = _number(value.strip()[:-2])
        if value is None:
            return None
        if isinstance(value, bool) or not isinstance(value, int | float) or not 1 <= value < math.inf:
            self.fail(path, f"`{self.value(path)}` must be a ratio of at least 1, such as 7 or `7:1`")
            return None
        return float(value)

    def text(self, path: FieldPath, choices: Collection[str] = (), required: bool = False) -> str | None:
        value = self.value(path, required)
        if value is None:
            return None
        if not isinstance(value, str) or not value.strip():
            self.fail(path, f"`{value}` must be a name")
            return None
        if choices and value not in choices:
            meant = _ABBREVIATED.get(value.lower(), "")
            near = [meant] if meant in choices else nearest(value, choices)
            self.fail(path, f"`{value}` is not one of {', '.join(choices)}", did_you_mean(near))
            return None
        return value

    def flag(self, path: FieldPath) -> bool:
        value = self.value(path)
        if value is not None and not isinstance(value, bool):
            self.fail(path, f"`{value}` must be true or false")
            return False
        return bool(value)

    def finish(self) -> None:
        """Raises InputError with all problems, in the order of their lines."""
        if self.problems:
            raise InputError.of(sorted(dict.fromkeys(self.problems), key=lambda problem: problem.line))


def flatten(data: Mapping[str, Any], path: FieldPath = ()) -> dict[str, dict[str, Any]]:
    """Every fact of a file by its dotted path: `{"peak.bf16": {"value": ..., "source": ...}}`."""
    facts: dict[str, dict[str, Any]] = {}
    for key, value in data.items():
        here = (*path, str(key))
        if isinstance(value, Mapping) and "value" not in value:
            facts |= flatten(value, here)
        else:
            facts[dotted(here)] = dict(value) if isinstance(value, Mapping) else {"value": value}
    return facts


def _number(text: str) -> float | str:
    try:
        return float(text)
    except ValueError:
        return text
