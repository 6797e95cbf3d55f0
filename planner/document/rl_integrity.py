"""Whether the parts of a plan of post-training agree with each other, and have the fields that its readers need."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from pydantic import BaseModel, ConfigDict, Field, PositiveFloat, PositiveInt, ValidationError

from ...cost_models.layouts import Layout, parse
from ...errors import FieldProblem, InputError
from .integrity import HINT, request_problem
from .rl_plan import RlCall, RlCandidate, RlPlan

_Problem = tuple[str, str]  # field, message


class _Part(BaseModel):
    model_config = ConfigDict(strict=True)


class _Answers(_Part):
    per_step: PositiveInt
    mean: PositiveFloat
    p90: PositiveFloat
    longest: PositiveFloat


class _Gpu(_Part):
    name: str
    memory_bytes: PositiveFloat


class _Group(_Part):
    num_nodes: PositiveInt
    gpus_per_node: PositiveInt
    gpu: _Gpu


class _Cluster(_Part):
    groups: list[_Group] = Field(min_length=1)


class _Model(_Part):
    name: str


class _Resolved(_Part):
    """The fields of `resolved` that are read by name. Models and stack are read as specs (`specs.py`)."""

    answers: _Answers
    cluster: _Cluster
    models: dict[str, _Model]  # by role
    trainer: str
    engine: str


def problems(plan: RlPlan, name: str) -> list[FieldProblem]:
    """All fields that are missing, or contradict others. name: the file, as messages name it."""
    problems = [*request_problem(plan.request, plan.request_sha256), *_of_resolved(plan.resolved)]
    models = plan.resolved.get("models")
    for index, candidate in enumerate(plan.candidates):
        where = f"candidates.{index}"
        if candidate.choice != index + 1:
            problems.append((f"{where}.choice", f"{candidate.choice}, its place is {index + 1}"))
        problems += _of_candidate(candidate, where)
        for call in candidate.calls:
            if isinstance(models, dict) and call.role not in models:
                problems.append((f"resolved.models.{call.role}", f"missing; {call.name} runs it"))
    return [FieldProblem(message, file=name, field=field, hint=HINT) for field, message in dict(problems).items()]


def _of_resolved(resolved: dict[str, Any]) -> Iterator[_Problem]:
    try:
        _Resolved.model_validate(resolved)
    except ValidationError as error:
        for problem in error.errors():
            yield ".".join(("resolved", *map(str, problem["loc"]))), problem["msg"].lower()


def _of_candidate(candidate: RlCandidate, where: str) -> Iterator[_Problem]:
    names = [call.name for call in candidate.calls]
    roles = {call.role for call in candidate.calls if call.kind != "generate"}
    if candidate.step_s <= 0:
        yield f"{where}.step_s", f"{candidate.step_s:g} s, a step takes time"
    if "train" not in names:
        yield f"{where}.calls", "none is `train`"
    for index, call in enumerate(candidate.calls):
        place = f"{where}.calls.{index}"
        if unknown := [other for other in call.after if other not in names]:
            yield f"{place}.after", f"`{unknown[0]}` is no call of the placement"
        if unknown := [role for role in call.resident_bytes if role not in roles]:
            yield f"{place}.resident_bytes", f"no call scores or trains `{unknown[0]}`"
        yield from _of_engine(call, place) if call.kind == "generate" else _of_layout(call, place)


def _of_engine(call: RlCall, place: str) -> Iterator[_Problem]:
    engine = call.engine
    if engine is None:
        yield f"{place}.engine", f"missing; {call.name} generates"
    elif call.gpus != (product := engine.instances * engine.tp * engine.pp * engine.attention_dp) or product < 1:
        degrees = f"{engine.instances} x tp {engine.tp} x pp {engine.pp} x attention_dp {engine.attention_dp}"
        yield f"{place}.gpus", f"{call.gpus}, {degrees} = {product}"


def _of_layout(call: RlCall, place: str) -> Iterator[_Problem]:
    if call.layout_id is None:
        yield f"{place}.layout_id", f"missing; {call.name} needs one"
        return
    try:
        named = parse(call.layout_id)
    except InputError as error:
        yield f"{place}.layout_id", str(error)
        return
    try:
        same = Layout.from_dict(call.layout or {}) == named
    except (InputError, AttributeError, TypeError, ValueError):
        same = False
    if not same:
        yield f"{place}.layout", f"is not the one that the id names, `{call.layout_id}`"
    if call.gpus != named.num_gpus:
        yield f"{place}.gpus", f"{call.gpus}, `{call.layout_id}` has {named.num_gpus}"
