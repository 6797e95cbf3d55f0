"""Processes beside the ranks that make the emulated cluster what it is."""

from __future__ import annotations

import os
from collections.abc import Callable

from meshwright.runtime.parent import die_with_parent


def start(core: int, run: Callable[[], None]) -> int:
    """Runs `run`, which never ends, on a core in a process of its own: its number. It ends with this process, and holds
    none of its files."""
    parent = os.getpid()
    if pid := os.fork():
        return pid
    try:
        die_with_parent(parent)
        os.closerange(3, 1024)
        os.setsid()
        os.sched_setaffinity(0, {core})
        run()
    finally:
        os._exit(1)
