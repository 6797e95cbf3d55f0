"""Peak memory of a rank.

On the CPU every storage of an operation is tracked, which is exact and repeatable. The resident size of the process,
which is also reported, depends on malloc. On a GPU the allocator counts.
"""

from __future__ import annotations

import weakref
from collections import Counter
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

import torch
from torch import Tensor
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_iter
from torch.utils.weak import WeakIdKeyDictionary

from ..parallel import host

_Resize = Callable[[torch.UntypedStorage, int], Any]


class PeakMemory(TorchDispatchMode):  # type: ignore[no-untyped-call]
    """Bytes of live storages since entry and their peak, in total and by kind.

    resident: earlier tensors. `kind` is the kind of new tensors; `label` gives tensors another kind.
    """

    def __init__(self, resident: Iterable[Tensor] = ()) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self.current, self.peak, self.kind = 0, 0, "other"
        self._is_paused = False
        self.at_peak: dict[str, int] = {}
        self._kinds: Counter[str] = Counter()
        self._live: Any = WeakIdKeyDictionary()
        for tensor in resident:
            self._follow(tensor)

    def label(self, kind: str, tensors: Iterable[Tensor]) -> None:
        """Sets the kind of tensors."""
        for tensor in tensors:
            self._follow(tensor)
            record = self._live[tensor.untyped_storage()]
            self._kinds[record[1]] -= record[0]
            self._kinds[kind] += record[0]
            record[1] = kind

    def _change(self, num_bytes: int, kind: str) -> None:
        self.current += num_bytes
        self._kinds[kind] += num_bytes
        if self.current > self.peak:
            self.peak, self.at_peak = self.current, dict(self._kinds)

    def _follow(self, tensor: Tensor) -> None:
        storage = tensor.untyped_storage()
        if storage in self._live:
            return
        record: list[Any] = [0 if host.is_meant() else storage.nbytes(), self.kind_of(tensor)]
        self._live[storage] = record
        weakref.finalize(storage, self._gone, record)
        self._change(*record)

    def kind_of(self, tensor: Tensor) -> str:
        """Kind of a new tensor of an operation."""
        return self.kind

    def _gone(self, record: list[Any]) -> None:
        self._change(-record[0], record[1])
        record[0] = 0

    @contextmanager
    def paused(self) -> Iterator[None]:
        """Context in which new tensors are not counted."""
        self._is_paused = True
        try:
            yield
        finally:
            self._is_paused = False

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        out = func(*args, **(kwargs or {}))
        if self._is_paused:
            return out
        for made in tree_iter(out):
            if isinstance(made, Tensor):
                self._follow(made)
        return out

    @contextmanager
    def following(self) -> Iterator[None]:
        """Context that counts storages, including ZeRO-3's resizes, which no operation shows."""
        before: _Resize = torch.UntypedStorage.resize_

        def resize(storage: torch.UntypedStorage, num_bytes: int) -> Any:
            result = before(storage, num_bytes)
            record = self._live.get(storage)
            if record is not None:
                self._change(num_bytes - record[0], record[1])
                record[0] = num_bytes
            return result

        torch.UntypedStorage.resize_ = resize  # type: ignore[method-assign, assignment]
        try:
            with self:
                yield
        finally:
            torch.UntypedStorage.resize_ = before  # type: ignore[method-assign, assignment]


def resident_bytes(name: str = "VmRSS") -> int:
    """Resident bytes of this process (VmRSS) or their peak (VmHWM); 0 where the system does not report them."""
    status = Path("/proc/self/status")
    lines = status.read_text(encoding="utf-8").splitlines() if status.is_file() else []
    return next((1024 * int(line.split()[1]) for line in lines if line.startswith(name)), 0)


def forget_resident_peak() -> None:
    """Resets the peak of resident bytes."""
    with suppress(OSError):
        Path("/proc/self/clear_refs").write_text("5", encoding="utf-8")


def cpu_peaks(tensors: int, before: int) -> tuple[int, ...]:
    """The counterpart of gpu_peaks for a process that held `before` bytes without tensors.

    Returns peak bytes of tensors, bytes that the process held for them, and all its bytes; only the first where the
    system does not report the others.
    """
    most = resident_bytes("VmHWM")
    return (tensors, most - before, most) if most else (tensors,)


def gpu_peaks(device: torch.device) -> tuple[int, int, int]:
    """Peak bytes on a GPU: allocated, reserved by the allocator, and in use as the driver reports.

    The last number includes the context, kernels, NCCL's buffers and other processes.
    """
    free, total = torch.cuda.mem_get_info(device)
    return torch.cuda.max_memory_allocated(device), torch.cuda.max_memory_reserved(device), total - free
