"""Plans for clusters of several islands: every manner of using the islands, priced island by island.

For every set of islands, one of them alone included:
  across    one pipeline over all of the set, whole stages on each, islands in every order; layers by integer program
  replicas  whole replicas on each, micro-batches shared so that all end together (several islands)
  together  pp = 1, or even stages, on one island alone: `exhaustive.Search`
An island in no set is left unused. `bounds.py` bounds every layout of a manner from below, whatever the partition, the
order and the shares. The nodes with the least bounds are priced, least first, until no bound beats the best or the
budget (a count) is spent. The bounds of the rest bound the plan from below: the gap of the certificate.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

from ...cost_models.layouts import Layout
from ...cost_models.quantities.stages import Partition, devices_of
from ..document.partitions import custom_partition
from ..evaluation.staged import Staged, even_partition
from ..request.resolve import Resolved
from ..search.run import search_of
from ..search.top_k import FAMILY
from ..space.tree import Count
from ..stages.problem import GAP, PartitionProblem
from ..stages.solve import solve
from .islands import IslandPart
from .nodes import NodeLister, SearchNode, island_sets, pipeline_orders, raise_if_interrupted
from .pipeline import CrossIslandPipeline
from .replicas import Replicas, best_shares, equal_shares
from .stages import by_speed, joint_problem, problems_alone

# All budgets are counts, so that equal requests give equal plans.
PRICED = 32  # pipelines of each set of several islands that are priced, with a partition by speed
PRICED_ALONE = 8  # the same on one island
PRICED_REPLICAS = 12  # replicas of each set, with their best shares
PER_FAMILY = 3  # pipelines of one family that fit, at most
_UNFIT = 0.3  # share of the budget that a pipeline costs that does not fit
SOLVED = 5  # integer programs, for the best pipelines of all sets together
NEAR = 0.1  # relative: a pipeline gets one if it is as near to the fastest as this
CHUNKS = 192  # nodes of the proof get continuous programs until they have so many chunks together
ROUNDS = 2  # integer programs per pipeline
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
    _bounds: dict[_Order, float] = field(default_factory=dict)  # seconds of a step that no partition beats

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
        lister = NodeLister(self.resolved, self._cut)
        try:
            sets = list(island_sets(self.resolved, self.parts))
            for parts in sets:
                if len(parts) == 1:
                    self._together(parts[0])
            for parts in sets:
                lister.add(parts, self.best_s * (1 - GAP))
            by_bound = lister.by_bound
            self._price(lister.by_family + by_bound)
            self._solve()
            self._prove(by_bound)
            self.lower_bound_s = min(self.lower_bound_s, lister.lower_bound_s)
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

    def _price(self, nodes: list[SearchNode]) -> None:
        """Price nodes in this order, few of a family: pipelines with layers by speed, replicas with their shares."""
        fitting: dict[tuple[Any, ...], int] = {}
        budgets: dict[tuple[str, tuple[IslandPart, ...]], float] = {}
        for node in nodes:
            family = (node.manner, node.parts, *(getattr(node.layout, name) for name in FAMILY))
            spent = budgets.setdefault((node.manner, node.parts), _budget(node)) <= 0
            if fitting.get(family, 0) >= PER_FAMILY or spent or node.bound_s >= self.best_s:
                continue
            if self._cut():
                return
            fits = self._price_replicas(node) if node.manner == "replicas" else self._price_pipeline(node)
            budgets[node.manner, node.parts] -= 1 if fits else _UNFIT
            fitting[family] = fitting.get(family, 0) + fits

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

    def _price_pipeline(self, node: SearchNode) -> bool:
        """Whether it fits, in any order of the islands."""
        best_s = math.inf
        for order in pipeline_orders(node.parts):
            base, problem = self._base(order, node.layout)
            even = self.resolved.target.stages == "even"
            partition = even_partition(base.resolved, node.layout) if even else by_speed(problem)
            if partition is not None:
                best_s = min(best_s, self._offer(base, partition))
        return math.isfinite(best_s)

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

    def _solve(self) -> None:
        """Integer programs for the best pipelines."""
        if self.resolved.target.stages == "even":
            return
        pipelines = [choice.staged for choice in self.ranked if isinstance(choice.staged, CrossIslandPipeline)]
        for pipeline in pipelines[:SOLVED]:
            if self._cut() or pipeline.step_s > self.best_s * (1 + NEAR):
                return
            self._split(*self._base(pipeline.parts, pipeline.layout), pipeline.partition, ROUNDS)

    def _split(
        self, base: CrossIslandPipeline, problem: PartitionProblem, incumbent: Partition | None, rounds: int
    ) -> float:
        """Find the best partition of a layout in one order of the islands; a bound of all partitions."""
        solved = solve(
            problem, lambda partition: self._offer(base, partition),
            incumbent=incumbent, rounds=rounds, good_enough=GOOD_ENOUGH, worth_s=self.best_s * (1 - GAP),
            left_s=self.left_s,
        )  # fmt: skip
        if solved.note and solved.note not in self.notes:
            self.notes.append(solved.note)
        self._bounds[_order(base.layout, base.parts)] = solved.bound_s
        return solved.bound_s

    def _prove(self, nodes: list[SearchNode]) -> None:
        """`lower_bound_s`, over all nodes. The first few pipelines get continuous programs; the rest have the bounds
        that listed them."""
        chunks = 0
        for node in nodes:
            if node.bound_s >= self.best_s * (1 - GAP):
                break
            bound_s, orders = node.bound_s, pipeline_orders(node.parts)
            in_budget = chunks < CHUNKS and self.resolved.target.stages != "even"
            if node.manner == "across" and in_budget and not self._cut():
                chunks += len(orders) * len(devices_of(node.layout))
                bound_s = max(bound_s, min(self._bound_of(*self._base(order, node.layout)) for order in orders))
            self.lower_bound_s = min(self.lower_bound_s, bound_s)

    def _bound_of(self, base: CrossIslandPipeline, problem: PartitionProblem) -> float:
        key = _order(base.layout, base.parts)
        return self._bounds[key] if key in self._bounds else self._split(base, problem, None, 0)


def _budget(node: SearchNode) -> float:
    if node.manner == "replicas":
        return PRICED_REPLICAS
    return PRICED if len(node.parts) > 1 else PRICED_ALONE


def _order(layout: Layout, parts: Sequence[IslandPart]) -> _Order:
    return layout, tuple(part.number for part in parts)
