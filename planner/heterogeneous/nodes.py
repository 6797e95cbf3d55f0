"""The nodes of the search: layouts that could be fastest on islands, by lower bounds of their steps.

A node is a layout, a set of islands and a manner of using them. Its bound holds for every partition of the layers,
every order of the islands and every share of the micro-batches, so a node that is not faster than the best so far needs
no pricing.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from itertools import combinations, permutations
from typing import Any

from ...cost_models.layouts import Layout
from ...cost_models.specs.cluster import Bridge
from ..request.resolve import Resolved
from ..search.outcome import SearchOutcome
from ..search.warm_start import plain_part
from ..space.tree import Count, Space
from ..stages.relaxed_search import splittable
from .bounds import SharedPipelines, SharedReplicas, whole_stages
from .islands import IslandPart, bridge_between, joined

LISTED_PIPELINES = 1 << 15  # nodes of each set of islands
LISTED_REPLICAS = 384  # the same
PLAIN_PIPELINES = 512  # the same, of the warm start


@dataclass(frozen=True)
class SearchNode:
    """A layout on a set of islands, not priced yet."""

    bound_s: float  # seconds of a step, at least
    manner: str  # `across` or `replicas`
    parts: tuple[IslandPart, ...]  # in the order of the cluster
    layout: Layout  # for replicas: of the islands' greatest common divisor of GPUs (bounds.py)


@dataclass
class NodeLister:
    """Lists the nodes of sets of islands."""

    resolved: Resolved  # the whole request
    should_stop: Callable[[], bool]  # whether the time is up
    equal_shares: bool = False  # whether all replicas run equally many micro-batches
    of_pipelines: list[list[SearchNode]] = field(default_factory=list)  # of each set that has any, least bound first
    replicas: list[SearchNode] = field(default_factory=list)
    count: Count = field(default_factory=Count)  # what became of all layouts
    lower_bound_s: float = math.inf  # seconds of a step that no layout left out beats

    def plain_pipelines(self, parts: tuple[IslandPart, ...], incumbent_s: float) -> list[SearchNode]:
        """Pipelines of the usual kind (`plain_part`), for a first idea of the best step."""
        if self.should_stop():
            return []
        outcome = self._pipelines(parts, plain_part, incumbent_s, PLAIN_PIPELINES)
        outcome.raise_if_interrupted()
        return _nodes("across", parts, outcome)

    def add_pipelines(self, parts: tuple[IslandPart, ...], incumbent_s: float) -> None:
        """The pipelines over a set of islands whose bounds are below `incumbent_s`."""
        if self.should_stop():
            self.lower_bound_s = 0.0
            return
        outcome = self._pipelines(parts, lambda space: space, incumbent_s, LISTED_PIPELINES)
        if nodes := self._add_outcome("across", parts, outcome):
            self.of_pipelines.append(nodes)
        if outcome.count.bounded:
            self.lower_bound_s = min(self.lower_bound_s, incumbent_s)

    def _pipelines(
        self, parts: tuple[IslandPart, ...], part_of: Callable[[Space], Space], incumbent_s: float, top: int
    ) -> SearchOutcome:
        """The pipelines with the smallest bounds in a part of the space."""
        gpus = sum(part.num_gpus for part in parts)
        # What fits the mean GPU may fit in some partition: a stage on a small GPU holds fewer layers.
        mean_bytes = sum(part.alone.budget_bytes * part.num_gpus for part in parts) / gpus
        space = part_of(whole_stages(splittable(joined(self.resolved, parts).space), parts))
        return SharedPipelines(space, parts, self._bridges(parts), top=top, incumbent=incumbent_s,
                               should_stop=self.should_stop, memory_bytes=mean_bytes).run()  # fmt: skip

    def add_replicas(self, parts: tuple[IslandPart, ...], incumbent_s: float) -> None:
        """The replicas over a set of several islands whose bounds are below `incumbent_s`."""
        if self.should_stop():
            self.lower_bound_s = 0.0
            return
        unit = math.gcd(*(part.num_gpus for part in parts))
        space = replace(joined(self.resolved, parts), job_gpus=unit).space
        # All replicas have one layout, so it must fit the smallest GPU.
        least_bytes = min(part.alone.budget_bytes for part in parts)
        options: dict[str, Any] = {"incumbent": incumbent_s, "should_stop": self.should_stop}
        replicas = SharedReplicas(space, parts, self._bridges(parts), equal_shares=self.equal_shares,
                                  memory_bytes=least_bytes, top=LISTED_REPLICAS, **options).run()  # fmt: skip
        self.replicas += self._add_outcome("replicas", parts, replicas)

    def _bridges(self, parts: tuple[IslandPart, ...]) -> list[Bridge]:
        return [bridge_between(self.resolved.cluster, *pair) for pair in combinations(parts, 2)]

    def _add_outcome(self, manner: str, parts: tuple[IslandPart, ...], outcome: SearchOutcome) -> list[SearchNode]:
        self.count.add(outcome.count)
        outcome.raise_if_interrupted()
        rows = outcome.top.rows
        if len(rows) == outcome.top.limit:  # the list is full: nothing left out has a lower bound than its last
            self.lower_bound_s = min(self.lower_bound_s, rows[-1][0])
        if outcome.stopped:
            self.lower_bound_s = min(self.lower_bound_s, outcome.lower_bound)
        return _nodes(manner, parts, outcome)

    @property
    def of_replicas(self) -> list[SearchNode]:
        """The replica nodes of all sets, by rising bound."""
        return sorted(self.replicas, key=lambda node: (node.bound_s, str(node.layout)))


def _nodes(manner: str, parts: tuple[IslandPart, ...], outcome: SearchOutcome) -> list[SearchNode]:
    return [SearchNode(bound_s, manner, parts, layout) for bound_s, _, layout in outcome.top.rows]


def island_sets(resolved: Resolved, parts: Sequence[IslandPart]) -> Iterator[tuple[IslandPart, ...]]:
    """Sets of islands, the largest first. A job does not mix vendors."""
    for size in range(len(parts), 0, -1):
        seen = set()
        for chosen in combinations(parts, size):
            likeness = tuple(part.likeness for part in chosen)
            # Equal islands make equal sets, unless the bridges of a set differ: then all sets count.
            same_bridges = len(resolved.cluster.islands) <= 2 or size == 1
            one_vendor = len({part.alone.cluster.gpu.vendor for part in chosen}) == 1
            if one_vendor and not (same_bridges and likeness in seen):
                seen.add(likeness)
                yield chosen


def pipeline_orders(parts: tuple[IslandPart, ...]) -> list[tuple[IslandPart, ...]]:
    """The orders of islands in a pipeline. Two equal islands have one."""
    if len(parts) == 2 and parts[0].likeness == parts[1].likeness:
        return [parts]
    return list(permutations(parts))
