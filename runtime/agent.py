"""torchrun that ends with its launcher: `python -m meshwright.runtime.agent` takes torchrun's arguments.

It blocks SIGTERM. A scheduler sends SIGTERM to all processes at once, and torchrun would stop ranks that are still
saving after 30 seconds and count the run as failed. The ranks also start with SIGTERM blocked until they can handle it.
"""

from __future__ import annotations

import ctypes
import os
import signal
import sys

PARENT = "MESHWRIGHT_PARENT"  # process id of the parent
# torch's variable for its allocator, and its name before 2.9, which 2.13 reads too, and first (CUDAAllocatorConfig.h).
# Expandable segments avoid fragmentation between tensors as large as logits. Without them a run of 133 GiB on an H200
# of 140 GiB ran out of memory.
ALLOCATOR, OLD_ALLOCATOR = "PYTORCH_ALLOC_CONF", "PYTORCH_CUDA_ALLOC_CONF"
SEGMENTS = "expandable_segments:True"
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


def grow_segments() -> None:
    """Enables expandable segments in the allocators of the ranks, unless the environment configures the allocator."""
    if ALLOCATOR not in os.environ and OLD_ALLOCATOR not in os.environ:
        os.environ.update({ALLOCATOR: SEGMENTS, OLD_ALLOCATOR: SEGMENTS})


if __name__ == "__main__":
    die_with_parent()
    grow_segments()
    signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGTERM})  # child processes inherit the mask
    from torch.distributed.run import main

    main()
