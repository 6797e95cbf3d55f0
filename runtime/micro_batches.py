"""The micro-batches of a rank: its part of a global batch, cut into inputs and targets."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property

from torch import Tensor

from .pairs import PADDING
from .parallel.tensor_parallel import IGNORED


@dataclass(frozen=True)
class MicroBatches:
    """Inputs and `num_targets` rows of targets [micro batch, seq] of the i-th micro-batch, before them the source,
    behind them the places of its padding [micro batch, source], where sources of the step have some.

    tokens: [sequences, source + seq + num_targets]. Each row of targets is shifted by one more token. A cp rank gets
    the tokens at its positions.
    """

    tokens: Tensor
    size: int
    positions: Tensor | None = None
    num_targets: int = 1
    end_token: int | None = None
    without_target: Tensor | None = None  # [seq] whether the next token has no loss; None: all have one
    source_len: int | None = None  # tokens of the source before the others of a row; None: no encoder

    def __call__(self, index: int) -> tuple[Tensor, ...]:
        tokens, *targets = self._shifted(index)
        if self.end_token is not None:
            targets = [target.masked_fill(tokens == self.end_token, IGNORED) for target in targets]
        if self.without_target is not None:
            targets = [target.masked_fill(self.without_target, IGNORED) for target in targets]
        if self.source_len is None:
            return tokens, *targets
        source = self._rows(index)[:, : self.source_len]
        padding = (source == PADDING,) if self._pads_sources else ()
        return source.clamp(min=0), tokens, *targets, *padding

    @cached_property
    def _pads_sources(self) -> bool:
        """Read once per step, because it waits for the device. A trace, which has no values, has no padding."""
        return bool(self.tokens.min().item() == PADDING)

    def _rows(self, index: int) -> Tensor:
        return self.tokens[index * self.size : (index + 1) * self.size]

    def _shifted(self, index: int) -> tuple[Tensor, ...]:
        rows = self._rows(index)[:, self.source_len or 0 :]
        shifts, length = range(1 + self.num_targets), rows.shape[1] - self.num_targets
        if self.positions is not None:
            return tuple(rows[:, self.positions + shift] for shift in shifts)
        return tuple(rows[:, shift : shift + length] for shift in shifts)
