"""The effect of options that edited files have beside those of their plan."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from dataclasses import asdict
from typing import Any

from ....errors import InputError
from .base import RlTarget
from .option_file import GivenOption
from .stated import StatedStep, StepReader
from .step_readers import STEP_READERS

_RANK = re.compile(r"(.*[._])?lora[._]rank")  # of adapters
_OFF = (None, False, 0, "0", "None", "null")
_MODEL = "plan"  # a name in place of the model's, which the catalogue need not have


def effect_of(target: RlTarget, emitted: Mapping[str, str]) -> Callable[[str, GivenOption], str]:
    """(option, value) -> the effect of the option on the step of a plan; "" for none. emitted: files of the plan."""
    reader, text = STEP_READERS.get(target.name), emitted[target.option_file.file]
    planned = _stated(reader, text) if reader is not None else {}

    def effect(name: str, option: GivenOption) -> str:
        if _RANK.fullmatch(name):
            return "" if option.value in _OFF else "trains adapters; the plan trains all weights"
        if reader is None or not planned:
            return "" if option.value in _OFF else target.judged(name)
        line = f"{option.added}{name}={reader.overrides.shown(option.value)}\n"
        return _difference(reader, text + line, planned, name)

    return effect


def _stated(reader: StepReader, text: str) -> dict[str, Any]:
    """The parts of the step of a file, by name; empty where it states none."""
    try:
        return _parts(reader.read({reader.overrides.file: text}, (), _MODEL))
    except InputError:
        return {}


def _parts(step: StatedStep) -> dict[str, Any]:
    parts = {name: value for name, value in asdict(step).items() if name not in ("options", "assumed")}
    out = dict[str, Any]()
    for name, value in parts.items():
        out |= {f"{name}.{key}": each for key, each in value.items()} if isinstance(value, dict) else {name: value}
    return out


def _difference(reader: StepReader, text: str, planned: Mapping[str, Any], option: str) -> str:
    """The first part of a step that an option changes."""
    try:
        given = _parts(reader.read({reader.overrides.file: text}, (), _MODEL))
    except InputError as error:
        own = [problem.message for problem in error.problems if problem.field == option]
        return own[0] if own else f"leaves the step open: {error.problems[0].field} {error.problems[0].message}"
    return next((f"changes {name.removeprefix('fields.')} from {planned.get(name)}, as planned, to {value}"
                 for name, value in given.items() if value != planned.get(name)), "")  # fmt: skip
