"""Tokens of a global batch, equal under any layout: synthetic, the bytes of a text file, or token shards.

Every rank reads the whole batch and keeps its sequences, so that the layout does not change the training data.
"""

from __future__ import annotations

from pathlib import Path
from typing import Protocol

import numpy as np
import torch
from torch import Tensor

from ..errors import InputError


class Source(Protocol):
    """Where batches come from."""

    def batch(self, step: int) -> Tensor:
        """Tokens of step 0, 1, ...: [global batch, seq + ahead], int64.

        Targets are the inputs shifted by one token. Multi-token prediction shifts them further.
        """


class Synthetic:
    """Random tokens by seed and step. Small numbers are more frequent, so that there is something to learn."""

    def __init__(self, vocab: int, seq_len: int, global_batch: int, seed: int, ahead: int) -> None:
        self.vocab, self.shape, self.seed = vocab, (global_batch, seq_len + ahead), seed

    def batch(self, step: int) -> Tensor:
        generator = torch.Generator().manual_seed(self.seed * 1_000_003 + step)
        return (torch.rand(self.shape, generator=generator, dtype=torch.float64).pow(3) * self.vocab).long()


class Stored:
    """A long row of tokens, read batch after batch and again from the start."""

    def __init__(
        self, tokens: np.ndarray[tuple[int], np.dtype[np.integer]], vocab: int, seq_len: int, batch: int, ahead: int
    ) -> None:
        self.tokens, self.vocab, self.seq_len, self.size, self.ahead = tokens, vocab, seq_len, batch, ahead
        self.num_sequences = (len(tokens) - ahead) // seq_len
        if self.num_sequences < 1:
            raise InputError(f"{len(tokens)} tokens are less than one sequence of {seq_len} and its last target",
                             hint="give more data, or plan for shorter sequences")  # fmt: skip

    def batch(self, step: int) -> Tensor:
        rows = []
        for index in range(step * self.size, (step + 1) * self.size):
            first = index % self.num_sequences * self.seq_len
            rows.append(np.asarray(self.tokens[first : first + self.seq_len + self.ahead], dtype=np.int64))
        tokens = torch.from_numpy(np.stack(rows))
        least, most = int(tokens.min()), int(tokens.max())
        if least < 0 or most >= self.vocab:
            wrong = most if most >= self.vocab else least
            raise InputError(f"the data has token {wrong}, the model knows 0 to {self.vocab - 1}",
                             hint="use the model's own tokenizer")  # fmt: skip
        return tokens


def open_source(name: str, vocab: int, seq_len: int, global_batch: int, seed: int, ahead: int = 1) -> Source:
    """Opens `synthetic`, a folder or file of shards, or any other file as bytes.

    Shards are .npy, or .bin with uint16 (uint32 for vocabularies above 65,536). ahead: distance of the last target from
    its input. Raises InputError for missing or too short data.
    """
    if name == "synthetic":
        return Synthetic(vocab, seq_len, global_batch, seed, ahead)
    path = Path(name)
    if path.is_dir():
        files = sorted(file for file in path.iterdir() if file.suffix in (".bin", ".npy"))
        if not files:
            raise InputError(f"{path}: no token shards (.bin, .npy) in it", hint="`--data synthetic` needs no files")
        return Stored(np.concatenate([_shard(file, vocab) for file in files]), vocab, seq_len, global_batch, ahead)
    if not path.is_file():
        raise InputError(f"{path}: no such file or folder", hint="`--data synthetic` needs no files")
    if path.suffix in (".bin", ".npy"):
        return Stored(_shard(path, vocab), vocab, seq_len, global_batch, ahead)
    return Stored(np.fromfile(path, dtype=np.uint8), vocab, seq_len, global_batch, ahead)


def _shard(path: Path, vocab: int) -> np.ndarray[tuple[int], np.dtype[np.integer]]:
    """Opens one shard. Raises InputError for a file without tokens."""
    width = np.uint16 if vocab <= 1 << 16 else np.uint32
    hint = "save tokens with numpy.save, one row of integers"
    if path.suffix == ".bin":
        hint = f"write tokens as {width.__name__}, with numpy's tofile: the model has {vocab:,} of them"
    try:
        if path.suffix == ".bin":
            return np.memmap(path, dtype=width, mode="r")
        tokens = np.load(path, mmap_mode="r")
    except (OSError, ValueError) as error:
        raise InputError(f"{path}: {error}", hint=hint) from None
    if tokens.ndim != 1 or not np.issubdtype(tokens.dtype, np.integer):
        raise InputError(f"{path}: not one row of integers", hint=hint)
    return np.asarray(tokens)
