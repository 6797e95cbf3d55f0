"""Sends tokens to the ranks of their experts, and back.

The ranks with one copy of the experts' states form groups of ep x etp ranks, and each group holds one copy of the
experts' weights. A group has ep blocks of etp consecutive ranks. Each block has experts / ep experts in rank order, and
each rank of a block a part of the inner width of each expert. Tokens are sent over ep to their block and gathered over
etp. The partial results are summed on the rank where each token arrived and sent back (Megatron Core,
token_dispatcher.py: allgather and all-to-all of MoEAlltoAllTokenDispatcher).
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import accumulate
from typing import Any

import torch
from torch import Tensor

from ..parallel.comm import Group


@dataclass(frozen=True)
class ExpertGroup:
    """The groups of this rank that together hold one copy of the routed experts."""

    ep: Group  # ranks with other experts
    etp: Group  # ranks with other parts of the same experts
    imbalance: float = 1.0  # arriving tokens over the mean, for tensors without values

    @property
    def size(self) -> int:
        return self.ep.size * self.etp.size


class _AllToAll(torch.autograd.Function):
    """All-to-all of rows over a group. The backward pass sends gradients the opposite way."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, group: Group, received: Sequence[int], sent: Sequence[int]) -> Tensor:
        ctx.group, ctx.received, ctx.sent = group, received, sent
        return _exchange(x, group, received, sent)

    @staticmethod
    def backward(ctx: Any, *grads: Tensor) -> tuple[Tensor, None, None, None]:
        return _exchange(grads[0], ctx.group, ctx.sent, ctx.received), None, None, None


class _Combine(torch.autograd.Function):
    """Keeps the experts' outputs and their weights. torch's index_add would also keep the products of the two."""

    @staticmethod
    def forward(ctx: Any, out: Tensor, weights: Tensor, source: Tensor, num_tokens: int) -> Tensor:
        ctx.save_for_backward(out, weights, source)
        return out.new_zeros(num_tokens, out.shape[1]).index_add_(0, source, out * weights[:, None])

    @staticmethod
    def backward(ctx: Any, *grads: Tensor) -> tuple[Tensor, Tensor, None, None]:
        out, weights, source = ctx.saved_tensors
        grad = grads[0][source]
        # Nothing else keeps the experts' outputs, so the summed products reuse their memory.
        grad_weights = out.mul_(grad).sum(-1)
        return grad.mul_(weights[:, None]), grad_weights, None, None


def combine(out: Tensor, weights: Tensor, source: Tensor, num_tokens: int) -> Tensor:
    """Sums experts' outputs [n, h] times weights [n] by token (source [n]) to [num_tokens, h]."""
    result: Tensor = _Combine.apply(out, weights, source, num_tokens)  # type: ignore[no-untyped-call]
    return result


def _exchange(x: Tensor, group: Group, received: Sequence[int], sent: Sequence[int]) -> Tensor:
    out = x.new_empty(sum(received), *x.shape[1:])
    return group.all_to_all(out, x.contiguous(), received, sent)


