"""A process per rank that takes quota of the rank whenever nothing of the rank wants to run.

A rank that waits would save up time otherwise: the kernel lets it keep a millisecond of its quota beside that of the
next period, which is two milliseconds at the full speed of the core after every wait for a message, and pipelines hid
half of their bubbles in that. A device goes on at one speed. An idler that takes the rank's share leaves that
millisecond, so it takes twice the share: the saved millisecond is gone one period after the kernel granted it. The
self-test reports the rest: behind a wait 4 ms of CPU take 0.74 of their time with idlers at the share, 0.84 at twice
the share (means of four self-tests each, in turns; 8 ranks on 2 cores beside other work, Linux 6.18, 2026-11-29), 0.63
without idlers. A rank that saved nothing would take 0.9, since a burst ends at the full speed of the core, early in its
last period. Idlers that took all that is left would make every message wait for the next period.
"""

from __future__ import annotations

import os
import signal
import time
from collections.abc import Sequence
from dataclasses import dataclass
from functools import partial

from . import background
from .quotas import Quotas, in_short_turns

TICK_S = 0.0005  # between two turns of an idler
MOST_S = 2 * TICK_S  # of the time since its last turn that counts: during the rest the rank computed
SHARES = 2.0  # of the rank's share: one for the time that passes, one for what the rank saved up


@dataclass(frozen=True)
class Idlers:
    """The running processes."""

    # [ranks]
    pids: tuple[int, ...]

    @classmethod
    def start(cls, quotas: Quotas, cores: Sequence[int]) -> Idlers:
        """cores: of every rank."""
        return cls(tuple(background.start(core, partial(_idle, quotas, rank)) for rank, core in enumerate(cores)))

    def pause(self) -> None:
        """Without quotas they would take time from other ranks."""
        self._signal(signal.SIGSTOP)

    def go_on(self) -> None:
        self._signal(signal.SIGCONT)

    def stop(self) -> None:
        self._signal(signal.SIGKILL)
        for pid in self.pids:
            os.waitpid(pid, 0)

    def _signal(self, number: int) -> None:
        for pid in self.pids:
            os.kill(pid, number)


def _idle(quotas: Quotas, rank: int) -> None:
    quotas.join(rank)
    in_short_turns(os.SCHED_IDLE)
    last = time.perf_counter()
    while True:
        time.sleep(TICK_S)
        now = time.perf_counter()
        until = time.thread_time() + SHARES * quotas.share(rank) * min(now - last, MOST_S)
        last = now
        while time.thread_time() < until:
            pass
