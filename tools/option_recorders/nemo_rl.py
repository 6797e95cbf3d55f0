"""Options of NeMo-RL: the YAML of its GRPO examples, whose names its own models do not check."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import yaml

MADE_FROM = "grpo_math_1B.yaml and grpo_math_1B_megatron.yaml of its examples"
_KINDS = {"int": "int", "float": "float", "bool": "bool", "list": "list"}


def record(source: Path | None) -> list[str]:
    """The lines for a checkout of NeMo-RL."""
    if source is None:
        raise SystemExit("nemo-rl: give a checkout by --source")
    kinds: dict[str, str] = {}
    for name in ("grpo_math_1B", "grpo_math_1B_megatron"):
        text = (source / "examples" / "configs" / f"{name}.yaml").read_text(encoding="utf-8")
        for option, kind in _leaves(yaml.safe_load(text), ""):
            kinds[option] = kind if kinds.get(option, kind) == kind else "any"
    return [f"{option} {kind}" for option, kind in kinds.items()]


def _leaves(block: dict[str, Any], prefix: str) -> Iterator[tuple[str, str]]:
    """(option, kind) of every value; a block without values takes any keys."""
    for name, value in block.items():
        if name == "defaults":
            continue
        if isinstance(value, dict) and value:
            yield from _leaves(value, f"{prefix}{name}.")
        elif isinstance(value, dict) or name == "env_vars":
            yield f"{prefix}{name}", "object"
        else:
            text = isinstance(value, str) and not value.startswith("${")
            yield f"{prefix}{name}", "str" if text else _KINDS.get(type(value).__name__, "any")
