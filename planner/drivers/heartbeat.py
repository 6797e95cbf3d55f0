"""Status lines for work that takes long: the latest progress, written after every 10 s of silence."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager

SILENCE_S = 10.0  # seconds of silence before a status line
_LAST_LINE_S = 1.0  # in which a line that is being written at the end of the work is


class Status:
    """The latest progress of some work as text: `searching: 1,000 of 4,000 best 1.2`."""

    def __init__(self, label: str) -> None:
        self._label, self._last = label, ""

    def __call__(self, done: float, total: float, note: str = "") -> None:
        self._last = f"{done:,.0f} of {total:,.0f} {note}".rstrip()

    def __str__(self) -> str:
        return f"{self._label}: {self._last}" if self._last else self._label


class Heartbeat:
    """Writes a status line whenever nothing was written for SILENCE_S.

    A thread watches, because the work itself may be one long call.
    """

    def __init__(self, write: Callable[[str], None], doing: object) -> None:
        self._write = write
        self.doing = [doing]  # the innermost work last; its text is written
        self._started = self._spoke = time.monotonic()
        self._ended = threading.Event()

    def spoke(self) -> None:
        """Restart the interval of silence."""
        self._spoke = time.monotonic()

    @contextmanager
    def beating(self) -> Iterator[None]:
        """Watch inside the context."""
        thread = threading.Thread(target=self._watch, daemon=True)
        thread.start()
        try:
            yield
        finally:
            self._ended.set()
            thread.join(_LAST_LINE_S)  # else its last line may follow those of the result

    def _watch(self) -> None:
        while not self._ended.wait(max(0.05, self._spoke + SILENCE_S - time.monotonic())):
            now = time.monotonic()
            if now - self._spoke < SILENCE_S:
                continue
            try:
                self._write(f"{self.doing[-1]}, {now - self._started:,.0f} s so far")
            except (OSError, ValueError):  # the stream is closed
                return
            self._spoke = now
