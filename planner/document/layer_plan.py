"""Strategies per layer: the part of a plan whose layers do not all have one strategy."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Sequence

from ...cost_models.layouts import Layout, parse
from .base import DocumentPart

LAYERS_OF_THEIR_OWN = "its layers have strategies of their own, and here all have one"


class LayerRun(DocumentPart):
    """A run of layers of one strategy."""

    layers: tuple[int, int]  # [first, last]
    strategy: str  # id of the layout that has it everywhere


class UniformPlan(DocumentPart):
    """A plan of one strategy for all layers, for comparison."""

    strategy: str
    step_s: float
    device_bytes: float  # of the fullest GPU


class LayerPlan(DocumentPart):
    """A strategy for each layer. Strategies are ids of the layouts that have them everywhere."""

    embedding: str
    runs: tuple[LayerRun, ...]  # in the order of the layers
    head: str
    best_alike: UniformPlan | None  # the fastest plan of one strategy that the same search knows
    used: tuple[UniformPlan, ...]  # each strategy of some layers, as if all layers had it
    lower_bound_s: float  # no plan of the searched space takes less
    gap: float  # relative, between that bound and this plan
    pipelines: int  # pairs of numbers of stages and of micro-batches that were searched
    strategies: int  # strategies of all of these together

    @property
    def digest(self) -> str:
        return layers_digest(self.embedding, self.runs, self.head)

    @property
    def layouts(self) -> tuple[Layout, ...]:
        """Every strategy once, as the layout that has it everywhere."""
        ids = dict.fromkeys((self.embedding, *(run.strategy for run in self.runs), self.head))
        return tuple(parse(layout_id) for layout_id in ids)


def layers_digest(embedding: str, runs: Sequence[LayerRun], head: str) -> str:
    """The 6 digits after `-x` in the id of a layout whose layers have strategies of their own."""
    content = [embedding, [[*run.layers, run.strategy] for run in runs], head]
    return hashlib.sha256(json.dumps(content).encode()).hexdigest()[:6]
