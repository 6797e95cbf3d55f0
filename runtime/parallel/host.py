"""Host memory. Its tensors take no device memory, although host and device are the same on a CPU.

Tensors made inside `memory()` belong to the host; PeakMemory ignores them.
"""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import contextmanager
from contextvars import ContextVar

import torch
from torch import Tensor

_MEANT: ContextVar[bool] = ContextVar("host memory", default=False)


@contextmanager
def memory(wanted: bool = True) -> Iterator[None]:
    """Context in which new storages belong to the host, if `wanted`."""
    token = _MEANT.set(wanted)
    try:
        yield
    finally:
        _MEANT.reset(token)


@contextmanager
def threads(wanted: bool = True) -> Iterator[None]:
    """Context in which operations on host tensors use this rank's share of the cores of its node, if `wanted`.

    torchrun gives every rank one thread (OMP_NUM_THREADS=1). More stay as they are.
    """
    before = torch.get_num_threads()
    share = core_share() if wanted else before
    if share <= before:
        yield
        return
    torch.set_num_threads(share)
    try:
        yield
    finally:
        torch.set_num_threads(before)


def core_share() -> int:
    """Cores of this process over the ranks of its node; 1 outside torchrun, where their number is unknown."""
    ranks = os.environ.get("LOCAL_WORLD_SIZE")
    return 1 if ranks is None else max(1, len(os.sched_getaffinity(0)) // int(ranks))


def is_meant() -> bool:
    """Whether a new storage belongs to the host."""
    return _MEANT.get()


def copy(tensor: Tensor, dtype: torch.dtype) -> Tensor:
    """`tensor` in host memory, pinned if it comes from a GPU."""
    with memory():
        made = torch.empty(tensor.shape, dtype=dtype, device="cpu" if tensor.is_cuda else tensor.device,
                           pin_memory=tensor.is_cuda)
        return made.copy_(tensor)
