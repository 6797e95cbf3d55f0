"""The interface of a tracker: a service or a file format that shows the metrics of runs."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Protocol


class Tracker(Protocol):
    """An open run of a tracker."""

    def write(self, step: int, values: Mapping[str, float]) -> None:
        """Adds values by name to step 1, 2, ..."""

    def close(self) -> None:
        """Writes what is left."""
