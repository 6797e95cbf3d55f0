"""Software stacks: families, their versions, and what calibration fitted for them."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import replace
from functools import cache, lru_cache
from typing import Any

from ...cost_models import units
from ...cost_models.specs.stack import StackSpec
from ...errors import UnknownNameError
from ..io.folders import CATALOGUE
from ..rates.calibration import Calibration, load_yaml, shipped

_FOLDER = CATALOGUE / "stacks"
FAMILIES = _FOLDER / "families.yaml"
_FIELDS = tuple(name for name in StackSpec.__dataclass_fields__ if name not in ("name", "sources"))
SECONDS = tuple(name for name in _FIELDS if "s" in name.split("_"))  # their values have a unit in files


@cache
def stack_names() -> tuple[str, ...]:
    """Names of all stacks."""
    return tuple(sorted(path.stem for path in _FOLDER.glob("*.yaml") if path != FAMILIES))


def is_family(name: str) -> bool:
    return name in stack_names()


def is_stack(name: str) -> bool:
    """Whether a stack of that name ships: a family or a version of one."""
    return name in stack_names() or name in _table()["versions"]


def has_own_facts(version: str) -> bool:
    """Whether families.yaml has facts of a version that differ from those of its family."""
    return len(_table()["versions"].get(version, ())) > 1


def stack_for(name: str, fitted: Calibration | None = None) -> tuple[StackSpec, list[str]]:
    """The family that a stack as published (`megatron-bridge-26.02`) belongs to, with what its version changes, and
    warnings: an unknown version takes its family's values, an unknown family `generic`.
    fitted: the calibration to apply, the shipped one unless given."""
    family, version, warnings = family_of(name)
    stack = _load_stack(family, fitted or shipped())
    return _changed(stack, _version_facts(version, fitted or shipped())) if version else stack, warnings


@cache
def family_of(name: str) -> tuple[str, str, list[str]]:
    """(family, version in families.yaml or "", warnings) of a stack as published."""
    table = _table()
    wanted = name.strip().lower()
    if not wanted:
        return "generic", "", ["stack not stated: generic"]
    if wanted in table["versions"]:
        return table["versions"][wanted]["family"], wanted, []
    if wanted in table["families"]:
        return wanted, "", []
    family = next((family for pattern, family in table["patterns"] if re.search(pattern, wanted)), "generic")
    return family, "", [f"stack {name} is not known: values of {family}"]


@cache
def lineage(name: str) -> tuple[str, ...]:
    """Version, family and what the family inherits: all whose values a stack as published may take."""
    family, version, _ = family_of(name)
    names = [version] if version else []
    while family:
        names.append(family)
        family = _own_facts(family).get("inherits", "")
    return tuple(names)


@cache
def _table() -> Mapping[str, Any]:
    table: Mapping[str, Any] = load_yaml(FAMILIES)
    return table


def load_stack(name: str, fitted: Calibration | None = None) -> StackSpec:
    """The stack `name`, a family or a version of one, with what it inherits. Raises UnknownNameError."""
    if name in _table()["versions"]:
        return replace(stack_for(name, fitted)[0], name=name)
    return _load_stack(name, fitted or shipped())


@lru_cache(maxsize=256)
def _load_stack(name: str, fitted: Calibration) -> StackSpec:
    if name not in stack_names():
        raise UnknownNameError("stack", name, stack_names(), see="meshwright show stacks")
    facts = _facts(name, fitted)
    return StackSpec(name=name, sources={field: fact["source"] for field, fact in facts.items()},
                     **{field: fact["value"] for field, fact in facts.items()})  # fmt: skip


def _changed(stack: StackSpec, facts: Mapping[str, Any]) -> StackSpec:
    sources = {**stack.sources, **{key: fact["source"] for key, fact in facts.items()}}
    return replace(stack, sources=sources, **{key: fact["value"] for key, fact in facts.items()})


def _version_facts(version: str, fitted: Calibration) -> dict[str, Any]:
    return _with_fitted(_in_base_units(_table()["versions"][version]), version, fitted)


def _facts(name: str, fitted: Calibration) -> dict[str, Any]:
    """Field -> {value, source}: the parent's, then the file's own, then what was fitted for this name."""
    stated = _own_facts(name)
    parent = stated.get("inherits")
    facts = {**(_facts(parent, fitted) if parent else {}), **stated}
    return _with_fitted({key: fact for key, fact in facts.items() if key in _FIELDS}, name, fitted)


@cache
def _own_facts(name: str) -> Mapping[str, Any]:
    return _in_base_units(load_yaml(_FOLDER / f"{name}.yaml"))


def _in_base_units(facts: Mapping[str, Any]) -> dict[str, Any]:
    """The facts of a file with quantities as numbers; the family of a version is no fact of it."""
    out = {key: fact for key, fact in facts.items() if key != "family"}
    seconds = {key: {**out[key], "value": units.parse(out[key]["value"], "s")} for key in SECONDS if key in out}
    return {**out, **seconds}


def _with_fitted(facts: dict[str, Any], name: str, fitted: Calibration) -> dict[str, Any]:
    for key, value in fitted.stacks.get(name, {}).items():
        facts[key] = {"value": value, "source": fitted.source}
    return facts
