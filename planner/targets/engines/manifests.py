"""Parts that manifests of Kubernetes share."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from typing import Any

from ....profiles.io.yaml_syntax import text_of
from .base import DeploymentSetup, EngineSetup

_GPU_LABEL = "meshwright-gpu"


def documents(header: Iterable[str], *parts: Mapping[str, Any]) -> str:
    """Several manifests in a file, under comments."""
    return "".join(f"# {line}\n" for line in header) + "---\n".join(map(text_of, parts))


# Dynamo takes 45 characters for the name of a graph and that of a component (ai-dynamo/dynamo issue 5449), the longest
# of which is `frontend`.
_MOST_CHARACTERS = 45 - len("-frontend")


def resource_name(text: str) -> str:
    """A name that Kubernetes takes, also for a Service: those begin with a letter before release 1.36."""
    return f"mw-{re.sub(r'[^a-z0-9-]+', '-', text.lower())}"[:_MOST_CHARACTERS].strip("-")


def config_map(name: str, files: Mapping[str, str]) -> dict[str, Any]:
    """A ConfigMap that holds `files`."""
    return {"apiVersion": "v1", "kind": "ConfigMap", "metadata": {"name": name}, "data": dict(files)}


def node_selector(service: DeploymentSetup, setup: EngineSetup) -> dict[str, Any]:
    """The part of a pod that keeps a pool on nodes of its GPUs, where the pools have different ones."""
    return {"nodeSelector": {_GPU_LABEL: setup.pool.gpu}} if service.unlike_gpus else {}


def label_notes(service: DeploymentSetup) -> list[str]:
    """The labels that `node_selector` needs."""
    if not service.unlike_gpus:
        return []
    return [f"label the nodes with {setup.pool.gpu}: kubectl label node NODE {_GPU_LABEL}={setup.pool.gpu}"
            for setup in service.setups]  # fmt: skip
