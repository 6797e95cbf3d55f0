"""Progress and time limit of a search. Every batch of rows asks for the time, as a batch of meshes may take long."""

from __future__ import annotations

from collections.abc import Callable

from ..space.tree import Count

Progress = Callable[[Count, float], None]  # called with what became of the layouts so far, and the best value
ShouldStop = Callable[[], bool]


class TimeLimitError(Exception):
    """The time is up. The search that runs keeps what it has."""


def stop_if_late(should_stop: ShouldStop | None) -> None:
    """Raises TimeLimitError if the time is up; None: there is no limit."""
    if should_stop is not None and should_stop():
        raise TimeLimitError
