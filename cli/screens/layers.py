"""The strategies of single layers in a layer-wise plan, and their reasons."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from .. import text
from ..console import table

if TYPE_CHECKING:
    from ...planner.document.candidate import Candidate
    from ...planner.document.layer_plan import LayerPlan
    from .parts import Part

_MOST_RUNS, _MOST_REASONS = 24, 4


def layer_lines(candidates: Sequence[Candidate], capacity: float) -> list[Part]:
    """The layer-wise plan among `candidates`: runs of layers, gain, reasons, and the targets that can run it."""
    for candidate in candidates:
        if candidate.layerwise is not None:
            return _lines(candidate, candidate.layerwise, capacity)
    return []


def _lines(candidate: Candidate, plan: LayerPlan, capacity: float) -> list[Part]:
    runs = [(f"layers {_range(*run.layers)}", run.strategy) for run in plan.runs]
    num_more = len(runs) - _MOST_RUNS
    rows = [("embedding", plan.embedding), *runs[:_MOST_RUNS], ("head", plan.head)]
    if num_more > 0:
        rows.insert(-1, (f"{num_more} more runs", "`--json` has all"))
    lines = [_gain(candidate, plan), _reasons(plan, capacity), _able(candidate)]
    return [table(f"layout {candidate.choice}", "strategy", rows=rows), "", *(text.wrapped(line) for line in lines)]


def _range(first: int, last: int) -> str:
    return f"{first}" if first == last else f"{first}-{last}"


def _gain(candidate: Candidate, plan: LayerPlan) -> str:
    searched = f"{text.count(plan.pipelines)} numbers of stages and micro-batches, {text.count(plan.strategies)} "
    searched += "strategies of a layer in all"
    proof = f"Proven to {text.percent(plan.gap, 2)} % over {searched}, in 1F1B and without offload."
    uniform = plan.best_alike
    if uniform is None:
        return f"No single strategy for all layers fits. {proof}"
    gain = text.percent(1 - candidate.step_s / uniform.step_s)
    took = text.significant(uniform.step_s)
    return f"{gain} % faster than {uniform.strategy} ({took} s), the best of those with one strategy for all. {proof}"


def _reasons(plan: LayerPlan, capacity: float) -> str:
    """Each strategy as the one strategy of all layers."""
    parts = []
    for uniform in plan.used[:_MOST_REASONS]:
        part = f"{uniform.strategy} {text.significant(uniform.step_s)} s in {text.gib(uniform.device_bytes)} GiB"
        parts.append(part + (" (does not fit)" if uniform.device_bytes > capacity else ""))
    return f"Everywhere they would be: {', '.join(parts)}; a GPU has {text.gib(capacity)} GiB."


def _able(candidate: Candidate) -> str:
    able = sorted(name for name, reason in candidate.targets.items() if reason is None)
    if not able:
        return "No target runs it: it is a plan on paper."
    return f"Of the targets, only {able[0]} can run it." if len(able) == 1 else f"{text.listed(able)} can run it."
