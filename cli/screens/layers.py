"""What strategies of their own the layers of a plan have, and why."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from .. import text
from ..console import table

if TYPE_CHECKING:
    from .parts import Json, Part

_MOST_RUNS, _MOST_REASONS = 24, 4


def layer_lines(candidates: Sequence[Json], capacity: float) -> list[Part]:
    """Of the layer-wise plan among `candidates`: runs of layers, what it gains and why, and who can run it."""
    one = next((each for each in candidates if each.get("layerwise")), None)
    if one is None:
        return []
    plan = one["layerwise"]
    runs = [(f"layers {_range(run['layers'])}", run["strategy"]) for run in plan["runs"]]
    left = len(runs) - _MOST_RUNS
    rows = [("embedding", plan["embedding"]), *runs[:_MOST_RUNS], ("head", plan["head"])]
    if left > 0:
        rows.insert(-1, (f"{left} more runs", "`--json` has all"))
    lines = [_gain(one, plan), *_reasons(plan, capacity), *_who(one)]
    return [table(f"layout {one['choice']}", "strategy", rows=rows), "", *(text.wrapped(line) for line in lines)]


def _range(layers: Sequence[int]) -> str:
    first, last = layers
    return f"{first}" if first == last else f"{first}-{last}"


def _gain(one: Json, plan: Json) -> str:
    searched = f"{text.count(plan['pipelines'])} numbers of stages and micro-batches, {text.count(plan['strategies'])} "
    searched += "strategies of a layer in all"
    proof = f"Proven to {text.percent(plan['gap'], 2)} % over {searched}, in 1F1B and without offload."
    alike = plan["best_alike"]
    if alike is None:
        return f"No single strategy for all layers fits. {proof}"
    gain = text.percent(1 - one["step_s"] / alike["step_s"])
    took = text.significant(alike["step_s"])
    return f"{gain} % faster than the best with one strategy for all, {alike['strategy']} ({took} s). {proof}"


def _reasons(plan: Json, capacity: float) -> list[str]:
    """What the strategies of the layers would be everywhere."""
    parts = []
    for each in plan["used"][:_MOST_REASONS]:
        part = f"{each['strategy']} {text.significant(each['step_s'])} s in {text.gib(each['device_bytes'])} GiB"
        parts.append(part + (" (does not fit)" if each["device_bytes"] > capacity else ""))
    return [f"Everywhere they would be: {', '.join(parts)}; a GPU has {text.gib(capacity)} GiB."]


def _who(one: Json) -> list[str]:
    able = sorted(name for name, reason in one["targets"].items() if reason is None)
    if not able:
        return ["No target runs it: it is a plan on paper."]
    return [f"Of the targets, only {able[0]} can run it." if len(able) == 1 else f"{text.listed(able)} can run it."]
