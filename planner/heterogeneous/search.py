"""Plans for clusters of several islands: every manner of using the islands, priced island by island.

For every set of islands, one of them alone included:
  across    one pipeline over all of the set, whole stages on each, islands in every order; layers by integer program
  replicas  whole replicas on each, micro-batches shared so that all end together (several islands)
  together  pp = 1, or even stages, on one island alone: `exhaustive.Search`
An island in no set is left unused. `nodes.py` lists the layouts of a manner that may be fastest, by bounds that hold
for every partition, order and share. Pipelines stay open (`frontier.py`) until the least bound of all is as near the
best step as CLOSE: the pipeline with the least bound gets its continuous program, then its integer program. Where a
budget (a count) ends that, the least open bound bounds the plan from below: the gap of the certificate.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

from ...cost_models.layouts import Layout
from ...cost_models.quantities.stages import Partition
from ..document.partitions import custom_partition
from ..evaluation.staged import Staged, even_partition
from ..request.resolve import Resolved
from ..search.run import search_of
from ..search.top_k import FAMILY
from ..space.tree import Count
from ..stages.problem import GAP, PartitionProblem
from ..stages.solve import solve
from .frontier import OFFERED, PROVEN, SETTLED, Frontier, OpenOrder
from .islands import IslandPart
from .nodes import NodeLister, SearchNode, island_sets, raise_if_interrupted
from .pipeline import CrossIslandPipeline
from .replicas import Replicas, best_shares, equal_shares
from .stages import by_speed, joint_problem, problems_alone

# All budgets are counts, so that equal requests give equal plans.
CLOSE = 0.04  # relative: the gap at which pipelines are no longer compared
PROGRAMS = 6000  # continuous programs of all sets together
SOLVED = 16  # integer programs, or pipelines priced where stages are even, of all sets together
FIRST = 4  # pipelines of each set that are priced with a partition by speed, before any integer program
OTHERS = 8  # pipelines of other families than those priced, after them
PRICED_REPLICAS = 12  # replicas of each set, with their best shares
ROUNDS = 1  # integer programs per pipeline
GOOD_ENOUGH = 2e-3  # gap at which a pipeline is settled
_Order = tuple[Layout, tuple[int, ...]]  # a layout, and the numbers of the islands in the order of its pipeline


@dataclass(frozen=True)
class IslandChoice:
    """A priced manner of using some islands."""

    manner: str  # `across`, `replicas` or `together`
    parts: tuple[IslandPart, ...]  # in the order of the pipeline
    staged: Staged

    @property
    def family(self) -> tuple[Any, ...]:
        numbers = tuple(sorted(part.number for part in self.parts))
        return (self.manner, numbers, *(getattr(self.staged.layout, name) for name in FAMILY))


@dataclass
class HeterogeneousSearch:
    """One search."""

    resolved: Resolved  # the whole request
    parts: tuple[IslandPart, ...]  # the islands that can be used
    left_s: Callable[[], float]  # seconds until the time limit
    report: Callable[[Count, float], None]  # progress
    runnable_only: bool = True  # replicas must run equally many micro-batches, as all targets need
    choices: dict[tuple[Any, ...], IslandChoice] = field(default_factory=dict)  # the best of each family
    count: Count = field(default_factory=Count)  # what became of all layouts
    lower_bound_s: float = math.inf  # seconds of a step that no layout left out beats
    priced: int = 0  # choices, all partitions counted
    notes: list[str] = field(default_factory=list)  # what went wrong in the solvers
    stopped: str | None = None  # why it ended early
    cut_short: tuple[str, ...] = ()  # causes that cut a comparison after the search, as in the plan
    _bases: dict[_Order, tuple[CrossIslandPipeline, PartitionProblem]] = field(default_factory=dict)  # with even stages
    _alone: dict[_Order, tuple[CrossIslandPipeline, dict[int, PartitionProblem]]] = field(default_factory=dict)
    _programs: int = 0  # continuous programs so far

    @property
    def ranked(self) -> list[IslandChoice]:
        """Fastest first."""
        def rank(choice: IslandChoice) -> tuple[float, str]:
            return float(f"{choice.staged.step_s:.9g}"), choice.staged.id

        return sorted(self.choices.values(), key=rank)

    @property
    def best_s(self) -> float:
        return min((choice.staged.step_s for choice in self.choices.values()), default=math.inf)

    def run(self) -> HeterogeneousSearch:
        """Ctrl-C and the time limit keep the choices so far."""
        lister = NodeLister(self.resolved, self._cut, self.runnable_only)
        try:
            sets = list(island_sets(self.resolved, self.parts))
            for parts in sets:
                if len(parts) == 1:
                    self._together(parts[0])
            for parts in sets:
                lister.add(parts, self.best_s * (1 - GAP))
            replicas = self._price_all_replicas(lister.of_replicas)
            frontiers = [Frontier(self.resolved, nodes) for nodes in lister.of_pipelines]
            for frontier in frontiers:
                self._price_first(frontier, FIRST)
            self._settle(frontiers)
            for frontier in frontiers:
                self._price_others(frontier)
            open_s = [frontier.bound_s for frontier in frontiers]
            self.lower_bound_s = min(self.lower_bound_s, lister.lower_bound_s, replicas, *open_s)
        except KeyboardInterrupt:
            if not self.choices:
                raise
            self.stopped, self.lower_bound_s = "interrupted", 0.0
        self.count.add(lister.count)
        self.lower_bound_s = min(self.lower_bound_s, self.best_s)
        return self

    def _cut(self) -> bool:
        if self.stopped is None and self.left_s() <= 0:
            self.stopped = "time limit"
        return self.stopped is not None

    def _together(self, part: IslandPart) -> None:
        """The best even layouts on one island."""
        search = search_of(part.alone, part.alone.space, top=self.resolved.request.top, family=FAMILY,
                           should_stop=self._cut, progress=self.report)  # fmt: skip
        outcome = search.run()
        self.count.add(outcome.count)
        for _, _, layout in outcome.top.rows:
            self._record(IslandChoice("together", (part,), Staged.of(part.alone, layout, simulate=True)))
        raise_if_interrupted(outcome)

    def _record(self, choice: IslandChoice) -> None:
        """Count a choice, and remember it if it is the best of its family."""
        self.priced += 1
        known = self.choices.get(choice.family)
        if known is None or choice.staged.step_s < known.staged.step_s:
            self.choices[choice.family] = choice

    def _price_all_replicas(self, nodes: list[SearchNode]) -> float:
        """Price the replicas with the least bounds of every set; the least bound of those that are not priced."""
        least_s, priced = math.inf, dict.fromkeys([node.parts for node in nodes], 0)
        for node in nodes:
            if priced[node.parts] == PRICED_REPLICAS or node.bound_s >= self.best_s or self._cut():
                least_s = min(least_s, node.bound_s)
                continue
            self._price_replicas(node)
            priced[node.parts] += 1
            # Without even shares, only some shares are compared.
            least_s = least_s if self.runnable_only else min(least_s, node.bound_s)
        return least_s

    def _price_replicas(self, node: SearchNode) -> bool:
        """Whether they fit. The layout of the node is of the islands' greatest common divisor of GPUs (bounds.py)."""
        unit, total = node.layout.num_gpus, sum(part.num_gpus for part in node.parts)
        dp = node.layout.dp * total // unit
        layout = replace(node.layout, dp=dp, shard=node.layout.shard if node.layout.zero else dp)
        price = equal_shares if self.runnable_only else best_shares
        replicas: Replicas | None = price(self.resolved, node.parts, layout)
        if replicas is None or not replicas.fits:
            return False
        self._record(IslandChoice("replicas", node.parts, replicas))
        return True

    def _next(self, frontier: Frontier, before: int, worth_s: float) -> OpenOrder | None:
        """Where the pipeline of those before a stage is that has the least bound, once it has its program. None if no
        bound is below `worth_s`, or if the budget of programs is spent."""
        while True:
            least_s, where = frontier.least(before)
            if where is None or least_s >= worth_s or self._cut():
                return None
            row = where.first(before)
            if where.stage[row] >= PROVEN:
                return where
            if self._programs == PROGRAMS:
                return None
            where.prove(row, worth_s)
            self._programs += 1

    def _price_first(self, frontier: Frontier, number: int) -> None:
        """Price the first pipelines of a set that fit, with layers by speed."""
        for _ in range(4 * number):
            where = self._next(frontier, OFFERED, self.best_s)
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

    def _settle(self, frontiers: Sequence[Frontier]) -> None:
        """Settle the pipeline with the least bound, until that is near the best step."""
        for _ in range(SOLVED):
            worth_s = self.best_s * (1 - CLOSE)
            at = [(frontier.least(SETTLED)[0], i) for i, frontier in enumerate(frontiers)]
            found = [self._next(frontiers[i], SETTLED, worth_s) for least_s, i in sorted(at) if least_s < worth_s]
            open_orders = [where for where in found if where is not None]
            if not open_orders:
                return
            where = min(open_orders, key=lambda where: where.least[SETTLED])
            row = where.first(SETTLED)
            if self.resolved.target.stages == "even":
                self._price_row(where, row)
            else:
                base, problem = self._base(where.order, where.of.layouts[row])
                where.settle(row, SETTLED, self._split(base, problem, worth_s))

    def _price_others(self, frontier: Frontier) -> None:
        """Price the pipelines with the least bounds of families that have none yet: people choose among them."""
        known = {choice.family[2:] for choice in self.choices.values()}
        ranked = sorted(
            ((float(bound_s), str(where.of.layouts[row]), where, row) for where in frontier.orders
             for row, bound_s in enumerate(where.bounds.tolist()) if where.stage[row] == PROVEN),
            key=lambda found: found[:2],
        )  # fmt: skip
        for bound_s, _, where, row in ranked:
            family = tuple(getattr(where.of.layouts[row], name) for name in FAMILY)
            if family in known or self._cut():
                continue
            self._price_row(where, row)
            known.add(family)
            if len(known) >= OTHERS or bound_s > 2 * self.best_s:
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
        self._record(IslandChoice("across", base.parts, pipeline))
        return pipeline.step_s

    def _split(self, base: CrossIslandPipeline, problem: PartitionProblem, worth_s: float) -> float:
        """Find the best partition of a layout in one order of the islands; a bound of all partitions."""
        solved = solve(
            problem, lambda partition: self._offer(base, partition), incumbent=by_speed(problem), rounds=ROUNDS,
            good_enough=GOOD_ENOUGH, worth_s=worth_s, left_s=self.left_s,
        )  # fmt: skip
        if solved.note and solved.note not in self.notes:
            self.notes.append(solved.note)
        return solved.bound_s


def _order(layout: Layout, parts: Sequence[IslandPart]) -> _Order:
    return layout, tuple(part.number for part in parts)
