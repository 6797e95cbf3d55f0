"""Collectives by axis: every one says what it is, who takes part, and fails by name.

A `Group` of one rank communicates nothing, so that callers need no case of their own.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager

import torch
import torch.distributed as dist

from .status import Status

Work = dist.Work
# torch 2.13 gave the two new names; 2.6 has only the old ones.
_ALL_GATHER = getattr(dist, "all_gather_single", None) or dist.all_gather_into_tensor
_REDUCE_SCATTER = getattr(dist, "reduce_scatter_single", None) or dist.reduce_scatter_tensor


class CommunicationError(RuntimeError):
    """A collective that did not end: names it, its axis and ranks, and what the back end said."""


class Group:
    """The ranks that communicate along `axis`."""

    def __init__(self, axis: str, ranks: Sequence[int], rank: int, handle: dist.ProcessGroup | None, status: Status):
        self.axis, self.ranks, self.handle, self.status = axis, tuple(ranks), handle, status
        self.size, self.rank = len(self.ranks), self.ranks.index(rank)

    @contextmanager
    def _named(self, what: str) -> Iterator[None]:
        before = self.status.doing
        self.status.set(f"{what} over {self.axis} (ranks {', '.join(map(str, self.ranks))})")
        try:
            yield
        except RuntimeError as error:
            message = f"{self.status.doing}, step {self.status.step + 1}: {str(error).splitlines()[0]}"
            self.status.fail(message)
            raise CommunicationError(message) from error
        self.status.set(before)

    def all_reduce(self, tensor: torch.Tensor, op: dist.ReduceOp.RedOpType = dist.ReduceOp.SUM) -> torch.Tensor:
        """`tensor` summed over the group, in place."""
        if self.size > 1:
            with self._named("all_reduce"):
                dist.all_reduce(tensor, op=op, group=self.handle)
        return tensor

    def all_gather(self, out: torch.Tensor, tensor: torch.Tensor) -> torch.Tensor:
        """The tensors of all ranks one after the other, into `out`: size times as many elements."""
        if self.size == 1:
            return out.copy_(tensor.view(out.shape))
        with self._named("all_gather"):
            _ALL_GATHER(out, tensor, group=self.handle)
        return out

    def reduce_scatter(self, out: torch.Tensor, tensor: torch.Tensor) -> torch.Tensor:
        """This rank's part of the sum over the group, into `out`: 1/size of the elements."""
        if self.size == 1:
            return out.copy_(tensor.view(out.shape))
        with self._named("reduce_scatter"):
            _REDUCE_SCATTER(out, tensor, group=self.handle)
        return out

    def all_gather_rows(self, tensor: torch.Tensor, sizes: Sequence[int]) -> torch.Tensor:
        """The rows of all ranks one after the other, `sizes[i]` of the i-th."""
        out = tensor.new_empty(sum(sizes), *tensor.shape[1:])
        if len(set(sizes)) == 1:
            return self.all_gather(out, tensor)
        parts = torch.split(out, list(sizes))
        with self._named("all_gather of rows"):
            if dist.get_backend(self.handle) == "nccl":
                dist.all_gather(list(parts), tensor, group=self.handle)
                return out
            parts[self.rank].copy_(tensor)
            for source, part in zip(self.ranks, parts, strict=True):  # gloo gathers equal sizes only
                if part.numel():
                    dist.broadcast(part, source, group=self.handle)
        return out

    def reduce_scatter_rows(self, tensor: torch.Tensor, sizes: Sequence[int]) -> torch.Tensor:
        """This rank's rows of the sum over the group, `sizes[i]` for the i-th rank. `tensor` is used up."""
        out = tensor.new_empty(sizes[self.rank], *tensor.shape[1:])
        if len(set(sizes)) == 1:
            return self.reduce_scatter(out, tensor)
        parts = torch.split(tensor, list(sizes))
        with self._named("reduce_scatter of rows"):
            if dist.get_backend(self.handle) == "nccl":
                dist.reduce_scatter(out, list(parts), group=self.handle)
                return out
            for to, part in zip(self.ranks, parts, strict=True):  # gloo scatters equal sizes only
                if part.numel():
                    dist.reduce(part, to, group=self.handle)
            return out.copy_(parts[self.rank])

    def all_to_all(
        self, out: torch.Tensor, tensor: torch.Tensor, received: Sequence[int], sent: Sequence[int]
    ) -> torch.Tensor:
        """Rows of `tensor` to every rank in turn (`sent[i]` to the i-th), and theirs into `out` in the same order."""
        if self.size == 1:
            return out.copy_(tensor)
        with self._named("all_to_all"):
            dist.all_to_all_single(out, tensor, list(received), list(sent), group=self.handle)
        return out

    def pass_on(self, tensor: torch.Tensor) -> Callable[[], torch.Tensor]:
        """Starts sending `tensor` to the next rank of the group. The result waits for that of the rank before."""
        out = torch.empty_like(tensor)
        to, source = self.ranks[(self.rank + 1) % self.size], self.ranks[self.rank - 1]
        what = f"send to rank {to} and receive from rank {source}"
        both = [dist.P2POp(dist.isend, tensor, to, self.handle), dist.P2POp(dist.irecv, out, source, self.handle)]
        with self._named(what):
            works = dist.batch_isend_irecv(both)

        def arrived() -> torch.Tensor:
            with self._named(what):
                for work in works:
                    work.wait()
            both.clear()  # until here the tensor must live
            return out

        return arrived

    def send(self, tensor: torch.Tensor, to: int, tag: int) -> Work:
        """Starts sending to the global rank `to`; the tensor must live until the work is done."""
        with self._named(f"send to rank {to}"):
            work = dist.isend(tensor, to, group=self.handle, tag=tag)
        if work is None:
            raise CommunicationError(f"send to rank {to}: this rank is not in the group")
        return work

    def receive(self, tensor: torch.Tensor, source: int, tag: int) -> Work:
        """Starts to fill `tensor` with what the global rank `source` sends."""
        with self._named(f"receive from rank {source}"):
            work = dist.irecv(tensor, source, group=self.handle, tag=tag)
        if work is None:
            raise CommunicationError(f"receive from rank {source}: this rank is not in the group")
        return work

    def wait(self, work: Work, what: str) -> None:
        """Waits for something that was started, under its name."""
        with self._named(what):
            work.wait()


def gather_sequence(x: torch.Tensor, group: Group) -> torch.Tensor:
    """[b, s/tp, h] of each rank -> [b, s, h]."""
    batch, part, width = x.shape
    out = x.new_empty(group.size * batch, part, width)
    group.all_gather(out, x.contiguous())
    if batch == 1:
        return out.view(1, group.size * part, width)
    return out.view(group.size, batch, part, width).transpose(0, 1).reshape(batch, group.size * part, width)
