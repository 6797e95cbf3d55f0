"""Progress, time limit and worker pool of one call of `plan`, shared by all its searches."""

from __future__ import annotations

import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager

import numpy as np

from ..document.plan import Plan
from ..search.executors import Executor
from ..space.tree import Count
from .heartbeat import Heartbeat, Status

Progress = Callable[[float, float, str], None]


@contextmanager
def interactive_progress(progress: Progress | None, doing: str) -> Iterator[Progress | None]:
    """`progress`, or in notebooks and interactive shells status lines on stderr after every 10 s.

    A script writes nothing unless it passes its own `progress`.
    """
    if progress is not None or not (hasattr(sys, "ps1") or "ipykernel" in sys.modules):
        yield progress
        return
    status = Status(doing)
    with Heartbeat(lambda text: print(f"meshwright: {text}", file=sys.stderr, flush=True), status).beating():
        yield status


class Watch:
    """Reports progress and measures what remains of the time limit."""

    def __init__(self, progress: Progress | None, time_limit_s: float | None, pool: Executor) -> None:
        self.pool = pool  # runs searches that do not depend on one another
        self.cuts: list[tuple[str, str]] = []  # (cause, comparison that it cut); the best layout is proven all the same
        self._progress = progress
        self._limit_s = time_limit_s
        self._started_s = time.monotonic()

    def report(self, count: Count, best: float) -> None:
        """Report the layouts that are accounted for, and the best value known (seconds or bytes; inf for none)."""
        if self._progress is not None:
            note = f"best {best:.4g}" if np.isfinite(best) else ""
            self._progress(float(count.accounted), float(count.total), note)

    def left_s(self) -> float:
        """Seconds until the time limit; infinite without one."""
        return np.inf if self._limit_s is None else self._limit_s - (time.monotonic() - self._started_s)

    def late(self) -> bool:
        return self.left_s() <= 0

    def warn(self, plan: Plan) -> Plan:
        """`plan` with a warning for each comparison that was cut."""
        texts = [f"{cause} before {comparison}" for cause, comparison in self.cuts]
        return plan.with_warnings(texts, [cause for cause, _ in self.cuts])
