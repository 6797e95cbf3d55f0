"""The fastest of the layouts with the fewest parallel axes, among those that a limit of seconds and bytes allows.

Which axes a layout has is known of its mesh. So meshes are searched by their number of axes, and the search ends with
the first number that has a layout: what needs more is never looked at.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from ...cost_models.arrays import Ints
from ...cost_models.layouts import Layout, Layouts
from .exhaustive import Search
from .roots import Roots

AXES = ("tp", "cp", "pp", "ep", "etp")  # that are counted


def num_axes(layout: Layout) -> int:
    """How many of AXES are above 1."""
    return sum(getattr(layout, axis) > 1 for axis in AXES)


def axes_of(layouts: Layouts) -> Ints:
    """[n] the same of each layout."""
    return np.asarray(np.sum([layouts[axis] > 1 for axis in AXES], axis=0))


class FewestAxes(Search):
    """A search whose `incumbent` is the limit of seconds, and whose list holds one layout. fewer_than: only layouts
    with fewer axes than so many are searched for; None: all."""

    # The limit is known from the first node on: no part of the space need be searched before others.
    warm_starts = False
    first_meshes, first_rows = 256, (1024, 4096, 16384)

    def __init__(self, *args: Any, fewer_than: int | None = None, **options: Any) -> None:
        super().__init__(*args, **options)
        self.fewer_than = len(AXES) + 1 if fewer_than is None else fewer_than

    def _descend(self, roots: Roots) -> None:
        axes = np.sum([roots.meshes[axis] > 1 for axis in AXES], axis=0)
        for number in np.unique(axes[axes < self.fewer_than]):
            super()._descend(roots.of(axes == number))
            self.top.rows = [row for row in self.top.rows if row[0] <= self.incumbent]
            if self.top.rows or self.stopped:
                return
