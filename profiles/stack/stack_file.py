"""Stacks as files of the user: a family and what differs from it, or several families at once.

    inherits: megatron-core                    families:          (or a version, as `meshwright`)
    throughput: {value: 0.93, source: ...}       megatron-core: {throughput: {value: 0.93, source: ...}}

Quantities have units (`12 us`), as in stacks/*.yaml; a value may stand without its source. `meshwright calibrate`
writes such files.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Literal, get_args, get_origin, get_type_hints

from ...cost_models import units
from ...cost_models.specs.stack import StackSpec
from ...errors import InputError, did_you_mean, nearest
from ..io.document import FieldPath
from ..io.facts import Facts
from ..io.reader import read_document
from .load import SECONDS, is_stack, load_stack, stack_names

_TYPES = {name: kind for name, kind in get_type_hints(StackSpec).items() if name not in ("name", "sources")}
StackFacts = Mapping[str, tuple[float, str]]  # field -> (value in base units, source)


@dataclass(frozen=True)
class Range:
    """The valid range of a number."""

    text: str  # follows `must be` in messages
    least: float = 0.0  # smallest value
    most: float = math.inf  # largest value
    open: bool = False  # `least` itself is not in the range

    def holds(self, value: float) -> bool:
        return math.isfinite(value) and self.least <= value <= self.most and not (self.open and value == self.least)


ABOVE_ZERO = Range("above zero", open=True)
_SHARE = Range("a share in [0, 1]", most=1.0)
_FROM_ONE = Range("1 or more", least=1.0)
_FROM_ZERO = Range("0 or more")
_RANGES = {
    "throughput": ABOVE_ZERO, "contention": _SHARE, "straggler_share": _SHARE,
    **dict.fromkeys((name for name in _TYPES if name.endswith("_overlap")), _SHARE),
    **dict.fromkeys(("elementwise_traffic", "gradient_bytes", "nics_per_ring", "moe_imbalance"), _FROM_ONE),
}  # fmt: skip


def range_of(field: str) -> Range:
    """The valid range of a field of a stack."""
    return _RANGES.get(field, _FROM_ZERO)


def load_stacks(reference: str) -> dict[str, StackSpec]:
    """Family -> stack, of a name or of a file. Raises UnknownNameError and InputError."""
    path = Path(reference)
    if not is_stack(reference) and (path.is_file() or path.suffix in (".yaml", ".yml", ".json", ".toml")):
        return read_stacks(path)
    return {reference: load_stack(reference)}


def read_stacks(path: Path) -> dict[str, StackSpec]:
    """Family -> the stack that the file makes of it. Raises InputError with everything that is wrong."""
    document = read_document(path)
    if not isinstance(document.data, Mapping):
        raise InputError.of([document.problem((), "is not a stack", "it starts with `inherits: megatron-core`")])
    facts = Facts(document)
    stacks = {}
    for family, place in _families(facts):
        fields = document.at(place)
        fields = fields if isinstance(fields, Mapping) else {}
        stated = {key: _fact(facts, (*place, key)) for key in fields if key != "inherits"}
        base = load_stack(family)
        sources = {**base.sources, **{key: source for key, (_, source) in stated.items()}}
        if not facts.problems:
            values: dict[str, Any] = {key: value for key, (value, _) in stated.items()}
            stacks[family] = replace(base, name=str(path), sources=sources, **values)
    if facts.problems:
        raise InputError.of(facts.problems)
    return stacks


def _families(facts: Facts) -> list[tuple[str, FieldPath]]:
    """(family or version, place of its fields) of every stack in the file; what is wrong goes to `facts`."""
    data, known = facts.document.data, stack_names()
    named: list[tuple[str, FieldPath]]
    if "families" in data and isinstance(data["families"], Mapping):
        named = [(str(name), ("families", str(name))) for name in data["families"]]
        for key in data:
            if key != "families":
                facts.fail((key,), "stands beside `families`", "put it under a family")
    elif isinstance(data.get("inherits"), str):
        named = [(data["inherits"], ())]
    else:
        hint = f"one of {', '.join(known)}"
        facts.fail((), "`inherits` is missing: the family that the stack belongs to", hint)
        return []
    wrong = [(name, place) for name, place in named if not is_stack(name)]
    for name, place in wrong:
        facts.fail(place or ("inherits",), f"`{name}` is no stack", f"one of {', '.join(known)}")
    return [family for family in named if family not in wrong]


def _fact(facts: Facts, place: FieldPath) -> tuple[Any, str]:
    """(value in base units, source) of one field; what is wrong goes to `facts`."""
    document = facts.document
    field, given = str(place[-1]), document.at(place)
    source = f"{document.name}, line {document.line(place)}"
    if isinstance(given, Mapping):
        source, given = str(given.get("source") or source), given.get("value")
    if field not in _TYPES:
        hint = did_you_mean(nearest(field, _TYPES), otherwise=f"fields: {', '.join(sorted(_TYPES))}")
        facts.fail(place, f"`{field}` is no field of a stack", hint)
        return None, source
    try:
        return _value(field, given), source
    except InputError as error:
        facts.fail(place, error.message, error.hint)
        return None, source


def _value(field: str, given: Any) -> Any:
    kind = _TYPES[field]
    if field in SECONDS:
        if not isinstance(given, str):
            raise InputError(f"must have a unit, is {given!r}", hint="as in `12 us`")
        return units.parse(given, "s")
    if get_origin(kind) is Literal:
        if given not in get_args(kind):
            raise InputError(f"`{given}` is none of {', '.join(get_args(kind))}")
        return given
    if kind is bool:
        if not isinstance(given, bool):
            raise InputError(f"must be true or false, is {given!r}")
        return given
    if isinstance(given, bool) or not isinstance(given, int | float) or not math.isfinite(given):
        raise InputError(f"must be a number, is {given!r}")
    if not range_of(field).holds(given):
        raise InputError(f"must be {range_of(field).text}, is {given:g}")
    return given


def stack_text(families: Mapping[str, StackFacts], heading: str) -> str:
    """The file that `read_stacks` reads, one family flat, several under `families`."""
    lines = [f"# {line}\n" for line in heading.splitlines()]
    flat = len(families) == 1
    lines += [] if flat else ["families:\n"]
    for family, facts in sorted(families.items()):
        lines.append(f"inherits: {family}\n" if flat else f"  {family}:\n")
        indent = "" if flat else "    "
        for field, (value, source) in facts.items():
            shown = f'"{value * 1e6:.5g} us"' if field in SECONDS else f"{value:.5g}"
            lines.append(f'{indent}{field}: {{value: {shown}, source: "{source}"}}\n')
    return "".join(lines)
