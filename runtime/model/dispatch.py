"""Tokens to the ranks that hold their experts, and back.

The ranks that share one copy of the experts' states form groups of ep x etp ranks, each of which hold one copy of the
experts' weights: ep blocks of etp neighbours, each block experts / ep of them in rank order, each rank of a block a
part of the inner width of every one. Tokens are sent over ep to their block, gathered there over etp, and the parts of
the results summed on the rank that each token came by, from where they go back (Megatron Core, token_dispatcher.py:
allgather and all-to-all of MoEAlltoAllTokenDispatcher).
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import accumulate
from typing import Any

import torch
from torch import Tensor
from torch._subclasses.fake_tensor import FakeTensor

from ..parallel.comm import Group


@dataclass(frozen=True)
class ExpertGroup:
    """The ranks that hold one copy of the routed experts together, as this one meets them."""

    ep: Group  # ranks with other experts
    etp: Group  # ranks with other parts of the same experts
    imbalance: float = 1.0  # tokens that arrive here over the mean, where tensors have no values to count

    @property
    def size(self) -> int:
        return self.ep.size * self.etp.size


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
        # Nothing else has kept the experts' outputs: the products that are summed need no tensor of their own.
        grad_weights = out.mul_(grad).sum(-1)
        return grad.mul_(weights[:, None]), grad_weights, None, None


def combine(out: Tensor, weights: Tensor, source: Tensor, num_tokens: int) -> Tensor:
    """Experts' outputs [n, h], times their weights [n], summed by token (source [n]) to [num_tokens, h]."""
    result: Tensor = _Combine.apply(out, weights, source, num_tokens)  # type: ignore[no-untyped-call]
    return result


def _exchange(x: Tensor, group: Group, received: Sequence[int], sent: Sequence[int]) -> Tensor:
    out = x.new_empty(sum(received), *x.shape[1:])
    return group.all_to_all(out, x.contiguous(), received, sent)


class _GatherOverEtp(torch.autograd.Function):
    """Rows that have arrived at each rank of an etp group -> those of all, in `order`; `inverse` of it leads back."""

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
    """The way back of `_GatherOverEtp`: the sums of what the ranks of the group have made of the rows of this one."""

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
    """Where the tokens of a micro-batch go. counts[e]: how many of this rank go to expert e, out of all experts;
    `counts` of the dispatch: how many arrive for each expert of this rank, at all ranks of its etp group."""

    def __init__(self, group: ExpertGroup, counts: Sequence[int], tokens: Tensor, *, uniform: bool = False) -> None:
        """uniform: all ranks have the same counts. tokens: any on the device."""
        self.group, self.local = group, len(counts) // group.ep.size
        self.sent = [sum(counts[first : first + self.local]) for first in range(0, len(counts), self.local)]
        if uniform:
            table = self._same(counts)
        elif isinstance(tokens, FakeTensor):
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
        """[etp rank][ep rank][expert of this rank]: tokens that arrive there from there."""
        ep, etp = self.group.ep, self.group.etp
        mine = torch.tensor(counts, device=tokens.device)
        sizes = [self.local] * ep.size
        arrived = _exchange(mine, ep, sizes, sizes)
        every = etp.all_gather(arrived.new_empty(etp.size * len(arrived)), arrived)
        table: list[list[list[int]]] = every.view(etp.size, ep.size, self.local).tolist()
        return table

    def _same(self, counts: Sequence[int]) -> list[list[list[int]]]:
        """`_table` where every rank sends the same."""
        first = self.group.ep.rank * self.local
        return [[list(counts[first : first + self.local])] * self.group.ep.size] * self.group.etp.size

    def there(self, tokens: Tensor) -> Tensor:
        """Tokens [n, h] by expert, out of all -> those that arrive here, by expert of this rank."""
        if self.group.ep.size > 1:
            tokens = _AllToAll.apply(tokens, self.group.ep, self.received, self.sent)  # type: ignore[no-untyped-call]
        result: Tensor = _GatherOverEtp.apply(tokens, *self._ways)  # type: ignore[no-untyped-call]
        return result

    def back(self, out: Tensor) -> Tensor:
        """The way back of `there`; the parts of a result that the ranks of an etp group have are summed."""
        result: Tensor = _ReduceOverEtp.apply(out, *self._ways)  # type: ignore[no-untyped-call]
        if self.group.ep.size > 1:
            result = _AllToAll.apply(result, self.group.ep, self.sent, self.received)  # type: ignore[no-untyped-call]
        return result


def _by_expert(table: Sequence[Sequence[int]], device: torch.device) -> Tensor:
    """Rows that came rank by rank, expert by expert: their indices expert by expert, rank by rank."""
    width = len(table[0])
    starts = [0, *accumulate(count for row in table for count in row)]
    return torch.cat([
        torch.arange(starts[rank * width + expert], starts[rank * width + expert + 1], device=device)
        for expert in range(width) for rank in range(len(table))
    ])  # fmt: skip
