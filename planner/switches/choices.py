"""The switches of a request: fixed values, default choices, and values that a search compares."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field

from ...cost_models.layouts import encode
from ...errors import FieldProblem, InputError
from .base import Settings, Situation, Switch
from .registry import SWITCHES

ANY_TARGET = "any"  # generic software: it has every switch, and only requested ones are set


@dataclass(frozen=True)
class Choice:
    """Switches for a request."""

    # Switches of the software, for all layouts.
    settings: Settings = field(default_factory=dict)
    # Field of the layout -> the codes that a search compares.
    axes: Mapping[str, tuple[int, ...]] = field(default_factory=dict)


def choose(target: str, situation: Situation, fixed: Settings) -> Choice:
    """The switches that a request for `target` fixes, and the choices of the target's other switches.

    Raises InputError with all problems, for a switch fixed to a value that the target lacks or that has no effect.
    """
    if problems := list(_wrong(fixed, target, situation)):
        raise InputError.of(problems)
    settings, axes = dict[str, str](), dict[str, tuple[int, ...]]()
    for name, switch in SWITCHES.items():
        values = (fixed[name],) if name in fixed else _choices(switch, target, situation, {**fixed, **settings})
        if switch.axis:
            axes[name] = tuple(encode(name, value) for value in values or switch.values[:1])
        elif values:
            settings[name] = values[0]
    return Choice(settings, axes)


def as_they_are(target: str, situation: Situation, stated: Settings) -> Settings:
    """`stated`, and each other switch of a target at its value in the stack: settings without open choices.

    situation: its stack includes the stated switches.
    """
    settings = dict(stated)
    for name, switch in SWITCHES.items():
        if name in settings or switch.axis or not switch.concerns(situation.problem):
            continue
        shown = set(switch.shown_in(situation.problem.stack)).intersection(switch.of_target(target))
        fit = (value for value in switch.values if value in shown and goes(switch, value, settings, target))
        if (value := next(fit, None)) is not None:
            settings[name] = value
    return settings


def _choices(switch: Switch, target: str, situation: Situation, settings: Settings) -> tuple[str, ...]:
    """The choice of a switch. settings: fixed switches and earlier choices."""
    if not switch.concerns(situation.problem):
        return ()
    has = switch.of_target(target)
    return tuple(value for value in switch.choices(situation) if value in has and goes(switch, value, settings, target))


def goes(switch: Switch, value: str, settings: Settings, target: str) -> bool:
    """Whether a value of a switch is compatible with settings: its needs, and theirs."""
    if switch.unmet(value, settings, target):
        return False
    return not any(switch.name in SWITCHES[other].unmet(given, {switch.name: value}, target)
                   for other, given in settings.items())  # fmt: skip


def lacks(target: str, fixed: Settings) -> list[str]:
    """The switches that are fixed to a value that a target lacks or rejects with the others.

    The plain value of an axis is always allowed.
    """
    return [name for name, value in fixed.items()
            if value not in _values(SWITCHES[name], target) or SWITCHES[name].unmet(value, fixed, target)]  # fmt: skip


def _values(switch: Switch, target: str) -> tuple[str, ...]:
    if target == ANY_TARGET:
        return switch.values
    return switch.of_target(target) or (switch.values[:1] if switch.axis else ())


def _wrong(fixed: Settings, target: str, situation: Situation) -> Iterator[FieldProblem]:
    for name, value in fixed.items():
        switch, has = SWITCHES[name], _values(SWITCHES[name], target)
        if not switch.concerns(situation.problem):
            text = f"{value}: it does nothing here, it is for {switch.subject}"
            yield FieldProblem(text, field=f"fix.{name}", hint="leave it out")
        elif value not in has:
            able = [other for other, values in switch.options.items() if value in values]
            hint = f"`--target {able[0]}` has it" if able else f"no target sets it: {switch.source}"
            text = f"{value}: {target} has {', '.join(has) or 'no such switch'} ({switch.meaning})"
            yield FieldProblem(text, field=f"fix.{name}", hint=hint)
        for other, fit in switch.unmet(value, fixed, target).items():
            text = f"{value}: it goes with {other} {' or '.join(fit)}, which is fixed to {fixed[other]}"
            yield FieldProblem(text, field=f"fix.{name}", hint=f"leave one of them out ({switch.source})")
