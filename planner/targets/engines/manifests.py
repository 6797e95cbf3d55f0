"""YAML of nested mappings and lists, and parts that manifests of Kubernetes share."""

from __future__ import annotations

import json
import re
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

_PLAIN = re.compile(r"[A-Za-z/][\w./-]*(:[\w./-]+)*")
_NOT_TEXT = frozenset({"true", "false", "yes", "no", "on", "off", "null", "y", "n"})


def yaml_of(value: Any, indent: int = 0) -> str:
    """Block style; text of several lines stays readable."""
    pad = " " * indent
    if isinstance(value, Mapping):
        return "".join(f"{pad}{key}:{_after_key(item, indent)}" for key, item in value.items())
    if isinstance(value, Sequence) and not isinstance(value, str):
        return "".join(f"{pad}- {yaml_of(item, indent + 2).lstrip(' ')}" for item in value)
    return f"{pad}{_scalar(value)}\n"


def _after_key(item: Any, indent: int) -> str:
    if isinstance(item, str) and "\n" in item:
        return " |\n" + "".join(f"{' ' * (indent + 2)}{line}".rstrip() + "\n" for line in item.splitlines())
    if isinstance(item, Mapping) and item:
        return "\n" + yaml_of(item, indent + 2)
    if isinstance(item, list | tuple) and item:
        return "\n" + yaml_of(item, indent)
    return f" {_scalar(item)}\n"


def _scalar(value: Any) -> str:
    if isinstance(value, str) and _PLAIN.fullmatch(value) and value.lower() not in _NOT_TEXT:
        return value
    return json.dumps(value)


def documents(header: Iterable[str], *parts: Mapping[str, Any]) -> str:
    """Several manifests in a file, under comments."""
    return "".join(f"# {line}\n" for line in header) + "---\n".join(map(yaml_of, parts))


def resource_name(text: str) -> str:
    """A name that Kubernetes takes."""
    return re.sub(r"[^a-z0-9-]+", "-", text.lower())[:50].strip("-") or "service"


def config_map(name: str, files: Mapping[str, str]) -> dict[str, Any]:
    """A ConfigMap that holds `files`."""
    return {"apiVersion": "v1", "kind": "ConfigMap", "metadata": {"name": name}, "data": dict(files)}
