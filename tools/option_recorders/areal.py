"""Options of AReaL: the dataclasses that its config is made into."""

from __future__ import annotations

import dataclasses
import importlib
import sys
import types
import typing
from collections.abc import Iterator
from pathlib import Path

from .lines import kind_of

MADE_FROM = "GRPOConfig of areal/api/cli_args.py"
# Packages whose own files import trainers and engines, and need GPUs.
_BARE = ("areal", "areal.api", "areal.engine", "areal.engine.fsdp_utils", "areal.utils", "areal.infra",
         "areal.infra.utils")  # fmt: skip


def record(source: Path | None) -> list[str]:
    """The lines for a folder that holds `areal/`: a checkout, or an unpacked wheel."""
    if source is None:
        raise SystemExit("areal: give the folder that holds areal/ by --source")
    for name in _BARE:
        package = types.ModuleType(name)
        package.__path__ = [str(source.joinpath(*name.split(".")))]
        sys.modules[name] = package
    return list(_options(importlib.import_module("areal.api.cli_args").GRPOConfig, ""))


def _options(kind: type, prefix: str) -> Iterator[str]:
    """`option kind` of every field, of blocks and of those that may be absent, too."""
    hints = typing.get_type_hints(kind)
    for field in dataclasses.fields(kind):
        name, hint = f"{prefix}{field.name}", hints[field.name]
        block = next((it for it in (hint, *typing.get_args(hint)) if dataclasses.is_dataclass(it)), None)
        listed = typing.get_origin(hint) in (list, tuple)
        if block is None or listed:
            choices = [str(value) for value in field.metadata.get("choices", ()) if value is not None]
            yield f"{name} {'list' if listed else _kind(hint, choices)}"
            continue
        if block is not hint:
            yield f"{name} any"  # null
        yield from _options(typing.cast(type, block), f"{name}.")


def _kind(hint: object, choices: list[str]) -> str:
    kind = kind_of(hint)
    absent = type(None) in typing.get_args(hint)
    return "any" if absent else f"{kind} {'|'.join(choices)}" if kind == "str" and choices else kind
