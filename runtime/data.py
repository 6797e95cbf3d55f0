"""Tokens of a global batch, equal under any layout: synthetic, the bytes of a text file, token shards, or pairs.

Every rank reads the whole batch and keeps its sequences, so that the layout does not change the training data.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Mapping
from pathlib import Path
from typing import Protocol

import numpy as np
import torch
from torch import Tensor

from ..errors import InputError
from .pairs import PADDING, Pairs, PairShape
from .shards import Row, Shards, open_shard, open_text, pair_files, token_files
from .shuffling import places_of


class WrongTokens(InputError):
    """Raised for tokens that cannot be trained on. Every rank reads the whole batch, so that all of them raise it
    before the first message of a step."""


class Source(Protocol):
    """A source of batches."""

    def digests(self) -> Mapping[str, str]:
        """Name -> digest of each file of tokens; empty for synthetic tokens."""

    def batch(self, step: int) -> Tensor:
        """Tokens of step 0, 1, ...: [global batch, seq + ahead], int64.

        Targets are the inputs shifted by one token. Multi-token prediction shifts them further.
        """


class Synthetic:
    """Random tokens by seed and step. Small numbers are more frequent, so that there is something to learn."""

    def __init__(self, vocab: int, seq_len: int, global_batch: int, seed: int, ahead: int) -> None:
        self.vocab, self.shape, self.seed = vocab, (global_batch, seq_len + ahead), seed

    def digests(self) -> Mapping[str, str]:
        return {}

    def batch(self, step: int) -> Tensor:
        generator = torch.Generator().manual_seed(self.seed * 1_000_003 + step)
        return (torch.rand(self.shape, generator=generator, dtype=torch.float64).pow(3) * self.vocab).long()


class Files(ABC):
    """Sequences of files. The order of an epoch is that of the files, or a permutation by seed and epoch."""

    num_sequences: int
    least_token: int = 0

    def __init__(self, name: str, vocab: int, batch: int, shuffle_seed: int | None) -> None:
        """name: of the files, for messages. shuffle_seed: None for the order of the files."""
        self.name, self.vocab, self.size, self.shuffle_seed = name, vocab, batch, shuffle_seed

    @abstractmethod
    def digests(self) -> Mapping[str, str]:
        """Name and checksum of each file, as `Source.digests`."""

    @abstractmethod
    def row(self, place: int) -> Row:
        """Tokens of a sequence of the files, with the targets behind it."""

    def batch(self, step: int) -> Tensor:
        places = places_of(step, self.size, self.num_sequences, self.shuffle_seed)
        tokens = torch.from_numpy(np.stack([self.row(place) for place in places]))
        least, most = int(tokens.min()), int(tokens.max())
        if least < self.least_token or most >= self.vocab:
            wrong = most if most >= self.vocab else least
            place = places[int((tokens == wrong).any(1).int().argmax())]
            raise WrongTokens(f"{self.name}: sequence {place + 1:,} of {self.num_sequences:,} has token {wrong}, the "
                              f"model knows 0 to {self.vocab - 1}", hint="use the model's own tokenizer")  # fmt: skip
        return tokens

    @property
    def num_batches(self) -> int:
        """Whole batches of an epoch."""
        return self.num_sequences // self.size


class Stored(Files):
    """Sequences of a long row of tokens."""

    def __init__(
        self, name: str, shards: Shards, vocab: int, seq_len: int, batch: int, ahead: int, shuffle_seed: int | None
    ) -> None:  # fmt: skip
        super().__init__(name, vocab, batch, shuffle_seed)
        self.shards, self.seq_len, self.ahead = shards, seq_len, ahead
        self.num_sequences = (len(shards) - ahead) // seq_len
        if self.num_sequences < 1:
            raise InputError(f"{name}: {len(shards)} tokens are less than one sequence of {seq_len} and its last "
                             "target", hint="give more data, or plan for shorter sequences")  # fmt: skip

    def digests(self) -> Mapping[str, str]:
        return self.shards.digests()

    def row(self, place: int) -> Row:
        return self.shards.read(place * self.seq_len, self.seq_len + self.ahead)


class StoredPairs(Files):
    """Pairs of a source and a target."""

    least_token = PADDING

    def __init__(self, name: str, pairs: Pairs, vocab: int, batch: int, shuffle_seed: int | None) -> None:
        super().__init__(name, vocab, batch, shuffle_seed)
        self.pairs, self.num_sequences = pairs, len(pairs)

    def digests(self) -> Mapping[str, str]:
        return self.pairs.digests

    def row(self, place: int) -> Row:
        return self.pairs.read(place)


def open_source(
    name: str, vocab: int, seq_len: int, global_batch: int, seed: int, ahead: int = 1, *, shuffle: bool = False,
    pairs: PairShape | None = None,
) -> Source:
    """Opens `synthetic`, pairs of a source and a target, a folder or file of shards, or any other file as bytes.

    Shards are .npy, or .bin with uint16 (uint32 for vocabularies above 65,536). ahead: distance of the last target from
    its input. pairs: of a model with an encoder, whose files are JSON lines and whose seq_len is that of source and
    target. Raises InputError for missing or too short data.
    """
    if name == "synthetic":
        return Synthetic(vocab, seq_len, global_batch, seed, ahead)
    path, shuffle_seed = Path(name), seed if shuffle else None
    if pairs is not None:
        return StoredPairs(name, Pairs(pair_files(path), pairs), vocab, global_batch, shuffle_seed)
    files = token_files(path)
    is_text = path.is_file() and path.suffix not in (".bin", ".npy")
    arrays = [open_text(path)] if is_text else [open_shard(file, vocab) for file in files]
    return Stored(name, Shards(files, arrays), vocab, seq_len, global_batch, ahead, shuffle_seed)


def open_evaluated(
    name: str, vocab: int, seq_len: int, global_batch: int, seed: int, ahead: int, pairs: PairShape | None = None,
    batches: int = 0,
) -> Files:  # fmt: skip
    """Opens stored data for an evaluation, in its own order.

    Raises InputError as `open_source`, for data that has fewer sequences than a batch, and for wrong tokens in the
    first `batches`: after the steps before the first evaluation they would cost these steps.
    """
    source = open_source(name, vocab, seq_len, global_batch, seed, ahead, pairs=pairs)
    if not isinstance(source, Files):
        raise InputError("--eval-data synthetic: its tokens are those of the training", hint="give a file or a folder")
    if source.num_batches < 1:
        raise InputError(f"--eval-data {name}: {source.num_sequences} sequences, a global batch has {global_batch}",
                         hint="give more data, or plan with a smaller `--global-batch`")  # fmt: skip
    for index in range(min(batches, source.num_batches)):
        source.batch(index)
    return source


def counted_targets(tokens: Tensor, seq_len: int, end_token: int) -> int:
    """Number of targets in [sequences, seq + 1], with or without a source before them, that continue the document of
    their input."""
    return max(int((tokens[:, -1 - seq_len : -1] != end_token).sum()), 1)
