"""Base of mixers other than attention: heads split over tp, and whole sequences of fewer heads under cp."""

from __future__ import annotations

from collections.abc import Callable
from math import expm1, log

from torch import Tensor

from ..parallel.recompute import whole
from .block import Block

# Initial values of all heads, inside the random ranges of Mamba-2 (arXiv 2405.21060; mamba_ssm e9594ce, Mamba2).
# decay: log of 8, in the range 1 to 16. step: softplus is 0.01, in the range 0.001 to 0.1.
FIRST_DECAY, FIRST_STEP = log(8.0), log(expm1(0.01))


class MixerBlock(Block):
    """A mixer, [b, s/tp, h] -> [b, s/tp, h].

    Its projections keep their input only; its convolution and scan keep the projected tensors. The backward pass
    recomputes everything between.
    """

    def add_projections(self, widths: dict[str, int], hidden: int, bias: bool) -> None:
        """Projections of the input, split by heads."""
        for name, width in widths.items():
            self.add(name, [width, hidden], 0)
            if bias:
                self.add(f"{name}_bias", [width], 0, start=0.0)

    def add_convolution(self, name: str, channels: int, kernel: int, bias: bool) -> None:
        """Width of the output of projection `name`."""
        self.add(f"{name}_conv", [channels, kernel], 0, std=kernel**-0.5)
        if bias:
            self.add(f"{name}_conv_bias", [channels], 0, start=0.0)

    def over_sequences(self, function: Callable[..., Tensor], *made: Tensor) -> Tensor:
        """Applies `function` to whole sequences of fewer heads.

Inputs [b, s/cp, width / tp] become [b, s, width / (tp cp)]; the result returns to the distribution of the inputs.
"""
        cp = self.context.cp
        if cp is None:
            return whole(function, *made)
        return cp.heads_for_tokens(whole(function, *cp.tokens_for_heads(*made)))

    def here(self, name: str, heads: int) -> Tensor:
        """The rows of a weight for the heads on this cp rank. heads: heads of the weight on all tp ranks.

        Several cp ranks have the same head where there are fewer heads than ranks.
        """
        weight, cp = self.tensor(name), self.context.cp
        if cp is None:
            return weight
        local = heads // self.context.group.size
        parts = cp.group.size if local % cp.group.size == 0 else local
        return weight.chunk(parts)[cp.group.rank * parts // cp.group.size]

    def here_or_none(self, name: str, heads: int) -> Tensor | None:
        """The same for a weight that may be missing."""
        return None if self.maybe(name) is None else self.here(name, heads)
