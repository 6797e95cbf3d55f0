"""The speed of the core that this process runs on, measured by a short loop.

The cores of a virtual machine are shared with machines that nobody here sees: for seconds at a time everything takes up
to twice as long, and the kernel counts nothing as stolen. The loop takes longer, too (where ranks train beside it, 1.1
to 1.3 times as long as on an idle core).
"""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import TypeVar

import numpy as np

CALM = 10.0  # percentile of all times of the loop that is the core's own speed
MOST = 3.0  # times that: beyond it the loop was interrupted
CALMEST = 0.5  # of samples, those that count: meanwhile the core was fastest
APART_S = 0.001  # of two loops beside other work
_LOOPS = 500

T = TypeVar("T")
Times = np.ndarray[tuple[int, ...], np.dtype[np.float64]]


def loop() -> None:
    """Some 15 us."""
    total = 0
    for number in range(_LOOPS):
        total += number


def slowness(took: Times, all_took: Times) -> float:
    """How much longer the loop took than at the core's own speed, on average: 1 is that speed. took: seconds of some
    loops; all_took: of all that there are of this core."""
    return float(np.minimum(took / np.percentile(all_took, CALM), MOST).mean())


def calmest(samples: Sequence[T], slowness_of: Callable[[T], float]) -> list[T]:
    """The samples that count, the calmest first."""
    return sorted(samples, key=slowness_of)[: math.ceil(CALMEST * len(samples))]


@dataclass
class Watch:
    """The loop, run beside the work of this thread."""

    took: list[float] = field(default_factory=list)  # CPU seconds of every loop
    last: float = -APART_S  # time.perf_counter of the last one

    def look(self) -> float:
        """The loop once more, if the last one was APART_S ago; the CPU seconds that it took, or 0."""
        now = time.perf_counter()
        if now - self.last < APART_S:
            return 0.0
        started = time.thread_time()
        loop()
        self.took.append(time.thread_time() - started)
        self.last = now
        return self.took[-1]

    def slowness(self, since: int) -> float:
        """The slowness of the core while all but the first `since` loops ran."""
        return slowness(np.array(self.took[since:]), np.array(self.took))
