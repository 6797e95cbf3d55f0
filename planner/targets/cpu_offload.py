"""CPU offload of ZeRO-3 states, which several frameworks have as one option."""

from __future__ import annotations

from collections.abc import Callable, Mapping

from ...cost_models.problem import Problem
from ...cost_models.techniques.cpu_offload import TECHNIQUE
from .options import Entry, Facts, NoCounterpartError, Settings
from .setup import Setup

FACT = "workload.techniques"
ON_HOST: Facts = {FACT: {TECHNIQUE.name: {}}, "offload": "none"}
# Weights on the host, gradients and states of the optimizer on the GPUs.
WEIGHTS_ON_HOST: Facts = {FACT: {TECHNIQUE.name: {"optimizer": 0.0}}, "offload": "none"}


def planned(setup: Setup) -> Mapping[str, float] | None:
    """The knobs of a plan that keeps weights on the host; None for another plan."""
    chosen = (dict(knobs) for name, knobs in setup.workload.techniques if name == TECHNIQUE.name)
    return next((knobs for knobs in chosen if knobs["on"]), None)


def weights_alone(facts: Facts) -> bool:
    """Whether weights are on the host without the states of the optimizer, which DeepSpeed alone does."""
    return bool(facts.get(FACT, {}).get(TECHNIQUE.name) == WEIGHTS_ON_HOST[FACT][TECHNIQUE.name])


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


def _all_states(problem: Problem, knobs: Mapping[str, float]) -> str | None:
    return None if knobs["optimizer"] else "its option moves weights only together with the optimizer's states"


# For the techniques of a trainer: no layout of ZeRO-3 is refused.
CAN: Mapping[str, Callable[[Problem, Mapping[str, float]], str | None]] = {TECHNIQUE.name: _all_states}
