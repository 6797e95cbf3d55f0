"""Processes that end with the one that started them."""

from __future__ import annotations

import ctypes
import os
import signal
import sys

PARENT = "MESHWRIGHT_PARENT"  # process id of the parent
_PR_SET_PDEATHSIG = 1  # prctl(2)


def die_with_parent(parent: int | None = None) -> None:
    """Kills this process with its parent (Linux only).

    The process ends at once if the parent is already gone, because the import of torch takes seconds. Its children get
    this process as their parent. parent: process id of the forking process; None: the process id in the environment.
    """
    if sys.platform != "linux":
        return
    ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)
    known = os.environ.get(PARENT) if parent is None else str(parent)
    if known is not None and known != str(os.getppid()):
        os._exit(1)
    os.environ[PARENT] = str(os.getpid())
