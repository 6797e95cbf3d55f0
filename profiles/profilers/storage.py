"""Times what states are offloaded to: the host's memory, the way between host and GPU, and drives.

Every sample moves as many bytes as caches and buffers cannot hide. Drives are written and read past the page cache
(O_DIRECT), in a file of its own that is gone afterwards.
"""

from __future__ import annotations

import errno
import mmap
import os
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import torch

from ...errors import InputError
from .samples import SampleRange, Samples

BYTES = {True: 1 << 28, False: 1 << 30}  # of a copy and of the file: quick or not
REPEATS = {True: 3, False: 7}
_BLOCK = 1 << 23  # of one write or read of the file: what DeepSpeed's aio uses per thread is 1 MiB, several at once
_IN_MEMORY = ("tmpfs", "ramfs")
Progress = Callable[[float, float, str], None]


def measure(
    device: torch.device, folder: Path | None, *, quick: bool, samples: Samples, progress: Progress
) -> dict[str, SampleRange]:
    """Bytes per second, by name: `host memory` (read and written by a copy), `host to device`, `device to host`
    (pinned; on a GPU only), `drive write`, `drive read` (where a folder is given)."""
    tests: dict[str, Callable[[], float]] = {}
    tests["host memory"] = _copy(BYTES[quick])
    if device.type == "cuda":
        tests |= _to_device(device, BYTES[quick])
    rates: dict[str, SampleRange] = {}
    with _file(folder, BYTES[quick]) as drive:
        tests |= drive
        for done, (name, sample) in enumerate(tests.items()):
            progress(done, len(tests), name)
            if name not in samples.by_key:
                sample()
                samples.add(name, [sample() for _ in range(REPEATS[quick])])
            rates[name] = SampleRange.of(samples.by_key[name])
    return rates


def _copy(num_bytes: int) -> Callable[[], float]:
    """A copy within the host's memory by all its threads: every byte is read and written."""
    source, target = (torch.ones(num_bytes, dtype=torch.uint8) for _ in range(2))

    def sample() -> float:
        started = time.perf_counter()
        target.copy_(source)
        return 2 * num_bytes / (time.perf_counter() - started)

    return sample


def _to_device(device: torch.device, num_bytes: int) -> dict[str, Callable[[], float]]:
    """Pinned copies to the GPU and back."""
    host = torch.ones(num_bytes, dtype=torch.uint8, pin_memory=True)
    there = torch.empty(num_bytes, dtype=torch.uint8, device=device)

    def timed(target: torch.Tensor, source: torch.Tensor) -> Callable[[], float]:
        def sample() -> float:
            torch.cuda.synchronize(device)
            started = time.perf_counter()
            target.copy_(source, non_blocking=True)
            torch.cuda.synchronize(device)
            return num_bytes / (time.perf_counter() - started)

        return sample

    return {"host to device": timed(there, host), "device to host": timed(host, there)}


@contextmanager
def _file(folder: Path | None, num_bytes: int) -> Iterator[dict[str, Callable[[], float]]]:
    """Writing and reading a file in `folder`, which is gone at the end. Raises InputError where it cannot be made."""
    if folder is None:
        yield {}
        return
    if _file_system(folder) in _IN_MEMORY:
        raise InputError(f"--dir {folder}: no drive is behind it (tmpfs)", hint="name a folder on a local drive")
    block = mmap.mmap(-1, _BLOCK)  # aligned to pages, as O_DIRECT wants it
    block.write(os.urandom(_BLOCK))
    try:
        handle, name = tempfile.mkstemp(prefix=".meshwright-", dir=folder)
    except OSError as error:
        hint = "a folder on the drive, which you may write"
        raise InputError(f"--dir {folder}: {error.strerror}", hint=hint) from None
    os.close(handle)
    path = Path(name)

    def mover(flags: int, move: Callable[[int, mmap.mmap], int]) -> Callable[[], float]:
        def timed() -> float:
            opened = _direct(path, flags, folder)
            try:
                started = time.perf_counter()
                for _ in range(num_bytes // _BLOCK):
                    if move(opened, block) != _BLOCK:
                        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
                os.fsync(opened)
                return num_bytes / (time.perf_counter() - started)
            except OSError as error:
                hint = f"{num_bytes >> 20} MiB are written"
                raise InputError(f"--dir {folder}: {error.strerror}", hint=hint) from None
            finally:
                os.close(opened)

        return timed

    try:
        yield {"drive write": mover(os.O_WRONLY, os.write), "drive read": mover(os.O_RDONLY, _read)}
    finally:
        path.unlink()
        block.close()


def _read(handle: int, block: mmap.mmap) -> int:
    return os.readv(handle, [block])


def _direct(path: Path, flags: int, folder: Path) -> int:
    """The file, past the page cache. Raises InputError where the file system cannot go past it."""
    try:
        return os.open(path, flags | os.O_DIRECT)
    except OSError:
        raise InputError(f"--dir {folder}: its file system always caches (O_DIRECT is refused)",
                         hint="name a folder on a local drive") from None  # fmt: skip


def _file_system(folder: Path) -> str:
    """The type of the file system that holds `folder`, as Linux names it; empty where that is not known."""
    mounts = Path("/proc/self/mountinfo")
    if not mounts.is_file():
        return ""
    whole = folder.resolve()
    mount, kind = "", ""
    for line in mounts.read_text(encoding="utf-8").splitlines():
        before, _, after = line.partition(" - ")
        point = before.split()[4]
        if whole.is_relative_to(point) and len(point) >= len(mount):
            mount, kind = point, after.split()[0]
    return kind
