"""The screen of `meshwright import verl|nemo-rl --output N`: a team's own step, beside the fastest on the same GPUs."""

from __future__ import annotations

from typing import TYPE_CHECKING

from .. import text
from . import rl_plan

if TYPE_CHECKING:
    from ...planner.document.rl_plan import RlCandidate
    from ...planner.drivers.imported_step import ImportedStep
    from .parts import Part

_SLIGHT = 1.005  # gains below it print as none


def screen(imported: ImportedStep, framework: str, saved_as: str | None) -> list[Part]:
    """The options that were read, both steps call by call, and the gain."""
    parts: list[Part] = [f"{framework}: {imported.step.options} options set batch, layouts and placement"]
    parts += [text.wrapped(f"assumed: {it}", hanging="  ") for it in imported.step.assumed]
    if imported.theirs is None:
        parts += ["", text.wrapped(f"Yours has no step: {imported.why}")]
    else:
        parts += ["", *_step("Yours", imported.theirs)]
    if imported.placement is None:
        return [*parts, "", text.wrapped(f"Nothing is faster: {imported.why}")]
    if imported.gain is not None and imported.gain < _SLIGHT:
        return [*parts, "", "No placement on these GPUs is faster."]
    parts += ["", *_step("Planned", imported.placement)]
    if imported.gain is not None:
        parts += ["", f"Planned is {imported.gain:.2f} times as fast."]
    choice = f" --choice {imported.placement.choice}" if imported.placement.choice > 1 else ""
    emit = f"meshwright emit {saved_as} --to {imported.reader.target.name}{choice} -d run"
    keep = emit if saved_as else "add `-o rl.json` to keep the plan"
    return [*parts, "", f"Next: {keep}"]


def _step(name: str, placement: RlCandidate) -> list[Part]:
    return [f"{name}: {placement.placement_id}, {text.significant(placement.step_s)} s a step",
            *rl_plan.explanation(placement)[1:]]  # fmt: skip
