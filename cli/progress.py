"""Progress of a command on stderr: a bar on a terminal, and log lines with --verbose."""

from __future__ import annotations

import sys
import time
from collections.abc import Callable

from ..planner.drivers.heartbeat import Status

_EIGHTHS = " ▏▎▍▌▋▊▉"
_BEFORE_BAR_S = 0.5
_BETWEEN_BARS_S = 0.1  # more is flicker


class Progress(Status):
    """Called with (done, total) and an optional note; draws on one line of stderr, or logs every call."""

    def __init__(self, label: str, *, enabled: bool = False, log: Callable[[str], None] | None = None) -> None:
        super().__init__(label)
        self._enabled, self._log = enabled and log is None, log
        self._started = time.monotonic()
        self._next_s, self._drawn = _BEFORE_BAR_S, False

    def __call__(self, done: float, total: float, note: str = "") -> None:
        super().__call__(done, total, note)
        elapsed = time.monotonic() - self._started
        if self._log is not None:
            self._log(str(self))
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


def bar(share: float, width: int, *, unicode: bool) -> str:
    """A bar of `share` (0..1) of `width` cells, in eighths of a cell; in `#` where the encoding has no blocks."""
    if not unicode:
        return "#" * round(share * width)
    eighths = round(share * width * 8)
    return "█" * (eighths // 8) + _EIGHTHS[eighths % 8].strip()
