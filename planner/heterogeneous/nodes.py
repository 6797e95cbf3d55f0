"""Which layouts could be fastest on which islands: the nodes of the search, by lower bounds of their steps.

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
from ...cost_models.quantities.element_bytes import activation_bytes
from ...cost_models.quantities.stages import chunks_per_stage
from ...cost_models.specs.cluster import Bridge
from ..request.resolve import Resolved
from ..search.exhaustive import SearchOutcome
from ..search.top_k import FAMILY
from ..space.tree import Count
from ..stages.relaxed_search import splittable
from .bounds import SharedPipelines, SharedReplicas, whole_stages
from .islands import IslandPart, bridge_between, crossing_s, joined

LISTED = 384  # nodes of each manner and set of islands
DIVERSE = 128  # pipelines of different families, beside those
# Pipelines of one family agree in these. The LISTED with the least bounds may all be near twins.
PIPELINE_FAMILY = (*FAMILY, "micro_batch", "recompute", "recompute_modules")


@dataclass(frozen=True)
class SearchNode:
    """A layout on a set of islands, not priced yet."""

    bound_s: float  # seconds of a step, at least
    manner: str  # `across` or `replicas`
    parts: tuple[IslandPart, ...]  # in the order of the cluster
    layout: Layout  # for replicas: of the islands' greatest common divisor of GPUs (bounds.py)


@dataclass
class NodeLister:
    """Lists the nodes of one set of islands after the other."""

    resolved: Resolved  # the whole request
    should_stop: Callable[[], bool]  # whether the time is up
    least: list[SearchNode] = field(default_factory=list)  # those with the least bounds
    diverse: list[SearchNode] = field(default_factory=list)  # pipelines, the best of each family
    count: Count = field(default_factory=Count)  # what became of all layouts
    lower_bound_s: float = math.inf  # seconds of a step that no layout left out beats

    def add(self, parts: tuple[IslandPart, ...], incumbent_s: float) -> None:
        """The nodes of a set of islands whose bounds are below `incumbent_s`."""
        if self.should_stop():
            self.lower_bound_s = 0.0
            return
        bridges = [bridge_between(self.resolved.cluster, *pair) for pair in combinations(parts, 2)]
        options: dict[str, Any] = {"incumbent": incumbent_s, "should_stop": self.should_stop}
        self._add_pipelines(parts, bridges, options)
        if len(parts) > 1:
            self._add_replicas(parts, bridges, options)

    def _add_pipelines(self, parts: tuple[IslandPart, ...], bridges: Sequence[Bridge], options: dict[str, Any]) -> None:
        gpus = sum(part.num_gpus for part in parts)
        # What fits the mean GPU may fit in some partition: a stage on a small GPU holds fewer layers.
        mean_bytes = sum(part.alone.budget_bytes * part.num_gpus for part in parts) / gpus
        space = whole_stages(splittable(joined(self.resolved, parts).space), parts)
        options = {**options, "memory_bytes": mean_bytes}
        least = SharedPipelines(space, parts, bridges, top=LISTED, **options).run()
        self._add_outcome("across", parts, least)
        if len(parts) > 1 and len(least.top.rows) == LISTED:
            diverse = SharedPipelines(space, parts, bridges, top=DIVERSE, family=PIPELINE_FAMILY, **options).run()
            raise_if_interrupted(diverse)
            self.diverse += _nodes("across", parts, diverse)

    def _add_replicas(self, parts: tuple[IslandPart, ...], bridges: Sequence[Bridge], options: dict[str, Any]) -> None:
        unit = math.gcd(*(part.num_gpus for part in parts))
        space = replace(joined(self.resolved, parts), job_gpus=unit).space
        # All replicas have one layout, so it must fit the smallest GPU.
        least_bytes = min(part.alone.budget_bytes for part in parts)
        replicas = SharedReplicas(space, parts, bridges, memory_bytes=least_bytes, top=LISTED, **options).run()
        self._add_outcome("replicas", parts, replicas)

    def _add_outcome(self, manner: str, parts: tuple[IslandPart, ...], outcome: SearchOutcome) -> None:
        self.count.add(outcome.count)
        raise_if_interrupted(outcome)
        rows = outcome.top.rows
        if len(rows) == LISTED:  # the list is full: nothing left out has a lower bound than its last
            self.lower_bound_s = min(self.lower_bound_s, rows[-1][0])
        if outcome.stopped:
            self.lower_bound_s = min(self.lower_bound_s, outcome.lower_bound)
        self.least += _nodes(manner, parts, outcome)

    @property
    def by_bound(self) -> list[SearchNode]:
        """The nodes with the least bounds, least first."""
        return sorted(self.least, key=lambda node: (node.bound_s, str(node.layout)))

    @property
    def by_family(self) -> list[SearchNode]:
        """The best of each family of pipelines, least bound with filling first."""
        return sorted(self.diverse, key=lambda node: (node.bound_s + self._filling_s(node), str(node.layout)))

    def _filling_s(self, node: SearchNode) -> float:
        """Seconds, about, that filling and draining a pipeline of several chunks per device adds on bridges. No bound
        has it, as it may be above what some order of the islands takes."""
        layout, workload = node.layout, self.resolved.workload
        width = self.resolved.model.hidden * activation_bytes(workload) / (layout.tp if layout.sequence_parallel else 1)
        message_bytes = workload.seq_len * layout.micro_batch / layout.cp * width
        pairs = [(bridge_between(self.resolved.cluster, *pair), pair[0].rates) for pair in combinations(node.parts, 2)]
        senders, crossings = layout.num_gpus // layout.pp, 2 * (2 * chunks_per_stage(layout) - 1)
        return crossings * min(crossing_s(rates, bridge, senders, "p2p", message_bytes) for bridge, rates in pairs)


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


def raise_if_interrupted(outcome: SearchOutcome) -> None:
    """A search keeps what it has at Ctrl-C and returns. Here, that must end all of them."""
    if outcome.stopped == "interrupted":
        raise KeyboardInterrupt
