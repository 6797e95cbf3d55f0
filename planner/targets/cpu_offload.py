"""CPU offload of ZeRO-3 states, which several frameworks have as one option."""

from __future__ import annotations

from collections.abc import Callable, Mapping

from ...cost_models.problem import Problem
from ...cost_models.techniques.cpu_offload import TECHNIQUE
from .options import Entry, Facts, NoCounterpartError, Settings
from .setup import Setup

FACT = "workload.techniques"
ON_HOST: Facts = {FACT: {TECHNIQUE.name: {}}, "offload": "none"}


def planned(setup: Setup) -> bool:
    """Whether a plan keeps the states on the host."""
    return any(name == TECHNIQUE.name and dict(knobs)["on"] for name, knobs in setup.workload.techniques)


def of_stage(zero: int, option: str) -> Facts:
    """The facts of states on the host in a stage of ZeRO. Raises NoCounterpartError where no plan has them."""
    if zero != 3:
        raise NoCounterpartError(f"{option}: keeps weights and states on the host, which plans do in ZeRO-3 alone")
    return ON_HOST


def entry(option: str) -> Entry:
    """An option that moves weights, gradients and optimizer states to the host."""

    def read(settings: Settings, facts: Facts) -> Facts:
        if str(settings.get(option, False)).lower() not in ("true", "yes"):
            return {"offload": facts.get("offload", "none")}
        return of_stage(int(facts.get("zero", 0)), option)

    return Entry(("offload", FACT), (option,), lambda setup: {option: True} if planned(setup) else {}, read)


# For the techniques of a trainer: no layout of ZeRO-3 is refused.
CAN: Mapping[str, Callable[[Problem, Mapping[str, float]], str | None]] = {
    TECHNIQUE.name: lambda problem, knobs: None
}  # fmt: skip
