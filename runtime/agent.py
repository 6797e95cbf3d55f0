"""torchrun that ends with its launcher: `python -m meshwright.runtime.agent` takes torchrun's arguments.

Its ranks are forks of it, so that a node imports torch once, and not once per rank and per restart.

It blocks SIGTERM. A scheduler sends SIGTERM to all processes at once, and torchrun would stop ranks that are still
saving after 30 seconds and count the run as failed. The ranks also start with SIGTERM blocked until they can handle it.
"""

from __future__ import annotations

import importlib
import os
import signal
import sys
from collections.abc import Sequence

from .parent import die_with_parent

# torch's variable for its allocator, and its name before 2.9, which 2.13 reads too, and first (CUDAAllocatorConfig.h).
# Expandable segments avoid fragmentation between tensors as large as logits. Without them a run of 133 GiB on an H200
# of 140 GiB ran out of memory.
ALLOCATOR, OLD_ALLOCATOR = "PYTORCH_ALLOC_CONF", "PYTORCH_CUDA_ALLOC_CONF"
SEGMENTS = "expandable_segments:True"


def grow_segments() -> None:
    """Enables expandable segments in the allocators of the ranks, unless the environment configures the allocator."""
    if ALLOCATOR not in os.environ and OLD_ALLOCATOR not in os.environ:
        os.environ.update({ALLOCATOR: SEGMENTS, OLD_ALLOCATOR: SEGMENTS})


def fork_ranks(words: Sequence[str]) -> None:
    """Runs the ranks that torchrun's arguments ask for as forks of this process, which has imported torch for them all.

    `torch._dynamo`, which every optimizer imports, takes as long as torch itself. Neither import touches a GPU, whose
    context would not survive a fork: where another module has made one, the ranks start anew.
    """
    import torch
    from torch.distributed.launcher.api import elastic_launch
    from torch.distributed.run import config_from_args, parse_args

    importlib.import_module("torch._dynamo")
    importlib.import_module(".worker", __package__)
    arguments = parse_args(list(words))  # type: ignore[no-untyped-call]
    config, *_ = config_from_args(arguments)
    forks = sys.platform == "linux" and not torch.cuda.is_initialized()  # type: ignore[no-untyped-call]
    config.start_method = "fork" if forks else "spawn"
    elastic_launch(config, _rank)(arguments.training_script_args)


def _rank(words: Sequence[str]) -> int:
    """Runs one rank, without torchrun's handlers of signals."""
    from .worker import main

    for number in (signal.SIGINT, signal.SIGHUP, signal.SIGQUIT):
        signal.signal(number, signal.SIG_DFL)
    return main(words)


if __name__ == "__main__":
    die_with_parent()
    grow_segments()
    signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGTERM})  # child processes inherit the mask
    fork_ranks(sys.argv[1:])
