"""Settings of the C allocator for the arrays of a search."""

from __future__ import annotations

import ctypes
import sys

# Names of mallopt in glibc's malloc.h.
_TRIM_THRESHOLD, _MMAP_THRESHOLD = -1, -3
_KEPT_BYTES, _LARGEST_BYTES = 1 << 29, 1 << 25  # the second is the most that glibc takes


def keep_freed_memory() -> None:
    """Let glibc keep what is freed for the next array. By default it hands arrays of a search back to the system one by
    one, which then clears every page anew: a sixth of the time of a large search. Elsewhere nothing changes."""
    if sys.platform != "linux":
        return
    mallopt = getattr(ctypes.CDLL(None), "mallopt", None)
    if mallopt is not None:
        mallopt(_TRIM_THRESHOLD, _KEPT_BYTES)
        mallopt(_MMAP_THRESHOLD, _LARGEST_BYTES)