class _GatherOverEtp(torch.autograd.Function):
    """Gathers the rows of all ranks of an etp group, in `order`. `inverse` is the inverse permutation."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, etp: Group, shares: Sequence[int], order: Tensor, inverse: Tensor) -> Tensor:
        ctx.etp, ctx.shares = etp, shares
        ctx.save_for_backward(inverse)
        return _gathered(x, etp, shares)[order]

    @staticmethod
    def backward(ctx: Any, *grads: Tensor) -> tuple[Tensor, None, None, None, None]:
        (inverse,) = ctx.saved_tensors
        return _summed(grads[0][inverse], ctx.etp, ctx.shares), None, None, None, None


class _ReduceOverEtp(torch.autograd.Function):
    """Reverses `_GatherOverEtp`: sums the results that the ranks of the group have for the rows of this rank."""

    @staticmethod
    def forward(ctx: Any, out: Tensor, etp: Group, shares: Sequence[int], order: Tensor, inverse: Tensor) -> Tensor:
        ctx.etp, ctx.shares = etp, shares
        ctx.save_for_backward(order)
        return _summed(out[inverse], etp, shares)

    @staticmethod
    def backward(ctx: Any, *grads: Tensor) -> tuple[Tensor, None, None, None, None]:
        (order,) = ctx.saved_tensors
        return _gathered(grads[0], ctx.etp, ctx.shares)[order], None, None, None, None


def _gathered(x: Tensor, etp: Group, shares: Sequence[int]) -> Tensor:
    return x if etp.size == 1 else etp.all_gather_rows(x.contiguous(), shares)


def _summed(rows: Tensor, etp: Group, shares: Sequence[int]) -> Tensor:
    return rows if etp.size == 1 else etp.reduce_scatter_rows(rows, shares)


class Dispatch:
    """The routing of a micro-batch. counts[e]: tokens of this rank for expert e, among all experts.

    `counts` of the dispatch: arriving tokens for each expert of this rank, at all ranks of its etp group.
    """

    def __init__(self, group: ExpertGroup, counts: Sequence[int], tokens: Tensor, *, uniform: bool = False) -> None:
        """uniform: all ranks have the same counts. tokens: any on the device."""
        self.group, self.local = group, len(counts) // group.ep.size
        self.sent = [sum(counts[first : first + self.local]) for first in range(0, len(counts), self.local)]
        if uniform:
            table = self._same(counts)
        elif tokens.is_meta:
            more = group.imbalance if group.ep.size > 1 else 1.0  # a rank with all experts gets every token
            table = self._same([round(more * number) for number in counts])
        else:
            table = self._table(counts, tokens)
        arrived = [[sum(row) for row in rows] for rows in table]
        self.received = arrived[group.etp.rank]
        shares = [sum(rows) for rows in arrived]
        flat = [row for rows in table for row in rows]
        self.counts = [sum(column) for column in zip(*flat, strict=True)]
        order = _by_expert(flat, tokens.device)
        self._ways = group.etp, shares, order, order.argsort()

    def _table(self, counts: Sequence[int], tokens: Tensor) -> list[list[list[int]]]:
        """[etp rank][ep rank][expert of this rank]: tokens that arrive at the etp rank from the ep rank."""
        ep, etp = self.group.ep, self.group.etp
        mine = torch.tensor(counts, device=tokens.device)
        sizes = [self.local] * ep.size
        arrived = _exchange(mine, ep, sizes, sizes)
        every = etp.all_gather(arrived.new_empty(etp.size * len(arrived)), arrived)
        table: list[list[list[int]]] = every.view(etp.size, ep.size, self.local).tolist()
        return table

    def _same(self, counts: Sequence[int]) -> list[list[list[int]]]:
        """`_table` for equal counts on every rank."""
        first = self.group.ep.rank * self.local
        return [[list(counts[first : first + self.local])] * self.group.ep.size] * self.group.etp.size

    def there(self, tokens: Tensor) -> Tensor:
        """Tokens [n, h] ordered by expert, over all experts -> arriving tokens, ordered by expert of this rank."""
        if self.group.ep.size > 1:
            tokens = _AllToAll.apply(tokens, self.group.ep, self.received, self.sent)  # type: ignore[no-untyped-call]
        result: Tensor = _GatherOverEtp.apply(tokens, *self._ways)  # type: ignore[no-untyped-call]
        return result

    def back(self, out: Tensor) -> Tensor:
        """Reverses `there` and sums the partial results of the ranks of an etp group."""
        result: Tensor = _ReduceOverEtp.apply(out, *self._ways)  # type: ignore[no-untyped-call]
        if self.group.ep.size > 1:
            result = _AllToAll.apply(result, self.group.ep, self.sent, self.received)  # type: ignore[no-untyped-call]
        return result


def _by_expert(table: Sequence[Sequence[int]], device: torch.device) -> Tensor:
    """Permutation of rows from (rank, expert) order to (expert, rank) order."""
    width = len(table[0])
    starts = [0, *accumulate(count for row in table for count in row)]
    return torch.cat([
        torch.arange(starts[rank * width + expert], starts[rank * width + expert + 1], device=device)
        for expert in range(width) for rank in range(len(table))
    ])  # fmt: skip
