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
from ..stages.problem import PartitionProblem
from .columns import PipelineColumns, columns_of
from .islands import IslandPart, bridge_between
from .nodes import SearchNode, pipeline_orders
from .relaxation import Relaxation
from .stages import floor_problem

LISTED, PROVEN, OFFERED, SETTLED = range(4)  # stages of an open pipeline
_STEP = 0.02  # relative: a program that ends early has raised its bound by as much, or others are tried too often


@dataclass(eq=False)
class _Class:
    """Layouts that agree in schedule, stages, chunks and micro-batches."""

    resolved: Resolved
    parts: tuple[IslandPart, ...]
    layouts: list[Layout]
    paths: list[Path] = field(default_factory=list)  # known of the schedule

    @cached_property
    def columns(self) -> PipelineColumns:
        """The columns with their floor. They are made when the first of the class is the most promising of all."""
        return columns_of(self.parts, self.layouts, self._bridge).with_floor

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
    least: Array  # [stage] the least bound of the layouts before each; written to
    has_floor: bool = False  # whether the program of their floor was solved
    group: int = 1 << 30  # open layouts at most for which one integer program is worth a try

    def __post_init__(self) -> None:
        self._renew()

    def prove_floor(self, worth_s: float, enough_s: float = np.inf) -> None:
        """Solve the program of the floor of all layouts, whose bound is that of all, and try its multipliers on
        them. enough_s: as in `prove`."""
        floor, self.has_floor = len(self.bounds), True
        proof, _ = self._relaxation.prove(floor, self._enough_s(float(self.bounds.min()), worth_s, enough_s))
        bounds = self._relaxation.bounds(proof, np.arange(floor + 1))
        self.raise_bounds(np.arange(floor), np.maximum(bounds[:floor], bounds[floor]))

    def prove(self, row: int, worth_s: float, enough_s: float = np.inf) -> None:
        """Solve the program of a layout, and try its multipliers on all whose bounds are below `worth_s`. enough_s: a
        bound at which others are more promising; the program may then end early, and this layout remains listed."""
        enough_s = self._enough_s(float(self.bounds[row]), worth_s, enough_s)
        proof, is_last = self._relaxation.prove(row, enough_s)
        rows = np.flatnonzero((self.bounds < worth_s) | (np.arange(len(self.bounds)) == row))
        self.raise_bounds(rows, self._relaxation.bounds(proof, rows))
        if is_last or not enough_s <= self.bounds[row] < worth_s:
            self.settle(row, PROVEN, 0.0)

    @staticmethod
    def _enough_s(bound_s: float, worth_s: float, enough_s: float) -> float:
        return min(worth_s, max(enough_s, bound_s * (1 + _STEP)))

    def floor_problem(self, rows: Ints) -> PartitionProblem:
        """The partition problem of a layout that is as good as any of these in everything."""
        return floor_problem(self._relaxation, self.of.resolved.problem.pattern, rows)

    def settle(self, row: int, stage: int, bound_s: float) -> None:
        self.bounds[row], self.stage[row] = max(self.bounds[row], bound_s), stage
        self._renew()

    def raise_bounds(self, rows: Ints, bound_s: Array | float) -> None:
        self.bounds[rows] = np.maximum(self.bounds[rows], bound_s)
        self._renew()

    def open_rows(self, worth_s: float) -> Ints:
        """The layouts that are not settled and whose bounds are below `worth_s`."""
        return np.flatnonzero((self.bounds < worth_s) & (self.stage < SETTLED))

    @cached_property
    def _relaxation(self) -> Relaxation:
        return self.of.relaxation(self.order)

    def _renew(self) -> None:
        for stage in range(SETTLED + 1):
            self.least[stage] = self.bounds[self.stage < stage].min(initial=np.inf)

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
        made = [_Class(resolved, members[0].parts, [node.layout for node in members]) for members in classes.values()]
        listed = [np.array([node.bound_s for node in members]) for members in classes.values()]
        rows = [(like, order, bounds) for like, bounds in zip(made, listed, strict=True)
                for order in pipeline_orders(like.parts)]  # fmt: skip
        self._least = np.empty((len(rows), SETTLED + 1))  # each order has its row, so the least is quickly found
        self.orders = [OpenOrder(like, order, bounds.copy(), np.zeros(len(bounds), dtype=np.int64), least)
                       for (like, order, bounds), least in zip(rows, self._least, strict=True)]  # fmt: skip

    def least(self, before: int) -> tuple[float, OpenOrder | None]:
        """The least bound of all pipelines before a stage, and where it is."""
        if not self.orders:
            return np.inf, None
        where = int(np.argmin(self._least[:, before]))
        return float(self._least[where, before]), self.orders[where]

    def least_elsewhere(self, before: int, where: OpenOrder) -> float:
        """The least bound of all pipelines before a stage but those of one order."""
        others = [order is not where for order in self.orders]
        return float(self._least[others, before].min(initial=np.inf))

    @property
    def bound_s(self) -> float:
        """Seconds of a step that no pipeline of the set beats, open or settled."""
        return min((float(order.bounds.min()) for order in self.orders), default=np.inf)
