"""The best layouts of a search so far."""

from __future__ import annotations

from dataclasses import dataclass, field

import numpy as np

from ...cost_models.arrays import Array, Ints
from ...cost_models.layouts import Layout, Layouts
from ..space.tree import Columns

# Values have nine significant digits (docs/architecture.md, 8). Layouts that agree in them are ordered by id. Their
# values differ by less than this share.
TIE = 1e-8
MOST_KEPT = 512  # layouts within a window
# Layouts that agree in all these fields form a family. A list holds the best layout of each family.
FAMILY = ("tp", "cp", "pp", "schedule", "ep", "etp")


@dataclass
class TopK:
    """The best layouts so far."""

    limit: int  # length of the list
    family: tuple[str, ...] = ()  # fields of a family, of which only the best layout is listed; (): all are listed
    # All layouts within this share of the best one are also kept, in any family. The share shrinks if they exceed
    # MOST_KEPT.
    window: float = 0.0
    rows: list[tuple[float, str, Layout]] = field(default_factory=list)  # (seconds or bytes, id, layout), best first
    _kept: list[tuple[Array, Layouts]] = field(default_factory=list)  # (values, layouts) within the window when offered
    _most: float = np.inf  # MOST_KEPT layouts are known up to this value

    @property
    def threshold(self) -> float:
        """A bound above this can enter neither the list nor the window."""
        return max(self._list_threshold, self._window_end)

    @property
    def _list_threshold(self) -> float:
        """A bound above this cannot enter the list. A tie with the last row can: its id decides."""
        return self.rows[-1][0] * (1 + 2 * TIE) if len(self.rows) == self.limit else np.inf

    @property
    def _window_end(self) -> float:
        """The value up to which all layouts are kept; without a window none are kept."""
        return min(self.rows[0][0] * (1 + self.window), self._most) if self.window and self.rows else -np.inf

    @property
    def kept(self) -> tuple[Array, Layouts]:
        """Values and layouts within the window, best first."""
        self._tidy()
        return self._kept[0] if self._kept else (np.empty(0), Layouts.of([]))

    @property
    def kept_window(self) -> float:
        """The share of the best value within which all layouts are kept."""
        self._tidy()
        return min(self._window_end / self.rows[0][0] - 1, self.window) if self.window and self.rows else 0.0

    @property
    def known_end(self) -> float:
        """Keep layouts up to this value, with all their ties."""
        self._tidy()
        return self._window_end * (1 - 2 * TIE)

    def _keep(self, values: Array, layouts: Layouts) -> None:
        near = np.flatnonzero(values <= self._window_end)
        if len(near):
            self._kept.append((values[near], layouts.take(near)))
        if sum(len(part) for part, _ in self._kept) > 2 * MOST_KEPT:
            self._tidy()

    def _tidy(self) -> None:
        """Sort the kept layouts, and drop those outside the window."""
        if not self._kept:
            return
        values = np.concatenate([part for part, _ in self._kept])
        order = np.argsort(values, kind="stable")
        order = order[values[order] <= self._window_end]
        if len(order) > MOST_KEPT:
            order = order[:MOST_KEPT]
            self._most = float(values[order[-1]])
        self._kept = [(values[order], Layouts.concatenate(part for _, part in self._kept).take(order))]

    def thresholds(self, columns: Columns, rows: Ints) -> Array:
        """[row] `threshold`, or the value of the listed layout of the row's family, which a new one must beat."""
        out = np.full(len(rows), self.threshold)
        known = self.family if set(self.family) <= set(columns) else ()
        members = {name: columns[name][rows] for name in known}
        for value, _, layout in self.rows if known else ():
            same_family = np.all([column == getattr(layout, name) for name, column in members.items()], axis=0)
            out[same_family] = np.minimum(out[same_family], value * (1 + 2 * TIE))
        return np.asarray(np.maximum(out, self._window_end))

    def offer(self, values: Array, layouts: Layouts) -> None:
        """Add layouts to the list and to the window."""
        self._list(values, layouts)
        self._keep(values, layouts)

    def _list(self, values: Array, layouts: Layouts) -> None:
        candidates = np.flatnonzero((values <= self._list_threshold) & np.isfinite(values))
        if self.family:
            candidates = self._best_of_family(candidates, values, layouts)
        elif len(candidates) > 4 * self.limit:
            ceiling = np.partition(values[candidates], self.limit - 1)[self.limit - 1] * (1 + 2 * TIE)
            candidates = candidates[values[candidates] <= ceiling]
        for row in candidates.tolist():
            layout = layouts.layout(row)
            self.rows.append((float(f"{values[row]:.9g}"), str(layout), layout))
        self.rows.sort(key=lambda row: row[:2])
        if self.family:
            first = {tuple(getattr(row[2], name) for name in self.family): row for row in reversed(self.rows)}
            self.rows = sorted(first.values(), key=lambda row: row[:2])
        del self.rows[self.limit :]

    def _best_of_family(self, candidates: Ints, values: Array, layouts: Layouts) -> Ints:
        """The layouts that tie with the best of their family."""
        code = np.zeros(len(candidates), dtype=np.int64)
        for name in self.family:
            column = layouts[name][candidates]
            code = np.unique(code * (int(column.max(initial=0)) + 1) + column, return_inverse=True)[1]
        least = np.full(int(code.max(initial=-1)) + 1, np.inf)
        np.minimum.at(least, code, values[candidates])
        return candidates[values[candidates] <= least[code] * (1 + 2 * TIE)]
