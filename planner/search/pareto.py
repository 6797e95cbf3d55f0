"""The exact frontier of step time and memory: all layouts that no other dominates.

The tree and its bounds are those of `exhaustive`. A node is bounded away when a known layout is at least as fast as the
node's time bound and as small as its memory bound. The remaining layouts are the frontier of the whole space. Values
have 9 significant digits (docs/architecture.md, 8). Of layouts equal in both, the first by id is kept.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from ...cost_models.arrays import Array, Ints, Mask
from ...cost_models.layouts import Layout, Layouts
from ...cost_models.step import step
from ..space.tree import Columns, Count
from .exhaustive import Search
from .limits import ShouldStop, stop_if_late
from .warm_start import plain_part

_DIGITS = 9
_BELOW = 1 - 1e-12  # a bound and the price it bounds round differently in their last bits


def nine_digits(values: Array) -> Array:
    """`values` (positive) rounded to 9 significant digits; the rounding is monotonic."""
    with np.errstate(divide="ignore"):
        exponent = np.floor(np.log10(values))
    scale = 10.0 ** (_DIGITS - 1 - np.where(np.isfinite(exponent), exponent, 0.0))
    return np.where(np.isfinite(values), np.round(values * scale) / scale, values)


@dataclass
class Frontier:
    """Layouts that do not dominate one another: seconds rise, bytes fall.

    rivals: (seconds, bytes) of layouts outside this space. They dominate members but are not members.
    """

    seconds: Array = field(default_factory=lambda: np.empty(0))
    num_bytes: Array = field(default_factory=lambda: np.empty(0))
    rows: list[tuple[str, Layout] | None] = field(default_factory=list)

    @classmethod
    def against(cls, rivals: Sequence[tuple[float, float]]) -> Frontier:
        """An empty frontier with rivals, which do not dominate one another."""
        ordered = np.array(sorted(rivals), dtype=float).reshape(-1, 2)
        return cls(ordered[:, 0], ordered[:, 1], [None] * len(ordered))

    @property
    def points(self) -> list[tuple[float, float, str, Layout]]:
        """(seconds, bytes, id, layout), fastest first."""
        every = zip(self.seconds.tolist(), self.num_bytes.tolist(), self.rows, strict=True)
        return [(seconds, num_bytes, *row) for seconds, num_bytes, row in every if row is not None]

    def beaten(self, seconds: Array, num_bytes: Array) -> Mask:
        """[row] whether a member dominates the row."""
        if not len(self.seconds):
            return np.zeros(len(seconds), dtype=bool)
        at = np.searchsorted(self.seconds, seconds, side="right") - 1
        near = np.maximum(at, 0)
        equal = (self.seconds[near] == seconds) & (self.num_bytes[near] == num_bytes)
        return np.asarray((at >= 0) & (self.num_bytes[near] <= num_bytes) & ~equal)

    def offer(self, seconds: Array, num_bytes: Array, layouts: Layouts) -> None:
        """Add rows that no member dominates, and drop dominated members."""
        seconds, num_bytes = nine_digits(seconds), nine_digits(num_bytes)
        rows = np.flatnonzero(np.isfinite(seconds))
        rows = rows[~self.beaten(seconds[rows], num_bytes[rows])]
        rows = rows[_unbeaten(seconds[rows], num_bytes[rows])]
        if not len(rows):
            return
        new = [layouts.layout(row) for row in rows.tolist()]
        every: list[tuple[str, Layout] | None] = [*self.rows, *((str(layout), layout) for layout in new)]
        names = ["" if row is None else row[0] for row in every]  # a rival precedes its equals
        both = np.concatenate([self.seconds, seconds[rows]]), np.concatenate([self.num_bytes, num_bytes[rows]])
        order = np.array(sorted(range(len(every)), key=lambda i: (both[0][i], both[1][i], names[i])), dtype=np.int64)
        least = np.minimum.accumulate(both[1][order])
        unbeaten = order[np.concatenate([[True], both[1][order][1:] < least[:-1]])]
        rows_kept = [every[i] for i in unbeaten.tolist()]
        # One call, because Ctrl-C between two assignments would leave them inconsistent.
        vars(self).update(seconds=both[0][unbeaten], num_bytes=both[1][unbeaten], rows=rows_kept)


def _unbeaten(seconds: Array, num_bytes: Array) -> Ints:
    """Rows that no other row dominates; rows equal in both stay."""
    order = np.lexsort((num_bytes, seconds))
    s, b = seconds[order], num_bytes[order]
    index = np.arange(len(order))
    opens = (index == 0) | (s != np.roll(s, 1)) | (b != np.roll(b, 1))
    first = np.maximum.accumulate(np.where(opens, index, 0))  # of the rows equal in both
    before = np.concatenate([[np.inf], np.minimum.accumulate(b)[:-1]])
    return np.asarray(order[b < before[first]])


@dataclass
class Traced:
    """The result of a search for a frontier."""

    frontier: Frontier
    count: Count
    stopped: str | None
    lower_bound: float  # seconds that no layout beats; the fastest of the frontier unless `stopped`


class FrontierSearch(Search):
    """Search of a whole space for its frontier. `rivals`: see Frontier; the other options are those of Search."""

    two_objectives = True
    first_rows = (1024, 4096, 8192)  # a frontier cuts little before it has many members

    def __init__(self, *arguments: Any, rivals: Sequence[tuple[float, float]] = (), **options: Any) -> None:
        super().__init__(*arguments, **options)
        self.frontier = Frontier.against(rivals)

    @property
    def _limit(self) -> ShouldStop | None:
        """`should_stop`, once the frontier has a member or the first batch of meshes has none."""
        return self.should_stop if self.frontier.rows or self.has_expanded else None

    def _warm_start(self) -> None:
        """Trace the plain part of the space first. The search of the whole counts its layouts again."""
        plain = FrontierSearch(
            plain_part(self.space), self.rates, memory_bytes=self.memory_bytes, host_bytes=self.host_bytes,
            should_stop=self.should_stop, tally=False,
        )  # fmt: skip
        plain.warm_starts, plain.frontier = False, self.frontier
        self.open_bound = 0.0  # if it stops here, nothing is proven about the whole space
        if plain.run().stopped == "interrupted":
            raise KeyboardInterrupt
        stop_if_late(self._limit)

    def trace(self) -> Traced:
        """The frontier, exact unless `stopped` is set."""
        outcome = self.run()
        fastest = float(self.frontier.seconds.min(initial=np.inf))
        return Traced(self.frontier, outcome.count, outcome.stopped, min(fastest, outcome.lower_bound))

    def _worth(self, seconds: Array, needed: Array, columns: Columns, rows: Ints) -> Mask:
        return ~self.frontier.beaten(nine_digits(seconds * _BELOW), nine_digits(needed * _BELOW))

    def _offer(self, estimate: step.Estimate, fits: Mask, layouts: Layouts) -> None:
        self.frontier.offer(np.where(fits, estimate.step_s, np.inf), estimate.device_bytes, layouts)
