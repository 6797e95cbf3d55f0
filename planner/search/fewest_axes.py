"""The fastest of the layouts with the fewest parallel axes, among those that a limit of seconds and bytes allows.

Which axes a layout has is known of its mesh. So meshes are searched by their number of axes, and the search ends with
the first number that has a layout: what needs more is never looked at.
"""

from __future__ import annotations

import numpy as np

from ...cost_models.layouts import Layout
from .exhaustive import Search
from .roots import Roots

AXES = ("tp", "cp", "pp", "ep", "etp")  # that are counted


def num_axes(layout: Layout) -> int:
    """How many of AXES are above 1."""
    return sum(getattr(layout, axis) > 1 for axis in AXES)


class FewestAxes(Search):
    """A search whose `incumbent` is the limit of seconds, and whose list holds one layout."""

    # The limit is known from the first node on: no part of the space need be searched before others.
    warm_starts = False
    first_meshes, first_rows = 256, (1024, 4096, 16384)

    def _descend(self, roots: Roots) -> None:
        axes = np.sum([roots.meshes[axis] > 1 for axis in AXES], axis=0)
        for number in np.unique(axes):
            super()._descend(roots.of(axes == number))
            self.top.rows = [row for row in self.top.rows if row[0] <= self.incumbent]
            if self.top.rows or self.stopped:
                return
