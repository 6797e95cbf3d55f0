"""Differences between the files of a folder and what `emit` writes for the plan beside them, option by option.

An option that an entry reads is compared by its facts, so that another spelling of the same facts is no difference.
Any other option is compared by its value.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Mapping
from typing import Any

from ...errors import FieldProblem, InputError
from .edits import Places
from .options import Entry, Facts, Settings

_HINT = "edited after `emit`: plan again with `--fix`"


def differences(
    settings: Settings, written: Settings, places: Places, changes: Callable[[str], str], reported: set[str],
    defaults: Mapping[str, Any],
) -> list[FieldProblem]:  # fmt: skip
    """The differences that are not reported yet.

    settings: of the files, with the planned value where they have a problem. written: of the files that `emit` writes.
    changes: option without an entry -> its effect, "" for none. reported: fields and options with a problem.
    defaults: option -> its value in the framework where nothing sets it, as far as that is recorded.
    """
    planned = dict(written)
    out, facts, read = list[FieldProblem](), Facts(), Facts()
    for entry in places.table.entries:
        before = dict(read)
        told = entry.read(planned, read)
        read |= told
        try:
            given = entry.read(settings, facts)
        except (InputError, KeyError):
            given = told
        facts |= given
        if reported.intersection((*entry.fields, *entry.options)):
            continue
        differ = [name for name in {**told, **given} if name != "notes" and told.get(name) != given.get(name)]
        if differ:
            name = differ[0]
            text = _in_words(name.removeprefix("model."), given.get(name), told.get(name))
            problem = places.problem(text, entry.fields, _HINT)
            line, field = problem.line or _first_line(places), problem.field or name
            out.append(problem._replace(line=line, field=field))
        else:
            blind = [option for option in entry.options if not _same(option, settings, planned, defaults)
                     and (option in planned or changes(option))
                     and not _seen(entry, option, settings, planned, before)]  # fmt: skip
            out += [_of_option(option, settings, planned, places) for option in blind]
    known = places.table.options | reported
    others = (name for name in dict.fromkeys((*settings, *planned)) if name not in known and changes(name)
              and not _same(name, settings, planned, defaults))  # fmt: skip
    return out + [_of_option(name, settings, planned, places, changes(name)) for name in others]


def _in_words(name: str, given: Any, planned: Any) -> str:
    """The difference. Two lists of equal length are compared by their first differing entry."""
    if isinstance(given, list | tuple) and isinstance(planned, list | tuple) and len(given) == len(planned):
        first = next(i for i, pair in enumerate(zip(given, planned, strict=True)) if pair[0] != pair[1])
        return f"entry {first + 1} of {name} is {given[first]}, plan.json has {planned[first]}"
    return f"{name} is {given}, plan.json has {planned}"


def not_judged(places: Places, changes: Callable[[str], str], known: Iterable[str]) -> list[str]:
    """The options of the files that neither the plan nor a rule covers. A constructor is none. known:
    the options of the framework."""
    given = places.given.settings
    parts = {name.rpartition(".")[0] for name in (*given, *known)}
    return [name for name in given if name not in places.table.options | parts and not changes(name)]


def _plain(value: Any) -> Any:
    if isinstance(value, list | tuple):
        return (value[0] if len(value) == 1 else " ".join(map(str, value))) if value else None
    if isinstance(value, str) and re.fullmatch(r"\([-\d., ]+\)", value):  # a tuple of a Python module
        return " ".join(re.findall(r"[-\d.]+", value))
    return value


def _same(option: str, given: Settings, planned: Settings, defaults: Mapping[str, Any]) -> bool:
    if option not in planned:  # as it is where nothing sets it
        if option not in given:
            return True
        return bool(given[option] == defaults[option]) if option in defaults else _is_off(given[option])
    return bool(_plain(given.get(option)) == _plain(planned.get(option)))


def _is_off(value: Any) -> bool:
    """Whether the value is a switch, or a block of options, that is off."""
    return value is False or (isinstance(value, Mapping) and value.get("enabled") is False)


def _seen(entry: Entry, option: str, given: Settings, planned: Settings, facts: Facts) -> bool:
    """Whether the option alone changes the facts of an entry. Equal facts then prove that the option is as planned."""
    changed = {name: value for name, value in planned.items() if name != option}
    if option in given:
        changed[option] = given[option]
    try:
        return entry.read(changed, dict(facts)) != entry.read(planned, dict(facts))
    except (InputError, KeyError):
        return True


def _of_option(name: str, given: Settings, planned: Settings, places: Places, what: str = "") -> FieldProblem:
    read = places.given
    file, line = read.files.get(name, places.main_file), read.lines.get(name, 0)
    if name not in given:
        text, file = f"is gone: `emit` wrote {_spelled(planned[name])}", places.main_file
    elif name in planned:
        text = f"is {_spelled(given[name])}, `emit` wrote {_spelled(planned[name])}"
    else:
        text = f"is not in what `emit` wrote{': ' if what else ''}{what}"
    return FieldProblem(text, file=file, line=line or _first_line(places), field=name, hint=_HINT)


def _first_line(places: Places) -> int:
    return min((line for line in places.given.lines.values() if line), default=1)


def _spelled(value: Any) -> str:
    return "it" if value is True else " ".join(map(str, value)) if isinstance(value, list) else str(value)
