"""Switch: one thing that a framework lets a user turn, beside the degrees of a layout.

A switch has a few values. Most change fields of the software stack (`StackSpec`), the same for all layouts. A switch
that trades memory for time is a field of the layout (`axis`), so that a search compares its values. A published run, an
imported configuration and a plan are priced by the same changes.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

from ...cost_models.layouts import Layout
from ...cost_models.problem import Problem
from ...cost_models.specs.cluster import ClusterSpec
from ...cost_models.specs.stack import StackSpec

# Switch -> value. A switch that is not named is as the framework has it by default.
Settings = Mapping[str, str]
# Field of StackSpec -> value.
Changes = Mapping[str, Any]
# Option of a framework -> value as the framework spells it: True for a flag.
Options = Mapping[str, Any]


def spelled(value: Any) -> str:
    """A value as switches spell it: `on` and `off` for truth values, which YAML and JSON make of them."""
    return ("on" if value else "off") if isinstance(value, bool) else str(value)


@dataclass(frozen=True, kw_only=True)
class Situation:
    """The inputs of the choice of a switch."""

    problem: Problem
    cluster: ClusterSpec

    @property
    def capability(self) -> float:
        """CUDA compute capability of the GPUs (9.0 for sm_90), 0 where no file states it."""
        return self.cluster.gpu.compute_capability or 0.0


@dataclass(frozen=True, kw_only=True)
class Switch:
    """One line of the registry."""

    # As `--fix`, plans and screens spell it.
    name: str
    # What it does, in one line.
    meaning: str
    # The plain one first.
    values: tuple[str, ...]
    # Where its effect and its options are from.
    source: str
    # (stack, value) -> what the value changes in the stack; nothing of an axis.
    changes: Callable[[StackSpec, str], Changes] = lambda stack, value: {}
    # Whether it is a field of the layout.
    axis: bool = False
    # Whether it does anything in such a training, and what that is in words.
    concerns: Callable[[Problem], bool] = lambda problem: True
    subject: str = "every training"
    # Whether it does anything under such a layout.
    applies: Callable[[Layout], bool] = lambda layout: True
    # Value -> other switches, with the values that each may have beside it: a framework refuses all others.
    needs: Mapping[str, Mapping[str, tuple[str, ...]]] = field(default_factory=dict)
    # Target -> needs that it alone has.
    needs_of: Mapping[str, Mapping[str, Mapping[str, tuple[str, ...]]]] = field(default_factory=dict)
    # Target -> value -> the options that set it: those of the newest release first, then those of older ones. A value
    # without options is the default of the target.
    options: Mapping[str, Mapping[str, tuple[Options, ...]]] = field(default_factory=dict)
    # Options that go along with others of these and do not tell the value.
    companions: frozenset[str] = frozenset()
    # What is chosen unless the request says so: the first of these, or all of them of an axis, which a search compares.
    # Values that the target lacks or whose needs are not met are passed over. None: as the stack has it.
    choices: Callable[[Situation], tuple[str, ...]] = lambda situation: ()

    def of_target(self, target: str) -> tuple[str, ...]:
        """The values that a target can be set to, none where it lacks the switch."""
        return tuple(value for value in self.values if value in self.options.get(target, {}))

    def unmet(self, value: str, settings: Settings, target: str) -> Mapping[str, tuple[str, ...]]:
        """The needs of a value under a target that settings contradict."""
        needs = {**self.needs.get(value, {}), **self.needs_of.get(target, {}).get(value, {})}
        return {name: fit for name, fit in needs.items() if settings.get(name, fit[0]) not in fit}

    def shown_in(self, stack: StackSpec) -> tuple[str, ...]:
        """The values at which a stack has the switch: those that change nothing in it. None where none changes any."""
        changes = {value: self.changes(stack, value) for value in self.values}
        same = (value for value, fields in changes.items()
                if all(getattr(stack, name) == given for name, given in fields.items()))  # fmt: skip
        return tuple(same) if any(changes.values()) else ()

    def value_of(self, settings: Settings, layout: Layout) -> str | None:
        """The value under settings and a layout, None where neither has any."""
        return spelled(layout.as_dict()[self.name]) if self.axis else settings.get(self.name)


def of(target: str, values: Mapping[str, Options]) -> dict[str, Mapping[str, tuple[Options, ...]]]:
    """The options of one target, the same in all its releases."""
    return {target: {value: (options,) for value, options in values.items()}}


def on_off(changes: Changes) -> Callable[[StackSpec, str], Changes]:
    """The changes of a switch with the values `off` and `on`, where `off` is as the stack has it."""
    return lambda stack, value: changes if value == "on" else {}
