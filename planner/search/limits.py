"""Progress and time limit of a search. Every batch of rows checks the time, because a batch of meshes may be long."""

from __future__ import annotations

from collections.abc import Callable

from ..space.tree import Count

Progress = Callable[[Count, float], None]  # called with the counts so far and the best value
ShouldStop = Callable[[], bool]


class TimeLimitError(Exception):
    """Raised when the time is up. The running search keeps its results."""


def stop_if_late(should_stop: ShouldStop | None) -> None:
    """Raises TimeLimitError if the time is up. None: no limit."""
    if should_stop is not None and should_stop():
        raise TimeLimitError
