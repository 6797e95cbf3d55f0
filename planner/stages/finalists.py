"""The finalists: the best layouts by the closed form, simulated, with the stages that suit them best.

1. Every layout that the search lists (the best of each family) is simulated.
2. The best pipelines among them get a custom partition (ilp.py), if the target takes one. If it also takes a number of
   recomputed layers per stage, full recompute of a chosen number is tried as well.
3. Proof: `relaxed_search.AnySplit` lists the layouts that could still be faster in any partition, least bound first.
   Each gets a custom partition as well, until the next bound is above the best simulated step, or the budget is spent.
   The bounds of the rest bound the plan from below: the gap of the certificate.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass, field, replace

import numpy as np

from ...cost_models.layouts import OFFLOADS, RECOMPUTE_MODES, Layout, Layouts
from ...cost_models.quantities.stages import Partition, chunks_per_stage, devices_of
from ...cost_models.schedules.critical_path import Path
from ..document.partitions import custom_partition, recomputed_chunks
from ..evaluation.staged import Staged
from ..evaluation.staged_layout import even_partition
from ..request.resolve import Resolved
from ..search.top_k import FAMILY
from .coefficients import problem_of, runs_of
from .problem import GAP
from .relaxed_search import AnySplit, splittable
from .solve import Solved, solve

# All budgets are counts, so that equal requests give equal plans.
SPLIT = 5  # pipelines that get a custom partition
RECOMPUTED = 2  # of these, pipelines whose stages may recompute different numbers of layers
LISTED = 256  # nodes of the proof
REAL_CHUNKS = 8192  # nodes of the proof get continuous programs until they have so many chunks together
INTEGER_CHUNKS = 256  # the same for integer programs
ROUNDS = 3  # integer programs per layout
GOOD_ENOUGH = 2e-3  # gap at which a layout is settled
# Each run of equal layers is a variable of every chunk: programs of models whose kinds alternate would take minutes.
MOST_RUNS = 8
# A custom partition is harder to run, so it must save this share of a step.
WORTH = 1e-3
_FULL, _NONE = RECOMPUTE_MODES.index("full"), RECOMPUTE_MODES.index("none")


@dataclass
class Finalists:
    """Simulated layouts, each with its best stages."""

    resolved: Resolved  # the request
    left_s: Callable[[], float]  # seconds until the time limit
    best: dict[Layout, Staged] = field(default_factory=dict)  # each with its best stages that fit
    simulated: int = 0  # steps, of all partitions
    lower_bound_s: float = float("inf")  # seconds of a step that nothing left unsimulated beats, in any partition
    notes: list[str] = field(default_factory=list)  # what went wrong in the solvers
    stopped: str | None = None  # why it ended early
    _bases: dict[Layout, Staged] = field(default_factory=dict)  # with even stages
    _solved: dict[tuple[Layout, bool], Solved] = field(default_factory=dict)  # by layout, and separate recompute
    _paths: dict[tuple[str, int, int, int], list[Path]] = field(default_factory=dict)  # by order of the passes

    def _base(self, layout: Layout) -> Staged:
        """The layout with even stages; its tables serve all its splits."""
        if layout not in self._bases:
            self._bases[layout] = Staged.of(self.resolved, layout, simulate=True)
        return self._bases[layout]

    @property
    def ranked(self) -> list[Staged]:
        """Fastest first."""
        return sorted(self.best.values(), key=lambda staged: (float(f"{staged.step_s:.9g}"), staged.id))

    @property
    def step_s(self) -> float:
        return min((staged.step_s for staged in self.best.values()), default=float("inf"))

    @property
    def _leaders(self) -> list[Staged]:
        """The best of each family, fastest first."""
        first: dict[tuple[int, ...], Staged] = {}
        for staged in self.ranked:
            first.setdefault(tuple(getattr(staged.layout, name) for name in FAMILY), staged)
        return list(first.values())

    @property
    def listed(self) -> list[Staged]:
        """The layouts that a plan shows: as many as were requested, the best of each family before any other."""
        leaders, top = self._leaders, self.resolved.request.top
        twins = [staged for staged in self.ranked if staged not in leaders]
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
        """Whether custom partitions are tried: the target takes them, and the kinds of layers do not alternate much."""
        return self.resolved.target.stages != "even" and len(runs_of(self.resolved.problem.pattern)) <= MOST_RUNS

    def _cut(self) -> bool:
        if self.stopped is None and self.left_s() <= 0:
            self.stopped = "time limit"
        return self.stopped is not None

    def simulate(self, layout: Layout, partition: Partition | None) -> float:
        """Seconds of a step, infinite if it does not fit. The best stages of each layout are recorded."""
        staged = self._base(layout)
        staged = staged.split(partition) if partition else staged
        if staged.device_bytes > self.resolved.budget_bytes or staged.host_bytes > self.resolved.host_bytes:
            return float("inf")
        self.simulated += staged.is_simulated
        known = self.best.get(layout)
        worth = WORTH if staged.custom_partition is not None else 0.0
        if known is None or staged.step_s < known.step_s * (1.0 - worth):
            self.best[layout] = staged
        return staged.step_s

    def _split_the_best(self) -> None:
        """The best pipeline of each of the best families, then the same with recompute chosen stage by stage."""
        pipelines = [staged.layout for staged in self._leaders if can_split(staged.layout)]
        for layout in pipelines[:SPLIT]:
            if self._cut():
                return
            self.split(layout, start=True)
        for layout in pipelines[:RECOMPUTED] if self.resolved.target.stages == "recompute" else ():
            full = replace(layout, recompute=_FULL, recompute_modules=0, recompute_layers=0)
            if not self._cut() and self._allowed(full):
                self.split(full, start=True, separate_recompute=True)

    def _allowed(self, layout: Layout) -> bool:
        columns = Layouts.of([layout])
        return all(bool(rule.allows(columns, self.resolved.problem)[0]) for rule in self.resolved.space.rules)

    def split(
        self, layout: Layout, *, start: bool = False, separate_recompute: bool = False, rounds: int = ROUNDS
    ) -> Solved:
        """The best stages for a layout, simulated, and recorded if they are worth it. Integer programs are solved only
        while the layout may still be the fastest of all. start: move layers of the even partition first."""
        if (layout, separate_recompute) in self._solved:
            return self._solved[layout, separate_recompute]
        base = self._base(layout)
        problem = problem_of(base, self.resolved.budget_bytes, separate_recompute=separate_recompute)
        sizes = even_partition(self.resolved, layout).sizes
        even = Partition(sizes, recomputed_chunks(layout, sizes) if separate_recompute else None)

        def score(partition: Partition) -> float:
            return self.simulate(*self._plainest(layout, partition))

        solved = solve(
            problem, score, incumbent=even if start else None, rounds=rounds, good_enough=GOOD_ENOUGH,
            worth_s=self.step_s * (1.0 - GAP), left_s=self.left_s, known=self._known_paths(base),
        )  # fmt: skip
        if solved.note and solved.note not in self.notes:
            self.notes.append(solved.note)
        self._solved[layout, separate_recompute] = solved
        return solved

    def _known_paths(self, staged: Staged) -> list[Path]:
        """Paths that bound layouts of the same order so far. They are likely to bound this one too."""
        chunks = chunks_per_stage(staged.layout)
        order = (staged.schedule_name, staged.layout.pp, chunks, staged.num_micro_batches)
        return self._paths.setdefault(order, [])

    def _plainest(self, layout: Layout, partition: Partition) -> tuple[Layout, Partition | None]:
        """The plainest layout and custom partition for the same step: full recompute of no layer is no recompute."""
        if partition.recomputed is not None and not any(partition.recomputed):
            none = replace(layout, recompute=_NONE)
            if self._allowed(none):
                layout, partition = none, Partition(partition.sizes)
        return layout, custom_partition(layout, partition)

    def _prove(self) -> None:
        """`lower_bound_s`, over all that the relaxed search leaves. Its nodes get continuous programs, and
        the first few integer ones."""
        search = AnySplit(
            splittable(self.resolved.space), self.resolved.rates, memory_bytes=self.resolved.budget_bytes, top=LISTED,
            incumbent=self._worth_finding_s, should_stop=self._cut,
        )  # fmt: skip
        outcome = search.run()
        self.stopped = self.stopped or outcome.stopped
        rows = outcome.top.rows
        real_chunks = integer_chunks = 0
        rest_s = rows[-1][0] if len(rows) == LISTED else np.inf
        if outcome.stopped:
            rest_s = min(rest_s, outcome.lower_bound)
        for bound_s, _, node in rows:
            if bound_s >= self._worth_finding_s:
                break
            if real_chunks >= REAL_CHUNKS or self._cut():
                rest_s = min(rest_s, bound_s)
                break
            layout = self._with_shard(node)
            if layout is not None:
                split_s, programs = self._bound_s(layout, int(integer_chunks < INTEGER_CHUNKS))
                chunks = len(devices_of(layout))
                real_chunks += chunks
                integer_chunks += programs * chunks
                self.lower_bound_s = min(self.lower_bound_s, max(bound_s, split_s))
        self.lower_bound_s = min(self.lower_bound_s, rest_s, self._worth_finding_s)

    @property
    def _worth_finding_s(self) -> float:
        return self.step_s * (1.0 - GAP)

    def _bound_s(self, layout: Layout, rounds: int) -> tuple[float, int]:
        """Seconds that no stages that the target takes beat, for any size of the shard group; the number of integer
        programs for it. The best stages are recorded."""
        if self.splits:
            solved = self.split(layout, rounds=rounds)
            return solved.bound_s, solved.rounds
        self.simulate(layout, None)
        problem = problem_of(self._base(layout), self.resolved.budget_bytes, separate_recompute=False)
        n, q = problem.layers_by_run(np.array(self._base(layout).partition.sizes, dtype=np.float64))
        return float(problem.step_s(problem.critical_paths(n, q, 1), n, q)), 0

    def _with_shard(self, node: Layout) -> Layout | None:
        """The node with the largest shard group that is allowed: it needs least memory and least work of the optimizer,
        so its bound holds for all. A node with ZeRO-2 or 3 has its shard group already."""
        if node.zero >= 2:
            return node if self._allowed(node) else None
        sizes = sorted(self.resolved.space.shards(node.dp, node.cp, node.zero), reverse=True)
        layouts = (replace(node, shard=shard) for shard in sizes)
        return next((layout for layout in layouts if self._allowed(layout)), None)


def can_split(layout: Layout) -> bool:
    """Whether a layout can have a custom partition: `relaxed_search.splittable` for one layout."""
    stays = not layout.offload_modules and "act" not in OFFLOADS[layout.offload].split("+")
    return layout.pp > 1 and not layout.recompute_layers and stays
