"""How far a command is, on stderr: a bar on a terminal, elsewhere a line whenever it was silent for a while."""

from __future__ import annotations

import sys
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager

SILENCE_S = 10.0  # after which a command without a terminal says where it is
_EIGHTHS = " ▏▎▍▌▋▊▉"
_BEFORE_BAR_S = 0.5
_BETWEEN_BARS_S = 0.1  # more is flicker


class Progress:
    """Called with (done, total) and an optional note; draws on one line of stderr, or logs every call."""

    def __init__(self, label: str, *, enabled: bool = False, log: Callable[[str], None] | None = None) -> None:
        self._label, self._enabled, self._log = label, enabled and log is None, log
        self._started = time.monotonic()
        self._next_s, self._drawn = _BEFORE_BAR_S, False
        self._last = ""

    def __call__(self, done: float, total: float, note: str = "") -> None:
        self._last = f"{done:,.0f} of {total:,.0f} {note}".rstrip()
        elapsed = time.monotonic() - self._started
        if self._log is not None:
            self._log(f"{self._label}: {self._last}")
        if not self._enabled or elapsed < self._next_s:
            return
        self._next_s = elapsed + _BETWEEN_BARS_S
        self._drawn = True
        share = min(max(done / total, 0.0), 1.0) if total > 0 else 0.0
        sys.stderr.write(f"\r\x1b[K{self._label} {bar(share, 24, unicode=True):<24} {share:4.0%} {note}")
        sys.stderr.flush()

    def clear(self) -> None:
        if self._drawn:
            sys.stderr.write("\r\x1b[K")
            sys.stderr.flush()

    def __str__(self) -> str:
        """`searching: 1,000 of 4,000 best 1.2`."""
        return f"{self._label}: {self._last}" if self._last else self._label


class Heartbeat:
    """Says where a command is, whenever nothing was written for SILENCE_S.

    A thread watches, since the work itself may be in one long call.
    """

    def __init__(self, say: Callable[[str], None], doing: str) -> None:
        self._say = say
        self.doing: list[object] = [doing]  # the innermost last; its text is said
        self._started = self._spoke = time.monotonic()
        self._ended = threading.Event()

    def spoke(self) -> None:
        """Something was written just now."""
        self._spoke = time.monotonic()

    @contextmanager
    def beating(self) -> Iterator[None]:
        """Watches for as long as the context lasts."""
        thread = threading.Thread(target=self._watch, daemon=True)
        thread.start()
        try:
            yield
        finally:
            self._ended.set()

    def _watch(self) -> None:
        while not self._ended.wait(max(0.05, self._spoke + SILENCE_S - time.monotonic())):
            now = time.monotonic()
            if now - self._spoke < SILENCE_S:
                continue
            try:
                self._say(f"{self.doing[-1]}, {now - self._started:,.0f} s so far")
            except (OSError, ValueError):  # nobody reads it any more
                return
            self._spoke = now


def bar(share: float, width: int, *, unicode: bool) -> str:
    """A bar of `share` (0..1) of `width` cells, in eighths of a cell; in `#` where the encoding has no blocks."""
    if not unicode:
        return "#" * round(share * width)
    eighths = round(share * width * 8)
    return "█" * (eighths // 8) + _EIGHTHS[eighths % 8].strip()
