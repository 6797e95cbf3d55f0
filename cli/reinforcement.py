"""`plan --workload grpo|ppo|dapo|dpo`: a step of post-training."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING

from ..errors import InputError
from . import requests
from .console import FORMAT_VERSION, Terminal
from .files import write_file
from .screens import rl_plan as screen

if TYPE_CHECKING:
    from ..planner.document.rl_plan import RlCandidate, RlPlan
    from ..planner.request.reinforcement import RlRequest


def run(terminal: Terminal, request: RlRequest, output: Path | None, *, force: bool) -> None:
    """Plans, writes and shows."""
    from ..planner import api

    with terminal.progress("searching"):
        plan = api.plan_rl(request)
    if output is not None:
        write_file(output, plan.to_json(), force=force)
    if terminal.settings.json:
        terminal.write(plan.to_json())
    terminal.show(screen.screen(plan, plan.best, saved_as=str(output) if output else None))
    requests.show_warnings(terminal, plan.warnings)


def explain(terminal: Terminal, path: Path, choice: int, options: Mapping[str, object]) -> None:
    """Shows one placement of a plan: its calls over the GPUs, and the memory of a GPU over time."""
    from ..planner.document.reading import load_rl_plan

    if given := [name for name, value in options.items() if value]:
        raise InputError(f"{given[0]} is for the plan of a training step", hint="leave it out")
    plan = load_rl_plan(path)
    chosen = _candidate(plan, choice)
    if terminal.settings.json:
        explained = {"placement": chosen.model_dump(mode="json")}
        terminal.write_json({"format_version": FORMAT_VERSION, "kind": "explanation", **explained})
    terminal.show([*screen.explanation(chosen), "", *screen.memory(chosen)])
    requests.show_warnings(terminal, plan.warnings)


def _candidate(plan: RlPlan, choice: int) -> RlCandidate:
    """Raises InputError where the plan has none of this number."""
    for candidate in plan.candidates:
        if candidate.choice == choice:
            return candidate
    raise InputError(f"the plan has no placement {choice}",
                     hint=f"it has 1 to {len(plan.candidates)}; `plan --top N` keeps more")  # fmt: skip
