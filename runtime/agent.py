"""torchrun, but it ends when the launcher does: `python -m meshwright.runtime.agent` takes torchrun's arguments."""

from __future__ import annotations

import ctypes
import signal
import sys

_PR_SET_PDEATHSIG = 1  # prctl(2)


def die_with_parent() -> None:
    """On Linux: SIGKILL when the parent is gone, however that happened."""
    if sys.platform == "linux":
        ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)


if __name__ == "__main__":
    die_with_parent()
    from torch.distributed.run import main

    main()
