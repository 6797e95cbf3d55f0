"""Host memory. Its tensors take no device memory, although host and device are the same on a CPU.

Tensors made inside `memory()` belong to the host; PeakMemory ignores them.
"""

from __future__ import annotations

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


def is_meant() -> bool:
    """Whether a new storage belongs to the host."""
    return _MEANT.get()


def copy(tensor: Tensor, dtype: torch.dtype) -> Tensor:
    """`tensor` in host memory, pinned if it comes from a GPU."""
    with memory():
        made = torch.empty(tensor.shape, dtype=dtype, device="cpu", pin_memory=tensor.is_cuda)
        return made.copy_(tensor)
