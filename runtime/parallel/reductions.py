"""Reductions of gradients that run beside the backward pass.

While the gradients of one unit travel, the backward pass makes those of the next one. A reduction is an iterator over
its collectives: each is started by the iterator and waited for before the iterator goes on. All ranks of a group
complete their units in one order, so their collectives match without a barrier.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

from .comm import Pending


@dataclass
class _Running:
    """A reduction and the collective that it waits for."""

    hops: Iterator[Pending]
    pending: Pending

    def advance(self) -> bool:
        """Waits for the collective and starts the next one, if any."""
        self.pending.wait()
        following = next(self.hops, None)
        if following is None:
            return False
        self.pending = following
        return True


class Reductions:
    """The reductions of a rank that have started and not ended."""

    def __init__(self) -> None:
        self._running: list[_Running] = []

    def add(self, hops: Iterator[Pending]) -> None:
        """Starts a reduction after the first collective of all earlier ones has ended.

        At most one buffer of gradients is scattered at a time, which the memory model counts
        (StackSpec.scatters_beside).
        """
        self._running = [running for running in self._running if running.advance()]
        first = next(hops, None)
        if first is not None:
            self._running.append(_Running(hops, first))

    def finish(self) -> None:
        """Waits for all reductions."""
        while self._running:
            self._running = [running for running in self._running if running.advance()]
