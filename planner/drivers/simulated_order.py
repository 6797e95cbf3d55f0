"""The order of the best layouts of a search by the simulator.

The search orders by the closed form, and keeps every layout within a window of its best. A run of the simulator takes
as long as thousands of closed forms, so not all of them are run. How much longer a simulated step is than its closed
form depends most on the pipeline and least on what is recomputed, so a run says much about layouts that resemble its
own. The least step of a layout is its closed form, times the least ratio of those that resemble it most, less the
spread of such ratios. The layout with the smallest of these is run next, until none may beat the best step so far.
"""

from __future__ import annotations

from collections.abc import Iterable
from functools import cached_property
from typing import Literal

import numpy as np

from ...cost_models.arrays import Array, Ints, Mask
from ...cost_models.layouts import Layout, Layouts
from ...cost_models.quantities import tables
from ...cost_models.quantities.tables import Tables
from ..evaluation.staged import Staged
from ..request.resolve import Resolved
from ..search.outcome import SearchOutcome
from ..search.top_k import FAMILY
from .watch import Watch

Row = tuple[float, str, Layout]
Fidelity = Literal["closed form", "simulated"]

# Layouts within this share of the best closed form are kept. Near the best of a request, simulated steps over closed
# forms differ by no more: by 2.8 % on 14 requests (benchmarks/ranking.json).
WINDOW = 0.03
MOST_RUNS = 16  # layouts of the window that are simulated beside the list
# Fields in which layouts agree that resemble one another, and the spread of their ratios in most requests. With few
# micro-batches on many stages (405B and DeepSeek-V3 there) spreads reach 2.8, 2.5 and 2.3 %. So the order is measured
# by its regret, not proven.
_PIPELINE = ("schedule", "pp", "vpp", "dp", "micro_batch")
RESEMBLANCE: tuple[tuple[tuple[str, ...], float], ...] = (
    ((), WINDOW),
    (("schedule",), 0.01),
    (_PIPELINE, 0.003),
    ((*_PIPELINE, "tp", "cp", "ep", "etp", "zero", "shard", "offload"), 0.0005),
)


class SimulatedOrder:
    """Layouts of a search, simulated as far as that may change which is the fastest. By the closed form nothing is
    simulated, and the order is that of the search."""

    def __init__(self, resolved: Resolved, outcome: SearchOutcome, fidelity: Fidelity = "simulated") -> None:
        self.resolved, self.outcome = resolved, outcome
        self._simulate = fidelity == "simulated"
        self._staged: dict[Layout, Staged] = {}
        self._rows: list[Row] = []

    def run(self, watch: Watch) -> SimulatedOrder:
        """Simulate the list, and then what may be faster; the time limit ends it."""
        window = _Window(*self.outcome.top.kept)
        for row in self.outcome.top.rows:
            window.learn(row[2], self.of(row[2]).step_s / row[0])
        for _ in range(MOST_RUNS if self._simulate else 0):
            layout, closed_s = window.next(self.rows[0][0])
            if layout is None or watch.late():
                break
            window.learn(layout, self.of(layout).step_s / closed_s)
        return self

    @cached_property
    def _tables(self) -> Tables:
        """Tables of all layouts that the search kept, built once."""
        top = self.outcome.top
        kept = Layouts.concatenate([top.kept[1], Layouts.of([row[2] for row in top.rows])])
        return tables.build(self.resolved.problem, tables.index_keys(kept)[0])

    def of(self, layout: Layout) -> Staged:
        """A layout, priced as all others."""
        if layout not in self._staged:
            staged = Staged.of(self.resolved, layout, simulate=self._simulate, known=self._tables)
            self._staged[layout] = staged
            self._rows.append((float(f"{staged.step_s:.9g}"), staged.id, layout))
            self._rows.sort(key=lambda row: row[:2])
        return self._staged[layout]

    @property
    def rows(self) -> list[Row]:
        """Seconds of a step, id and layout of all that was priced, fastest first."""
        return list(self._rows)

    @property
    def simulated(self) -> int:
        """The number of simulated layouts."""
        return sum(staged.is_simulated for staged in self._staged.values())

    @property
    def leaders(self) -> list[Row]:
        """The listed layouts, fastest first: the best of each family before all others."""
        rows = self.rows
        first = {tuple(getattr(row[2], name) for name in FAMILY): row for row in reversed(rows)}
        twins = [row for row in rows if row not in first.values()]
        return sorted([*first.values(), *twins][: max(len(self.outcome.top.rows), len(first))], key=lambda row: row[:2])


class _Window:
    """Bounds of the ratio of simulated step and closed form of each layout of a window."""

    def __init__(self, closed_s: Array, layouts: Layouts) -> None:
        self.closed_s, self.layouts = closed_s, layouts
        self.level: Ints = np.full(len(closed_s), -1)  # how much the runs resemble it that its ratio is from
        self.ratio: Array = np.ones(len(closed_s))  # the least of those runs
        self.open: Mask = np.ones(len(closed_s), dtype=bool)  # whether it was not run

    def next(self, best_s: float) -> tuple[Layout | None, float]:
        """The layout that may take least, and its closed form; None where none may beat `best_s`."""
        spread = np.array([spread for _, spread in RESEMBLANCE])[np.maximum(self.level, 0)]
        least_s = np.where(self.open, self.closed_s * self.ratio * (1 - spread), np.inf)
        row = int(np.argmin(least_s)) if len(least_s) else 0
        if not len(least_s) or least_s[row] >= best_s:
            return None, np.inf
        return self.layouts.layout(row), float(self.closed_s[row])

    def learn(self, layout: Layout, ratio: float) -> None:
        """Take the ratio of a run over to the layouts that resemble it no less than those run before."""
        for level, (fields, _) in enumerate(RESEMBLANCE):
            alike = _agree(self.layouts, layout, fields)
            self.ratio[alike & (self.level == level)] = np.minimum(self.ratio[alike & (self.level == level)], ratio)
            self.ratio[alike & (self.level < level)] = ratio
            self.level[alike & (self.level < level)] = level
        self.open &= ~_agree(self.layouts, layout, self.layouts)


def _agree(layouts: Layouts, layout: Layout, fields: Iterable[str]) -> Mask:
    """[n] whether layouts agree with one in all `fields`."""
    same = np.ones(len(layouts), dtype=bool)
    for name in fields:
        same &= layouts[name] == getattr(layout, name)
    return same
