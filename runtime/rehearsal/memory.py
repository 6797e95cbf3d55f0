"""Peak memory of a rank. On the CPU by following every storage that an operation makes: exact and repeatable, where
the resident size of the process, which stands beside it, depends on malloc. On a GPU the allocator counts."""

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
    """Bytes of live storages since it was entered, and the most there were, in all and by kind.

    resident: tensors from before. `kind` is that of what operations make from now on; `label` gives tensors another.
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
        """These tensors are of this kind, whatever made them."""
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
        """Kind of a tensor that an operation has just made."""
        return self.kind

    def _gone(self, record: list[Any]) -> None:
        self._change(-record[0], record[1])
        record[0] = 0

    @contextmanager
    def paused(self) -> Iterator[None]:
        """Does not count what operations make inside."""
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
        """Counts what happens inside; ZeRO-3 resizes storages, which no operation shows."""
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
    """What this process holds of the machine's memory, or the most it held (VmHWM); 0 where the system does not say."""
    status = Path("/proc/self/status")
    lines = status.read_text(encoding="utf-8").splitlines() if status.is_file() else []
    return next((1024 * int(line.split()[1]) for line in lines if line.startswith(name)), 0)


def forget_resident_peak() -> None:
    """The most that this process held counts from now on."""
    with suppress(OSError):
        Path("/proc/self/clear_refs").write_text("5", encoding="utf-8")


def cpu_peaks(tensors: int, before: int) -> tuple[int, ...]:
    """As gpu_peaks of a process that held `before` bytes when it had no tensors: those of tensors at their peak, what
    the process then held for them, and all that it held. Of tensors alone where the system does not say."""
    most = resident_bytes("VmHWM")
    return (tensors, most - before, most) if most else (tensors,)


def gpu_peaks(device: torch.device) -> tuple[int, int, int]:
    """Bytes at their peak on a GPU: given out by the allocator, reserved by it, and in use as the driver shows it
    (with context, kernels, NCCL's buffers and whatever else runs there)."""
    free, total = torch.cuda.mem_get_info(device)
    return torch.cuda.max_memory_allocated(device), torch.cuda.max_memory_reserved(device), total - free
