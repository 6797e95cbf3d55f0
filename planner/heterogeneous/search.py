"""Plans for clusters of several islands: every manner of using the islands, priced island by island.

For every set of islands, one of them alone included:
  across    one pipeline over all of the set, whole stages on each, islands in every order; layers by integer program
  replicas  whole replicas on each, micro-batches shared so that all end together (several islands)
  together  pp = 1, or even stages, on one island alone: `exhaustive.Search`
An island in no set is left unused. `nodes.py` lists the layouts of a manner that may be fastest, by bounds that hold
for every partition, order and share. A warm start prices pipelines of the usual kind first: the faster the best of
them, the fewer are listed. Pipelines stay open (`frontier.py`) until the least bound of all is as near the best step as
CLOSE: the pipeline with the least bound gets its continuous program, then its integer program. Both are first solved
for the floor of many layouts, which may settle all of them. Where a budget (a count) ends that, the least open bound
bounds the plan from below: the gap of the certificate.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass, field, replace

from ...cost_models.quantities.flops import step_at_peak_s
from ..evaluation.staged import Staged
from ..request.resolve import Resolved
from ..search.run import search_of
from ..search.top_k import FAMILY
from ..space.tree import Count
from ..stages.problem import GAP
from .choices import Choices, IslandChoice
from .frontier import Frontier
from .islands import IslandPart
from .nodes import NodeLister, SearchNode, island_sets
from .pipeline_search import PipelineSearch
from .replicas import Replicas, best_shares, equal_shares

PRICED_REPLICAS = 12  # replicas of each set, with their best shares; a count, so that equal requests give equal plans


@dataclass
class HeterogeneousSearch:
    """One search."""

    resolved: Resolved  # the whole request
    parts: tuple[IslandPart, ...]  # the islands that can be used
    left_s: Callable[[], float]  # seconds until the time limit
    report: Callable[[Count, float], None]  # progress
    runnable_only: bool = True  # replicas must run equally many micro-batches, as all targets need
    choices: Choices = field(default_factory=Choices)
    count: Count = field(default_factory=Count)  # what became of all layouts
    lower_bound_s: float = math.inf  # seconds of a step that no layout left out beats
    notes: list[str] = field(default_factory=list)  # what went wrong in the solvers
    stopped: str | None = None  # why it ended early
    cut_short: tuple[str, ...] = ()  # causes that cut a comparison after the search, as in the plan

    def run(self) -> HeterogeneousSearch:
        """Ctrl-C and the time limit keep the choices so far."""
        lister = NodeLister(self.resolved, self._cut, self.runnable_only)
        try:
            sets = list(island_sets(self.resolved, self.parts))
            for parts in sets:
                if len(parts) == 1:
                    self._together(parts[0])
            several = [parts for parts in sets if len(parts) > 1]
            for parts in several:
                lister.add_replicas(parts, self.choices.best_s * (1 - GAP))
            replicas_s = self._price_all_replicas(lister.of_replicas)
            pipelines_s = self._search_pipelines(lister, sets)
            self.lower_bound_s = min(self.lower_bound_s, lister.lower_bound_s, replicas_s, pipelines_s)
        except KeyboardInterrupt:
            if not self.choices:
                raise
            self.stopped, self.lower_bound_s = "interrupted", 0.0
        self.count.add(lister.count)
        self.lower_bound_s = min(max(self.lower_bound_s, self._at_peak_s), self.choices.best_s)
        return self

    @property
    def _at_peak_s(self) -> float:
        """A bound of the sets of islands that a stopped search has not seen."""
        peaks = [part.num_gpus * part.rates.peak_flops_per_s for part in self.parts]
        return step_at_peak_s(self.resolved.problem, sum(peaks))

    def _search_pipelines(self, lister: NodeLister, sets: list[tuple[IslandPart, ...]]) -> float:
        """Price pipelines over sets of islands; the least bound of those that are listed."""
        search = PipelineSearch(self.resolved, self.choices, self._cut, self.left_s, self.notes)
        plain = [lister.plain_pipelines(parts, self.choices.best_s) for parts in sets if len(parts) > 1]
        search.start([Frontier(self.resolved, nodes) for nodes in plain])
        for parts in sets:
            lister.add_pipelines(parts, search.worth_s)
        frontiers = [Frontier(self.resolved, nodes) for nodes in lister.of_pipelines]
        search.settle(frontiers)
        search.improve(frontiers, math.inf)
        return min((frontier.bound_s for frontier in frontiers), default=math.inf)

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
            self.choices.record(IslandChoice("together", (part,), Staged.of(part.alone, layout, simulate=True)))
        outcome.raise_if_interrupted()

    def _price_all_replicas(self, nodes: list[SearchNode]) -> float:
        """Price the replicas with the least bounds of every set; the least bound of those that are not priced."""
        least_s, priced = math.inf, dict.fromkeys([node.parts for node in nodes], 0)
        for node in nodes:
            if priced[node.parts] == PRICED_REPLICAS or node.bound_s >= self.choices.best_s or self._cut():
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
        self.choices.record(IslandChoice("replicas", node.parts, replicas))
        return True

