"""Plans for clusters that are not alike: every way to use the islands, priced island by island.

For every set of islands, one of them alone included:
  across    one pipeline over all of the set, whole stages on each, islands in every order; layers by integer program
  replicas  whole replicas on each, micro-batches shared so that all end together (several islands)
  together  pp = 1, or even stages, on one island alone: `exhaustive.Search`
An island in no set is left unused. `shared` bounds every layout of a way from below, whatever the split, the order and
the shares; the nodes with the least bounds are priced, least first, until no bound beats the best or the budget (a
count) is spent. What is left over bounds the plan from below: the gap of the certificate.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from itertools import combinations, permutations
from typing import Any

from ...cost_models.layouts import Layout
from ...cost_models.quantities.element_bytes import activation_bytes
from ...cost_models.quantities.stages import Partition, chunks_per_stage, devices_of
from ..document.partitions import custom_partition
from ..evaluation.staged import Staged, even_partition
from ..request.resolve import Resolved
from ..search.exhaustive import SearchOutcome
from ..search.run import search_of
from ..search.top_k import FAMILY
from ..space.tree import Count
from ..stages.ilp import GAP
from ..stages.problem import PartitionProblem
from ..stages.relaxed_search import splittable
from ..stages.solve import solve
from .bounds import SharedPipelines, SharedReplicas, whole_stages
from .islands import IslandPart, bridge_between, crossing_s, joined
from .pipeline import CrossIslandPipeline
from .replicas import Replicas, best_shares, equal_shares
from .stages import by_speed, joint_problem, problems_alone

LISTED = 384  # nodes of each way and set
DIVERSE, APART = 128, (*FAMILY, "micro_batch", "recompute", "recompute_modules")  # and of pipelines the best of these
# Of these as many pipelines of a set of several islands, and of one, are priced with a split by speed; of one family at
# most as many that fit; and as many replicas with their best shares.
PRICED, PRICED_ALONE, PER_FAMILY, SHARED = 32, 8, 3, 12
SOLVED, NEAR = 5, 0.1  # of all sets together: integer programs for the best, as near to the fastest as this
CHUNKS = 192  # of the proof: programs of real numbers for nodes with as many chunks together
_UNFIT = 0.3  # of that budget, what a pipeline costs that does not fit
MOST_ISLANDS = 4
_Order = tuple[Layout, tuple[int, ...]]  # a layout, and the numbers of the islands in the order of its pipeline
ROUNDS, GOOD_ENOUGH = 2, 2e-3


@dataclass(frozen=True)
class IslandChoice:
    """A priced way to use some islands. way: `across`, `replicas` or `together`."""

    way: str
    parts: tuple[IslandPart, ...]
    one: Staged

    @property
    def family(self) -> tuple[Any, ...]:
        numbers = tuple(sorted(part.number for part in self.parts))
        return (self.way, numbers, *(getattr(self.one.layout, name) for name in FAMILY))


@dataclass(frozen=True)
class SearchNode:
    """What a bound lists: a layout of a way, on a set of islands."""

    bound_s: float
    way: str
    parts: tuple[IslandPart, ...]
    layout: Layout


@dataclass
class HeterogeneousSearch:
    """One search. runnable_only: replicas must run equally many micro-batches, as all targets need."""

    resolved: Resolved
    parts: tuple[IslandPart, ...]
    left_s: Callable[[], float]
    report: Callable[[Count, float], None]
    runnable_only: bool = True
    choices: dict[tuple[Any, ...], IslandChoice] = field(default_factory=dict)
    count: Count = field(default_factory=Count)
    lower_bound_s: float = math.inf
    priced: int = 0
    notes: list[str] = field(default_factory=list)
    stopped: str | None = None
    cut_short: tuple[str, ...] = ()  # causes that cut a comparison after the search, as in the plan
    _even: dict[_Order, tuple[CrossIslandPipeline, PartitionProblem]] = field(default_factory=dict)
    _alone: dict[_Order, tuple[CrossIslandPipeline, dict[int, PartitionProblem]]] = field(default_factory=dict)
    _bounds: dict[_Order, float] = field(default_factory=dict)

    @property
    def ranked(self) -> list[IslandChoice]:
        """Fastest first."""
        return sorted(self.choices.values(), key=lambda choice: (float(f"{choice.one.step_s:.9g}"), choice.one.id))

    @property
    def best_s(self) -> float:
        return min((choice.one.step_s for choice in self.choices.values()), default=math.inf)

    def run(self) -> HeterogeneousSearch:
        """Ctrl-C and the time limit keep what there is."""
        try:
            for (part,) in (some for some in self._sets() if len(some) == 1):
                self._together(part)
            nodes: list[SearchNode] = []
            diverse: list[SearchNode] = []
            for some in self._sets():
                of_bound, of_family = self._listed(some)
                nodes, diverse = nodes + of_bound, diverse + of_family
            diverse.sort(key=lambda node: (node.bound_s + self._filling_s(node), str(node.layout)))
            nodes.sort(key=lambda node: (node.bound_s, str(node.layout)))
            self._price(diverse + nodes)
            self._solve()
            self._prove(nodes)
        except KeyboardInterrupt:
            if not self.choices:
                raise
            self.stopped, self.lower_bound_s = "interrupted", 0.0
        self.lower_bound_s = min(self.lower_bound_s, self.best_s)
        return self

    def _sets(self) -> Iterator[tuple[IslandPart, ...]]:
        """Sets of islands, the largest first; vendors do not mix."""
        for size in range(len(self.parts), 0, -1):
            seen = set()
            for some in combinations(self.parts, size):
                like = tuple(part.likeness for part in some)
                twins = len(self.resolved.cluster.islands) <= 2 or size == 1  # then there is one bridge, or none
                if len({part.alone.cluster.gpu.vendor for part in some}) == 1 and not (twins and like in seen):
                    seen.add(like)
                    yield some

    def _orders(self, some: tuple[IslandPart, ...]) -> list[tuple[IslandPart, ...]]:
        """The orders of a set in a pipeline; of two islands that are alike one is enough."""
        if len(some) == 2 and some[0].likeness == some[1].likeness:
            return [some]
        return list(permutations(some))

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
            self._keep(IslandChoice("together", (part,), Staged.of(part.alone, layout, simulate=True)))
        _go_on(outcome)

    def _listed(self, some: tuple[IslandPart, ...]) -> tuple[list[SearchNode], list[SearchNode]]:
        """The nodes of a set that could beat the best so far: those with the least bounds, and the best of families of
        pipelines, as the former may all be near twins."""
        if self._cut():
            self.lower_bound_s = 0.0
            return [], []
        job, gpus = joined(self.resolved, some), [part.num_gpus for part in some]
        total = sum(gpus)
        mean = sum(part.alone.memory_bytes * part.num_gpus for part in some) / total
        bridges = [bridge_between(self.resolved.cluster, *pair) for pair in combinations(some, 2)]
        options: dict[str, Any] = {"incumbent": self.best_s * (1 - GAP), "should_stop": self._cut}
        pipelines = whole_stages(splittable(job.space), some), some, bridges
        found = SharedPipelines(*pipelines, memory_bytes=mean, top=LISTED, **options).run()
        self.count.add(found.count)
        _go_on(found)
        nodes, diverse = self._nodes("across", some, found), []
        if len(some) > 1 and len(nodes) == LISTED:
            other = SharedPipelines(*pipelines, memory_bytes=mean, top=DIVERSE, family=APART, **options).run()
            _go_on(other)
            diverse = [SearchNode(bound_s, "across", some, layout) for bound_s, _, layout in other.top.rows]
        if len(some) > 1:
            unit = math.gcd(*gpus)
            least = min(part.alone.memory_bytes for part in some)
            alike = replace(job, job_gpus=unit).space
            replicas = SharedReplicas(alike, some, bridges, memory_bytes=least, top=LISTED, **options).run()
            self.count.add(replicas.count)
            _go_on(replicas)
            nodes += self._nodes("replicas", some, replicas)
        return nodes, diverse

    def _filling_s(self, node: SearchNode) -> float:
        """What filling and draining a pipeline of several chunks per device adds on bridges, about: no bound has it."""
        layout, work = node.layout, self.resolved.workload
        width = self.resolved.model.hidden * activation_bytes(work) / (layout.tp if layout.sequence_parallel else 1)
        message = work.seq_len * layout.micro_batch / layout.cp * width
        ends = [(bridge_between(self.resolved.cluster, *pair), pair[0].rates) for pair in combinations(node.parts, 2)]
        senders, times = layout.num_gpus // layout.pp, 2 * (2 * chunks_per_stage(layout) - 1)
        return times * min(crossing_s(rates, bridge, senders, "p2p", message) for bridge, rates in ends)

    def _nodes(self, way: str, some: tuple[IslandPart, ...], outcome: SearchOutcome) -> list[SearchNode]:
        rows = outcome.top.rows
        if len(rows) == LISTED:
            self.lower_bound_s = min(self.lower_bound_s, rows[-1][0])
        if outcome.stopped:
            self.lower_bound_s = min(self.lower_bound_s, outcome.lower_bound)
        return [SearchNode(bound_s, way, some, layout) for bound_s, _, layout in rows]

    def _keep(self, choice: IslandChoice) -> None:
        self.priced += 1
        known = self.choices.get(choice.family)
        if known is None or choice.one.step_s < known.one.step_s:
            self.choices[choice.family] = choice

    def _price(self, nodes: list[SearchNode]) -> None:
        """Nodes in the order of their bounds, few of a family: pipelines with layers by speed, replicas with shares."""
        seen: dict[tuple[Any, ...], int] = {}
        left: dict[tuple[str, tuple[IslandPart, ...]], float] = {}
        for node in nodes:
            family = (node.way, node.parts, *(getattr(node.layout, name) for name in FAMILY))
            budget = SHARED if node.way == "replicas" else PRICED if len(node.parts) > 1 else PRICED_ALONE
            spent = left.setdefault((node.way, node.parts), budget) <= 0
            if seen.get(family, 0) >= PER_FAMILY or spent or node.bound_s >= self.best_s:
                continue
            if self._cut():
                return
            fits = self._share(node) if node.way == "replicas" else self._across(node)
            left[node.way, node.parts] -= 1 if fits else _UNFIT
            seen[family] = seen.get(family, 0) + fits

    def _share(self, node: SearchNode) -> bool:
        unit, total = node.layout.num_gpus, sum(part.num_gpus for part in node.parts)
        dp = node.layout.dp * total // unit
        layout = replace(node.layout, dp=dp, shard=node.layout.shard if node.layout.zero else dp)
        find = equal_shares if self.runnable_only else best_shares
        one: Replicas | None = find(self.resolved, node.parts, layout)
        if one is None or not one.fits:
            return False
        self._keep(IslandChoice("replicas", node.parts, one))
        return True

    def _across(self, node: SearchNode) -> bool:
        found = math.inf
        for order in self._orders(node.parts):
            base, stages = self._base(order, node.layout)
            even = self.resolved.target.stages == "even"
            partition = even_partition(base.resolved, node.layout) if even else by_speed(stages)
            if partition is not None:
                found = min(found, self._offer(base, partition))
        return math.isfinite(found)

    def _base(self, order: Sequence[IslandPart], layout: Layout) -> tuple[CrossIslandPipeline, PartitionProblem]:
        """The layout in one order of the islands, with even stages, and what their program needs to know."""
        key, listed = (layout, tuple(part.number for part in order)), sorted(order, key=lambda part: part.number)
        if key not in self._even:
            name = (layout, tuple(part.number for part in listed))
            if name not in self._alone:
                first = CrossIslandPipeline.over(self.resolved, listed, layout)
                self._alone[name] = first, problems_alone(first)
            first, alone = self._alone[name]
            base = first if list(order) == listed else first.reordered(order)
            self._even[key] = base, joint_problem(base, alone)
        return self._even[key]

    def _offer(self, base: CrossIslandPipeline, partition: Partition) -> float:
        """Seconds of a step, infinite if it does not fit."""
        one = base.split(custom_partition(base.layout, partition) or even_partition(base.resolved, base.layout))
        if not one.fits:
            return math.inf
        self._keep(IslandChoice("across", base.parts, one))
        return one.step_s

    def _solve(self) -> None:
        """Integer programs for the best pipelines."""
        if self.resolved.target.stages == "even":
            return
        for choice in [choice for choice in self.ranked if isinstance(choice.one, CrossIslandPipeline)][:SOLVED]:
            one = choice.one
            if self._cut() or one.step_s > self.best_s * (1 + NEAR):
                return
            if isinstance(one, CrossIslandPipeline):
                self._stages(*self._base(one.parts, one.layout), one.partition, ROUNDS)

    def _stages(
        self, base: CrossIslandPipeline, stages: PartitionProblem, incumbent: Partition | None, rounds: int
    ) -> float:
        """The best stages of a layout in one order of the islands; a bound of all stages."""
        solved = solve(
            stages, lambda partition: self._offer(base, partition),
            incumbent=incumbent, rounds=rounds, good_enough=GOOD_ENOUGH, worth_s=self.best_s * (1 - GAP),
            left_s=self.left_s,
        )  # fmt: skip
        if solved.note and solved.note not in self.notes:
            self.notes.append(solved.note)
        self._bounds[base.layout, tuple(part.number for part in base.parts)] = solved.bound_s
        return solved.bound_s

    def _prove(self, nodes: list[SearchNode]) -> None:
        """`lower_bound_s`, over all nodes: of the first few the programs of real numbers, else the bounds that listed
        them."""
        chunks = 0
        for node in nodes:
            if node.bound_s >= self.best_s * (1 - GAP):
                break
            bound_s, ways = node.bound_s, self._orders(node.parts)
            if node.way == "across" and chunks < CHUNKS and self.resolved.target.stages != "even" and not self._cut():
                chunks += len(ways) * len(devices_of(node.layout))
                bound_s = max(bound_s, min(self._bound_of(*self._base(order, node.layout)) for order in ways))
            self.lower_bound_s = min(self.lower_bound_s, bound_s)

    def _bound_of(self, base: CrossIslandPipeline, stages: PartitionProblem) -> float:
        key = (base.layout, tuple(part.number for part in base.parts))
        return self._bounds[key] if key in self._bounds else self._stages(base, stages, None, 0)


def _go_on(outcome: SearchOutcome) -> None:
    """A search keeps what it has at Ctrl-C: here that ends all of them."""
    if outcome.stopped == "interrupted":
        raise KeyboardInterrupt
