"""The options of a target as a table that works in both directions: to emit a plan and to import a config.

An `Entry` is one decision of a plan and the options that express it. `write` returns the settings of a Setup, `read`
the facts in settings. A round trip is the identity; a test checks every entry.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from functools import wraps
from typing import Any

from ...errors import InputError
from .setup import Setup

# Option -> value as the target spells it: True for a flag, a number, a word, or a list of them.
Settings = dict[str, Any]
# Dotted field of the plan (`tp`, `recompute`, `model.hidden`, `workload.seq_len`, `env.NAME`) -> value.
Facts = dict[str, Any]
Write = Callable[[Setup], Settings]
Read = Callable[[Settings, Facts], Facts]


class NoCounterpartError(InputError):
    """Raised for a value that the framework accepts but no plan can hold."""


@dataclass(frozen=True)
class Entry:
    """One decision of a plan and the options that express it."""

    # Fields of the plan.
    fields: tuple[str, ...]
    options: tuple[str, ...]
    write: Write
    # (settings, facts of the entries before this one) -> the facts of this entry.
    read: Read
    # Of `options`: those that go with others and that no fact depends on.
    companions: frozenset[str] = frozenset()


@dataclass(frozen=True)
class Table:
    """All entries of a target, in the order in which they are written."""

    entries: tuple[Entry, ...]

    @property
    def fields(self) -> frozenset[str]:
        return frozenset(field for entry in self.entries for field in entry.fields)

    @property
    def options(self) -> frozenset[str]:
        return frozenset(option for entry in self.entries for option in entry.options)

    @property
    def telling(self) -> frozenset[str]:
        """The options that a fact depends on."""
        return frozenset(option for entry in self.entries for option in entry.options if option not in entry.companions)

    def write(self, setup: Setup) -> Settings:
        """The settings that express `setup`. Raises RuntimeError where an entry writes an option of another entry."""
        out: Settings = {}
        for entry in self.entries:
            written = entry.write(setup)
            if stray := (set(written) - set(entry.options)) | (set(written) & set(out)):
                raise RuntimeError(f"{', '.join(sorted(stray))}: not an option of {', '.join(entry.fields)}, or twice")
            out.update(written)
        return out

    def read(self, settings: Mapping[str, Any], known: Mapping[str, Any] | None = None) -> Facts:
        """The facts in `settings`. A missing option has the target's default.

        known: facts of entries that the table lacks.
        """
        facts: Facts = dict(known or {})
        for entry in self.entries:
            facts.update(entry.read(dict(settings), facts))
        return facts


_REMEMBERED = 4  # settings whose translation is kept: those of two files that are compared, and of a changed one


def remembered(translate: Callable[[Mapping[str, Any]], Settings]) -> Callable[[Mapping[str, Any]], Settings]:
    """`translate`, called once for the settings that one entry of a table after another asks for."""
    known: dict[str, Settings] = {}

    @wraps(translate)
    def translated(settings: Mapping[str, Any]) -> Settings:
        written = repr(settings)  # unlike equality, it tells True from 1
        if written not in known:
            if len(known) == _REMEMBERED:
                del known[next(iter(known))]
            known[written] = translate(settings)
        return dict(known[written])

    return translated


def positive(settings: Settings, *options: str) -> None:
    """Raises InputError where one of `options` is given and is less than 1."""
    for name in options:
        if settings.get(name, 1) < 1:
            raise InputError(f"{name} `{settings[name]}` is not 1 or more", hint="leave it out, or give a number")


def renamed(entry: Entry, names: Mapping[str, str]) -> Entry:
    """The same entry with other option names. names: option -> its other name; options without one are left out."""

    def write(setup: Setup) -> Settings:
        return {names[name]: value for name, value in entry.write(setup).items() if name in names}

    def read(settings: Settings, facts: Facts) -> Facts:
        known = {name: settings[names[name]] for name in entry.options if names.get(name) in settings}
        return entry.read(known, facts)

    return Entry(entry.fields, tuple(names[name] for name in entry.options if name in names), write, read)


def number(field: str, option: str, get: Callable[[Setup], int | float | None], default: Any = None) -> Entry:
    """A number under one option. It is left out at `default`, and its absence means `default`."""

    def write(setup: Setup) -> Settings:
        value = get(setup)
        return {} if value is None or value == default else {option: value}

    def read(settings: Settings, facts: Facts) -> Facts:
        value = settings.get(option, default)
        return {} if value is None else {field: value}

    return Entry((field,), (option,), write, read)


def switch(field: str, option: str, get: Callable[[Setup], bool], *, when: bool = True) -> Entry:
    """A flag that is present if the field equals `when`."""
    return Entry(
        (field,),
        (option,),
        lambda setup: {option: True} if get(setup) is when else {},
        lambda settings, facts: {field: bool(settings.get(option)) is when},
    )


def word(
    field: str,
    option: str,
    get: Callable[[Setup], str],
    spelled: Mapping[str, Any],
    default: str | None = None,
    also: Mapping[Any, str] | None = None,
) -> Entry:
    """A name under one option, in the target's spelling (`spelled`). It is left out at `default`.

    also: spellings that are read but not written. Reading raises InputError for a value that no plan can hold.
    """
    meaning = {value: name for name, value in spelled.items()} | dict(also or {})

    def write(setup: Setup) -> Settings:
        name = get(setup)
        return {} if name == default else {option: spelled[name]}

    def read(settings: Settings, facts: Facts) -> Facts:
        if option not in settings:
            return {} if default is None else {field: default}
        value = settings[option]
        if value not in meaning:
            raise NoCounterpartError(
                f"{option} `{value}` has no counterpart in a plan", hint=f"known: {_known(meaning)}"
            )
        return {field: meaning[value]}

    return Entry((field,), (option,), write, read)


def always(*options: tuple[str, Any]) -> Entry:
    """Options that every plan of the target needs, whatever its layout."""
    return Entry((), tuple(name for name, _ in options), lambda setup: dict(options), lambda settings, facts: {})


def _known(values: Iterable[Any]) -> str:
    return ", ".join(str(value) for value in values)
