"""Values at paths as a user writes them: `path=value`, quantities with units, and factors such as `x2`."""

from __future__ import annotations

import re
from collections.abc import Sequence

from ...cost_models import units
from ...errors import InputError, did_you_mean, nearest
from .knobs import KNOBS
from .paths import WHOLE, Value, dimension_of, known_paths

_NODES = ("nodes", "num_nodes", "cluster.nodes", "cluster.num_nodes")
_DECIMAL = r"[0-9]+\.?[0-9]*|\.[0-9]+"
FACTOR = re.compile(rf"\s*(?:[x×]\s*((?:{_DECIMAL})(?:e[-+]?[0-9]+)?)|({_DECIMAL})\s*[x×])\s*", re.IGNORECASE)


def parse_sets(texts: Sequence[str]) -> dict[str, Value]:
    """`path=value` each. Raises InputError naming every unknown path with the nearest known one."""
    values: dict[str, Value] = {}
    for text in texts:
        path, value = split_assignment(text, "--set", "gpu.memory.bandwidth=4.8 TB/s")
        if path in values and values[path] != value:
            raise InputError(f"--set {path} is given twice: {values[path]} and {value}", hint="keep one of them")
        values[path] = checked_value(path, value, "--set")
    return values


def split_assignment(text: str, flag: str, example: str) -> tuple[str, str]:
    """`path=value` -> (path, value). Raises InputError for an unknown path."""
    path, equals, value = text.partition("=")
    path, value = path.strip(), value.strip()
    if not equals or not path or not value:
        raise InputError(f"{flag} `{text}` is not `path=value`", hint=f"write `{flag} {example}`")
    if path not in known_paths():
        last = [known for known in known_paths() if known.rpartition(".")[2] == path]
        guesses = list(dict.fromkeys([*last, *nearest(path, known_paths())]))[:4]
        hint = _nodes_hint(value) if path in _NODES else did_you_mean(guesses, otherwise=_known_under(path))
        raise InputError(f"{flag} {path}: no such field", hint=hint)
    return path, value


def _nodes_hint(value: str) -> str:
    """The spelling of a number of nodes: that of their GPUs."""
    nodes = int(value) if re.fullmatch("[1-9][0-9]{0,5}", value) else 7
    return f"`gpus` takes the GPUs of all nodes: `gpus={8 * nodes}` for {nodes} nodes of 8 GPUs"


def _known_under(path: str) -> str:
    """The known paths of the same part of the request, else the parts."""
    head = path.partition(".")[0]
    under = [known for known in known_paths() if known.startswith(f"{head}.")]
    return f"known: {', '.join(sorted(under or {known.partition('.')[0] for known in known_paths()}))}"


def checked_value(path: str, text: str, flag: str) -> Value:
    """A quantity in base units, where the path is one; a factor or a word stays text."""
    dimension = dimension_of(path)
    if FACTOR.fullmatch(text):
        if path not in KNOBS:
            raise InputError(f"{flag} {path}: `{text}` is a factor, which only numbers of hardware and software take",
                             hint="write the value itself")  # fmt: skip
        return text
    if dimension is None or path in WHOLE or (path.startswith("cluster.") and " per " in text):
        return text  # a cluster file's own reader knows `50 GB/s per node`
    try:
        return units.parse(text, dimension)
    except InputError as error:
        plain = path in KNOBS and dimension == "count"
        hint = f"it must be {KNOBS[path].range.text}" if plain else error.hint
        raise InputError(f"{flag} {path}: {error.message}", hint=hint) from None


def factor_of(text: str) -> float:
    """`x2` or `2x` -> 2.0."""
    match = FACTOR.fullmatch(text)
    if match is None:
        raise InputError(f"`{text}` is no factor", hint="write `x2`")
    return float(match[1] or match[2])


def number_of(value: Value) -> float:
    """A value as a number to place it on an axis. Raises InputError for words."""
    if isinstance(value, float):
        return value
    return factor_of(value) if FACTOR.fullmatch(value) else units.parse(value, "count")
