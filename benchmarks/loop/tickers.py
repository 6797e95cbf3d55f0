"""A process per core that wakes every millisecond, before all others: the kernel then looks at quotas that often, and
we learn how fast the core is (`core_speed` of the profilers says why it matters)."""

from __future__ import annotations

import mmap
import os
import signal
import time
from collections.abc import Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any

import numpy as np
from meshwright.profiles.profilers import core_speed
from meshwright.profiles.profilers.core_speed import Times

from . import background

TICK_S = 0.001
TICKS_PER_PROBE = 5
NUM_PROBES = 1 << 18  # stored: those of the last 20 minutes, at the least
WINDOW_S = 0.3  # about a step
_PRIORITY = 50
_PROBE_GAP_S = 2 * TICKS_PER_PROBE * TICK_S  # of two probes, at the most: also the shortest step has one beside it


def may_go_first() -> bool:
    """Whether this process may have the priority of a ticker."""
    try:
        os.sched_setscheduler(0, os.SCHED_FIFO, os.sched_param(_PRIORITY))
        os.sched_setscheduler(0, os.SCHED_OTHER, os.sched_param(0))
    except PermissionError:
        return False
    return True


@dataclass(frozen=True)
class Tickers:
    """The running processes, and their measurements."""

    # [cores]
    pids: tuple[int, ...]
    # [cores] memory shared with each process: the number of probes made, then for the last NUM_PROBES of them the times
    # at which they were made (time.perf_counter) and their durations in s.
    pages: tuple[mmap.mmap, ...]

    @classmethod
    def start(cls, cores: Sequence[int]) -> Tickers:
        pages = tuple(mmap.mmap(-1, 8 * (1 + 2 * NUM_PROBES)) for _ in cores)
        pids = (background.start(core, partial(_tick, page)) for core, page in zip(cores, pages, strict=True))
        return cls(tuple(pids), pages)

    def stop(self) -> None:
        for pid in self.pids:
            os.kill(pid, signal.SIGKILL)
            os.waitpid(pid, 0)

    def slowness(self, start: float, end: float) -> float:
        """Slowness between two times of time.perf_counter of the core that was disturbed most: 1 is its full speed."""
        return max(_slowness(*_probes(page), start, end) for page in self.pages)

    def usual_slowness(self, start: float, end: float) -> float:
        """The median over the calmer half of that time, which is what counts of steps and of samples of kernels; of as
        much of it as is stored."""
        start = max(start, end - NUM_PROBES * TICKS_PER_PROBE * TICK_S)
        windows = [self.slowness(at, at + WINDOW_S) for at in np.arange(start, end, WINDOW_S)]
        return float(np.median(core_speed.calmest(windows, float)))


def _probes(page: mmap.mmap) -> tuple[Times, Times]:
    """When probes were made, and what they took."""
    numbers: Any = np.frombuffer(page, np.float64)
    made = min(int(numbers[0]), NUM_PROBES)
    return numbers[1 : 1 + made], numbers[1 + NUM_PROBES : 1 + NUM_PROBES + made]


def _slowness(times: Times, took: Times, start: float, end: float) -> float:
    """Raises ValueError where there is no probe between the two times."""
    within = (times >= start - _PROBE_GAP_S) & (times <= end + _PROBE_GAP_S)
    if not within.any():
        raise ValueError("no probe between these times")
    return core_speed.slowness(took[within], took)


def _tick(page: mmap.mmap) -> None:
    """In no group of ours: where real-time time is dealt out to groups, a new one has none."""
    os.sched_setscheduler(0, os.SCHED_FIFO, os.sched_param(_PRIORITY))
    numbers: Any = np.frombuffer(page, np.float64)
    made = 0
    while True:
        for _ in range(TICKS_PER_PROBE):
            time.sleep(TICK_S)
        started = time.perf_counter()
        core_speed.loop()
        place = 1 + made % NUM_PROBES
        numbers[place] = started
        numbers[NUM_PROBES + place] = time.perf_counter() - started
        made += 1
        numbers[0] = made
