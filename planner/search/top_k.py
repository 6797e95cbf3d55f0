"""The best layouts of a search so far."""

from __future__ import annotations

from dataclasses import dataclass, field

import numpy as np

from ...cost_models.arrays import Array, Ints
from ...cost_models.layouts import Layout, Layouts
from ..space.tree import Columns

# Nine digits of a value count (docs/architecture.md, 8): layouts that agree in them are equal, and ordered by id. They
# are within this share of one another.
TIE = 1e-8
# What agrees in all of these are near twins: a list holds the best layout of each family.
FAMILY = ("tp", "cp", "pp", "schedule", "ep", "etp")


@dataclass
class TopK:
    """The best layouts so far."""

    limit: int  # how many
    family: tuple[str, ...] = ()  # of layouts that agree in all these fields only the best is listed; (): all are
    rows: list[tuple[float, str, Layout]] = field(default_factory=list)  # (seconds or bytes, id, layout), best first

    @property
    def threshold(self) -> float:
        """A bound above this cannot enter the list. A tie with the last row can: its id decides."""
        return self.rows[-1][0] * (1 + 2 * TIE) if len(self.rows) == self.limit else np.inf

    def thresholds(self, columns: Columns, rows: Ints) -> Array:
        """[row] as `threshold`; where the list has one of the row's family, only what beats that one can enter."""
        out = np.full(len(rows), self.threshold)
        known = self.family if set(self.family) <= set(columns) else ()
        members = {name: columns[name][rows] for name in known}
        for value, _, layout in self.rows if known else ():
            same_family = np.all([column == getattr(layout, name) for name, column in members.items()], axis=0)
            out[same_family] = np.minimum(out[same_family], value * (1 + 2 * TIE))
        return out

    def offer(self, values: Array, layouts: Layouts) -> None:
        """Take what belongs in the list."""
        candidates = np.flatnonzero((values <= self.threshold) & np.isfinite(values))
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
        """Those that tie with the best of their family."""
        code = np.zeros(len(candidates), dtype=np.int64)
        for name in self.family:
            column = layouts[name][candidates]
            code = np.unique(code * (int(column.max(initial=0)) + 1) + column, return_inverse=True)[1]
        least = np.full(int(code.max(initial=-1)) + 1, np.inf)
        np.minimum.at(least, code, values[candidates])
        return candidates[values[candidates] <= least[code] * (1 + 2 * TIE)]
