"""Switches of a target: entries that write and read their options, and rules for switches that it lacks."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from typing import Any

from ..space.rules import Rule, only
from ..switches.base import Options, Switch
from ..switches.registry import SWITCHES
from .option_lists import OptionList
from .options import Entry, Facts, NoCounterpartError, Settings
from .setup import Setup

# Prefix of switches of the software in facts and in fields of entries.
SWITCH = "switches."
# Fields of the layout that few targets have (`Target.axes`) -> their value in the others.
PLAIN_AXES: Mapping[str, int | str] = {"offload_layers": 0, "offload_modules": "none"}


def field_of(switch: Switch) -> str:
    """The field of a plan that holds a switch, in its layout or in its switches."""
    return switch.name if switch.axis else f"{SWITCH}{switch.name}"


def entries_of(target: str, release: OptionList | None = None, *, axes: Collection[str] = ()) -> tuple[Entry, ...]:
    """One entry per switch of the target, in the spelling of a release (None: the newest).

    Each field of PLAIN_AXES that the target lacks gets an entry without options. axes: the fields that it has.
    """
    has = [switch for switch in SWITCHES.values() if switch.axis or switch.of_target(target)]
    return (*(_entry(switch, target, release) for switch in has),
            *(_plain(name, value) for name, value in PLAIN_AXES.items() if name not in axes))  # fmt: skip


def _plain(name: str, value: int | str) -> Entry:
    return Entry((name,), (), lambda setup: {}, lambda settings, facts: {name: value})


def rules_of(target: str, *, axes: Collection[str] = ()) -> tuple[Rule, ...]:
    """Rules on the settable values of each switch that is a field of the layout. axes: see `entries_of`."""
    out = [only(target, name, (value,), f"{target} has no {name}")
           for name, value in PLAIN_AXES.items() if name not in axes]  # fmt: skip
    for switch in SWITCHES.values():
        if switch.axis:
            values = switch.of_target(target) or switch.values[:1]
            text = f"{target} has no {switch.name} ({switch.meaning})"
            out.append(only(target, switch.name, values, text))
    return tuple(out)


def _entry(switch: Switch, target: str, release: OptionList | None) -> Entry:
    spellings = switch.options.get(target) or {switch.values[0]: ({},)}
    written = {value: _of_release(options, release) for value, options in spellings.items()}
    names = tuple(dict.fromkeys(name for options in spellings.values() for part in options for name in part))

    def write(setup: Setup) -> Settings:
        value = _value_in(switch, setup)
        return {} if value is None else dict(written[value])

    def read(settings: Settings, facts: Facts) -> Facts:
        given = _telling(switch, {name: settings[name] for name in names if name in settings})
        values = (value for value, options in spellings.items() for part in options if _telling(switch, part) == given)
        stated = next(values, None)
        if stated is None and given:
            options = ", ".join(f"{name} {settings[name]}" for name in given)
            raise NoCounterpartError(
                f"{options} has no counterpart in a plan", hint=f"{switch.name}: {', '.join(spellings)}"
            )
        return {} if stated is None else {field_of(switch): stated}

    return Entry((field_of(switch),), names, write, read, switch.companions.intersection(names))


def _of_release(spellings: tuple[Options, ...], release: OptionList | None) -> Options:
    """The first spelling that a release knows; without one the newest, which `emit` then rejects by name."""
    known = (part for part in spellings if release is None or part.keys() <= release.options.keys())
    return next(known, spellings[0])


def _telling(switch: Switch, options: Options) -> dict[str, Any]:
    """The options that identify the value of a switch, lists in any order. A false flag counts as absent."""
    return {name: frozenset(value) if isinstance(value, list) else value for name, value in options.items()
            if value not in (None, False, []) and name not in switch.companions}  # fmt: skip


def turned(setup: Setup, target: str) -> dict[str, str]:
    """The switches of a plan for `target` that differ from the target's default: name -> value."""
    values = {name: _value_in(switch, setup) for name, switch in SWITCHES.items() if target in switch.options}
    return {name: value for name, value in values.items()
            if value and _telling(SWITCHES[name], SWITCHES[name].options[target][value][0])}  # fmt: skip


def _value_in(switch: Switch, setup: Setup) -> str | None:
    """The value of a switch in a plan; None where it has no effect there."""
    matters = switch.concerns(setup.problem) and switch.applies(setup.layout)
    return switch.value_of(setup.switches, setup.layout) if matters else None
