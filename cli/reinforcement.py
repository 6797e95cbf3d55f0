"""`plan --workload grpo|ppo|dapo|dpo`: a step of post-training."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING

from ..errors import InputError
from . import requests
from .console import FORMAT_VERSION, Terminal
from .files import write_file
from .options import RequestFlags
from .screens import rl_plan as screen

if TYPE_CHECKING:
    from ..planner.document.rl_plan import RlPlan
    from ..planner.request.reinforcement import RlRequest
    from ..planner.targets.emit import Emitted


def run(terminal: Terminal, request: RlRequest, output: Path | None, *, force: bool) -> None:
    """Plans, writes and shows."""
    from ..planner import api

    with terminal.progress("searching"):
        plan = api.plan_rl(request)
    requests.conclude(terminal, plan, output, lambda saved_as: screen.screen(plan, plan.best, saved_as), force=force)


def explain(terminal: Terminal, path: Path, choice: int, options: Mapping[str, object]) -> None:
    """Shows one placement of a plan: its calls over the GPUs, and the memory of a GPU over time."""
    if given := [name for name, value in options.items() if value]:
        raise InputError(f"{given[0]} is for the plan of a training step", hint="leave it out")
    plan = loaded(path)
    chosen = plan.candidate(choice)
    if terminal.settings.json:
        explained = {"placement": chosen.model_dump(mode="json")}
        terminal.write_json({"format_version": FORMAT_VERSION, "kind": "explanation", **explained})
    terminal.show([*screen.explanation(chosen), "", *screen.memory(chosen)])
    requests.show_warnings(terminal, plan.warnings)


def loaded(path: Path) -> RlPlan:
    """The plan in a file."""
    from ..planner.document.reading import load_rl_plan

    return load_rl_plan(path)


def emitted(path: Path, to: str | None, choice: int, options: Mapping[str, object]) -> Emitted:
    """The files of a placement. options: those of other plans, by name."""
    from ..planner.targets.post_training.emit import emit_rl

    if given := [name for name, value in options.items() if value is not None]:
        raise InputError(f"{given[0]} is for other plans than those of post-training", hint="leave it out")
    plan = loaded(path)
    return emit_rl(plan, to or plan.request["target"] or "verl", choice, str(path))


def report(terminal: Terminal, path: Path, choice: int, output: Path, *, force: bool) -> None:
    """Writes the page of a placement."""
    from .pages.post_training import post_training_page

    plan = loaded(path)
    placement = plan.candidate(choice)
    write_file(output, post_training_page(plan, choice), force=force)
    if terminal.settings.json:
        shown = {"placement": placement.model_dump(mode="json"),
                 "certificate": plan.certificate.model_dump(mode="json")}  # fmt: skip
        terminal.write_json({"format_version": FORMAT_VERSION, "kind": "rl-report", **shown})
    terminal.talk(f"Wrote {output}")
    requests.show_warnings(terminal, plan.warnings)


def of_whole_step(kind: str, files: list[Path], flags: RequestFlags) -> bool:
    """Whether a config is imported with its generation: the length of answers is given, `emit` wrote it, or it is
    never imported without."""
    from ..planner.drivers.imported_step import emitted
    from ..planner.importing import FORMATS
    from ..planner.targets.post_training.step_readers import STEP_READERS

    if kind not in STEP_READERS:
        return False
    return kind not in FORMATS or flags.get("output") is not None or any(emitted(path, kind) for path in files)


def import_command(
    terminal: Terminal, kind: str, files: list[Path], flags: RequestFlags, arguments: list[str], output: Path | None, *,
    force: bool,
) -> None:  # fmt: skip
    """Reads a team's own config, and shows what takes less."""
    from ..planner.drivers.imported_step import import_step
    from .screens import rl_import

    with terminal.progress("searching"):
        imported = import_step(files, flags, arguments, kind)
    saved_as = str(output) if output is not None and imported.best is not None else None
    if output is not None and imported.best is not None:
        write_file(output, imported.best.to_json(), force=force)
    target = imported.reader.target
    framework = f"{target.framework} {target.release}"
    if terminal.settings.json:
        terminal.write_json({
            "format_version": FORMAT_VERSION, "kind": "import", "framework": framework,
            "options_read": imported.step.options, "assumed": list(imported.step.assumed), "gain": imported.gain,
            "candidate": imported.theirs.model_dump(mode="json") if imported.theirs else None,
            "best": imported.placement.model_dump(mode="json") if imported.placement else None,
        })  # fmt: skip
    terminal.show(rl_import.screen(imported, framework, saved_as))
