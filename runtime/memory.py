"""Peak memory of a rank. On the CPU by following every storage that an operation makes: exact and repeatable, where
the resident size of the process depends on malloc. On a GPU the allocator counts."""

from __future__ import annotations

import weakref
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from typing import Any

import torch
from torch import Tensor
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_iter
from torch.utils.weak import WeakIdKeyDictionary

_Resize = Callable[[torch.UntypedStorage, int], Any]


class PeakMemory(TorchDispatchMode):  # type: ignore[no-untyped-call]
    """Bytes of live storages since it was entered, and the most there were. `held`: tensors from before."""

    def __init__(self, held: Iterable[Tensor] = ()) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self.current, self.peak = 0, 0
        self._live: Any = WeakIdKeyDictionary()
        for tensor in held:
            self._follow(tensor)

    def _change(self, num_bytes: int) -> None:
        self.current += num_bytes
        self.peak = max(self.peak, self.current)

    def _follow(self, tensor: Tensor) -> None:
        storage = tensor.untyped_storage()
        if storage in self._live:
            return
        size = [storage.nbytes()]
        self._live[storage] = size
        weakref.finalize(storage, self._gone, size)
        self._change(size[0])

    def _gone(self, size: list[int]) -> None:
        self._change(-size[0])
        size[0] = 0

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        out = func(*args, **(kwargs or {}))
        for each in tree_iter(out):
            if isinstance(each, Tensor):
                self._follow(each)
        return out

    @contextmanager
    def following(self) -> Iterator[None]:
        """Counts what happens inside; ZeRO-3 resizes storages, which no operation shows."""
        before: _Resize = torch.UntypedStorage.resize_

        def resize(storage: torch.UntypedStorage, num_bytes: int) -> Any:
            result = before(storage, num_bytes)
            size = self._live.get(storage)
            if size is not None:
                self._change(num_bytes - size[0])
                size[0] = num_bytes
            return result

        torch.UntypedStorage.resize_ = resize  # type: ignore[method-assign, assignment]
        try:
            with self:
                yield
        finally:
            torch.UntypedStorage.resize_ = before  # type: ignore[method-assign, assignment]


def allocator_peak(device: torch.device) -> int:
    """Bytes that the GPU's allocator had given out at its peak."""
    return int(torch.cuda.max_memory_allocated(device))
