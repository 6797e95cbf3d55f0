"""Parts that manifests of Kubernetes share."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from typing import Any

from ....profiles.io.yaml_syntax import text_of


def documents(header: Iterable[str], *parts: Mapping[str, Any]) -> str:
    """Several manifests in a file, under comments."""
    return "".join(f"# {line}\n" for line in header) + "---\n".join(map(text_of, parts))


def resource_name(text: str) -> str:
    """A name that Kubernetes takes."""
    return re.sub(r"[^a-z0-9-]+", "-", text.lower())[:50].strip("-") or "service"


def config_map(name: str, files: Mapping[str, str]) -> dict[str, Any]:
    """A ConfigMap that holds `files`."""
    return {"apiVersion": "v1", "kind": "ConfigMap", "metadata": {"name": name}, "data": dict(files)}
