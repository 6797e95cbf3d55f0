"""Reading a plan file, with every damaged field named."""

from __future__ import annotations

import json
from pathlib import Path
from typing import TypeVar

from pydantic import ValidationError

from ...errors import FieldProblem, InputError
from . import integrity
from .base import DocumentPart
from .lengths_plan import KIND as LENGTHS_KIND
from .plan import FORMAT_VERSION, Plan
from .rl_plan import KIND as RL_KIND
from .rl_plan import RlPlan
from .serving_plan import ServingPlan

_AnyPlan = TypeVar("_AnyPlan", bound=DocumentPart)
_WRITES_ONE = "`meshwright plan -o plan.json` writes one"


def read_plan(text: str, name: str) -> Plan:
    """The plan in `text` (JSON). Raises InputError naming `name` and each damaged field, or a newer format."""
    try:
        data = json.loads(text)
    except ValueError as error:
        raise InputError(f"{name}: not JSON: {error}", hint=_WRITES_ONE) from None
    except RecursionError:
        raise InputError(f"{name}: nested too deeply to be read", hint=_WRITES_ONE) from None
    if isinstance(data, dict) and data.get("kind") == "serving-plan":
        raise InputError(f"{name}: the plan of a deployment, not of a training step",
                         hint="`emit` writes its files; `plan` makes one of a training step")  # fmt: skip
    if isinstance(data, dict) and data.get("kind") == RL_KIND:
        raise InputError(f"{name}: the plan of a step of post-training, not of a training step",
                         hint="`explain` reads it; `plan` makes one of a training step")  # fmt: skip
    if isinstance(data, dict) and data.get("kind") == LENGTHS_KIND:
        raise InputError(f"{name}: a plan of documents with a degree each, not of one layout",
                         hint="`explain`, `report` and `launch` read it")  # fmt: skip
    if not isinstance(data, dict) or data.get("kind") != "plan":
        raise InputError(f"{name}: not a plan", hint=_WRITES_ONE)
    major = str(data.get("format_version", "")).partition(".")[0]
    if major != FORMAT_VERSION.partition(".")[0]:
        raise InputError(
            f"{name}: format {data.get('format_version')}, this version reads {FORMAT_VERSION}",
            hint="plan again, or use the version of meshwright that wrote it",
        )
    if paths := list(integrity.unreadable_numbers(data)):
        raise InputError.of([FieldProblem("not a finite number", file=name, field=path, hint=integrity.HINT)
                             for path in paths])  # fmt: skip
    seal = integrity.seal_problem(data)
    try:
        plan = Plan.model_validate(data)
    except ValidationError as error:
        raise InputError.of([
            FieldProblem(problem["msg"].lower(), file=name, field=".".join(str(part) for part in problem["loc"]))
            for problem in error.errors()
        ]) from None  # fmt: skip
    # A field that contradicts another says more than the digest does.
    if problems := integrity.problems(plan, name) or ([seal._replace(file=name)] if seal else []):
        raise InputError.of(problems)
    return plan


def load_serving_plan(path: Path | str) -> ServingPlan:
    """The plan of a deployment in the file `path`. Raises InputError for a missing or damaged one."""
    return _of_kind(ServingPlan, path)


def load_rl_plan(path: Path | str) -> RlPlan:
    """The plan of a step of post-training in the file `path`. Raises InputError for a missing or damaged one."""
    return _of_kind(RlPlan, path)


def _of_kind(kind: type[_AnyPlan], path: Path | str) -> _AnyPlan:
    try:
        return kind.model_validate_json(_text(path))
    except ValidationError as error:
        raise InputError.of([
            FieldProblem(problem["msg"].lower(), file=str(path), field=".".join(map(str, problem["loc"])))
            for problem in error.errors()
        ]) from None  # fmt: skip


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
