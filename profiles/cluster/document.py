"""A cluster as plain values: the part of a plan that holds it."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import asdict, replace
from typing import Any

from ...cost_models.specs.cluster import (
    Bridge,
    ClusterSpec,
    GpuSpec,
    Island,
    NetworkLevel,
    NodeGroup,
    NodeLinks,
    Rent,
)
from ...cost_models.specs.notice import Notice


def cluster_to_dict(cluster: ClusterSpec) -> dict[str, Any]:
    """The values of a cluster in base units, for `resolved` in a plan; `cluster_from_dict` reads it back."""
    return {
        "name": cluster.name,
        "groups": [_group_to_dict(group) for group in cluster.groups],
        "levels": [_to_dict(level) for level in cluster.levels],
        "warnings": [warning.text for warning in cluster.warnings],
        **({"warning_codes": [warning.code for warning in cluster.warnings]} if cluster.warnings else {}),
        **({"hosts": list(cluster.hosts)} if cluster.hosts else {}),
        **({"links": asdict(cluster.links)} if cluster.links else {}),
        **({"collectives": cluster.collectives} if cluster.collectives else {}),
        **({name: [_to_dict(part) for part in getattr(cluster, name)] for name in ("islands", "bridges")}
           if cluster.islands else {}),
    }  # fmt: skip


def _to_dict(part: NetworkLevel | Island | Bridge) -> dict[str, Any]:
    """Without axes of a torus where there are none."""
    inner: dict[str, Any] = {"levels": [_to_dict(level) for level in part.levels]} if isinstance(part, Island) else {}
    inner |= {"link": _to_dict(part.link)} if isinstance(part, Bridge) else {}
    return {name: value for name, value in (asdict(part) | inner).items() if name != "torus" or value}


def _group_to_dict(group: NodeGroup) -> dict[str, Any]:
    """Without the parts that no profile has measured."""
    gpu = replace(group.gpu, peak_flops_per_s=dict(group.gpu.peak_flops_per_s))
    out = asdict(replace(group, gpu=gpu))
    for part, name in ((out, "measured"), (out["gpu"], "measured"), (out["gpu"], "usual_stack")):
        if not part[name]:
            del part[name]
    if group.rent is None:
        del out["rent"]
    return out


def cluster_from_dict(data: Mapping[str, Any]) -> ClusterSpec:
    """Inverse of `cluster_to_dict`; unknown keys of newer minor versions are ignored."""

    def known(cls: Any, values: Mapping[str, Any]) -> dict[str, Any]:
        return {name: tuple(value) if isinstance(value, list) else value
                for name, value in values.items() if name in cls.__dataclass_fields__}  # fmt: skip

    def level(values: Mapping[str, Any]) -> NetworkLevel:
        return NetworkLevel(**known(NetworkLevel, values))

    def node_group_of(values: Mapping[str, Any]) -> NodeGroup:
        rent = values.get("rent")
        parts = {"gpu": GpuSpec(**known(GpuSpec, values["gpu"])), "rent": Rent(**known(Rent, rent)) if rent else None}
        return NodeGroup(**known(NodeGroup, {**values, **parts}))

    groups = tuple(node_group_of(group) for group in data["groups"])
    levels = tuple(level(values) for values in data["levels"])
    islands = tuple(
        Island(**{**known(Island, island), "levels": tuple(level(values) for values in island["levels"])})
        for island in data.get("islands", ())
    )
    bridges = tuple(
        Bridge(**{**known(Bridge, bridge), "link": level(bridge["link"])}) for bridge in data.get("bridges", ())
    )
    links = data.get("links")
    if links is not None:
        links = NodeLinks(source=links["source"], bw_bytes_per_s=tuple(tuple(row) for row in links["bw_bytes_per_s"]))
    texts: Sequence[str] = data.get("warnings", ())
    codes = data.get("warning_codes", ["cluster"] * len(texts))  # plans of earlier versions have texts only
    warnings = tuple(Notice(code, text) for code, text in zip(codes, texts, strict=True))
    return ClusterSpec(name=data["name"], groups=groups, levels=levels, warnings=warnings,
                       hosts=tuple(data.get("hosts", ())), links=links, islands=islands, bridges=bridges,
                       collectives=data.get("collectives", {}))  # fmt: skip
