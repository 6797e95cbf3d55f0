"""Files of tokens as one long row. The files are memory-mapped: a rank holds what a batch reads. No torch here."""

from __future__ import annotations

import hashlib
from bisect import bisect_right
from collections.abc import Mapping, Sequence
from itertools import accumulate
from pathlib import Path
from typing import Any

import numpy as np

from ..errors import InputError
from ..planner.document.array_file import reading_array

Row = np.ndarray[tuple[int], np.dtype[np.integer]]
_SAMPLES, _SAMPLE_BYTES = 64, 4096  # of a file, for its digest


class Shards:
    """Token arrays in the order of their files."""

    def __init__(self, paths: Sequence[Path], arrays: Sequence[Row]) -> None:
        self.paths, self.arrays = list(paths), list(arrays)
        self._ends = list(accumulate(len(array) for array in arrays))
        self._stats = [_stat(path) for path in paths]
        self._digests: dict[str, str] = {}

    def __len__(self) -> int:
        return self._ends[-1]

    def read(self, first: int, number: int) -> Row:
        """Tokens first to first + number - 1, int64. Raises InputError for a file that has changed since it was opened.
        """
        parts = []
        while number > 0:
            index = bisect_right(self._ends, first)
            self._check(index)
            start = first - (self._ends[index - 1] if index else 0)
            part = self.arrays[index][start : start + number]
            parts.append(np.asarray(part, dtype=np.int64))
            first, number = first + len(part), number - len(part)
        return np.concatenate(parts)

    def read_around(self, first: int, number: int) -> Row:
        """As `read`, for at most as many tokens as there are. The first token follows the last one."""
        before = min(number, len(self) - first)
        parts = [self.read(first, before), *([self.read(0, number - before)] if number > before else [])]
        return np.concatenate(parts)

    def digests(self) -> Mapping[str, str]:
        """Name -> size and SHA-256 of 64 samples of each file. Computed once."""
        if not self._digests:
            self._digests = {path.name: digest_of(path) for path in self.paths}
        return self._digests

    def _check(self, index: int) -> None:
        if _stat(self.paths[index]) != self._stats[index]:
            raise InputError(f"{self.paths[index]} has changed since the run opened it",
                             hint="restore it, and go on from the last checkpoint with `--resume`")  # fmt: skip


def token_files(path: Path) -> list[Path]:
    """The file, or the shards of a folder. Raises InputError where there are none."""
    return _files_of(path, "token shards", ".bin", ".npy")


def pair_files(path: Path) -> list[Path]:
    """The file, or the JSON lines of a folder. Raises InputError where there are none."""
    return _files_of(path, "JSON lines", ".jsonl")


def _files_of(path: Path, kind: str, *suffixes: str) -> list[Path]:
    if path.is_file():
        return [path]
    if not path.is_dir():
        raise InputError(f"{path}: no such file or folder", hint=f"give a file, or a folder of {kind}")
    files = sorted(file for file in path.iterdir() if file.suffix in suffixes)
    if not files:
        raise InputError(f"{path}: no {kind} ({', '.join(suffixes)}) in it", hint=f"give a file, or a folder of {kind}")
    return files


def _stat(path: Path) -> tuple[int, ...]:
    """Identity, size and time of the last change; zeros for a missing file."""
    try:
        status = path.stat()
    except OSError:
        return (0, 0, 0)
    return status.st_ino, status.st_size, status.st_mtime_ns


def digest_of(path: Path) -> str:
    """Size and SHA-256 of 64 samples of a file."""
    size, digest = path.stat().st_size, hashlib.sha256()
    with path.open("rb") as file:
        for sample in range(_SAMPLES):
            file.seek(max(size - _SAMPLE_BYTES, 0) * sample // (_SAMPLES - 1))
            digest.update(file.read(_SAMPLE_BYTES))
    return f"{size} {digest.hexdigest()[:16]}"


def open_text(path: Path) -> Row:
    """The bytes of a file as tokens. Raises InputError for a file that is no text, as Parquet or a compressed one."""
    with path.open("rb") as file:
        zero = file.read(_SAMPLE_BYTES).find(b"\0")
    if zero >= 0:
        raise InputError(f"{path}: no text: byte {zero} is zero", hint="`meshwright launch tokens` writes token shards "
                         "from text, which are .npy")  # fmt: skip
    return np.memmap(path, dtype=np.uint8, mode="r") if path.stat().st_size else np.empty(0, np.uint8)


def _row_of(path: Path, width: np.dtype[Any], hint: str) -> Row:
    """The tokens of a file without a header."""
    size = path.stat().st_size
    if not size or size % width.itemsize:
        fault = f"{size:,} bytes, not a multiple of the {width.itemsize} of a token" if size else "the file is empty"
        raise InputError(f"{path}: {fault}", hint=hint)
    return np.memmap(path, dtype=width, mode="r")


def open_shard(path: Path, vocab: int) -> Row:
    """Opens one shard. Raises InputError for a file without tokens."""
    width = np.uint16 if vocab <= 1 << 16 else np.uint32
    hint = "save tokens with numpy.save, one row of integers"
    if path.suffix == ".bin":
        hint = f"write tokens as {width.__name__}, with numpy's tofile: the model has {vocab:,} of them"
    with reading_array(path, hint):
        if path.suffix == ".bin":
            return _row_of(path, np.dtype(width), hint)
        tokens = np.load(path, mmap_mode="r")
    if tokens.ndim != 1 or not np.issubdtype(tokens.dtype, np.integer):
        raise InputError(f"{path}: not one row of integers", hint=hint)
    return np.asarray(tokens)
