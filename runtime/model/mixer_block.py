"""What mixers other than attention share: heads split over tp, and under cp whole sequences of fewer heads."""

from __future__ import annotations

from collections.abc import Callable
from math import expm1, log

from torch import Tensor

from ..parallel.recompute import whole
from .block import Block

# Of all heads at first: within the ranges that Mamba-2 draws them from (arXiv 2405.21060; mamba_ssm e9594ce, Mamba2).
# decay: log of 8, of 1 to 16; step: whose softplus is 0.01, of 0.001 to 0.1.
FIRST_DECAY, FIRST_STEP = log(8.0), log(expm1(0.01))


class MixerBlock(Block):
    """[b, s/tp, h] -> [b, s/tp, h]. Its projections keep nothing but their input, its convolution and scan what is
    projected: all between is made again in the backward pass."""

    def add_projections(self, widths: dict[str, int], hidden: int, bias: bool) -> None:
        """Products of the input, split by heads."""
        for name, width in widths.items():
            self.add(name, [width, hidden], 0)
            if bias:
                self.add(f"{name}_bias", [width], 0, start=0.0)

    def add_convolution(self, name: str, channels: int, kernel: int, bias: bool) -> None:
        """Of what the projection `name` makes."""
        self.add(f"{name}_conv", [channels, kernel], 0, std=kernel**-0.5)
        if bias:
            self.add(f"{name}_conv_bias", [channels], 0, start=0.0)

    def over_sequences(self, function: Callable[..., Tensor], *made: Tensor) -> Tensor:
        """`function` of [b, s, width / (tp cp)] each, out of [b, s/cp, width / tp]; its result comes back as these."""
        cp = self.context.cp
        if cp is None:
            return whole(function, *made)
        return cp.heads_for_tokens(whole(function, *cp.tokens_for_heads(*made)))

    def here(self, name: str, heads: int) -> Tensor:
        """The rows of a weight for the heads whose sequences are here. heads: of the weight on all tp ranks; where
        there are fewer than cp ranks, several have the same one."""
        weight, cp = self.tensor(name), self.context.cp
        if cp is None:
            return weight
        local = heads // self.context.group.size
        parts = cp.group.size if local % cp.group.size == 0 else local
        return weight.chunk(parts)[cp.group.rank * parts // cp.group.size]

    def here_or_none(self, name: str, heads: int) -> Tensor | None:
        """The same of a weight that may be missing."""
        return None if self.maybe(name) is None else self.here(name, heads)
