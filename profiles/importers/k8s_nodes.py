"""`kubectl get nodes -o json`: hosts, GPUs by the labels of NVIDIA's feature discovery, and what can be allocated."""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from typing import Any

from .base import Imported, Importer, Nodes, fail, grouped, twice

_GPUS = ("nvidia.com/gpu", "amd.com/gpu")
_PRODUCT = ("nvidia.com/gpu.product", "amd.com/gpu.product-name")
_MEMORY = {"": 1.0, "Ki": 2.0**10, "Mi": 2.0**20, "Gi": 2.0**30, "Ti": 2.0**40, "k": 1e3, "M": 1e6, "G": 1e9, "T": 1e12}


def read(name: str, text: str) -> Imported:
    try:
        document = json.loads(text)
    except ValueError as error:
        raise fail(name, getattr(error, "lineno", 0), "is not JSON", "`kubectl get nodes -o json`") from None
    items = document.get("items", [document]) if isinstance(document, Mapping) else []
    nodes, without = [], []
    for item in items:
        host, node = _node(name, item)
        if node is None:
            without.append(host)
        else:
            nodes.append(node)
    if not nodes:
        raise fail(name, 0, f"no node with GPUs that takes pods ({len(without)} others)")
    twice(name, [host for node in nodes for host in node.hosts])
    notes = [f"left out, cordoned, not ready or without GPUs: {', '.join(without)}"] if without else []
    notes.append("Kubernetes does not know the network: give `nics` or `links`")
    return Imported(groups=grouped(nodes), notes=tuple(notes))


def _node(name: str, item: Any) -> tuple[str, Nodes | None]:
    try:
        host, labels = item["metadata"]["name"], item["metadata"].get("labels", {})
        allocatable, conditions = item["status"]["allocatable"], item["status"].get("conditions", [])
    except (KeyError, TypeError):
        raise fail(name, 0, "is no list of nodes", "`kubectl get nodes -o json`") from None
    count = next((int(allocatable[key]) for key in _GPUS if key in allocatable), 0)
    ready = all(c.get("status") == "True" for c in conditions if c.get("type") == "Ready")
    if not count or not ready or item.get("spec", {}).get("unschedulable"):
        return host, None
    product = next((labels[key] for key in _PRODUCT if key in labels), "")
    memory = re.fullmatch(r"(\d+)([A-Za-z]*)", str(allocatable.get("memory", "")))
    num_bytes = float(memory[1]) * _MEMORY[memory[2]] if memory and memory[2] in _MEMORY else None
    return host, Nodes(hosts=(host,), gpu=product, gpus_per_node=count, host_memory_bytes=num_bytes)


def recognises(text: str) -> bool:
    return text.lstrip().startswith("{") and '"allocatable"' in text


IMPORTER = Importer("`kubectl get nodes -o json`", recognises, read)
