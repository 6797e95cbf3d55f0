"""Exchange of keys and values over cp ranks (ring, all-gather), beside what does not need those of other ranks.

Forward: keys and values are on their way while the queries are projected and while a rank attends to its own keys.
Backward: they are on their way again from the gradient of the block's output on, and their gradients come home beside
the backward pass of the queries. The bytes are those of an exchange that blocks.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from ..model import flash
from .comm import Group, Pending

# A rank of the group, and its keys and values (or their gradients) concatenated: [b, heads, s/cp, d + d].
PartialSum = tuple[int, Tensor]


class Route:
    """The messages of one call of attention."""

    def __init__(self, group: Group) -> None:
        self.group = group
        self._finish: Callable[[], object] | None = None  # completes the gradient that `back` has returned

    def start(self, local: Tensor) -> None:
        """Starts to send this rank's keys and values, before `parts`."""
        raise NotImplementedError

    def parts(self, local: Tensor) -> Iterator[PartialSum]:
        """Keys and values of every rank, starting with this rank. Starts to send them unless `start` has."""
        raise NotImplementedError

    def back(self, gradients: Iterable[PartialSum]) -> Tensor:
        """The gradients for this rank, summed over all ranks. They are complete after `finish`.

        Input: gradients for every rank, in the order of `parts`.
        """
        raise NotImplementedError

    def finish(self) -> None:
        """Waits for the gradients that `back` has returned."""
        finish, self._finish = self._finish, None  # it refers to tensors, which the graph would keep until it ends
        if finish is not None:
            finish()


class Gathered(Route):
    """All-gather of keys and values, reduce-scatter of their gradients."""

    _ahead: tuple[Tensor, Pending] | None = None

    def start(self, local: Tensor) -> None:
        every = local.new_empty(self.group.size * len(local), *local.shape[1:])
        self._ahead = every, self.group.start_all_gather(every, local).keeping(local)

    def parts(self, local: Tensor) -> Iterator[PartialSum]:
        if self._ahead is None:
            self.start(local)
        size, rank = self.group.size, self.group.rank
        yield rank, local
        every = self._arrived().view(size, *local.shape)
        yield from ((source % size, every[source % size]) for source in range(rank + 1, rank + size))

    def _arrived(self) -> Tensor:
        ahead, self._ahead = self._ahead, None
        if ahead is None:
            raise RuntimeError("keys and values are not on their way")
        ahead[1].wait()
        return ahead[0]

    def back(self, gradients: Iterable[PartialSum]) -> Tensor:
        every: Tensor | None = None
        for source, made in gradients:
            if every is None:
                every = made.new_empty(self.group.size, *made.shape)
            every[source] = made
        if every is None:
            raise RuntimeError("no rank has keys")
        mine = torch.empty_like(every[0])
        self._finish = self.group.start_reduce_scatter(mine, every.flatten(0, 1)).keeping(mine).wait
        return mine


class Ring(Route):
    """Each rank passes keys and values on to the next one, and gradients follow them."""

    _coming: Callable[[], Tensor] | None = None

    def start(self, local: Tensor) -> None:
        self._coming = self.group.pass_on(local)

    def parts(self, local: Tensor) -> Iterator[PartialSum]:
        """Sends each part to the next rank while attention over it is computed."""
        size, rank, part = self.group.size, self.group.rank, local
        coming, self._coming = self._coming, None
        for step in range(size):
            if coming is None and step + 1 < size:
                coming = self.group.pass_on(part)
            yield (rank - step) % size, part
            if coming is not None:
                part, coming = coming(), None

    def back(self, gradients: Iterable[PartialSum]) -> Tensor:
        """Sends the gradients of a part around the ring until they reach its rank."""
        following = iter(gradients)
        _, home = next(following)
        coming: Callable[[], Tensor] | None = None
        for _, made in following:
            coming = self.group.pass_on(made if coming is None else made.add_(coming()))
        if coming is not None:
            last = coming
            self._finish = lambda: home.add_(last())
        return home


