"""Host memory: what lives there takes none of the device, though on a CPU both are the same chips.

What is made inside `memory()` is the host's; PeakMemory passes it over.
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
    """Storages that are made inside are the host's, if `wanted`."""
    token = _MEANT.set(wanted)
    try:
        yield
    finally:
        _MEANT.reset(token)


def is_meant() -> bool:
    """Whether a storage that is made now is the host's."""
    return _MEANT.get()


def copy(tensor: Tensor, dtype: torch.dtype) -> Tensor:
    """`tensor` in host memory, pinned where it comes from a GPU."""
    with memory():
        made = torch.empty(tensor.shape, dtype=dtype, device="cpu", pin_memory=tensor.is_cuda)
        return made.copy_(tensor)
