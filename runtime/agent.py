"""torchrun, but it ends when the launcher does: `python -m meshwright.runtime.agent` takes torchrun's arguments.

It takes no SIGTERM. A scheduler sends that to all processes at once: torchrun would stop ranks that are still saving
after 30 seconds, and count the run as failed. The ranks start with SIGTERM held back, too, until they can take it.
"""

from __future__ import annotations

import ctypes
import os
import signal
import sys

PARENT = "MESHWRIGHT_PARENT"  # process id of who started this one
# torch's variable for its allocator, and what it was called before 2.9. Segments that grow leave no holes between
# tensors as large as logits: without them a run of 133 GiB on an H200 of 140 ran out of memory.
ALLOCATOR, OLD_ALLOCATOR = "PYTORCH_ALLOC_CONF", "PYTORCH_CUDA_ALLOC_CONF"
_PR_SET_PDEATHSIG = 1  # prctl(2)


def die_with_parent(parent: int | None = None) -> None:
    """On Linux: SIGKILL when the parent is gone, however that happened, and an end at once if it is gone by now: to
    import torch takes seconds. What this process starts has it as its parent. parent: process id of who forked this
    one; without it the environment may say who started it."""
    if sys.platform != "linux":
        return
    ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)
    known = os.environ.get(PARENT) if parent is None else str(parent)
    if known is not None and known != str(os.getppid()):
        os._exit(1)
    os.environ[PARENT] = str(os.getpid())


def grow_segments() -> None:
    """Lets the allocators of the ranks grow their segments, unless the environment configures them."""
    if ALLOCATOR not in os.environ:
        os.environ.setdefault(OLD_ALLOCATOR, "expandable_segments:True")


if __name__ == "__main__":
    die_with_parent()
    grow_segments()
    signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGTERM})  # what it starts inherits that
    from torch.distributed.run import main

    main()
