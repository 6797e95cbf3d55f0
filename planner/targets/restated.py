"""Values of a plan that emitted files state beside the options: nodes and GPUs of a launcher, lengths in a script."""

from __future__ import annotations

import re
from collections.abc import Mapping

from ...errors import FieldProblem, UnsupportedError
from ..document.plan import Plan
from .base import Target
from .emit import emit
from .launchers.registry import LAUNCHERS
from .train_script import TRAIN_FILE

# File -> regular expressions of its lines; the group is the value.
Stated = Mapping[str, tuple[str, ...]]
_OF_SCRIPTS: Stated = {TRAIN_FILE: (r"^SEQUENCE_LENGTH = (\S+)",)}


def restated(
    files: Mapping[str, str], written: Mapping[str, str], plan: Plan, target: Target, version: str, choice: int
) -> list[FieldProblem]:
    """The values in `files` (name -> text) that are not those which `emit` writes for layout `choice` of the plan.

    written: the files that `emit` writes for torchrun.
    """
    scripts = {**_OF_SCRIPTS, **(target.config.stated if target.config is not None else {})}
    problems = _compared(files, written, scripts)
    for launcher in LAUNCHERS.values():
        if not launcher.stated.keys() & files.keys():
            continue
        try:
            launched = emit(plan, target.name, launcher.name, version, choice).files
        except UnsupportedError:  # a launcher that keeps no order of nodes
            continue
        problems += _compared(files, launched, launcher.stated)
    return problems


def _compared(files: Mapping[str, str], written: Mapping[str, str], stated: Stated) -> list[FieldProblem]:
    problems = []
    for name, patterns in stated.items():
        for pattern in patterns if name in files and name in written else ():
            planned = {found[1] for found in re.finditer(pattern, written[name], re.MULTILINE)}
            for found in re.finditer(pattern, files[name], re.MULTILINE):
                if found[1] not in planned:
                    line = files[name].count("\n", 0, found.start(1)) + 1
                    text = f"`{found[0].strip()}`: {' or '.join(sorted(planned))} in the plan"
                    problems.append(FieldProblem(text, file=name, line=line))
    return problems
