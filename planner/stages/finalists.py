"""The finalists: layouts that the closed form likes best, simulated, and with the stages that suit them best.

1. Every layout that the search lists (the best of each family) is simulated.
2. The best pipelines among them get stages of their own (`partition_ilp`), where the target can be told about stages;
   where it can also be told how many layers each recomputes, full recompute of a chosen number is tried as well.
3. Proof: `any_split.AnySplit` lists what could still be faster in any split of the layers, least bound first. Each such
   node is split as well, until the next bound is above the best simulated step, or the budget is spent. What is left
   over bounds the plan from below: the gap of the certificate.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass, field, replace

import numpy as np

from ...cost_models.layouts import OFFLOADS, RECOMPUTE_MODES, Layout, Layouts
from ...cost_models.quantities.stages import Partition, chunks_per_stage, devices_of
from ...cost_models.schedules.critical_path import Path
from ..document.plan import own_stages, stages_by_layout
from ..evaluation.staged import Staged
from ..request.resolve import Resolved
from ..search.top_k import FAMILY
from .coefficients import runs_of, stages_of
from .ilp import GAP, counts
from .relaxed_search import AnySplit, splittable
from .solve import Solved, solve

# Pipelines that are split, with recompute of their own stages, and nodes of the proof. Of these as many get programs of
# real numbers, and of integers, as have so many chunks together. All counts: equal requests give equal plans.
SPLIT, RECOMPUTED, LISTED = 5, 2, 256
REAL_CHUNKS, INTEGER_CHUNKS = 8192, 256
ROUNDS, GOOD_ENOUGH = 3, 2e-3
# Each run of equal layers is a variable of every chunk: programs of models whose kinds alternate would take minutes.
MOST_RUNS = 8
# Stages of one's own are harder to run: they must save this share of a step.
WORTH = 1e-3
_FULL, _NONE = RECOMPUTE_MODES.index("full"), RECOMPUTE_MODES.index("none")


@dataclass
class Finalists:
    """Simulated layouts, each with its best stages. `lower_bound_s`: of what was not simulated, in any split."""

    resolved: Resolved
    left_s: Callable[[], float]
    best: dict[Layout, Staged] = field(default_factory=dict)
    simulated: int = 0
    lower_bound_s: float = float("inf")
    notes: list[str] = field(default_factory=list)
    stopped: str | None = None
    _bases: dict[Layout, Staged] = field(default_factory=dict)
    _solved: dict[tuple[Layout, bool], Solved] = field(default_factory=dict)
    _paths: dict[tuple[str, int, int, int], list[Path]] = field(default_factory=dict)

    def _base(self, layout: Layout) -> Staged:
        """The layout with even stages; its tables serve all its splits."""
        if layout not in self._bases:
            self._bases[layout] = Staged.of(self.resolved, layout, simulate=True)
        return self._bases[layout]

    @property
    def ranked(self) -> list[Staged]:
        """Fastest first."""
        return sorted(self.best.values(), key=lambda one: (float(f"{one.step_s:.9g}"), one.id))

    @property
    def step_s(self) -> float:
        return min((one.step_s for one in self.best.values()), default=float("inf"))

    @property
    def _leaders(self) -> list[Staged]:
        """The best of each family, fastest first."""
        first: dict[tuple[int, ...], Staged] = {}
        for one in self.ranked:
            first.setdefault(tuple(getattr(one.layout, name) for name in FAMILY), one)
        return list(first.values())

    @property
    def listed(self) -> list[Staged]:
        """What a plan shows: as many as were asked for, the best of each family first of all."""
        leaders, top = self._leaders, self.resolved.request.top
        twins = [one for one in self.ranked if one not in leaders]
        shown = leaders[:top] + twins[: max(top - len(leaders), 0)]
        return sorted(shown, key=self.ranked.index)

    def run(self, layouts: Iterable[Layout], *, split: bool) -> Finalists:
        """All three steps, or the first; Ctrl-C and the time limit keep what there is."""
        try:
            for layout in layouts:
                if not self.best or not self._cut():
                    self.simulate(layout, None)
            if split and self.splits:
                self._split_the_best()
            if split:
                self._prove()
        except KeyboardInterrupt:
            if not self.best:
                raise
            self.stopped = "interrupted"
        return self

    @property
    def splits(self) -> bool:
        """Whether stages of one's own are tried: the target can be told, and layers do not alternate all along."""
        return self.resolved.target.stages != "even" and len(runs_of(self.resolved.problem.pattern)) <= MOST_RUNS

    def _cut(self) -> bool:
        if self.stopped is None and self.left_s() <= 0:
            self.stopped = "time limit"
        return self.stopped is not None

    def simulate(self, layout: Layout, partition: Partition | None) -> float:
        """Seconds of a step, infinite if it does not fit. The better stages of a layout are kept."""
        one = self._base(layout)
        one = one.split(partition) if partition else one
        if one.device_bytes > self.resolved.memory_bytes or one.host_bytes > self.resolved.host_bytes:
            return float("inf")
        self.simulated += one.is_simulated
        known = self.best.get(layout)
        if known is None or one.step_s < known.step_s * (1.0 - WORTH * (one.custom_partition is not None)):
            self.best[layout] = one
        return one.step_s

    def _split_the_best(self) -> None:
        """The best pipeline of each of the best families, then the same with recompute chosen stage by stage."""
        pipelines = [one.layout for one in self._leaders if can_split(one.layout)]
        for layout in pipelines[:SPLIT]:
            if self._cut():
                return
            self.split(layout, start=True)
        for layout in pipelines[:RECOMPUTED] if self.resolved.target.stages == "recompute" else ():
            full = replace(layout, recompute=_FULL, recompute_modules=0, recompute_layers=0)
            if not self._cut() and self._allowed(full):
                self.split(full, start=True, recompute_apart=True)

    def _allowed(self, layout: Layout) -> bool:
        columns = Layouts.of([layout])
        return all(bool(rule.allows(columns, self.resolved.problem)[0]) for rule in self.resolved.space.rules)

    def split(
        self, layout: Layout, *, start: bool = False, recompute_apart: bool = False, rounds: int = ROUNDS
    ) -> Solved:
        """The best stages for a layout, simulated and kept if they are worth it; integer programs only while it may
        still be the fastest of all. start: move layers of the even split first."""
        if (layout, recompute_apart) in self._solved:
            return self._solved[layout, recompute_apart]
        one = self._base(layout)
        stages = stages_of(one, self.resolved.memory_bytes, recompute_apart=recompute_apart)
        sizes, redone = stages_by_layout(layout, self.resolved.model.num_layers)
        even = Partition(sizes, redone if recompute_apart else None)

        def score(partition: Partition) -> float:
            settled, own = self._settled(layout, partition)
            return self.simulate(settled, own)

        solved = solve(
            stages, score, incumbent=even if start else None, rounds=rounds, good_enough=GOOD_ENOUGH,
            worth_s=self.step_s * (1.0 - GAP), left_s=self.left_s, known=self._known(one),
        )  # fmt: skip
        if solved.note and solved.note not in self.notes:
            self.notes.append(solved.note)
        self._solved[layout, recompute_apart] = solved
        return solved

    def _known(self, one: Staged) -> list[Path]:
        """Paths that bound layouts of the same order so far."""
        order = (one.schedule_name, one.layout.pp, chunks_per_stage(one.layout), one.num_micro_batches)
        return self._paths.setdefault(order, [])

    def _settled(self, layout: Layout, partition: Partition) -> tuple[Layout, Partition | None]:
        """The layout and stages by their plainest names: no full recompute of no layer."""
        if partition.redone is not None and not any(partition.redone):
            none = replace(layout, recompute=_NONE)
            if self._allowed(none):
                layout, partition = none, Partition(partition.sizes)
        return layout, own_stages(layout, partition)

    def _prove(self) -> None:
        """`lower_bound_s`: of what the search for any split leaves over. Programs of real numbers for what it lists,
        integer ones for the first few."""
        search = AnySplit(
            splittable(self.resolved.space), self.resolved.rates, memory_bytes=self.resolved.memory_bytes, top=LISTED,
            incumbent=self._worth_finding_s, should_stop=self._cut,
        )  # fmt: skip
        outcome = search.run()
        self.stopped = self.stopped or outcome.stopped
        rows, real, integer = outcome.top.rows, 0, 0
        rest_s = rows[-1][0] if len(rows) == LISTED else np.inf
        if outcome.stopped:
            rest_s = min(rest_s, outcome.lower_bound)
        for bound_s, _, node in rows:
            if bound_s >= self._worth_finding_s:
                break
            if real >= REAL_CHUNKS or self._cut():
                rest_s = min(rest_s, bound_s)
                break
            layout = self._with_shard(node)
            if layout is not None:
                split_s, programs = self._bound_s(layout, int(integer < INTEGER_CHUNKS))
                chunks = len(devices_of(layout))
                real, integer = real + chunks, integer + programs * chunks
                self.lower_bound_s = min(self.lower_bound_s, max(bound_s, split_s))
        self.lower_bound_s = min(self.lower_bound_s, rest_s, self._worth_finding_s)

    @property
    def _worth_finding_s(self) -> float:
        return self.step_s * (1.0 - GAP)

    def _bound_s(self, layout: Layout, rounds: int) -> tuple[float, int]:
        """Seconds that no stages the target can be told beat, for any size of the shard group; integer programs that it
        took. The best stages are kept."""
        if self.splits:
            solved = self.split(layout, rounds=rounds)
            return solved.bound_s, solved.rounds
        self.simulate(layout, None)
        stages = stages_of(self._base(layout), self.resolved.memory_bytes, recompute_apart=False)
        n, q = counts(stages, np.array(self._base(layout).partition.sizes, dtype=np.float64))
        return float(stages.step_s(stages.paths(n, q, 1), n, q)), 0

    def _with_shard(self, node: Layout) -> Layout | None:
        """The largest shard group that is allowed: least memory, least work for the optimizer. Of states that are
        scattered for every micro-batch the proof knows it."""
        if node.zero >= 2:
            return node if self._allowed(node) else None
        sizes = sorted(self.resolved.space.shards(node.dp, node.cp, node.zero), reverse=True)
        return next((one for shard in sizes if self._allowed(one := replace(node, shard=shard))), None)


def can_split(layout: Layout) -> bool:
    """Whether `partition_ilp` knows the layout, as `any_split.splittable` says of many."""
    return layout.pp > 1 and not layout.recompute_layers and "act" not in OFFLOADS[layout.offload].split("+")
