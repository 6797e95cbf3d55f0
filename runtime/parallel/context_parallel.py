"""Context parallelism: ranks share the tokens of a sequence, and core attention exchanges them.

Ring (arXiv 2310.01889) and all-gather (arXiv 2407.21783, 3.3.2) move keys and values. In causal attention later tokens
have more work, so rank r has two of 2 x cp chunks, the r-th from the start and the r-th from the end (zigzag). Every
pair of ranks then has the same number of scores. Ulysses (arXiv 2309.14509) scatters heads of whole sequences.

Documents of mixed lengths (documents.py) follow each other in a row; each is split like a sequence of its own, and
attention stays inside it. Ulysses splits the whole row.

q is [b, heads, s/cp, d]; k and v are [b, heads or fewer, s/cp, d].
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from itertools import accumulate
from typing import Any, Protocol

import torch
import torch.nn.functional as F
from torch import Tensor

from ..model import flash
from .comm import Group
from .documents import Documents

# Attention of q over k and v, [b, heads, s, d] each.
Attend = Callable[[Tensor, Tensor, Tensor], Tensor]
# A rank of the group, and its keys and values (or their gradients) concatenated: [b, heads, s/cp, d + d].
PartialSum = tuple[int, Tensor]


@dataclass(frozen=True)
class ContextParallel:
    """The split of sequences over a group."""

    group: Group  # the cp ranks
    algorithm: str  # one of layouts.CP_ALGORITHMS
    fused: bool = False  # use GPU kernels
    documents: Documents | None = None  # in each row; None: a row is one sequence

    def positions(self, seq_len: int) -> Tensor:
        """Positions of this rank's tokens in their sequence: [s/cp], int64. With documents `seq_len` is not used."""
        if self.documents is None:
            return self._split(seq_len)
        return self.documents.positions()[self.rows()]

    def rows(self) -> Tensor:
        """Places of this rank's tokens in a row of documents: [s/cp], int64."""
        if self.documents is None:
            raise RuntimeError("there are no documents in a row")
        if self.is_contiguous:
            return self._split(sum(self.documents.padded))
        return torch.cat([start + self._split(length) for start, length in self.documents.placed()])

    @property
    def is_contiguous(self) -> bool:
        """Whether a rank has consecutive tokens of a row."""
        return self.algorithm == "ulysses" or self.group.size == 1

    def _split(self, length: int) -> Tensor:
        rank, size = self.group.rank, self.group.size
        if self.is_contiguous:
            return torch.arange(rank * length // size, (rank + 1) * length // size)
        chunks = torch.arange(length).view(2 * size, -1)
        return torch.cat([chunks[rank], chunks[2 * size - 1 - rank]])

    def scatter_heads(self, q: Tensor, k: Tensor, v: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        """The inputs of attention: under ulysses fewer heads of whole sequences, [b, heads/cp, s, d]."""
        if self.algorithm != "ulysses" or self.group.size == 1:
            return q, k, v
        q, k, v = scatter_heads(1, 2, self.group, q, k, v)
        return q, k, v

    def tokens_for_heads(self, *tensors: Tensor) -> tuple[Tensor, ...]:
        """[b, s/cp, w] each -> [b, s, w/cp], in the order of the sequence."""
        swapped = scatter_heads(2, 1, self.group, *tensors)
        if self.algorithm == "ulysses":
            return swapped
        places = self._chunk_order().argsort()
        return tuple(_in_order(x, places) for x in swapped)

    def heads_for_tokens(self, x: Tensor) -> Tensor:
        """The other way round."""
        if self.algorithm != "ulysses":
            x = _in_order(x, self._chunk_order())
        return scatter_heads(1, 2, self.group, x)[0]

    def _chunk_order(self) -> Tensor:
        """Chunks of a sequence in the order of the ranks."""
        size = self.group.size
        return torch.tensor([chunk for rank in range(size) for chunk in (rank, 2 * size - 1 - rank)])

    def core(self, q: Tensor, k: Tensor, v: Tensor, attend: Attend | None = None) -> Tensor:
        """Causal attention on the result of `scatter_heads`, for this rank's queries: [b, heads, s/cp, d].

        attend: None for plain attention, the only kind under ring and all-gather.
        """
        if self.is_contiguous:
            whole = self._inside(attend or causal, q, k, v)
            return whole if self.group.size == 1 else scatter_heads(2, 1, self.group, whole)[0]
        if attend is not None:
            raise RuntimeError(f"{self.algorithm} attention has no windows, softcaps or sinks")
        route = _Gathered(self.group) if self.algorithm == "allgather" else _Ring(self.group)
        kernel = flash.GPU if self.fused else flash.CPU
        lengths = (q.shape[2],) if self.documents is None else self.documents.shares(self.group.size)
        out: Tensor = _Balanced.apply(q, k, v, route, kernel, lengths)  # type: ignore[no-untyped-call]
        return out

    def _inside(self, attend: Attend, q: Tensor, k: Tensor, v: Tensor) -> Tensor:
        """Attention of whole rows, each document by itself."""
        if self.documents is None:
            return attend(q, k, v)
        parts = (torch.split(x, list(self.documents.padded), dim=2) for x in (q, k, v))
        return torch.cat([attend(*document) for document in zip(*parts, strict=True)], dim=2)


def _in_order(x: Tensor, order: Tensor) -> Tensor:
    """Chunks of [b, s, w] in this order."""
    return x.reshape(len(x), len(order), -1, x.shape[-1])[:, order.to(x.device)].flatten(1, 2)


def causal(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
    """Causal attention: [b, heads, s, d] each. Queries share fewer key and value heads."""
    return F.scaled_dot_product_attention(q, k, v, is_causal=True, enable_gqa=q.shape[1] != k.shape[1])


class _Route(Protocol):
    """The exchange of keys and values with the other ranks, and of their gradients."""

    group: Group

    def parts(self, local: Tensor) -> Iterator[PartialSum]:
        """Keys and values of every rank, starting with this rank."""

    def back(self, gradients: Iterable[PartialSum]) -> Tensor:
        """Sums over all ranks the gradients for this rank. Input: gradients for every rank, in the order of `parts`."""


@dataclass(frozen=True)
class _Gathered:
    group: Group

    def parts(self, local: Tensor) -> Iterator[PartialSum]:
        size, rank = self.group.size, self.group.rank
        every = self.group.all_gather(local.new_empty(size * len(local), *local.shape[1:]), local)
        every = every.view(size, *local.shape)
        yield from ((source % size, every[source % size]) for source in range(rank, rank + size))

    def back(self, gradients: Iterable[PartialSum]) -> Tensor:
        every: Tensor | None = None
        for source, made in gradients:
            if every is None:
                every = made.new_empty(self.group.size, *made.shape)
            every[source] = made
        if every is None:
            raise RuntimeError("no rank has keys")
        return self.group.reduce_scatter(torch.empty_like(every[0]), every.flatten(0, 1))


@dataclass(frozen=True)
class _Ring:
    group: Group

    def parts(self, local: Tensor) -> Iterator[PartialSum]:
        """Sends each part to the next rank while attention over it is computed."""
        size, rank, part = self.group.size, self.group.rank, local
        for step in range(size):
            coming = self.group.pass_on(part) if step + 1 < size else None
            yield (rank - step) % size, part
            part = part if coming is None else coming()

    def back(self, gradients: Iterable[PartialSum]) -> Tensor:
        """Sends the gradients of a part around the ring until they reach its rank."""
        following = iter(gradients)
        _, home = next(following)
        coming = None
        for _, made in following:
            coming = self.group.pass_on(made if coming is None else made.add_(coming()))
        return home if coming is None else home.add_(coming())


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
    def forward(
        ctx: Any, q: Tensor, k: Tensor, v: Tensor, route: _Route, kernel: flash.Kernel, lengths: Sequence[int]
    ) -> Tensor:
        local, width, rank = torch.cat([k, v], dim=-1), k.shape[-1], route.group.rank
        parts = route.parts(local)
        next(parts)  # starts its transfer before attention over it
        own = [kernel.forward(q[:, :, rows], k[:, :, rows], v[:, :, rows], True)
               for rows, _ in _seen(rank, rank, lengths)]  # fmt: skip
        total = flash.Total(*(torch.cat(pieces, dim=2) for pieces in zip(*own, strict=True)))
        for source, part in parts:
            for rows, columns in _seen(rank, source, lengths):
                keys, values = part[:, :, columns].tensor_split([width], dim=-1)
                total.add(rows, *kernel.forward(q[:, :, rows], keys, values, False))
        out = total.out.to(q.dtype)
        ctx.save_for_backward(q, local, out, total.lse)
        ctx.route, ctx.kernel, ctx.width, ctx.lengths = route, kernel, width, lengths
        return out

    @staticmethod
    def backward(ctx: Any, *grads: Tensor) -> tuple[Tensor | None, ...]:
        q, local, out, lse = ctx.saved_tensors
        route, kernel, width = ctx.route, ctx.kernel, ctx.width
        rank, grad_q = route.group.rank, torch.zeros_like(q, dtype=lse.dtype)

        def gradients() -> Iterator[PartialSum]:
            for source, part in route.parts(local):
                made = torch.zeros_like(part)
                for rows, columns in _seen(rank, source, ctx.lengths):
                    keys, values = part[:, :, columns].tensor_split([width], dim=-1)
                    of_q, of_k, of_v = kernel.backward(
                        grads[0][:, :, rows], q[:, :, rows], keys, values, out[:, :, rows], lse[:, :, rows],
                        source == rank,
                    )  # fmt: skip
                    grad_q[:, :, rows].add_(of_q)
                    made[:, :, columns] = torch.cat([of_k, of_v], dim=-1)
                yield source, made

        grad_kv = route.back(gradients())
        return grad_q.to(q.dtype), grad_kv[..., :width], grad_kv[..., width:], None, None, None


class _ScatterHeads(torch.autograd.Function):
    """Splits one dim of every tensor over the ranks and joins the parts of another. The backward pass reverses it."""

    @staticmethod
    def forward(ctx: Any, split: int, joined: int, group: Group, *tensors: Tensor) -> tuple[Tensor, ...]:
        ctx.how = split, joined, group
        return _scatter_heads(tensors, split, joined, group)

    @staticmethod
    def backward(ctx: Any, *grads: Tensor) -> tuple[Tensor | None, ...]:
        split, joined, group = ctx.how
        return None, None, None, *_scatter_heads(grads, joined, split, group)


def scatter_heads(split: int, joined: int, group: Group, *tensors: Tensor) -> tuple[Tensor, ...]:
    out: tuple[Tensor, ...] = _ScatterHeads.apply(split, joined, group, *tensors)  # type: ignore[no-untyped-call]
    return out


def _scatter_heads(tensors: Sequence[Tensor], split: int, joined: int, group: Group) -> tuple[Tensor, ...]:
    """Exchanges all tensors in one message per rank."""
    parts = [x.chunk(group.size, dim=split) for x in tensors]
    ends = list(accumulate(chunks[0].numel() for chunks in parts))
    sent = tensors[0].new_empty(group.size, ends[-1])
    for chunks, end in zip(parts, ends, strict=True):
        for row, part in zip(sent, chunks, strict=True):
            row[end - part.numel() : end].view(part.shape).copy_(part)
    rows = [1] * group.size
    got = group.all_to_all(torch.empty_like(sent), sent, rows, rows)
    columns = got.tensor_split(ends[:-1], dim=1)
    return tuple(torch.cat([row.view(chunks[0].shape) for row in column], dim=joined)
                 for column, chunks in zip(columns, parts, strict=True))  # fmt: skip
