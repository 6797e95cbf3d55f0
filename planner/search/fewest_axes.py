"""The fastest layout with the fewest parallel axes, within a limit of seconds and bytes.

The mesh of a layout determines its axes. Meshes are searched by their number of axes, and the search ends with the
first number that has a layout.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from ...cost_models.arrays import Ints
from ...cost_models.layouts import Layout, Layouts
from .exhaustive import Search
from .roots import Roots

AXES = ("tp", "cp", "pp", "ep", "etp")  # counted axes


def num_axes(layout: Layout) -> int:
    """The number of AXES above 1."""
    return sum(getattr(layout, axis) > 1 for axis in AXES)


def axes_of(layouts: Layouts) -> Ints:
    """[n] the same for each layout."""
    return np.asarray(np.sum([layouts[axis] > 1 for axis in AXES], axis=0))


class FewestAxes(Search):
    """A search for one layout, with the limit of seconds as `incumbent`.

    fewer_than: search only layouts with fewer axes; None: all.
    """

    # The limit is known from the start, so no warm start is needed.
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
