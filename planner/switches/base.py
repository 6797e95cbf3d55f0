"""Switch: one thing that a framework lets a user turn, beside the layout.

A switch has a few values. Each value changes fields of the software stack (`StackSpec`). A published run, an imported
configuration and a plan are priced by the same changes.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

from ...cost_models.problem import Problem
from ...cost_models.specs.stack import StackSpec

# Switch -> value. A switch that is not named is as the framework has it by default.
Settings = Mapping[str, str]
# Field of StackSpec -> value.
Changes = Mapping[str, Any]


@dataclass(frozen=True, kw_only=True)
class Switch:
    """One line of the registry."""

    # As `--fix`, plans and screens spell it.
    name: str
    # What it does, in one line.
    meaning: str
    # The plain one first.
    values: tuple[str, ...]
    # (stack, value) -> what the value changes in the stack.
    changes: Callable[[StackSpec, str], Changes]
    # Where the changes are from.
    source: str
    # Whether it does anything in such a training.
    concerns: Callable[[Problem], bool] = lambda problem: True


def on_off(changes: Changes) -> Callable[[StackSpec, str], Changes]:
    """The changes of a switch with the values `off` and `on`, where `off` is as the stack has it."""
    return lambda stack, value: changes if value == "on" else {}
