"""Documents of mixed lengths in one row: their places, their padding, and the tokens and targets of a rank.

A group of context-parallel ranks trains the row; other groups train other rows beside it. Each document is padded at
its end, where causal attention does not see it, so that the ranks have equal shares. Padding has no target.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import cached_property
from itertools import accumulate

import torch
import torch.nn.functional as F
from torch import Tensor

from .tensor_parallel import IGNORED


@dataclass(frozen=True)
class Documents:
    """Documents of a row, one after another."""

    lengths: tuple[int, ...]  # tokens
    multiple: int = 1  # of the tokens of each after padding

    @classmethod
    def of(cls, lengths: Sequence[int], size: int, algorithm: str, tp: int) -> Documents:
        """Documents that `size` ranks share, perhaps with a last one of padding.

        `tp` divides the tokens of a rank then, and a rank without documents has tokens, too: it takes part in every
        collective of the weights.
        """
        made = cls(tuple(lengths), 1 if algorithm == "ulysses" or size == 1 else 2 * size)
        short = -sum(made.padded) % (size * tp)
        if short or not lengths:
            made = cls((*made.lengths, short or size * tp), made.multiple)
        return made

    @cached_property
    def padded(self) -> tuple[int, ...]:
        """Tokens of each with its padding."""
        return tuple(-(-length // self.multiple) * self.multiple for length in self.lengths)

    def shares(self, size: int) -> tuple[int, ...]:
        """Tokens of each on one of `size` ranks."""
        return tuple(length // size for length in self.padded)

    def placed(self) -> Iterator[tuple[int, int]]:
        """(first place, tokens with padding) of each."""
        return zip((0, *accumulate(self.padded)), self.padded, strict=False)

    def positions(self) -> Tensor:
        """[row] positions in the documents, int64; padding has that of the last token."""
        return torch.cat([torch.arange(padded).clamp(max=length - 1)
                          for length, padded in zip(self.lengths, self.padded, strict=True)])  # fmt: skip

    def row(self, documents: Sequence[Tensor]) -> tuple[Tensor, Tensor]:
        """Inputs and targets [1, row] of documents [tokens + 1] each; more places than documents are padding."""
        rows = []
        for index, padded in enumerate(self.padded):
            tokens = documents[index] if index < len(documents) else torch.zeros(1, dtype=torch.int64)
            rest = padded + 1 - len(tokens)
            rows.append((F.pad(tokens[:-1], (0, rest)), F.pad(tokens[1:], (0, rest), value=IGNORED)))
        inputs, targets = (torch.cat(parts)[None] for parts in zip(*rows, strict=True))
        return inputs, targets
