"""Reading a plan file, with every damaged field named."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any, TypeVar

from pydantic import BaseModel, ValidationError

from ...errors import FieldProblem, InputError
from . import integrity, rl_integrity, rl_plan, serving_integrity, serving_plan
from .lengths_plan import KIND as LENGTHS_KIND
from .plan import FORMAT_VERSION, Plan
from .rl_plan import RlPlan
from .serving_plan import ServingPlan

_WRITES_ONE = "`meshwright plan -o plan.json` writes one"
_WRITES_SERVING = "`meshwright plan --workload serve -o plan.json` writes one"
_WRITES_RL = "`meshwright plan --workload grpo -o plan.json` writes one"
# Kind of a plan other than that of one layout of a training step -> its name, how it differs, and who reads it.
OTHER_PLANS = {
    serving_plan.KIND: ("the plan of a deployment", "not of a training step",
                        "`explain`, `report`, `diff`, `check` and `emit` read it"),
    rl_plan.KIND: ("the plan of a step of post-training", "not of a training step",
                   "`explain`, `report`, `emit`, `check` and `launch` read it"),
    LENGTHS_KIND: ("a plan of documents with a degree each", "not of one layout",
                   "`explain`, `report` and `launch` read it"),
}  # fmt: skip
_Document = TypeVar("_Document", bound=BaseModel)


def read_plan(text: str, name: str) -> Plan:
    """The plan in `text` (JSON). Raises InputError naming `name` and each damaged field, or a newer format."""
    data = _parsed(text, name, _WRITES_ONE)
    if isinstance(data, dict) and (other := OTHER_PLANS.get(str(data.get("kind")))):
        what, differs, readers = other
        raise InputError(f"{name}: {what}, {differs}", hint=readers)
    if not isinstance(data, dict) or data.get("kind") != "plan":
        raise InputError(f"{name}: not a plan", hint=_WRITES_ONE)
    return _checked(data, name, Plan, FORMAT_VERSION, (1, 6), integrity.problems)


def read_serving_plan(text: str, name: str) -> ServingPlan:
    """The plan of a deployment in `text` (JSON). Raises InputError as `read_plan`."""
    data = _parsed(text, name, _WRITES_SERVING)
    if not isinstance(data, dict) or data.get("kind") != serving_plan.KIND:
        what = "the plan of a training step" if isinstance(data, dict) and data.get("kind") == "plan" else "not one"
        raise InputError(f"{name}: {what}, where the plan of a deployment is needed", hint=_WRITES_SERVING)
    return _checked(data, name, ServingPlan, serving_plan.FORMAT_VERSION, (1, 1), serving_integrity.problems)


def _parsed(text: str, name: str, hint: str) -> Any:
    try:
        return json.loads(text)
    except ValueError as error:
        raise InputError(f"{name}: not JSON: {error}", hint=hint) from None
    except RecursionError:
        raise InputError(f"{name}: nested too deeply to be read", hint=hint) from None


def _checked(
    data: dict[str, Any], name: str, document: type[_Document], version: str, sealed_since: tuple[int, int],
    contradictions: Callable[[_Document, str], list[FieldProblem]],
) -> _Document:  # fmt: skip
    """The document in `data`, which has all fields, in order, and the digest that belongs to them."""
    if str(data.get("format_version", "")).partition(".")[0] != version.partition(".")[0]:
        raise InputError(
            f"{name}: format {data.get('format_version')}, this version reads {version}",
            hint="plan again, or use the version of meshwright that wrote it",
        )
    if paths := list(integrity.unreadable_numbers(data)):
        raise InputError.of([FieldProblem("not a finite number", file=name, field=path, hint=integrity.HINT)
                             for path in paths])  # fmt: skip
    seal = integrity.seal_problem(data, sealed_since)
    try:
        plan = document.model_validate(data)
    except ValidationError as error:
        raise InputError.of([
            FieldProblem(problem["msg"].lower(), file=name, field=".".join(str(part) for part in problem["loc"]),
                         hint="the file was edited, or another version wrote it: plan again")
            for problem in error.errors()
        ]) from None  # fmt: skip
    # A field that contradicts another says more than the digest does.
    if problems := contradictions(plan, name) or ([seal._replace(file=name)] if seal else []):
        raise InputError.of(problems)
    return plan


def load_serving_plan(path: Path | str) -> ServingPlan:
    """The plan of a deployment in the file `path`. Raises InputError for a missing, damaged, edited or newer one."""
    return read_serving_plan(_text(path), str(path))


def load_rl_plan(path: Path | str) -> RlPlan:
    """The plan of a step of post-training in the file `path`. Raises InputError for a missing, damaged, edited or newer
    one."""
    data = _parsed(_text(path), str(path), _WRITES_RL)
    if not isinstance(data, dict) or data.get("kind") != rl_plan.KIND:
        raise InputError(f"{path}: not the plan of a step of post-training", hint=_WRITES_RL)
    return _checked(data, str(path), RlPlan, rl_plan.FORMAT_VERSION, (1, 1), rl_integrity.problems)


def rl_plan_in(path: Path) -> RlPlan | None:
    """The plan of a step of post-training in a file; None for a file of another kind, or none. Raises InputError as
    `load_rl_plan`."""
    try:
        data = json.loads(path.read_bytes())
    except (OSError, ValueError, RecursionError):
        return None
    return load_rl_plan(path) if isinstance(data, dict) and data.get("kind") == rl_plan.KIND else None


def load_plan(path: Path | str) -> Plan:
    """The plan in the file `path`. Raises InputError for a missing, damaged, edited or newer one."""
    return read_plan(_text(path), str(path))


def _text(path: Path | str) -> str:
    try:
        return Path(path).read_text(encoding="utf-8")
    except OSError as error:
        raise InputError(f"{path}: {error.strerror or error}", hint=_WRITES_ONE) from None
    except UnicodeDecodeError as error:
        line = error.object.count(b"\n", 0, error.start) + 1
        raise InputError(f"{path}, line {line}: not UTF-8 text", hint=_WRITES_ONE) from None
