"""Writes the files that run a step of post-training."""

from __future__ import annotations

from ....errors import UnsupportedError
from ...document.rl_plan import RlPlan
from ..emit import Emitted
from .registry import rl_target
from .setup import RlSetup


def emit_rl(plan: RlPlan, to: str, choice: int = 1, name: str = "plan") -> Emitted:
    """The files of placement `choice`, and the plan. Pure: equal plans give equal bytes.

    Raises InputError (no such placement), UnknownNameError (framework) and UnsupportedError (a placement that it
    cannot run).
    """
    target = rl_target(to)
    setup = RlSetup.of(plan, choice, name)
    framework = str(target)
    placement = setup.candidate.placement_id
    if reasons := target.refusals(setup):
        raise UnsupportedError("\n".join([f"{framework} cannot run placement {choice}, {placement}", *reasons]),
                               hint=_hint(plan, to, choice))  # fmt: skip
    header = (f"{placement}: {setup.algorithm} of {setup.models['policy'].name} on {setup.nodes}",
              f"plan {setup.plan_id}, placement {choice}; for {framework}; written by {setup.tool}")  # fmt: skip
    files = {**target.files(setup, header), "plan.json": plan.to_json()}
    return Emitted(files, target.next_step, framework, tuple(target.notes(setup)))


def _hint(plan: RlPlan, to: str, choice: int) -> str:
    """The fastest placement of the plan that the framework can run, or how to plan one."""
    target = rl_target(to)
    for other in plan.candidates:
        if other.choice != choice and not target.refusals(RlSetup.of(plan, other.choice, "plan")):
            return f"`--choice {other.choice}`, {other.placement_id}, takes {other.step_s:.3g} s a step"
    if target.cannot_run(RlSetup.of(plan, choice, "plan"), 0):
        return "no placement of this step helps: another `--to`, or another step"
    return f"`plan --target {to}` plans the placements that {target.framework} runs"
