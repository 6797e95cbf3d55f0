"""Check: a figure of a published system that comes out of our prices."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from ....cost_models.techniques.registry import EVERY
from ...api import evaluate
from ...document.candidate import Candidate

Technique = dict[str, dict[str, float]]


@dataclass(frozen=True, slots=True, kw_only=True)
class Check:
    """A figure with the range in which it has to be, and how it is computed."""

    technique: str  # of the registry
    of: str  # what is computed, in which scenario
    published: str  # the figure and where it is from
    low: float  # of the range that our value has to be in
    high: float
    # (neutral knobs?) -> our value, out of the prices of layouts; with neutral knobs it has to leave the range.
    value: Callable[[bool], float]
    missed: str = ""  # why our value is outside the range, where it is

    def holds(self, value: float) -> bool:
        return self.low <= value <= self.high


def chosen(name: str, neutral: bool, **knobs: float) -> Technique:
    """A technique with these knobs, or with those that change nothing."""
    return {name: {**knobs, **(EVERY[name].neutral if neutral else {})}}


def priced(layout_id: str, technique: Technique | None, **asked: Any) -> Candidate:
    """The price of a layout of a request, by the closed form."""
    return evaluate(None, layout_id, technique=technique, **{"target": "any", **asked}).best


def gain(layout_id: str, technique: Technique, **asked: Any) -> float:
    """Step without the technique over step with it."""
    return priced(layout_id, None, **asked).step_s / priced(layout_id, technique, **asked).step_s


def shown_s(candidate: Candidate, *names: str) -> float:
    """Seconds of these terms of a step."""
    return sum(term.seconds for term in candidate.terms if term.name in names)


def single_gpus(count: int, gbit_per_s: float, gpu: str = "h100-sxm-80gb", latency: str = "1 us") -> dict[str, Any]:
    """Nodes of one GPU: every exchange crosses a link of this rate."""
    group = {"name": "single", "gpu": gpu, "gpus_per_node": 1, "count": count}
    link = {"bandwidth": f"{gbit_per_s:.9g} Gb/s", "latency": latency}
    return {"groups": [group], "links": {"inter_node": link}}
