"""Compares edited files of a step of post-training with those that its plan writes."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass

from ....errors import FieldProblem, InputError
from ...document.rl_plan import RlPlan
from .emit import emit_rl
from .registry import RL_TARGETS


@dataclass(frozen=True, kw_only=True)
class CheckedPlacement:
    """The result of `check` on files of a placement."""

    target: str
    framework: str  # with its release
    placement_id: str
    problems: tuple[FieldProblem, ...]


def check_rl(plan: RlPlan, files: Mapping[str, str]) -> CheckedPlacement:
    """The files (name -> text) beside those that `emit` writes for the placement that their headers name.

    Raises InputError where no header names one.
    """
    header = re.search(r"(?m)^# plan \w+, placement (\d+); for ([\w-]+)", "\n".join(files.values()))
    target = RL_TARGETS.get(header[2].lower()) if header else None
    if header is None or target is None:
        raise InputError(f"{', '.join(files)}: no file of this plan names its placement",
                         hint="keep the header that `emit` writes")  # fmt: skip
    choice = int(header[1])
    emitted = emit_rl(plan, target.name, choice)
    return CheckedPlacement(
        target=target.name, framework=emitted.framework, placement_id=plan.candidate(choice).placement_id,
        problems=tuple(target.check(files, emitted.files)),
    )  # fmt: skip
