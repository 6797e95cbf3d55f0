"""A process per core that wakes every millisecond, before all others: the kernel then looks at quotas that often, and
we learn how fast the core is (`core_speed` of the profilers says why it matters).

It times a bit of a layer, whose seconds change as those of passes through a model do. On cores that others slow down,
`log passes = slope log probe` has a slope of 0.91 to 0.98 over 8 s, at a correlation of 0.93 (eight ranks beside, four
minutes, 2026-11-30); a loop in Python has 0.5 to 0.6, and a product of two matrices 0.7.
"""

from __future__ import annotations

import mmap
import os
import signal
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any

import numpy as np
import torch
from meshwright.profiles.profilers import core_speed
from meshwright.profiles.profilers.core_speed import Times
from torch.nn import functional

from . import background

TICK_S = 0.001
TICKS_PER_PROBE = 20
NUM_PROBES = 1 << 16  # stored: those of the last 20 minutes, at the least
WINDOW_S = 0.3  # about a step
PROBES_TO_FOLLOW = 50  # a second, which each change of quotas looks back on
PROBES_APART = 25  # two changes of quotas
_PRIORITY = 50
_TOKENS, _WEIGHT, _GAIN = torch.ones(64, 128), torch.ones(128, 128), torch.ones(128)
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
    def start(cls, cores: Sequence[int], follow: Callable[[int, float], None]) -> Tickers:
        """follow: gets a core and the seconds of a probe on it, every PROBES_TO_FOLLOW probes."""
        pages = tuple(mmap.mmap(-1, 8 * (1 + 2 * NUM_PROBES)) for _ in cores)
        pids = (background.start(core, partial(_tick, page, partial(follow, core)))
                for core, page in zip(cores, pages, strict=True))  # fmt: skip
        return cls(tuple(pids), pages)

    def stop(self) -> None:
        for pid in self.pids:
            os.kill(pid, signal.SIGKILL)
            os.waitpid(pid, 0)

    def probe_s(self, start: float, end: float) -> float:
        """Seconds of a probe between two times of time.perf_counter (the median), on the core where it is longest."""
        return max(_median_s(*_probes(page), start, end) for page in self.pages)

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


def _between(times: Times, took: Times, start: float, end: float) -> Times:
    """What probes took between the two times. Raises ValueError where there is none."""
    within = (times >= start - _PROBE_GAP_S) & (times <= end + _PROBE_GAP_S)
    if not within.any():
        raise ValueError("no probe between these times")
    return took[within]


def _slowness(times: Times, took: Times, start: float, end: float) -> float:
    return core_speed.slowness(_between(times, took, start, end), took)


def _median_s(times: Times, took: Times, start: float, end: float) -> float:
    return float(np.median(_between(times, took, start, end)))


@torch.inference_mode()
def _bit_of_a_layer() -> None:
    """Some 0.35 ms beside the passes of ranks, which have taken the caches."""
    functional.gelu(functional.layer_norm(_TOKENS @ _WEIGHT, _GAIN.shape, _GAIN, _GAIN))


def _tick(page: mmap.mmap, follow: Callable[[float], None]) -> None:
    """In no group of ours: where real-time time is dealt out to groups, a new one has none."""
    os.sched_setscheduler(0, os.SCHED_FIFO, os.sched_param(_PRIORITY))
    torch.set_num_threads(1)
    numbers: Any = np.frombuffer(page, np.float64)
    last = np.empty(PROBES_TO_FOLLOW)
    made = 0
    while True:
        for _ in range(TICKS_PER_PROBE):
            time.sleep(TICK_S)
        started = time.perf_counter()
        _bit_of_a_layer()
        took = time.perf_counter() - started
        place = 1 + made % NUM_PROBES
        numbers[place], numbers[NUM_PROBES + place] = started, took
        last[made % PROBES_TO_FOLLOW] = took
        made += 1
        numbers[0] = made
        if made >= PROBES_TO_FOLLOW and made % PROBES_APART == 0:
            follow(float(np.median(last)))
