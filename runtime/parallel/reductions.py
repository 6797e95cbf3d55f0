"""Reductions of gradients that run beside the backward pass.

While the gradients of one unit travel, the backward pass makes those of the next one. A reduction is an iterator over
its collectives: each is started by the iterator and waited for before the iterator goes on. All ranks of a group
complete their units in one order, so their collectives match without a barrier.

A stage whose gradient the stage before waits for sends it first: reductions would delay that stage, and all before it,
while this one has the length of a pass to spare. Reductions that were put off start one by one, each after a pass. When
they start depends on passes alone, and not on whether messages have arrived: ranks of a group would differ in that.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterator
from contextlib import contextmanager
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
        self._waiting: deque[Iterator[Pending]] = deque()
        self._puts_off = False

    @contextmanager
    def put_off(self) -> Iterator[None]:
        """Context around a pass and the message that another stage waits for. Reductions added in it start later."""
        self._puts_off = True
        try:
            yield
        finally:
            self._puts_off = False

    def after_pass(self) -> None:
        """Starts one of those that were put off, if any."""
        if self._waiting:
            self._start(self._waiting.popleft())

    def add(self, hops: Iterator[Pending], *, frees: bool = False) -> None:
        """Starts a reduction after the first collective of all earlier ones has ended.

        At most one buffer of gradients is scattered at a time, which the memory model counts
        (StackSpec.scatters_beside). frees: the reduction frees memory that the pass needs, and is not put off.
        """
        if self._puts_off and not frees:
            self._waiting.append(hops)
            return
        self._start(hops)

    def _start(self, hops: Iterator[Pending]) -> None:
        self._running = [running for running in self._running if running.advance()]
        first = next(hops, None)
        if first is not None:
            self._running.append(_Running(hops, first))

    def finish(self) -> None:
        """Waits for all reductions, also for those that were put off."""
        while self._waiting:
            self.after_pass()
        while self._running:
            self._running = [running for running in self._running if running.advance()]
