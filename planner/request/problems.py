"""Faults that pydantic finds in a request, in the words of this tool."""

from __future__ import annotations

from typing import Any

from pydantic import ValidationError
from pydantic_core import ErrorDetails

from ...errors import did_you_mean, nearest, quoted
from ...profiles.io.document import FieldPath
from .reinforcement import RlRequest, RlWorkload
from .schema import BaseRequest, LoraRequest, Train, WorkloadRequest
from .serving import ServeWorkload, ServingRequest

_WORKLOADS: dict[type[BaseRequest], Any] = {ServingRequest: ServeWorkload, RlRequest: RlWorkload}


def _keys_at(place: FieldPath, schema: type[BaseRequest]) -> list[str]:
    """The keys that a request knows at `place`."""
    model: Any = schema
    work = _WORKLOADS.get(schema, WorkloadRequest)
    nested = {"workload": work, "train": Train, "lora": LoraRequest}
    for part in place:
        model = nested.get(str(part), model)
    return sorted(model.model_fields)


# pydantic's type of an error -> the kind of value that it expects
_EXPECTED = {
    "string_type": "a valid string",
    "bool_type": "a valid boolean",
    "float_type": "a valid number",
    "list_type": "a valid list",
    "tuple_type": "a valid tuple",
}
# Fields that are a name or a mapping, of which pydantic reports each -> what they are
_REFERENCES = {
    "model": ("a name, a folder, or a mapping that describes a model", "`model: llama-3.1-8b`"),
    "cluster": ("a name, a file, or a mapping that describes a cluster", "`cluster: dgx-h100:2`"),
    "stack": ("a name or a file", "`meshwright show stacks` lists the names"),
}
_EXAMPLES: dict[FieldPath, str] = {
    ("workload", "input"): "tokens of a prompt: `--input 2000`",
    ("workload", "output"): "tokens of an answer: `--output 300`",
}


def faults_of(error: ValidationError) -> list[ErrorDetails]:
    """The faults without those of lists that are too short because all of their items are wrong."""
    return [fault for fault in error.errors() if fault["type"] != "too_short" or not fault["input"]]


def field_of(error: ErrorDetails) -> FieldPath:
    """The place of a fault as a user writes it: without the types that pydantic tries there."""
    place: FieldPath = tuple(error["loc"])
    if error["type"] == "invalid_key":
        return place[:-1]
    return place[:1] if place and place[0] in _REFERENCES else place


def explain(error: ErrorDetails, place: FieldPath, schema: type[BaseRequest]) -> tuple[str, str]:
    """pydantic's complaint in our words: (message, hint)."""
    if error["type"] == "invalid_key":
        return f"key `{error['loc'][-1]}` is a number, where a name is needed", "the keys of a request are its fields"
    if len(error["loc"]) > len(place):  # pydantic tried several types
        kind, example = _REFERENCES[str(place[0])]
        return f"must be {kind}, is {quoted(error['input'])}", example
    return _explained(error, place, schema)


def _explained(error: ErrorDetails, place: FieldPath, schema: type[BaseRequest]) -> tuple[str, str]:
    context, given = error.get("ctx") or {}, error["input"]
    match error["type"]:
        case "input":
            return str(context["message"]), str(context["hint"])
        case "extra_forbidden":
            return _unknown_key(place, schema)
        case "too_short":
            return f"must have at least {context['min_length']}, has {len(given)}", ""
        case "missing" if place == ("model",):
            return "is missing", "name a model (`--model llama-3.1-8b`) or the folder of its config.json"
        case "missing":
            return "is missing", _EXAMPLES.get(place, "")
        case "greater_than":
            return f"must be 1 or more, is {given}", ""
        case "greater_than_equal":
            return f"must be {context['ge']} or more, is {given}", ""
        case "int_type" | "int_from_float":
            return f"must be a whole number, is `{given}`", ""
        case "literal_error" if place == ("workload", "kind"):
            return f"`{given}` is none of train, serve, rl, grpo, ppo, dapo, dpo", ""
        case "literal_error":
            return f"`{given}` is none of {str(context['expected']).replace(chr(39), '')}", ""
        case "model_type" | "model_attributes_type" | "dict_type":
            words = "`all` or " if place == ("workload", "train") else ""
            return f"must be {words}a mapping, is `{given}`", f"its keys: {', '.join(_keys_at(place, schema))}"
        case "value_error":
            return str(context["error"]), ""
        case kind if kind in _EXPECTED:
            return f"must be {_EXPECTED[kind]}", ""
        case _:
            return error["msg"], ""


def _unknown_key(place: FieldPath, schema: type[BaseRequest]) -> tuple[str, str]:
    """The text of a key that is not the request's, and a hint: the kind of document or workload that has it."""
    known = _keys_at(place[:-1], schema)
    if place == ("groups",):
        hint = "give the file of a cluster as `--cluster FILE`; a request has them under `cluster:`"
        return "`groups` belongs to a cluster", hint
    if schema is not ServingRequest and place[-1] in ServeWorkload.model_fields:
        return f"`{place[-1]}` belongs to serving", "add `--workload serve`, in a file `kind: serve`"
    if schema is not RlRequest and place[-1] in {**RlWorkload.model_fields, **RlRequest.model_fields}:
        return f"`{place[-1]}` belongs to post-training", "add `--workload grpo`, in a file `kind: rl`"
    hint = did_you_mean(nearest(str(place[-1]), known), otherwise=f"known: {', '.join(known)}")
    return f"unknown key `{place[-1]}`", hint
