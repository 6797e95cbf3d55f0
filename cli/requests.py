"""Builds requests from the flags of a command, and reads requests and plans from files."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, TypeVar

import typer

from ..errors import InputError
from .console import Terminal
from .files import write_file

if TYPE_CHECKING:
    from pydantic import BaseModel

    from ..planner.document.candidate import Candidate
    from ..planner.document.plan import Plan
    from ..planner.document.rl_plan import RlPlan
    from ..planner.document.serving_plan import ServingPlan
    from ..planner.request.load import Request
    from ..planner.request.reinforcement import RlRequest
    from ..planner.request.serving import ServingRequest
    from .options import RequestFlags
    from .screens.parts import Part


def build(path: Path | None, sets: Sequence[str] | None, flags: RequestFlags) -> Request:
    """The request in `path` with `--set` and the given flags on top; None and empty flags are not given."""
    from ..planner.request.load import load_request

    _refuse_plan(path)
    given = {name: value for name, value in flags.items() if value is not None and value != []}
    return load_request(path, given, list(sets or ()), flags=True)


def build_any(
    path: Path | None, sets: Sequence[str] | None, flags: RequestFlags
) -> Request | ServingRequest | RlRequest:  # fmt: skip
    """As `build`, of any kind of workload."""
    from ..planner.request.load import load_any_request

    _refuse_plan(path)
    given = {name: value for name, value in flags.items() if value is not None and value != []}
    return load_any_request(path, given, list(sets or ()), flags=True)


def _refuse_plan(path: Path | None) -> None:
    """Plans have fields of a request, but are none."""
    from ..planner.document.reading import OTHER_PLANS

    for kind, (what, _, readers) in OTHER_PLANS.items():
        if is_plan(path, kind):
            raise InputError(f"{path}: {what}, where a request is needed", hint=readers)


def is_plan(path: Path | None, kind: str = "plan") -> bool:
    """Whether `path` holds a plan of this kind (and not a request)."""
    if path is None or path.suffix.lower() != ".json" or not path.is_file():
        return False
    try:
        data = json.loads(path.read_bytes())
    except (ValueError, RecursionError):
        return False
    return isinstance(data, dict) and data.get("kind") == kind


Result = TypeVar("Result", bound="BaseModel")


def rounded(result: Result) -> Result:
    """The result with the digits of its JSON form, so that screens, pictures and CSV show the same numbers."""
    from ..planner.document.base import rounded as at_nine_digits

    return type(result).model_validate(at_nine_digits(result.model_dump()))


def candidate(plan: Plan, choice: int) -> Candidate:
    """Layout number `choice` of a plan. Raises InputError if there is none."""
    for candidate in plan.candidates:
        if candidate.choice == choice:
            return candidate
    last = len(plan.candidates)
    raise InputError(f"the plan has no layout {choice}", hint=f"it has 1 to {last}; `plan --top N` keeps more")


def conclude(
    terminal: Terminal, plan: ServingPlan | RlPlan, output: Path | None, screen: Callable[[str | None], list[Part]], *,
    force: bool,
) -> None:  # fmt: skip
    """Writes and shows a plan. screen: its parts, from the name of the file that it is saved as."""
    if output is not None:
        write_file(output, plan.to_json(), force=force)
    if terminal.settings.json:
        terminal.write(plan.to_json())
    terminal.show(screen(str(output) if output else None))
    show_warnings(terminal, plan.warnings)


def end_if_interrupted(terminal: Terminal, plan: Plan) -> None:
    """Exits with 130 where Ctrl-C cut the search of a plan that is shown."""
    if plan.interrupted:
        terminal.interruption_shown = True
        if plan.certificate.stopped is not None:
            terminal.warn("interrupted: this is the best layout so far")
        raise typer.Exit(130)


def end_with_warnings(terminal: Terminal, plan: Plan | None) -> None:
    """The warnings of a plan that was searched, and `end_if_interrupted`; nothing without one."""
    if plan is not None:
        show_warnings(terminal, plan.warnings)
        end_if_interrupted(terminal, plan)


def show_warnings(terminal: Terminal, warnings: Iterable[str]) -> None:
    """Warnings on stderr."""
    for warning in warnings:
        terminal.warn(warning)
