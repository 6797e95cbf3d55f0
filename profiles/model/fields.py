"""Checked reading of the fields of one mapping: all problems are collected, then raised together.

A reader takes what it needs with `count`, `flag`, ... and gets a harmless placeholder for whatever is wrong, so that it
runs to its end and the user sees every problem at once (`finish`).
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

from ...errors import FieldProblem, InputError, did_you_mean, nearest
from ..io.document import FieldPath, LineOf, dotted, no_line

_REQUIRED = object()
_LARGEST_COUNT = 10**9


class Fields:
    """The fields of `data`; `file` and `prefix` (the path to the mapping in its file) are for the messages."""

    def __init__(
        self, data: Mapping[str, Any], *, file: str = "", prefix: FieldPath = (), line: LineOf = no_line
    ) -> None:
        self.data = data
        self._file = file
        self._prefix = prefix
        self._line = line
        self._problems: list[FieldProblem] = []
        self._missing: list[str] = []
        self._seen: set[str] = set()

    @property
    def read(self) -> frozenset[str]:
        """The names that a reader asked for."""
        return frozenset(self._seen)

    @property
    def sound(self) -> bool:
        """Nothing wrong so far: checks that compare fields with each other make sense."""
        return not self._problems and not self._missing

    def has(self, name: str) -> bool:
        """Whether `name` is there and not null."""
        self._seen.add(name)
        return self.data.get(name) is not None

    def get(self, *names: str) -> Any:
        """The first of `names` that is there and not null, else None."""
        return next((self.data[name] for name in names if self.has(name)), None)

    def problem(self, field: str, message: str, hint: str = "") -> None:
        """Record one problem of `field`."""
        path = (*self._prefix, field) if field else self._prefix
        line = self._line(path) if path else 0
        self._problems.append(FieldProblem(message, field=dotted(path), file=self._file, line=line, hint=hint))

    def count(self, *names: str, default: Any = _REQUIRED, minimum: int = 1, maximum: int = _LARGEST_COUNT) -> int:
        """An integer of at least `minimum`; the first name is the usual one, the others are older spellings."""
        value = self.get(*names)
        if value is None:
            if default is _REQUIRED:
                self._missing.append(dotted((*self._prefix, names[0])))
                return max(1, minimum)
            return int(default)
        field = next(name for name in names if self.data.get(name) is not None)
        if isinstance(value, bool) or not isinstance(value, int):
            self.problem(field, f"must be an integer, is {value!r}")
        elif not minimum <= value <= maximum:
            self.problem(field, f"must be {minimum} or more" if value < minimum else f"is more than {maximum}: {value}")
        else:
            return value
        return max(1, minimum)

    def optional_count(self, *names: str, minimum: int = 1) -> int | None:
        """As `count`; None where the field is absent or null."""
        return self.count(*names, minimum=minimum) if self.get(*names) is not None else None

    def flag(self, name: str, default: bool) -> bool:
        """true or false; null counts as absent."""
        value = self.get(name)
        if value is None or isinstance(value, bool):
            return default if value is None else value
        self.problem(name, f"must be true or false, is {value!r}")
        return default

    def number(self, name: str, default: float) -> float:
        """A number of at least 0."""
        value = self.get(name)
        if value is None:
            return default
        if isinstance(value, bool) or not isinstance(value, int | float) or not value >= 0:
            self.problem(name, f"must be a number of at least 0, is {value!r}")
            return default
        return float(value)

    def positive(self, *names: str) -> float | None:
        """The first of `names` that is there: a finite number above 0, or None."""
        name = next((spelling for spelling in names if self.has(spelling)), None)
        if name is None:
            return None
        value = self.number(name, 1.0)
        if not 0.0 < value < float("inf"):
            self.problem(name, f"must be more than 0 and finite, is {value:g}")
        return value

    def indices(self, name: str, length: int) -> list[int] | None:
        """A list of layer indices below `length`, or None."""
        value = self.get(name)
        if value is None:
            return None
        if not isinstance(value, list) or any(isinstance(i, bool) or not isinstance(i, int) for i in value):
            self.problem(name, "must be a list of layer indices")
        elif any(not 0 <= index < length for index in value):
            self.problem(name, f"names a layer outside 0..{length - 1}")
        else:
            return value
        return []

    def words(self, name: str, length: int, allowed: Iterable[str]) -> list[str] | None:
        """A list of `length` words out of `allowed`, or None."""
        value = self.get(name)
        if value is None:
            return None
        unknown = sorted({str(word) for word in value} - set(allowed)) if isinstance(value, list) else []
        if not isinstance(value, list):
            self.problem(name, f"must be a list with one entry per layer, is {value!r}")
        elif unknown:
            self.problem(name, f"holds {', '.join(unknown)}, for which there is no formula")
        elif len(value) != length:
            self.problem(name, f"has {len(value)} entries for {length} layers")
        else:
            return [str(word) for word in value]
        return None

    def part(self, name: str) -> Fields | None:
        """The mapping in field `name` with its own checks, or None; hand it to `absorb` when it is read."""
        value = self.get(name)
        if value is None:
            return None
        if not isinstance(value, Mapping):
            self.problem(name, f"must be a mapping, is {value!r}")
            return None
        return Fields(value, file=self._file, prefix=(*self._prefix, name), line=self._line)

    def absorb(self, part: Fields) -> None:
        """Take over the problems of a part."""
        self._problems += part._problems
        self._missing += part._missing

    def reject_unknown(self, also: Iterable[str] = ()) -> None:
        """A field that no reader asked for is a problem: a misspelt one would otherwise be a silent default."""
        known = sorted(self._seen | set(also))
        for name in self.data:
            if name not in known:
                self.problem(str(name), "unknown field", did_you_mean(nearest(str(name), known)))

    def finish(self) -> None:
        """Raise InputError with all problems, missing fields first and in one line; nothing when all is well."""
        problems = list(self._problems)
        if self._missing:
            fields = ", ".join(f"`{name}`" for name in self._missing)
            message = f"missing field{'s' * (len(self._missing) > 1)} {fields}"
            problems.insert(0, FieldProblem(message, file=self._file, missing=tuple(self._missing)))
        if problems:
            raise InputError.of(problems)
