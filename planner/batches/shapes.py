"""Shapes of a step, and the packing of a batch into one: how many groups of each degree every micro-batch has.

The relaxation (relaxation.py) gives a shape that is near the best one. Shapes beside it come from two groups of a
degree that become one of twice the degree, or the reverse. Each is tried with makespans that would be a gain.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field

import numpy as np

from ...cost_models.arrays import Array
from .batch_plan import Group
from .packing import Batch, Shape, pack

_FIRST = (1.0, 1.01, 1.02, 1.04, 1.07)  # factors on the longest makespan that are tried
_GAIN = 0.003  # relative to the makespans together: the least that is looked for
_PACKINGS = 40  # of a climb
_NOTHING = 1e-9  # relative to the longest makespan: makespans that are those of empty micro-batches
_SHORTEST = 0.9  # of makespans that are known, where the bisection of shorter ones begins


def beside(shape: Shape) -> Iterator[Shape]:
    """The shapes that differ from `shape` in one group that is halved, or two that are joined."""
    for part, counts in enumerate(shape):
        for column in range(len(counts) - 1):
            for joined in (1, -1):
                changed = list(counts)
                changed[column] -= 2 * joined
                changed[column + 1] += joined
                if min(changed) >= 0:
                    yield (*shape[:part], tuple(changed), *shape[part + 1 :])


@dataclass
class Climb:
    """The best packing of shapes near one another, of a batch whose micro-batches are known to take `best_s`."""

    batch: Batch
    best_s: float  # seconds of the micro-batches together
    enough_s: float  # no better packing is sought
    found: list[list[Group]] = field(default_factory=list)
    packings: int = 0

    def run(self, shape: Shape, limits: Sequence[float]) -> None:
        """Improve on `best_s` from a shape whose makespans may be near `limits`, the longest first."""
        for factor in _FIRST:
            self._bisect(shape, np.array([limits[0] * factor, *limits[1:]]))
        makespans = self._makespans() if self.found else np.asarray(limits)
        while (better := self._better(shape, makespans)) is not None:
            shape, makespans = better, self._makespans()

    def _better(self, shape: Shape, makespans: Array) -> Shape | None:
        """The first shape beside `shape` that is a gain."""
        before = self.best_s
        for other in beside(shape):
            if self.packings >= _PACKINGS or self.best_s <= self.enough_s:
                return None
            self._bisect(other, makespans)
            if self.best_s < before:
                return other
        return None

    def _bisect(self, shape: Shape, limits: Array) -> None:
        """Shorten the makespans after the first one, or the only one, together."""
        start = min(1, len(limits) - 1)
        first, rest = limits[:start], limits[start:]
        together = float(rest.sum())
        if together <= _NOTHING * float(limits[0]):  # all that is trained is in the first micro-batch
            self._try(shape, limits)
            return
        low, high = _SHORTEST, (self.best_s * (1 - _GAIN) - float(first.sum())) / together
        if high <= low or not self._try(shape, np.concatenate([first, rest * high])):
            return
        while (high - low) * together > _GAIN * self.best_s:
            middle = (low + high) / 2
            if self._try(shape, np.concatenate([first, rest * middle])):
                high = middle
            else:
                low = middle

    def _try(self, shape: Shape, limits: Array) -> bool:
        self.packings += 1
        packed = pack(self.batch, limits, shape)
        if packed is not None and packed[0] < self.best_s:
            self.best_s, self.found = packed
        return packed is not None

    def _makespans(self) -> Array:
        """[micro-batch] seconds, of the best packing."""
        return np.array([max(map(self._seconds, groups), default=0.0) for groups in self.found])

    def _seconds(self, group: Group) -> float:
        column = int(np.searchsorted(self.batch.costs.degrees, group.degree))
        return float(self.batch.seconds[list(group.sequences), column].sum())
