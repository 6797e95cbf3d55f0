"""OmegaConf's references in YAML: `${model.seq_length}`, `${.seq_length}` (of the same block), `${..seq_length}`, and
arithmetic with them (`${multiply:4, ${.hidden_size}}`).

`${oc.env:NAME,8}` is its default, as a run without the variable has it; `${oc.decode:8}` is a number.

Sources: OmegaConf 2.3, the grammar of interpolations and the resolvers oc.env and oc.decode; NeMo-Framework-Launcher
26e42fa9, launcher_scripts/main.py, and NeMo 8cfedd72, nemo/core/config/hydra_runner.py: the functions that they
register; mlcommons/training_results_v5.1, llama31_8b, pretrain.py: floor_div and ceil_div; NeMo-RL 7ea279ab,
nemo_rl/utils/config.py: mul.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from dataclasses import replace
from math import prod
from typing import Any

from ....profiles.io.document import Document
from ....profiles.io.reader import read_document

_INNERMOST = re.compile(r"\$\{([^${}]*)\}")
_REFERENCE = re.compile(r"(\.*)([\w.]+)")
_CALL = re.compile(r"(\w+):([\d.,\s-]+)")
_VARIABLE = re.compile(r"oc\.env:\s*\w+\s*,(.*)", re.DOTALL)
_DECODED = re.compile(r"oc\.decode:(.*)", re.DOTALL)
# The value `null`, which is known.
_NOTHING = object()
_FUNCTIONS: Mapping[str, Callable[[list[int]], int]] = {
    "multiply": prod, "mul": prod, "sum": sum, "add": sum, "divide_floor": lambda given: given[0] // given[1],
    "divide_ceil": lambda given: -(-given[0] // given[1]), "floor_div": lambda given: given[0] // given[1],
    "ceil_div": lambda given: -(-given[0] // given[1]),
}  # fmt: skip
_MISSING = "???"
_MOST_STEPS = 20


def resolved(document: Document, root: str = "") -> tuple[Document, dict[tuple[str, ...], str]]:
    """The document with its references replaced, and path -> text of each that only a run can tell (they are dropped).

    root: a block above the file in which references may start, as in `${training.model.x}`.
    """
    open_texts: dict[tuple[str, ...], str] = {}

    def walk(given: Any, path: tuple[str, ...]) -> Any:
        if isinstance(given, Mapping):
            return {key: walk(inner, (*path, str(key))) for key, inner in given.items()}
        value = _replaced(document, given, path, root) if isinstance(given, str) else given
        if isinstance(value, str) and ("${" in value or value == _MISSING):
            open_texts[path] = str(given)
            return None
        return value

    return replace(document, data=walk(document.data, ())), open_texts


def _replaced(document: Document, text: str, path: tuple[str, ...], root: str) -> Any:
    """The value of a text: references and calls from the inside out, until one is not known."""
    value: Any = text
    for _ in range(_MOST_STEPS):
        if not isinstance(value, str) or (found := _INNERMOST.search(value)) is None:
            return value
        inner = _value(document, found[1].strip(), path, root)
        if inner is None or isinstance(inner, Mapping | list):
            return value
        if inner is _NOTHING and found[0] == value:
            return None
        value = inner if found[0] == value else value.replace(found[0], "null" if inner is _NOTHING else str(inner))
    return value


def _value(document: Document, inner: str, path: tuple[str, ...], root: str) -> Any:
    if call := _CALL.fullmatch(inner):
        numbers = [int(part) for part in call[2].split(",") if re.fullmatch(r"\s*-?\d+\s*", part)]
        function = _FUNCTIONS.get(call[1])
        whole = function is not None and len(numbers) == call[2].count(",") + 1 and 0 not in numbers[1:]
        return function(numbers) if function is not None and whole else None
    if variable := _VARIABLE.fullmatch(inner):
        default = variable[1].strip()
        return _NOTHING if default.lower() == "null" else default.strip("'\"")
    if decoded := _DECODED.fullmatch(inner):
        value = read_document("oc.decode", decoded[1].strip() or "null").data
        return _NOTHING if value is None else value
    found = _REFERENCE.fullmatch(inner)
    if found is None:
        return None
    names = tuple(found[2].split("."))
    if found[1]:
        return document.at((*path[: -len(found[1])], *names))
    return document.at(names[1:] if root and names[0] == root else names)
