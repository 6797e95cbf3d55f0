"""Files of an engine as a user measured it: numbers in place of those that ship."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import fields, replace
from pathlib import Path

from ...cost_models.serving.constants import ServingConstants
from ...errors import InputError
from ..io.document import check_keys
from ..io.reader import read_document
from ..io.yaml_syntax import text_of
from .engines import UNSTATED, Engines, engine_names, shipped_engines

_KEYS = ("engine", "host_s", "constants", "runs")
_HINT = "`meshwright calibrate --from-run bench.json --plan plan.json -o engine.yaml` writes one"


def load_engines(reference: str | Path | None, target: str) -> Engines:
    """The engines that ship, with the numbers of the file `reference` for `target`; None: no file.

    Raises InputError with all problems of the file, and for one of another engine.
    """
    shipped = shipped_engines()
    if reference is None:
        return shipped
    if not Path(reference).suffix:
        raise InputError(f"stack: `{reference}` is no file, and serving has no named stacks", hint=_HINT)
    document = read_document(reference)
    if not isinstance(document.data, Mapping):
        raise InputError.of([document.problem((), "is no mapping", _HINT)])
    constants, problems = document.at(("constants",), {}), check_keys(document, (), _KEYS)
    name, host_s = document.at(("engine",)), document.at(("host_s",))
    if name not in engine_names():
        problems.append(document.problem(("engine",), f"`{name}` is none of {', '.join(sorted(engine_names()))}"))
    elif shipped.of(str(name)) is not shipped.of(target):
        problems.append(document.problem(("engine",), f"is {name}, the plan is for {target}", _HINT))
    if "constants" in document.data:
        problems += check_keys(document, ("constants",), [field.name for field in fields(ServingConstants)])
    constants = constants if isinstance(constants, Mapping) else {}
    for place, value in (*((("constants", name), value) for name, value in constants.items()), (("host_s",), host_s)):
        if value is not None and not _is_positive(value):
            problems.append(document.problem(place, f"must be a number above 0, is {value!r}"))
    if problems:
        raise InputError.of(problems)
    hosts = {} if host_s is None else {shipped.of(str(name)).name: {UNSTATED: float(host_s)}}
    return replace(shipped, constants=replace(shipped.constants, **{key: float(it) for key, it in constants.items()}),
                   hosts={**shipped.hosts, **hosts})  # fmt: skip


def _is_positive(value: object) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool) and math.isfinite(value) and value > 0


def engine_text(engine: str, fitted: Mapping[str, float], runs: int) -> str:
    """The file of an engine. fitted: `host_s` and constants by name."""
    numbers = {name: float(f"{value:.4g}") for name, value in fitted.items()}
    content: dict[str, object] = {"engine": engine, "runs": runs}
    if "host_s" in numbers:
        content["host_s"] = numbers.pop("host_s")
    if numbers:
        content["constants"] = numbers
    heading = (
        "# Written by `meshwright calibrate --from-run`: what the runs determine; `plan --workload serve --stack`\n"
        "# reads it. Every other number is the one that ships.\n"
    )
    return heading + text_of(content)
