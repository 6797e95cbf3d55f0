"""Switch: one setting of a framework in addition to the degrees of a layout.

A switch has a few values. Most switches change fields of the software stack (`StackSpec`), equally for all layouts. A
switch that trades memory for time is a field of the layout (`axis`), so that a search compares its values. A published
run, an imported configuration and a plan are priced by the same changes.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

from ...cost_models.layouts import Layout
from ...cost_models.problem import Problem
from ...cost_models.specs.cluster import ClusterSpec
from ...cost_models.specs.stack import StackSpec

# Switch -> value. A missing switch has the framework's default.
Settings = Mapping[str, str]
# Field of StackSpec -> value.
Changes = Mapping[str, Any]
# Option of a framework -> value in the framework's spelling; True for a flag.
Options = Mapping[str, Any]


def spelled(value: Any) -> str:
    """A value in the spelling of switches: `on` and `off` for the truth values of YAML and JSON."""
    return ("on" if value else "off") if isinstance(value, bool) else str(value)


@dataclass(frozen=True, kw_only=True)
class Situation:
    """The inputs for choosing a switch."""

    problem: Problem
    cluster: ClusterSpec

    @property
    def capability(self) -> float:
        """CUDA compute capability of the GPUs (9.0 for sm_90), 0 where no file states it."""
        return self.cluster.gpu.compute_capability or 0.0


@dataclass(frozen=True, kw_only=True)
class Switch:
    """One line of the registry."""

    # Its name in `--fix`, plans and screens.
    name: str
    # Its effect, in one line.
    meaning: str
    # Values, the plain one first.
    values: tuple[str, ...]
    # Source of its effect and its options.
    source: str
    # (stack, value) -> changes of the stack; none for an axis.
    changes: Callable[[StackSpec, str], Changes] = lambda stack, value: {}
    # Whether the switch is a field of the layout.
    axis: bool = False
    # Whether it has an effect on a problem, and a description of such problems.
    concerns: Callable[[Problem], bool] = lambda problem: True
    subject: str = "every training"
    # Whether it has an effect under a layout.
    applies: Callable[[Layout], bool] = lambda layout: True
    # Value -> other switches and the values that are allowed with it. A framework rejects all others.
    needs: Mapping[str, Mapping[str, tuple[str, ...]]] = field(default_factory=dict)
    # Target -> its additional needs.
    needs_of: Mapping[str, Mapping[str, Mapping[str, tuple[str, ...]]]] = field(default_factory=dict)
    # Target -> value -> options that set it, those of the newest release first. A value without options is the default
    # of the target.
    options: Mapping[str, Mapping[str, tuple[Options, ...]]] = field(default_factory=dict)
    # Options that accompany others and do not identify the value.
    companions: frozenset[str] = frozenset()
    # Default choice: the first of these values, or all of them for an axis, which a search compares. Values that the
    # target lacks or whose needs are not met are skipped. None: the value of the stack.
    choices: Callable[[Situation], tuple[str, ...]] = lambda situation: ()

    def of_target(self, target: str) -> tuple[str, ...]:
        """The values that a target supports; none if it lacks the switch."""
        return tuple(value for value in self.values if value in self.options.get(target, {}))

    def unmet(self, value: str, settings: Settings, target: str) -> Mapping[str, tuple[str, ...]]:
        """The needs of a value under a target that the settings violate."""
        needs = {**self.needs.get(value, {}), **self.needs_of.get(target, {}).get(value, {})}
        return {name: fit for name, fit in needs.items() if settings.get(name, fit[0]) not in fit}

    def shown_in(self, stack: StackSpec) -> tuple[str, ...]:
        """The values of the switch in a stack: those that change nothing in it. None if no value changes a stack."""
        changes = {value: self.changes(stack, value) for value in self.values}
        same = (value for value, fields in changes.items()
                if all(getattr(stack, name) == given for name, given in fields.items()))  # fmt: skip
        return tuple(same) if any(changes.values()) else ()

    def value_of(self, settings: Settings, layout: Layout) -> str | None:
        """The value under settings and a layout; None if neither has one."""
        return spelled(layout.as_dict()[self.name]) if self.axis else settings.get(self.name)


def of(target: str, values: Mapping[str, Options]) -> dict[str, Mapping[str, tuple[Options, ...]]]:
    """The options of one target, the same in all its releases."""
    return {target: {value: (options,) for value, options in values.items()}}


def on_off(changes: Changes) -> Callable[[StackSpec, str], Changes]:
    """The changes of a switch with the values `off` and `on`, where `off` leaves the stack as it is."""
    return lambda stack, value: changes if value == "on" else {}
