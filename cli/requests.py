"""From the flags of a command to a request, and from a file to what it holds."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from ..errors import InputError
from .console import Terminal, to_json

if TYPE_CHECKING:
    from pydantic import BaseModel

    from ..planner.request.load import Request
    from .options import RequestFlags


def build(path: Path | None, sets: Sequence[str] | None, flags: RequestFlags) -> Request:
    """The request in `path` with `--set` and the given flags on top; None and empty flags are not given."""
    from ..planner.request.load import load_request

    given = {name: value for name, value in flags.items() if value is not None and value != []}
    return load_request(path, given, list(sets or ()), flags=True)


def is_plan(path: Path | None) -> bool:
    """Whether `path` holds a plan (and not a request)."""
    if path is None or path.suffix.lower() != ".json" or not path.is_file():
        return False
    try:
        data = json.loads(path.read_bytes())
    except (ValueError, RecursionError):
        return False
    return isinstance(data, dict) and data.get("kind") == "plan"


def load_plan(path: Path) -> dict[str, Any]:
    """The JSON form of the plan in `path`."""
    from ..planner import api

    document: dict[str, Any] = api.load_plan(path).model_dump(mode="json")
    return document


def plain(result: BaseModel) -> dict[str, Any]:
    """The JSON form of a result; what is not a number (a layout that is not legal has no seconds) is null."""
    document: dict[str, Any] = json.loads(to_json(result.model_dump(mode="json")))
    return document


def candidate(plan: Mapping[str, Any], choice: int) -> dict[str, Any]:
    """Layout number `choice` of a plan. Raises InputError if there is none."""
    for each in plan["candidates"]:
        if each["choice"] == choice:
            return dict(each)
    last = len(plan["candidates"])
    raise InputError(f"the plan has no layout {choice}", hint=f"it has 1 to {last}; `plan --top N` keeps more")


def tell_warnings(terminal: Terminal, plan: Mapping[str, Any]) -> None:
    """The warnings of a plan on stderr."""
    for warning in plan.get("warnings", ()):
        if isinstance(warning, Mapping):
            terminal.warn(str(warning["message"]), str(warning.get("hint", "")))
        else:
            terminal.warn(str(warning))
