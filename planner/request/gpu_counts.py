"""A range of numbers of GPUs: which of them are tried, and the request on each."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from ...errors import InputError
from ...profiles.cluster.load import load_cluster
from ...profiles.io import registry
from ...profiles.io.reader import read_document
from .load import Request
from .resolve import Resolved, cluster_of, resolve
from .target_choice import for_able_target

MOST_COUNTS = 4096
_EXAMPLE = "write `--gpus 64..1024`, or `--gpus 64,128,256`"
_ALIKE = ("hosts", "sites", "wan")  # of a cluster file: they name nodes, whose number changes here


@dataclass(frozen=True)
class GpuRange:
    """The requested range: `first` to `last`, or just the numbers `listed`."""

    first: int
    last: int
    listed: tuple[int, ...] = ()

    @property
    def text(self) -> str:
        return ", ".join(f"{n:,}" for n in self.listed) if self.listed else f"{self.first:,} to {self.last:,}"


def parse_range(text: str) -> GpuRange | None:
    """`64..1024` or `64,128,256`; None for a single number. Raises InputError."""
    if re.fullmatch(r"\s*[-+]?[0-9][0-9_]*\s*", text):
        return None
    parts = text.split("..") if ".." in text else text.split(",")
    numbers = [int(part) for part in parts if re.fullmatch(r"\s*[0-9][0-9_]*\s*", part)]
    if len(numbers) < len(parts) or (".." in text and len(parts) != 2):
        raise InputError(f"--gpus `{text}` is neither a number nor a range", hint=_EXAMPLE)
    if min(numbers) < 1:
        raise InputError(f"--gpus `{text}`: there must be at least 1 GPU", hint=_EXAMPLE)
    if ".." in text:
        first, last = numbers
        if first > last:
            raise InputError(f"--gpus {text} runs backwards", hint=f"write `--gpus {last}..{first}`")
        if first == last:
            raise InputError(f"--gpus {text} is one number of GPUs", hint=f"write `--gpus {first}`")
        return GpuRange(first, last)
    listed = tuple(sorted(set(numbers)))
    if len(listed) < 2:
        raise InputError(f"--gpus {text} is one number of GPUs", hint=f"write `--gpus {listed[0]}`")
    return GpuRange(listed[0], listed[-1], listed)


@dataclass(frozen=True)
class Counts:
    """The numbers of GPUs that are tried."""

    requested: GpuRange
    per_node: int  # GPUs of a node: from this number on only whole nodes are tried
    numbers: tuple[int, ...]  # rising
    first: Resolved  # the request on the smallest of them

    def on(self, number: int) -> Resolved:
        """The request on so many GPUs."""
        if number == self.first.cluster.num_gpus:
            return self.first
        sized = _sized(self.first.request, number, self.per_node)
        cluster = cluster_of(sized)
        others = [warning for warning in self.first.warnings if warning not in self.first.cluster.warnings]
        return replace(self.first, request=sized, cluster=cluster, warnings=(*others, *cluster.warnings))


def counts(request: Request, gpus: GpuRange) -> Counts:
    """Within a node every number of GPUs, beyond it whole nodes.

    Raises InputError for a cluster whose number of nodes is given or whose nodes are not all alike, a listed number
    that is no whole number of nodes, and a range that holds none or more than MOST_COUNTS.
    """
    per_node = _gpus_per_node(request)
    if gpus.listed:
        numbers = gpus.listed
        if broken := [n for n in numbers if n > per_node and n % per_node]:
            near = broken[0] // per_node * per_node
            raise InputError(f"{broken[0]} GPUs are {broken[0]} / {per_node} = {broken[0] / per_node:g} nodes",
                             hint=f"take {near} or {near + per_node}")  # fmt: skip
    else:
        within = range(gpus.first, min(gpus.last, per_node - 1) + 1)
        nodes = range(max(-(-gpus.first // per_node), 1), gpus.last // per_node + 1)
        if len(within) + len(nodes) > MOST_COUNTS:
            hint = f"at most {MOST_COUNTS:,}: a narrower range, or the numbers themselves: `--gpus 1024,2048,4096`"
            raise InputError(f"{gpus.text} GPUs are {len(within) + len(nodes):,} numbers of nodes", hint=hint)
        numbers = (*within, *(n * per_node for n in nodes))
    if not numbers:
        near = gpus.first // per_node * per_node
        raise InputError(f"{gpus.text} GPUs: no whole number of nodes of {per_node} lies between",
                         hint=f"`--gpus {near}..{near + per_node}`")  # fmt: skip
    return Counts(gpus, per_node, numbers, for_able_target(resolve(_sized(request, numbers[0], per_node))))


def _gpus_per_node(request: Request) -> int:
    if request.exclude:
        raise InputError("a range of GPUs, and nodes that are left out: which of them remain?",
                         hint="plan each number by itself, or leave out `exclude`")  # fmt: skip
    if request.gpus is not None:
        raise InputError("a range of GPUs, and a number of them in the request", hint="leave out `gpus` of the request")
    if request.cluster is None:
        if request.gpu is None:
            raise InputError("no cluster", hint="`--cluster dgx-h100 --gpus 64..1024`, or `--gpu h100-sxm-80gb`")
        usual = registry.gpu_entry(request.gpu).usual_node
        if usual is None:
            raise InputError(f"no node with {request.gpu} is known", hint="describe it in a cluster file")
        return registry.load_node(usual).gpus_per_node
    if isinstance(request.cluster, str) and re.fullmatch(r"[^/\\]+:\s*[0-9]+", request.cluster):
        node = request.cluster.partition(":")[0]
        raise InputError(f"--cluster {request.cluster} has a number of nodes, and --gpus names a range",
                         hint=f"write `--cluster {node}`")  # fmt: skip
    return load_cluster(request.cluster, gpu=request.gpu).gpus_per_node


def _sized(request: Request, number: int, per_node: int) -> Request:
    """The request on `number` GPUs: by name and number or, where the cluster is described, with so many nodes."""
    described = _described(request.cluster)
    if described is None:
        return request.model_copy(update={"gpus": number})
    groups = described.get("groups")
    group: Any = groups[0] if isinstance(groups, list) and len(groups) == 1 else groups
    named = [key for key in _ALIKE if key in described]
    links = described.get("links")
    named += [f"links.{key}" for key in ("slow_nodes", "matrix") if isinstance(links, Mapping) and key in links]
    if named or not isinstance(group, str | Mapping) or "+" in str(group):
        what = f"its {', '.join(named)}" if named else "its groups differ"
        raise InputError(f"a range of GPUs needs nodes that are all alike: {what}", hint="plan each size by itself")
    if number % per_node:
        raise InputError(f"{number} GPUs of a described cluster: its nodes have {per_node}",
                         hint=f"start at {-(-number // per_node) * per_node}")  # fmt: skip
    node = {"node": group.partition(":")[0].strip()} if isinstance(group, str) else dict(group)
    cluster = {**described, "groups": [{**node, "count": number // per_node}]}
    return request.model_copy(update={"cluster": cluster, "gpus": None})


def _described(cluster: str | dict[str, Any] | None) -> dict[str, Any] | None:
    """The description of the cluster in the request or a file; None for a name."""
    if isinstance(cluster, str) and (cluster.endswith((".yaml", ".yml", ".json", ".toml")) or "/" in cluster):
        data = read_document(cluster).data
        return _anchored(data, Path(cluster).parent) if isinstance(data, Mapping) else {}
    return dict(cluster) if isinstance(cluster, Mapping) else None


def _anchored(described: Mapping[str, Any], folder: Path) -> dict[str, Any]:
    """The description in a file of `folder`, with absolute paths: plain values have no folder."""
    profiles = described.get("profiles")
    if not isinstance(profiles, list):
        return dict(described)
    return {**described, "profiles": [str(folder / name) if isinstance(name, str) else name for name in profiles]}
