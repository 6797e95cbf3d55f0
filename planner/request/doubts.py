"""Warnings about what the numbers of a plan rest on, and on whether anybody can run it."""

from __future__ import annotations

from ...cost_models.problem import Problem
from ...cost_models.specs.cluster import GpuSpec
from ...cost_models.specs.notice import Notice
from ...cost_models.techniques import registry as techniques
from ...errors import UnsupportedError
from ...profiles.rates.calibration import fitted_formats
from ...profiles.rates.device_rates import surfaces_for
from ..targets.base import Target
from ..targets.registry import about_technique, runs_on_none, who_trains


def doubts(problem: Problem, gpu: GpuSpec, target: Target, *, asked: bool) -> list[Notice]:
    """The warnings. asked: the request names the target. Raises UnsupportedError where it does, and the target runs
    plans itself and cannot train the model."""
    found = []
    if gpu.plan_only:
        found.append(Notice("target", f"{runs_on_none(gpu.name)}: the plan is priced, `emit` and `launch` refuse it"))
    used = techniques.of(problem.workload.techniques)
    found += [Notice("technique", about_technique(technique, target)) for technique, _ in used]
    found += _untrained(problem, target, asked=asked)
    device = surfaces_for(gpu)
    if device.provenance != "measured":
        text = f"{gpu.name} has no measurements; its compute time is {device.provenance}, scaled by peak and bandwidth"
        if fitted := fitted_formats(gpu):
            text += f", but for the rate of products in {', '.join(fitted)}, which is fitted to whole training runs"
        found.append(Notice("estimate", text))
    elif device.attention_provenance != "measured":
        text = f"attention was not measured on {gpu.name}; its time is {device.attention_provenance}, scaled"
        found.append(Notice("estimate", text))
    return found


def _untrained(problem: Problem, target: Target, *, asked: bool) -> list[Notice]:
    """A warning where the target cannot train the model: the plan is no more than priced. Raises UnsupportedError where
    it is a target that runs the plan itself, and was asked for."""
    name = problem.model.name
    lacks = target.cannot_build(problem.model, problem.workload) if target.trainer is not None else []
    if not lacks:
        return []
    hint = who_trains(problem)
    if target.runs_plans and asked:
        raise UnsupportedError("\n".join([f"{target.name} cannot train {name}", *lacks]), hint=hint)
    refuse = "`emit` and `launch` refuse" if target.runs_plans else "`emit` refuses"
    text = f"{target.name} cannot train {name}, {refuse}: {'; '.join(lacks)}. {hint}"
    return [Notice("untrained", text)]
