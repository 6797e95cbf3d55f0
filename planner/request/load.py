"""Puts a request together from a file, flags or keyword arguments, and `--set`.

Precedence: flag or argument > `--set` > file > environment > default; `Request.origins` says for each field which it
was. References to models and clusters stay references here.
"""

from __future__ import annotations

import copy
import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal, TypeVar

from pydantic import ValidationError
from pydantic_core import ErrorDetails

from ...errors import FieldProblem, InputError, did_you_mean, nearest
from ...profiles.io.document import Document, FieldPath, dotted
from ...profiles.io.reader import read_document
from .fix import parse_fix
from .keywords import FLAT
from .places import item_at, leaves_of, parse_set, parts_of
from .problems import explain, faults_of, field_of
from .reinforcement import ALGORITHMS, RL_FLAT, RlRequest
from .schema import BaseRequest, Request, request_from_dict, request_to_dict
from .serving import SERVING_FLAT, ServingRequest

__all__ = ["ENVIRONMENT", "Request", "changed_request", "load_any_request", "load_request", "request_from_dict",
           "request_to_dict"]  # fmt: skip

_PLACES = FLAT | SERVING_FLAT | RL_FLAT
_SCHEMAS: dict[object, type[BaseRequest]] = {"serve": ServingRequest, "rl": RlRequest}  # by kind of workload

# Fields that the canonical form of a request spells in another way than its reader.
_CANONICAL = {"workload.max_memory": "workload.max_memory_bytes"}
ENVIRONMENT = {"MESHWRIGHT_CLUSTER": "cluster", "MESHWRIGHT_TARGET": "target", "MESHWRIGHT_STACK": "stack"}


def load_request(
    path: Path | str | None,
    overrides: Mapping[str, Any] | None = None,
    sets: Sequence[str] = (),
    *,
    flags: bool = False,
) -> Request:
    """The request in `path` (YAML, JSON, TOML, `-`: stdin), changed by `sets` (`a.b=c`) and `overrides` (keys of FLAT).

    flags: name the overrides as flags of the command line in messages and origins. None among them means not given.
    Raises InputError with all problems at once, each with file and line, flag, or field; and for other workloads.
    """
    request = load_any_request(path, overrides, sets, flags=flags)
    if not isinstance(request, Request):
        kind, function = ("serve", "plan_serving") if isinstance(request, ServingRequest) else ("rl", "plan_rl")
        raise InputError(f"workload.kind: {kind} has no layout of a training step",
                         hint=f"`meshwright plan` plans it, in Python `{function}`")  # fmt: skip
    return request


def load_any_request(
    path: Path | str | None,
    overrides: Mapping[str, Any] | None = None,
    sets: Sequence[str] = (),
    *,
    flags: bool = False,
) -> Request | ServingRequest | RlRequest:
    """As `load_request`, of any kind of workload."""
    draft = _Draft(read_document(path) if path is not None else None, flags=flags)
    given = dict(overrides or {})
    draft.defaults(os.environ, elsewhere=given)
    for text in sets:
        draft.set(text)
    draft.override(given)
    replaced = [_PLACES[name] for name in given if given[name]]
    for text in sets:  # again, what lies inside of a value that an override has replaced
        place, _ = parse_set(text)
        if any(place[: len(whole)] == whole != place for whole in replaced):
            draft.set(text)
    if draft.kind == "rl":
        return draft.request(RlRequest)
    return draft.request(ServingRequest) if draft.kind == "serve" else draft.request(Request)


def changed_request(request: Request, sets: Mapping[FieldPath, Any]) -> Request:
    """`request` with the fields of `sets` (place -> value as a user writes it), checked as if read anew. The other
    fields keep their origins.

    Raises InputError with all problems, each naming its `--set`.
    """
    draft = _Draft(None, flags=True)
    draft.data = request_to_dict(request)
    work = draft.data["workload"]
    limit = work.pop("max_memory_bytes")  # the one number that has a unit where a user writes it
    work["max_memory"] = None if limit is None else f"{limit} B"
    for place, value in sets.items():
        draft.put(place, value, _of_set(place))
    changed = draft.request(Request)
    changed._origins = {**request.origins, **changed.origins}
    return changed


