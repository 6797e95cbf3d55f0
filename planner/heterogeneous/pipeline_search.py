"""The search of pipelines over islands: which are priced, and the proof that no other is worth it.

Pipelines stay open (`frontier.py`) until the least bound of all is as near the best step as CLOSE: the pipeline with
the least bound gets its continuous program, then its integer program. Both are first solved for the floor of many
layouts, which may settle all of them.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

from ...cost_models.layouts import Layout
from ...cost_models.quantities.stages import Partition
from ..document.partitions import custom_partition
from ..evaluation.staged_layout import even_partition
from ..request.resolve import Resolved
from ..search.top_k import FAMILY
from ..stages.problem import PartitionProblem
from ..stages.solve import improved, solve
from .choices import Choices, IslandChoice
from .frontier import OFFERED, PROVEN, SETTLED, Frontier, OpenOrder
from .islands import IslandPart
from .nodes import pipeline_orders
from .pipeline import CrossIslandPipeline
from .stages import by_speed, joint_problem, problems_alone

# All budgets are counts, so that equal requests give equal plans.
CLOSE = 0.04  # relative: the gap at which pipelines are no longer compared
PROGRAMS = 6000  # continuous programs of all sets together
SOLVED = 48  # pipelines of all sets together that get an integer program, or a price where stages are even
FIRST = 4  # pipelines of each set that are priced with a partition by speed in the warm start
OTHERS = 8  # pipelines of other families than those priced, after them
ALIKE = 16  # layouts that are tried with the stages of the best pipeline
ROUNDS = 1  # integer programs per pipeline, or floor of some
GOOD_ENOUGH = 2e-3  # gap at which a pipeline is settled
_Order = tuple[Layout, tuple[int, ...]]  # a layout, and the numbers of the islands in the order of its pipeline


@dataclass
class PipelineSearch:
    """One search."""

    resolved: Resolved  # the whole request
    choices: Choices  # of all manners
    cut: Callable[[], bool]  # whether the time is up
    left_s: Callable[[], float]  # seconds until the time limit
    notes: list[str] = field(default_factory=list)  # what went wrong in the solvers
    _bases: dict[_Order, tuple[CrossIslandPipeline, PartitionProblem]] = field(default_factory=dict)  # with even stages
    _alone: dict[_Order, tuple[CrossIslandPipeline, dict[int, PartitionProblem]]] = field(default_factory=dict)
    _programs: int = 0  # continuous programs so far

    @property
    def worth_s(self) -> float:
        """A pipeline whose bound is not below this is no longer compared."""
        return self.choices.best_s * (1 - CLOSE)

    @property
    def _splits(self) -> bool:
        """Whether the target can be told about stages."""
        return self.resolved.target.stages != "even"

    def start(self, frontiers: Sequence[Frontier]) -> None:
        """Price the most promising pipelines of each set, and improve the best of them."""
        for frontier in frontiers:
            self._price_first(frontier, FIRST)
            self._price_others(frontier)
        self.improve(frontiers, self.choices.best_s)

    def improve(self, frontiers: Sequence[Frontier], beat_s: float) -> None:
        """Move single layers of the pipelines that will be listed, try the best of them in every order of its islands
        and its stages on the most promising layouts like it, and find its best partition. beat_s: only faster ones of
        these partitions are priced."""
        if not self._splits:
            return
        for choice in self._across()[: self.resolved.request.top]:
            self._improve_partition(choice.parts, choice.staged.layout, choice.staged.partition)
        for best in self._across()[:1]:
            for order in pipeline_orders(best.parts):
                self._improve_partition(order, best.staged.layout, None)
        for best in self._across()[:1]:
            for layout in self._alike(frontiers, best):
                if not self.cut():
                    self._offer(self._base(best.parts, layout)[0], best.staged.partition)
        for best in self._across()[:1]:
            if not self.cut():
                base, problem = self._base(best.parts, best.staged.layout)
                self._split(base, problem, math.inf, beat_s, best.staged.partition)

    @staticmethod
    def _alike(frontiers: Sequence[Frontier], best: IslandChoice) -> list[Layout]:
        """Layouts with the same schedule and stages in the same order of islands, least bound first."""
        def stages(layout: Layout) -> tuple[int, ...]:
            return layout.schedule, layout.pp, layout.vpp

        where = [order for frontier in frontiers for order in frontier.orders
                 if (order.order, stages(order.of.layouts[0])) == (best.parts, stages(best.staged.layout))]  # fmt: skip
        rows = [(bound_s, str(layout), layout) for order in where
                for bound_s, layout in zip(order.bounds.tolist(), order.of.layouts, strict=True)]  # fmt: skip
        return [layout for bound_s, _, layout in sorted(rows, key=lambda row: row[:2])[:ALIKE]
                if bound_s < best.staged.step_s]  # fmt: skip

    def _across(self) -> list[IslandChoice]:
        return [choice for choice in self.choices.ranked if choice.manner == "across"]

    def _improve_partition(self, order: Sequence[IslandPart], layout: Layout, partition: Partition | None) -> None:
        """Price a partition after moves of single layers. None: layers by speed."""
        if self.cut():
            return
        base, problem = self._base(order, layout)
        start = partition or by_speed(problem)
        if start is not None:
            self._offer(base, improved(problem, start))

    def _next(self, frontier: Frontier, before: int, worth_s: float, enough_s: float = math.inf) -> OpenOrder | None:
        """The pipeline with the least bound among those before a stage, once it has its program. None if
        no bound is below `worth_s` and `enough_s`, or if the budget of programs is spent."""
        while True:
            least_s, where = frontier.least(before)
            if where is None or least_s >= worth_s or least_s > enough_s or self.cut():
                return None
            row = where.first(before)
            if where.stage[row] >= PROVEN:
                return where
            if self._programs == PROGRAMS:
                return None
            self._programs += 1
            others_s = min(enough_s, frontier.least_elsewhere(before, where))
            if where.has_floor:
                where.prove(row, worth_s, others_s)
            else:
                where.prove_floor(worth_s, others_s)

    def _price_first(self, frontier: Frontier, number: int) -> None:
        """Price the first pipelines of a set that fit, with layers by speed."""
        for _ in range(4 * number):
            where = self._next(frontier, OFFERED, self.choices.best_s)
            if where is None or not number:
                return
            number -= math.isfinite(self._price_row(where, where.first(OFFERED)))

    def _price_row(self, where: OpenOrder, row: int) -> float:
        """Seconds of a step with layers by speed, infinite if it does not fit. Even stages are settled by that: they
        keep their bound, as other shard groups may be faster, unless the largest of them does not fit."""
        base, problem = self._base(where.order, where.of.layouts[row])
        even = self.resolved.target.stages == "even"
        partition = even_partition(base.resolved, base.layout) if even else by_speed(problem)
        step_s = self._offer(base, partition) if partition is not None else math.inf
        where.settle(row, SETTLED if even else OFFERED, step_s if even and math.isinf(step_s) else 0.0)
        return step_s

    def settle(self, frontiers: Sequence[Frontier]) -> None:
        """Prove of the pipeline with the least bound that it is not worth it, by its continuous program, then by its
        integer program; until none is."""
        for _ in range(SOLVED):
            where = self._least_proven(frontiers)
            if where is None:
                return
            if not self._splits:
                self._price_row(where, where.first(SETTLED))
            elif not self._settle_group(where):
                row = where.first(SETTLED)
                base, problem = self._base(where.order, where.of.layouts[row])
                incumbent, beat_s = by_speed(problem), self.choices.best_s
                where.settle(row, SETTLED, self._split(base, problem, self.worth_s, beat_s, incumbent))

    def _least_proven(self, frontiers: Sequence[Frontier]) -> OpenOrder | None:
        """The pipeline with the least bound of all that are not settled, once it has its program. None if
        no bound is below `_worth_s`, or if the budget of programs is spent."""
        while not self.cut():
            least = sorted((frontier.least(SETTLED)[0], i) for i, frontier in enumerate(frontiers))
            if not least or least[0][0] >= self.worth_s:
                return None
            where = self._next(frontiers[least[0][1]], SETTLED, self.worth_s, *(bound_s for bound_s, _ in least[1:2]))
            if where is not None or self._programs == PROGRAMS:
                return where
        return None

    def _settle_group(self, where: OpenOrder) -> bool:
        """Whether an integer program settles all open pipelines of an order at once: that of their floor."""
        rows = where.open_rows(self.worth_s)
        if not 1 < len(rows) <= where.group:
            return False
        where.group = len(rows) // 2  # it is tried again once so few are left
        floor = solve(where.floor_problem(rows), lambda partition: math.inf, rounds=ROUNDS, worth_s=self.worth_s,
                      beat_s=0.0, left_s=self.left_s)  # fmt: skip
        where.raise_bounds(rows, floor.bound_s)
        return floor.bound_s >= self.worth_s

    def _price_others(self, frontier: Frontier) -> None:
        """Price the pipelines with the least bounds of families that have none yet: people choose among them."""
        numbers = tuple(sorted(part.number for part in frontier.orders[0].order)) if frontier.orders else ()
        known = {family[2:] for family in self.choices.best if family[:2] == ("across", numbers)}
        ranked = sorted(
            ((float(bound_s), str(where.of.layouts[row]), where, row) for where in frontier.orders
             for row, bound_s in enumerate(where.bounds.tolist()) if where.has_floor and where.stage[row] < OFFERED),
            key=lambda found: found[:2],
        )  # fmt: skip
        for bound_s, _, where, row in ranked:
            family = tuple(getattr(where.of.layouts[row], name) for name in FAMILY)
            if family in known or self.cut():
                continue
            self._price_row(where, row)
            known.add(family)
            if len(known) >= OTHERS or bound_s > 2 * self.choices.best_s:
                return

    def _base(self, order: Sequence[IslandPart], layout: Layout) -> tuple[CrossIslandPipeline, PartitionProblem]:
        """The layout in one order of the islands, with even stages, and its partition problem. Tables and problems of
        single islands are the same for all orders."""
        key, in_number_order = _order(layout, order), sorted(order, key=lambda part: part.number)
        if key not in self._bases:
            first_key = _order(layout, in_number_order)
            if first_key not in self._alone:
                first = CrossIslandPipeline.over(self.resolved, in_number_order, layout)
                self._alone[first_key] = first, problems_alone(first)
            first, alone = self._alone[first_key]
            base = first if list(order) == in_number_order else first.reordered(order)
            self._bases[key] = base, joint_problem(base, alone)
        return self._bases[key]

    def _offer(self, base: CrossIslandPipeline, partition: Partition) -> float:
        """Seconds of a step, infinite if it does not fit."""
        pipeline = base.split(custom_partition(base.layout, partition) or even_partition(base.resolved, base.layout))
        if not pipeline.fits:
            return math.inf
        self.choices.record(IslandChoice("across", base.parts, pipeline))
        return pipeline.step_s

    def _split(
        self, base: CrossIslandPipeline, problem: PartitionProblem, worth_s: float, beat_s: float,
        incumbent: Partition | None,
    ) -> float:  # fmt: skip
        """Find the best partition of a layout in one order of the islands; a bound of all partitions."""
        solved = solve(
            problem, lambda partition: self._offer(base, partition), incumbent=incumbent, rounds=ROUNDS,
            good_enough=GOOD_ENOUGH, worth_s=worth_s, beat_s=beat_s, left_s=self.left_s,
        )  # fmt: skip
        if solved.note and solved.note not in self.notes:
            self.notes.append(solved.note)
        return solved.bound_s


def _order(layout: Layout, parts: Sequence[IslandPart]) -> _Order:
    return layout, tuple(part.number for part in parts)
