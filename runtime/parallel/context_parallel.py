"""Context parallelism: ranks share the tokens of a sequence, and core attention exchanges them.

Ring (arXiv 2310.01889) and all-gather (arXiv 2407.21783, 3.3.2) move keys and values. In causal attention later tokens
have more work, so rank r has two of 2 x cp chunks, the r-th from the start and the r-th from the end (zigzag). Every
pair of ranks then has the same number of scores. Ulysses (arXiv 2309.14509) scatters heads of whole sequences.

Documents of mixed lengths (documents.py) follow each other in a row; each is split like a sequence of its own, and
attention stays inside it. Ulysses splits the whole row.

q is [b, heads, s/cp, d]; k and v are [b, heads or fewer, s/cp, d].
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from itertools import accumulate
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

from ..model import flash
from .comm import Group
from .documents import Documents
from .key_exchange import Gathered, KeyExchange, Ring

# Attention of q over k and v, [b, heads, s, d] each.
Attend = Callable[[Tensor, Tensor, Tensor], Tensor]


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
        exchange = self.exchange(k)
        return exchange.attention(q, exchange.send(k, v))

    def exchange(self, k: Tensor) -> KeyExchange:
        """The exchange of keys like k and their values with the other ranks, under ring and all-gather."""
        route = Gathered(self.group) if self.algorithm == "allgather" else Ring(self.group)
        lengths = (k.shape[2],) if self.documents is None else self.documents.shares(self.group.size)
        return KeyExchange(route, k.shape[-1], flash.GPU if self.fused else flash.CPU, tuple(lengths))

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
