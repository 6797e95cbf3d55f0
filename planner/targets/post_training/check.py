"""Compares edited files of a step of post-training with those that its plan writes."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass

from ....errors import FieldProblem, InputError
from ...document.rl_plan import RlPlan
from .added import effect_of
from .emit import emit_rl
from .registry import RL_TARGETS

_HEADER = re.compile(r"(?m)^# plan \w+, placement (\d+); for ([\w-]+) ([\w.]+)")


@dataclass(frozen=True, kw_only=True)
class CheckedPlacement:
    """The result of `check` on files of a placement."""

    target: str
    framework: str  # with its release
    placement_id: str
    problems: tuple[FieldProblem, ...]
    # Options of the files that the plan does not cover.
    not_judged: tuple[str, ...]


def of_post_training(files: Mapping[str, str]) -> bool:
    """Whether one of the files (name -> text) has the header of a placement."""
    return any(_HEADER.search(text) for text in files.values())


def check_rl(plan: RlPlan, files: Mapping[str, str]) -> CheckedPlacement:
    """The files (name -> text) beside those that `emit` writes for the placement that their headers name.

    Raises InputError where no header names one.
    """
    headers = {name: found for name, text in files.items() if (found := _HEADER.search(text)) is not None}
    header = next(iter(headers.values()), None)
    target = RL_TARGETS.get(header[2].lower()) if header else None
    if header is None or target is None:
        raise InputError(f"{', '.join(files)}: no file of this plan names its placement",
                         hint="keep the header that `emit` writes")  # fmt: skip
    choice = int(header[1])
    emitted = emit_rl(plan, target.name, choice)
    old = [FieldProblem(f"for {target.framework} {it[3]}; options are those of {target.release}", file=name,
                        line=it.string.count("\n", 0, it.start()) + 1, hint="`emit` writes it anew")
           for name, it in headers.items() if it[3] != target.release]  # fmt: skip
    effect = effect_of(target, emitted.files)
    return CheckedPlacement(
        target=target.name, framework=emitted.framework, placement_id=plan.candidate(choice).placement_id,
        problems=(*old, *target.option_file.check(files, emitted.files, effect), *target.conflicts(files)),
        not_judged=target.option_file.not_judged(files, emitted.files, effect),
    )  # fmt: skip
