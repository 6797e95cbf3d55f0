"""Meshes of published runs of a model, on any hardware."""

from __future__ import annotations

import gzip
import json
from collections.abc import Mapping
from dataclasses import dataclass
from math import log2
from typing import Any

from ...cost_models.layouts import Layout
from ...cost_models.specs.model import MixtureOfExperts, ModelSpec
from ...profiles.io.folders import PUBLISHED

# Runs that somebody meant to train by. Rows of sweeps (sweeps.jsonl.gz) are there to be compared, good or bad.
FILE = PUBLISHED / "runs.jsonl.gz"
# Degrees that do not depend on the number of GPUs: dp takes the rest.
DEGREES = ("tp", "cp", "pp", "ep", "etp")


@dataclass(frozen=True)
class PublishedMesh:
    """The mesh of one run."""

    run: str  # its id
    num_gpus: int
    gpu: str  # as its source names it
    degrees: Mapping[str, int]  # of DEGREES

    @property
    def text(self) -> str:
        """`tp4 pp8`, or `dp` where nothing but the batch is divided."""
        split = [f"{name}{degree}" for name, degree in self.degrees.items() if degree > 1]
        return " ".join(split) or "dp"

    def distance(self, layout: Layout) -> float:
        """The number of doublings or halvings of degrees from this mesh to `layout`."""
        return sum(abs(log2(getattr(layout, name) / degree)) for name, degree in self.degrees.items())


def published_meshes(model: ModelSpec) -> list[PublishedMesh]:
    """For runs of models with the same hidden size, layers, heads and experts, in the order of the file."""
    with gzip.open(FILE, "rt", encoding="utf-8") as lines:
        rows = [json.loads(line) for line in lines]
    return [_mesh(row) for row in rows if _shape_of(row["model"]) == _shape(model)]


def _mesh(row: Mapping[str, Any]) -> PublishedMesh:
    cluster, layout = row["cluster"], row["layout"]
    degrees = {name: int(layout.get(name) or 1) for name in DEGREES}
    return PublishedMesh(row["id"], int(cluster["num_gpus"]), str(cluster["gpu"]), degrees)


def _shape_of(model: Mapping[str, Any]) -> tuple[int, int, int, int]:
    """Hidden size, layers, heads and experts of a row's model."""
    experts = (model.get("moe") or {}).get("experts") or 0
    return int(model["hidden"]), int(model["layers"]), int(model["heads"]), int(experts)


def _shape(model: ModelSpec) -> tuple[int, int, int, int]:
    experts = max((block.experts for block in model.feed_forwards if isinstance(block, MixtureOfExperts)), default=0)
    heads = next((attention.heads for attention in model.attentions), 0)
    return model.hidden, model.num_layers, heads, experts
