"""Resharding between layers that split sequences differently.

The G ranks of a stage share the sequences of a micro-batch. With a parts per sequence, rank i holds part i mod a of the
(i // a)-th of G / a equal runs of sequences, under tensor and context parallelism alike. From a to b parts, blocks of
lcm(a, b) consecutive ranks exchange their tensors in one all-to-all. The backward pass reverses it for gradients.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from math import lcm
from typing import Any

import torch
from torch import Tensor

from .comm import Group

Box = tuple[slice, slice]  # sequences, tokens


@dataclass(frozen=True)
class Cut:
    """The share of a rank under a strategy."""

    parts: int  # parts of each sequence
    sequences: int  # sequences of a rank: a micro-batch
    length: int  # tokens of a part

    def box(self, rank: int) -> Box:
        """The share of a rank, counted from the first of its block."""
        run, part = divmod(rank, self.parts)
        return (slice(run * self.sequences, (run + 1) * self.sequences),
                slice(part * self.length, (part + 1) * self.length))  # fmt: skip


def _common(first: slice, second: slice, origin: slice) -> slice:
    """The intersection of two ranges, relative to the start of `origin`; may be empty."""
    start = max(first.start, second.start)
    return slice(start - origin.start, max(min(first.stop, second.stop), start) - origin.start)


def _pieces(mine: Box, others: Sequence[Box]) -> list[Box]:
    """The parts of a tensor with box `mine` that belong to each of `others`."""
    return [(_common(mine[0], other[0], mine[0]), _common(mine[1], other[1], mine[1])) for other in others]


def block_size(before: int, after: int) -> int:
    """The number of consecutive ranks that exchange, from `before` to `after` parts."""
    return lcm(before, after)


class Resharding:
    """The resharding from one split to another for the ranks of a block. `width`: of an activation."""

    def __init__(self, block: Group, before: Cut, after: Cut, width: int) -> None:
        self.block, self.width = block, width
        self.shapes = [(cut.sequences, cut.length, width) for cut in (before, after)]
        old, new = ([cut.box(rank) for rank in range(block.size)] for cut in (before, after))
        self.pieces = [_pieces(old[block.rank], new), _pieces(new[block.rank], old)]

    def there(self, x: Tensor) -> Tensor:
        """Activations in the previous layer's split -> in the next layer's split, [sequences, tokens, width]."""
        return self._moved(x, 0)

    def back(self, x: Tensor) -> Tensor:
        """Reverses the resharding, for gradients."""
        return self._moved(x, 1)

    def __call__(self, x: Tensor) -> Tensor:
        """`there`, differentiable."""
        out: Tensor = _Reshard.apply(x, self)  # type: ignore[no-untyped-call]
        return out

    def _moved(self, x: Tensor, way: int) -> Tensor:
        sent, received = self.pieces[way], self.pieces[1 - way]
        rows = torch.cat([x[box].reshape(-1, self.width) for box in sent])
        arrived = x.new_empty(sum(map(_num_rows, received)), self.width)
        self.block.all_to_all(arrived, rows, [_num_rows(box) for box in received], [_num_rows(box) for box in sent])
        out, start = x.new_empty(self.shapes[1 - way]), 0
        for box in received:
            into, num = out[box], _num_rows(box)
            into.copy_(arrived[start : start + num].view(into.shape))
            start += num
        return out


def _num_rows(box: Box) -> int:
    sequences, tokens = box
    return int((sequences.stop - sequences.start) * (tokens.stop - tokens.start))


class _Reshard(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x: Tensor, way: Resharding) -> Tensor:
        ctx.way = way
        return way.there(x)

    @staticmethod
    def backward(ctx: Any, *grads: Tensor) -> tuple[Tensor, None]:
        return ctx.way.back(grads[0]), None
