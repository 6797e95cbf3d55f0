"""Tokens to the ranks that hold their experts, and back; no token is dropped.

The ranks that share one copy of the experts form groups of ep; each holds experts / ep of them, in rank order.
"""

from __future__ import annotations

from collections.abc import Sequence
from itertools import accumulate
from typing import Any

import torch
from torch import Tensor
from torch._subclasses.fake_tensor import FakeTensor

from .comm import Group


class _AllToAll(torch.autograd.Function):
    """Rows to the ranks of a group; backward their gradients go the other way."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, group: Group, received: Sequence[int], sent: Sequence[int]) -> Tensor:
        ctx.group, ctx.received, ctx.sent = group, received, sent
        return _exchange(x, group, received, sent)

    @staticmethod
    def backward(ctx: Any, *grads: Tensor) -> tuple[Tensor, None, None, None]:
        return _exchange(grads[0], ctx.group, ctx.sent, ctx.received), None, None, None


class _Combine(torch.autograd.Function):
    """Keeps the experts' outputs and their weights; torch's index_add would keep the products of the two as well."""

    @staticmethod
    def forward(ctx: Any, out: Tensor, weights: Tensor, source: Tensor, num_tokens: int) -> Tensor:
        ctx.save_for_backward(out, weights, source)
        return out.new_zeros(num_tokens, out.shape[1]).index_add_(0, source, out * weights[:, None])

    @staticmethod
    def backward(ctx: Any, *grads: Tensor) -> tuple[Tensor, Tensor, None, None]:
        out, weights, source = ctx.saved_tensors
        grad = grads[0][source]
        grad_weights = torch.linalg.vecdot(grad, out)
        return grad.mul_(weights[:, None]), grad_weights, None, None


def combine(out: Tensor, weights: Tensor, source: Tensor, num_tokens: int) -> Tensor:
    """Experts' outputs [n, h], times their weights [n], summed by token (source [n]) to [num_tokens, h]."""
    result: Tensor = _Combine.apply(out, weights, source, num_tokens)  # type: ignore[no-untyped-call]
    return result


def _exchange(x: Tensor, group: Group, received: Sequence[int], sent: Sequence[int]) -> Tensor:
    out = x.new_empty(sum(received), *x.shape[1:])
    return group.all_to_all(out, x.contiguous(), received, sent)


class Dispatch:
    """Where the tokens of a micro-batch go. counts[e]: how many of this rank go to expert e, out of all experts;
    `counts` of the dispatch: how many arrive here for each expert of this rank."""

    def __init__(self, group: Group, counts: Sequence[int], tokens: Tensor) -> None:
        self.group, self.local = group, len(counts) // group.size
        self.sent = [sum(counts[first : first + self.local]) for first in range(0, len(counts), self.local)]
        table = self._table(counts, tokens)
        self.received = [sum(row) for row in table]
        self.counts = [sum(column) for column in zip(*table, strict=True)]
        self.order = _by_expert(table, tokens.device)

    def _table(self, counts: Sequence[int], tokens: Tensor) -> list[list[int]]:
        """[rank][expert of this rank]: tokens that arrive. Tokens without values: every rank sends as this one does."""
        if isinstance(tokens, FakeTensor):
            first = self.group.rank * self.local
            return [list(counts[first : first + self.local])] * self.group.size
        mine = torch.tensor(counts, device=tokens.device)
        each = [self.local] * self.group.size
        found: list[list[int]] = _exchange(mine, self.group, each, each).view(self.group.size, self.local).tolist()
        return found

    def there(self, tokens: Tensor) -> Tensor:
        """Tokens [n, h] by expert, out of all -> those that arrive here, by expert of this rank."""
        arrived: Tensor = _AllToAll.apply(tokens, self.group, self.received, self.sent)  # type: ignore[no-untyped-call]
        return arrived[self.order]

    def back(self, out: Tensor) -> Tensor:
        """The way back of `there`."""
        result: Tensor = _AllToAll.apply(  # type: ignore[no-untyped-call]
            out[self.order.argsort()], self.group, self.sent, self.received
        )
        return result


def _by_expert(table: Sequence[Sequence[int]], device: torch.device) -> Tensor:
    """Rows that came rank by rank, expert by expert: their indices expert by expert, rank by rank."""
    width = len(table[0])
    starts = [0, *accumulate(count for row in table for count in row)]
    return torch.cat([
        torch.arange(starts[rank * width + expert], starts[rank * width + expert + 1], device=device)
        for expert in range(width) for rank in range(len(table))
    ])  # fmt: skip
