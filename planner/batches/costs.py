"""Seconds of sequences on groups of ranks of each degree, and how many tokens a rank holds.

A group of d context-parallel ranks trains whole sequences, one after another, each split over its ranks. A micro-batch
is several groups side by side and ends with the slowest; a step runs its micro-batches one after another:

  step = once + sum over micro-batches (fixed + max over groups sum over sequences t(s, d))

t(s, d) = s u(s, d), and the seconds of a token u are linear in s between the lengths of a grid. That is exact for the
quadratic t = (a1 s^2 + a2 s) / d + a3(d) s / d of FlexSP (Wang et al., arXiv:2412.01523, section 4.1), whose grid has
two lengths, and interpolates a ledger's prices, which have more.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, replace

import numpy as np

from ...cost_models.arrays import Array, Ints, Mask


@dataclass(frozen=True, eq=False)
class GroupCosts:
    """The costs of the sequences of a batch on the ranks of a cluster."""

    num_ranks: int  # that groups divide among themselves
    degrees: Ints  # [D] ranks of a group, powers of two, ascending
    rank_tokens: int  # tokens of a micro-batch that the memory of a rank holds
    grid: Array  # [g] lengths, tokens, ascending
    token_s: Array  # [g, D] seconds of a token of a sequence of such a length
    micro_batch_s: float  # seconds of a micro-batch whatever it holds
    once_s: float = 0.0  # seconds of a step whatever it holds
    document_s: float = 0.0  # seconds of a document whatever its length, where each trains alone
    fill: float = 0.0  # of a pipeline: times its longest micro-batch that a step takes beyond the sum of all

    def seconds(self, lengths: Array) -> Array:
        """[k, D] seconds of sequences of `lengths` [k] tokens; inf where the ranks of a group do not hold one."""
        token_s = np.stack([np.interp(lengths, self.grid, column) for column in self.token_s.T], axis=-1)
        holds = lengths[:, None] <= self.rank_tokens * self.degrees
        return np.where(holds, token_s * lengths[:, None] + self.document_s, np.inf)

    def one_by_one(self, rank_tokens: int) -> GroupCosts:
        """The costs where the documents of a group train one after another, and none has more tokens on a rank."""
        return replace(self, rank_tokens=rank_tokens, document_s=self.micro_batch_s, micro_batch_s=0.0)

    def from_degree(self, least: int) -> GroupCosts:
        """The costs where no group has fewer ranks than `least`."""
        return self._with(self.degrees >= least)

    def up_to_degree(self, most: int) -> GroupCosts:
        """The costs where no group has more ranks than `most`."""
        return self._with(self.degrees <= most)

    def _with(self, able: Mask) -> GroupCosts:
        return replace(self, degrees=self.degrees[able], token_s=self.token_s[:, able])

    @property
    def longest(self) -> int:
        """Tokens of the longest sequence that any group holds."""
        return int(self.rank_tokens * self.degrees[-1])

    def least_micro_batches(self, lengths: Array) -> int:
        """Micro-batches without which all ranks together do not hold the tokens."""
        return max(1, math.ceil(float(lengths.sum()) / (self.rank_tokens * self.num_ranks)))


def powers_of_two(num_ranks: int, least: int = 1) -> Ints:
    """Degrees from `least` that divide `num_ranks`."""
    most = num_ranks & -num_ranks
    return np.array([1 << n for n in range(most.bit_length()) if 1 << n >= least], dtype=np.int64)
