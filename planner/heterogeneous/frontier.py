"""The pipelines over one set of islands that are still open, each in every order of the islands, by lower bounds.

A pipeline begins with the bound that listed it (`nodes.py`), which knows neither the order nor the memory of single
stages. `prove` solves its program (`relaxation.py`) and tries the multipliers on all pipelines like it. `settle` is
told the bound of the integer program.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from functools import cached_property

import numpy as np

from ...cost_models.arrays import Array, Ints
from ...cost_models.layouts import SCHEDULES, Layout
from ...cost_models.quantities.stages import chunks_per_stage, is_folded
from ...cost_models.schedules import simulator
from ...cost_models.schedules.critical_path import Path
from ...cost_models.specs.cluster import Bridge
from ...cost_models.step import stragglers
from ..request.resolve import Resolved
from .columns import PipelineColumns, columns_of
from .islands import IslandPart, bridge_between
from .nodes import SearchNode, pipeline_orders
from .relaxation import Relaxation

LISTED, PROVEN, OFFERED, SETTLED = range(4)  # stages of an open pipeline


@dataclass(eq=False)
class _Class:
    """Layouts that agree in schedule, stages, chunks and micro-batches."""

    resolved: Resolved
    parts: tuple[IslandPart, ...]
    layouts: list[Layout]
    paths: list[Path] = field(default_factory=list)  # known of the schedule

    @cached_property
    def columns(self) -> PipelineColumns:
        """Made when the first of the class is the most promising of all."""
        return columns_of(self.parts, self.layouts, self._bridge)

    def _bridge(self, first: int, second: int) -> Bridge:
        return bridge_between(self.resolved.cluster, self.parts[first], self.parts[second])

    def relaxation(self, order: Sequence[IslandPart]) -> Relaxation:
        first = self.layouts[0]
        per_stage = first.num_gpus // first.pp
        number = {part.number: place for place, part in enumerate(self.parts)}
        on = [number[part.number] for part in order for _ in range(part.num_gpus // per_stage)]
        m = self.resolved.workload.global_batch // (first.dp * first.micro_batch)
        name = SCHEDULES[first.schedule]
        return Relaxation(
            columns=self.columns, schedule=simulator.make(name, first.pp, m, chunks_per_stage(first)), on=np.array(on),
            memory_bytes=np.array([self.parts[place].alone.budget_bytes for place in on]),
            num_folded=first.pp - (name == "zb-v") if is_folded(first) else 0,
            growth=1.0 + stragglers.straggler_share_of(self.resolved.stack, first.num_gpus), paths=self.paths,
        )  # fmt: skip


@dataclass(eq=False)
class OpenOrder:
    """The layouts of a class in one order of the islands."""

    of: _Class
    order: tuple[IslandPart, ...]
    bounds: Array  # [layout] seconds of a step that no partition beats
    stage: Ints  # [layout]

    def __post_init__(self) -> None:
        self._renew()

    def prove(self, row: int, worth_s: float) -> None:
        """Solve the program of a layout, and try its multipliers on all whose bounds are below `worth_s`."""
        proof = self._relaxation.prove(row, worth_s)
        rows = np.flatnonzero((self.bounds < worth_s) | (np.arange(len(self.bounds)) == row))
        self.bounds[rows] = np.maximum(self.bounds[rows], self._relaxation.bounds(proof, rows))
        self.stage[row] = PROVEN
        self._renew()

    def settle(self, row: int, stage: int, bound_s: float) -> None:
        self.bounds[row], self.stage[row] = max(self.bounds[row], bound_s), stage
        self._renew()

    @cached_property
    def _relaxation(self) -> Relaxation:
        return self.of.relaxation(self.order)

    def _renew(self) -> None:
        """The least bound of the layouts before each stage."""
        self.least = [float(self.bounds[self.stage < stage].min(initial=np.inf)) for stage in range(SETTLED + 1)]

    def first(self, before: int) -> int:
        """The layout with the least bound of those before a stage."""
        return int(np.argmin(np.where(self.stage < before, self.bounds, np.inf)))


class Frontier:
    """All open pipelines over one set of islands."""

    def __init__(self, resolved: Resolved, nodes: Sequence[SearchNode]) -> None:
        classes: dict[tuple[int, ...], list[SearchNode]] = {}
        for node in nodes:
            x = node.layout
            classes.setdefault((x.schedule, x.pp, x.vpp, x.dp * x.micro_batch), []).append(node)
        self.orders: list[OpenOrder] = []
        for members in classes.values():
            like = _Class(resolved, members[0].parts, [node.layout for node in members])
            listed = np.array([node.bound_s for node in members])
            self.orders += [OpenOrder(like, order, listed.copy(), np.zeros(len(members), dtype=np.int64))
                            for order in pipeline_orders(like.parts)]  # fmt: skip

    def least(self, before: int) -> tuple[float, OpenOrder | None]:
        """The least bound of all pipelines before a stage, and where it is."""
        best = min(self.orders, key=lambda order: order.least[before], default=None)
        return (np.inf, None) if best is None else (best.least[before], best)

    @property
    def bound_s(self) -> float:
        """Seconds of a step that no pipeline of the set beats, open or settled."""
        return min((float(order.bounds.min()) for order in self.orders), default=np.inf)
