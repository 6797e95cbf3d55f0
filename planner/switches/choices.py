"""The switches of a request: what it fixes, what is chosen for it, and what a search compares."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field

from ...cost_models.layouts import encode
from ...errors import FieldProblem, InputError
from .base import Settings, Situation, Switch
from .registry import SWITCHES

ANY_TARGET = "any"  # software in general: it has every switch, and none of them is turned unless requested


@dataclass(frozen=True)
class Choice:
    """Switches for a request."""

    # Of the software, for all layouts.
    settings: Settings = field(default_factory=dict)
    # Field of the layout -> the codes that a search compares.
    axes: Mapping[str, tuple[int, ...]] = field(default_factory=dict)


def choose(target: str, situation: Situation, fixed: Settings) -> Choice:
    """The switches that a request for `target` fixes, and the choice of each other switch that the target has.

    Raises InputError, all problems at once, for a switch that is fixed to what the target lacks or that does nothing.
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
    """`stated`, and each other switch of a target at the value that the stack of the problem has it at: settings that
    leave nothing to choose. situation: its stack is as the stated switches have it."""
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
    """settings: those that are fixed, and those of the switches before it."""
    if not switch.concerns(situation.problem):
        return ()
    has = switch.of_target(target)
    return tuple(value for value in switch.choices(situation) if value in has and goes(switch, value, settings, target))


def goes(switch: Switch, value: str, settings: Settings, target: str) -> bool:
    """Whether a value of a switch goes with settings: with what it needs, and with what they need."""
    if switch.unmet(value, settings, target):
        return False
    return not any(switch.name in SWITCHES[other].unmet(given, {switch.name: value}, target)
                   for other, given in settings.items())  # fmt: skip


def lacks(target: str, fixed: Settings) -> list[str]:
    """The switches that are fixed to a value that a target lacks, or refuses beside the others. The plain value of an
    axis turns nothing on."""
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
