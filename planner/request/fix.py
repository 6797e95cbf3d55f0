"""Fixed fields of a request: those of the layout and switches of the software, as users write them."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from ...cost_models import layouts
from ...errors import InputError, did_you_mean, nearest
from ..switches.base import spelled
from ..switches.registry import SWITCHES

# Fields of a layout, and switches of the software.
FIXABLE = tuple(dict.fromkeys((*layouts.FIELD_NAMES, *SWITCHES)))


def parse_fix(value: Any) -> dict[str, Any]:
    """`["tp=8", "recompute=full"]` or a mapping -> {field: value in the words of the JSON schema}."""
    pairs: list[tuple[str, Any]] = []
    for item in items(value, "tp=8"):
        if isinstance(item, Mapping):
            pairs += [(str(name), field_value) for name, field_value in item.items()]
            continue
        name, equals, text = str(item).partition("=")
        if not equals or not text:
            raise InputError(f"`{item}` is not `field=value`", hint="write `--fix tp=8`")
        pairs.append((name.strip(), text.strip()))
    result: dict[str, Any] = {}
    for name, given in pairs:
        for field, field_value in _fields(name.replace("-", "_"), given):
            value_of = _decoded(field, field_value)
            if result.setdefault(field, value_of) != value_of:
                raise InputError(f"{field} is fixed to both {result[field]} and {value_of}", hint="keep one of them")
    return dict(sorted(result.items()))


def _fields(name: str, value: Any) -> list[tuple[str, Any]]:
    """A mapping under `recompute` ({mode, modules, layers}) is three fields of a layout."""
    if name != "recompute" or not isinstance(value, Mapping):
        return [(name, value)]
    fields = {"mode": "recompute", "modules": "recompute_modules", "layers": "recompute_layers"}
    if unknown := [key for key in value if key not in fields]:
        raise InputError(f"recompute has no `{unknown[0]}`", hint="its fields are mode, modules, layers")
    return [(fields[key], given) for key, given in value.items() if given is not None]


def _decoded(name: str, value: Any) -> Any:
    """The value as the JSON schema spells it; `encode` of the layout table knows what is allowed, and the registry of
    switches."""
    if name not in layouts.FIELD_NAMES:
        return _switch_value(name, value)
    code = layouts.encode(name, value)
    field = next(field for field in layouts.FIELDS if field.name == name)
    if name == "recompute_modules":
        return list(layouts.modules_of(code))
    if name in layouts.FLAGS:
        return bool(code)
    return field.choices[code] if field.choices else code


def _switch_value(name: str, value: Any) -> str:
    if name not in SWITCHES:
        raise InputError(f"unknown field or switch `{name}`", hint=did_you_mean(nearest(name, FIXABLE))
                         or f"fields: {', '.join(layouts.FIELD_NAMES)}; switches: {', '.join(SWITCHES)}")  # fmt: skip
    text = spelled(value)
    if text not in SWITCHES[name].values:
        values = ", ".join(SWITCHES[name].values)
        raise InputError(f"{name}: `{text}` is none of {values}", hint=SWITCHES[name].meaning)
    return text


def items(value: Any, example: str) -> list[Any]:
    """A value that users write once, as a list, or as a mapping: always a list. Raises InputError for anything else."""
    if isinstance(value, str | Mapping):
        return [value]
    if not isinstance(value, list | tuple):
        raise InputError(f"`{value}` is neither text, a list nor a mapping", hint=f"write `{example}`")
    return list(value)