@dataclass(frozen=True)
class KeyExchange:
    """One call of attention over the keys and values of all ranks. It holds no tensors of the graph."""

    route: Route
    width: int  # d of keys
    kernel: flash.Kernel
    lengths: tuple[int, ...]  # tokens of the documents on this rank

    def send(self, k: Tensor, v: Tensor) -> Tensor:
        """Starts to send keys and values. Returns them concatenated: [b, heads or fewer, s/cp, d + d]."""
        keys: Tensor = _Send.apply(k, v, self.route)  # type: ignore[no-untyped-call]
        return keys

    def attention(self, q: Tensor, keys: Tensor) -> Tensor:
        """Causal attention of q [b, heads, s/cp, d]. keys: the result of `send`."""
        out: Tensor = _Balanced.apply(q, keys, self)  # type: ignore[no-untyped-call]
        return out

    def send_again(self, out: Tensor, keys: Tensor) -> Tensor:
        """`out`, which is computed from the result of attention. Its gradient starts to send the keys again."""
        result: Tensor = _SendAgain.apply(out, keys, self.route)  # type: ignore[no-untyped-call]
        return result


class _Send(torch.autograd.Function):
    """Autograd runs its backward pass after that of all that is computed between it and attention."""

    @staticmethod
    def forward(ctx: Any, k: Tensor, v: Tensor, route: Route) -> Tensor:
        ctx.route, ctx.width = route, k.shape[-1]
        local = torch.cat([k, v], dim=-1)
        route.start(local)
        return local

    @staticmethod
    def backward(ctx: Any, *grads: Tensor) -> tuple[Tensor, Tensor, None]:
        ctx.route.finish()
        return grads[0][..., : ctx.width], grads[0][..., ctx.width :], None


class _SendAgain(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, out: Tensor, keys: Tensor, route: Route) -> Tensor:
        ctx.save_for_backward(keys)
        ctx.route = route
        return out.view_as(out)

    @staticmethod
    def backward(ctx: Any, *grads: Tensor) -> tuple[Tensor, None, None]:
        ctx.route.start(*ctx.saved_tensors)
        return grads[0], None, None


def _seen(rank: int, source: int, lengths: Sequence[int]) -> Iterator[tuple[slice, slice]]:
    """The queries of `rank` and the keys of `source` that they see, for each document.

    lengths: tokens of the documents on a rank, in two chunks of its sequence each.
    """
    start = 0
    for length in lengths:
        middle, end = start + length // 2, start + length
        both, early, late = slice(start, end), slice(start, middle), slice(middle, end)
        yield (both, both) if source == rank else (both, early) if source < rank else (late, both)
        start = end


class _Balanced(torch.autograd.Function):
    """Attention over one part of keys at a time. It keeps this rank's q, k, v, output and log-sum-exp."""

    @staticmethod
    def forward(ctx: Any, q: Tensor, local: Tensor, how: KeyExchange) -> Tensor:
        rank, parts = how.route.group.rank, how.route.parts(local)
        next(parts)  # starts its transfer before attention over it
        k, v = local.tensor_split([how.width], dim=-1)
        own = [how.kernel.forward(q[:, :, rows], k[:, :, rows], v[:, :, rows], True)
               for rows, _ in _seen(rank, rank, how.lengths)]  # fmt: skip
        total = flash.Total(*(torch.cat(pieces, dim=2) for pieces in zip(*own, strict=True)))
        for source, part in parts:
            for rows, columns in _seen(rank, source, how.lengths):
                keys, values = part[:, :, columns].tensor_split([how.width], dim=-1)
                total.add(rows, *how.kernel.forward(q[:, :, rows], keys, values, False))
        out = total.out.to(q.dtype)
        ctx.save_for_backward(q, local, out, total.lse)
        ctx.how = how
        return out

    @staticmethod
    def backward(ctx: Any, *grads: Tensor) -> tuple[Tensor, Tensor, None]:
        q, local, out, lse = ctx.saved_tensors
        route, kernel = ctx.how.route, ctx.how.kernel
        rank, grad_q = route.group.rank, torch.zeros_like(q, dtype=lse.dtype)

        def gradients() -> Iterator[PartialSum]:
            for source, part in route.parts(local):
                made = torch.zeros_like(part)
                for rows, columns in _seen(rank, source, ctx.how.lengths):
                    keys, values = part[:, :, columns].tensor_split([ctx.how.width], dim=-1)
                    of_q, of_k, of_v = kernel.backward(
                        grads[0][:, :, rows], q[:, :, rows], keys, values, out[:, :, rows], lse[:, :, rows],
                        source == rank,
                    )  # fmt: skip
                    grad_q[:, :, rows].add_(of_q)
                    made[:, :, columns] = torch.cat([of_k, of_v], dim=-1)
                yield source, made

        grad_kv = route.back(gradients())
        return grad_q.to(q.dtype), grad_kv, None