_AnyRequest = TypeVar("_AnyRequest", bound=BaseRequest)


@dataclass(frozen=True)
class _Origin:
    """The origin of a field of a request: its text on screens, and its kind."""

    text: str
    kind: Literal["file", "environment", "flag", "argument"]


def _of_set(place: FieldPath) -> _Origin:
    return _Origin(f"--set {dotted(place)}", "flag")


class _Draft:
    """A request that is being put together: plain data, and where each field came from."""

    def __init__(self, document: Document | None, *, flags: bool) -> None:
        self.document, self.flags = document, flags
        self.data: dict[str, Any] = {}
        self.origins: dict[FieldPath, _Origin] = {}
        if document is not None:
            if not isinstance(document.data, Mapping):
                raise InputError.of([document.problem((), "is not a request", "it starts with `model: llama-3.1-8b`")])
            self.data = copy.deepcopy(dict(document.data))
            self._anchor_paths(Path(document.name).parent if document.name != "stdin" else Path())
            for place in leaves_of(self.data):
                self.origins[place] = _Origin(f"{document.name}, line {document.line(place)}", "file")

    def _anchor_paths(self, folder: Path) -> None:
        """Paths in a file are relative to that file."""
        work = self.data.get("workload")
        for holder, name in ((self.data, "model"), (self.data, "cluster"), (self.data, "stack"), (self.data, "exclude"),
                             (work, "lengths"), (work, "input"), (work, "output"), (work, "hourly")):
            value = holder.get(name) if isinstance(holder, dict) else None
            if isinstance(value, str) and not Path(value).is_absolute() and (folder / value).exists():
                holder[name] = str(folder / value)  # type: ignore[index]  # a dict, as value was in it

    def put(self, place: FieldPath, value: Any, origin: _Origin) -> None:
        holder: Any = self.data
        for depth, part in enumerate(place[:-1], 1):
            below = item_at(holder, place[:depth], origin.text)
            if isinstance(below, str) and part == "cluster":
                below = holder[part] = _spelled_out(below)
            elif isinstance(below, str | list) and part == "fix":
                below = holder[part] = parse_fix(below)
            elif isinstance(below, str) and part in ("model", "stack"):
                hint = f"write `{part}` out in a request file to change parts of it"
                raise InputError(f"{origin.text}: {dotted(place[:depth])} is the name `{below}`", hint=hint)
            if not isinstance(below, dict | list):
                below = holder[part] = {}
            holder = below
        item_at(holder, place, origin.text)
        holder[place[-1]] = value
        self.origins = {key: known for key, known in self.origins.items() if key[: len(place)] != place}
        self.origins[place] = origin

    def defaults(self, environ: Mapping[str, str], elsewhere: Mapping[str, Any]) -> None:
        """Fills in from the environment what neither the file nor `elsewhere` gives."""
        for variable, name in ENVIRONMENT.items():
            given = {name, "gpu"} if name == "cluster" else {name}  # GPUs by name and number are a cluster too
            if environ.get(variable) and not any(self.data.get(key) or elsewhere.get(key) for key in given):
                self.put((name,), environ[variable], _Origin(f"environment {variable}", "environment"))

    def set(self, text: str) -> None:
        place, value = parse_set(text)
        self.put(place, value, _of_set(place))

    def override(self, given: Mapping[str, Any]) -> None:
        for name, value in sorted(given.items(), key=lambda item: item[0] != "workload"):  # its kind decides on others
            if name not in _PLACES:
                hint = did_you_mean(nearest(name, _PLACES), otherwise=f"known: {', '.join(sorted(_PLACES))}")
                raise InputError(f"unknown argument `{name}`", hint=hint)
            if value is None:
                continue
            flag = f"--{name.replace('_', '-')}"
            origin = _Origin(flag, "flag") if self.flags else _Origin(f"argument {name}", "argument")
            if name == "fix" and self.kind != "serve":
                self._override_fix(value, origin)
            elif name == "workload" and isinstance(value, str):
                self.put(("workload", "kind"), "rl" if value in ALGORITHMS else value, origin)
                if value in ALGORITHMS:
                    self.put(("workload", "algorithm"), value, origin)
            else:
                self.put(_PLACES[name], str(value) if isinstance(value, Path) else value, origin)

    def _override_fix(self, value: Any, origin: _Origin) -> None:
        """Adds to what the file fixes; a field given here replaces the file's value instead of clashing with it."""
        try:
            fixed = parse_fix(value)
        except InputError as error:
            raise InputError.of([FieldProblem(error.message, field=origin.text, hint=error.hint)]) from None
        for name, field_value in fixed.items():
            self.put(("fix", name), field_value, origin)

    @property
    def kind(self) -> object:
        """The kind of workload that is given; None: the default."""
        work = self.data.get("workload")
        return work.get("kind") if isinstance(work, Mapping) else None

    def request(self, schema: type[_AnyRequest]) -> _AnyRequest:
        if not self.data.get("cluster") and not self.data.get("gpu"):
            hint = "`--cluster dgx-h100:2`, or `--gpu h100-sxm-80gb --gpus 8`"
            missing = [FieldProblem("cluster: is missing", hint=hint)]
        elif not self.data.get("cluster") and self.data.get("gpus") is None:
            missing = [FieldProblem("gpus: is missing", hint="give the number of GPUs: `--gpus 8`")]
        else:
            missing = []
        try:
            request = schema.model_validate(self.data)
        except ValidationError as error:
            raise _together([self._problem(problem) for problem in faults_of(error)] + missing) from None
        if missing:
            raise _together(missing)
        for place in sorted(self.origins, key=str):
            name = dotted(place)
            request._origins[_CANONICAL.get(name, name)] = self.origins[place].text
        request._places.update(self._places())
        return request

    def _places(self) -> dict[str, tuple[str, int]]:
        """File and line of every field that is as the file gives it."""
        if self.document is None:
            return {}
        file, given = self.document, {place for place, origin in self.origins.items() if origin.kind != "file"}
        places = (place for place in parts_of(self.data) if file.at(place) is not None)
        return {
            dotted(place): (file.name, file.line(place))
            for place in places
            if given.isdisjoint(place[:n] for n in range(1, len(place) + 1))
        }

    def _problem(self, error: ErrorDetails) -> FieldProblem:
        place = field_of(error)
        message, hint = explain(error, place, _SCHEMAS.get(self.kind, Request))
        origin = next((self.origins[place[:n]] for n in range(len(place), 0, -1) if place[:n] in self.origins), None)
        if origin is not None and origin.kind == "flag":
            return FieldProblem(message, field=origin.text, hint=hint)
        below = next((it for key, it in self.origins.items() if key[: len(place)] == place), None)
        if origin is None and below is not None and below.kind == "flag":
            if error["type"] == "extra_forbidden":  # a flag of another kind of workload makes a block that this lacks
                message, hint = f"is not for a workload of kind {self.kind or 'train'}", "leave it out"
            return FieldProblem(message, field=below.text, hint=hint)
        if self.document is not None and (origin is None or origin.kind == "file"):
            return self.document.problem(place, message, hint)
        return FieldProblem(message, field=dotted(place), hint=hint)


def _spelled_out(cluster: str) -> dict[str, Any]:
    """The description that a cluster's file or shorthand stands for, so that parts of it can be changed."""
    if Path(cluster).is_file():
        data = read_document(cluster).data
        return dict(data) if isinstance(data, Mapping) else {}
    return {"groups": [part.strip() for part in cluster.split("+")]}


def _together(problems: list[FieldProblem]) -> InputError:
    """One error, in the order of the file. Of several problems each carries its hint: one at the end is too little."""
    problems = sorted(dict.fromkeys(problems), key=lambda problem: (problem.file, problem.line))
    general = "`meshwright schema request` describes every field"
    if len(problems) == 1:
        return InputError.of([problems[0]._replace(hint=problems[0].hint or general)])
    inline = [
        problem._replace(message=f"{problem.message} ({problem.hint})", hint="") if problem.hint else problem
        for problem in problems
    ]
    inline[0] = inline[0]._replace(hint=general)
    return InputError.of(inline)
