"""Collectives by axis: every one says what it is, who takes part, and fails by name.

A `Group` of one rank communicates nothing, so that callers need no case of their own.
"""

from __future__ import annotations

import re
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager

import torch
import torch.distributed as dist

from ..status import Status
from . import host

Work = dist.Work
# torch 2.13 gave the two new names; 2.6 has only the old ones.
_ALL_GATHER = getattr(dist, "all_gather_single", None) or dist.all_gather_into_tensor
_REDUCE_SCATTER = getattr(dist, "reduce_scatter_single", None) or dist.reduce_scatter_tensor

# Between two looks at who holds a tensor: asleep, as the thread that is waited for may be on the same core. And until
# it must be somebody else who does, and nothing waits any more.
_LOOK_S, _LET_GO_S = 1e-5, 1.0


class CommunicationError(RuntimeError):
    """A collective that did not end: names it, its axis and ranks, and what the back end said."""


def backend_reason(error: RuntimeError) -> str:
    """What a back end said, in one line: without the place in its source, and without advice that fits every error."""
    first = str(error).splitlines()[0]
    return re.sub(r"^\[\S+:\d+\] ", "", first).partition(" This is typically caused")[0]


def _holders(tensor: torch.Tensor) -> int:
    """References to a tensor and to its storage, also those that Python does not see."""
    of_tensor: int = tensor._use_count()  # type: ignore[attr-defined]
    return of_tensor + torch._C._storage_Use_Count(tensor.untyped_storage()._cdata)


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
            message = f"{self.status.doing}, step {self.status.step + 1}: {backend_reason(error)}"
            self.status.fail(message)
            raise CommunicationError(message) from error
        self.status.set(before)

    @contextmanager
    def _collective(self, what: str, *tensors: torch.Tensor) -> Iterator[None]:
        """What the back end makes for itself is not this rank's, and it has let go of `tensors` at the end.

        gloo ends a wait before its own thread has dropped what it worked on, and would free it whenever that thread
        next gets to run: a buffer that nobody needs any more would count at the peak of a rank or not by chance.
        """
        before = [(tensor, _holders(tensor)) for tensor in tensors if tensor.device.type == "cpu"]
        with self._named(what), host.memory():
            yield
        deadline = time.monotonic() + _LET_GO_S
        while any(_holders(tensor) > count for tensor, count in before) and time.monotonic() < deadline:
            time.sleep(_LOOK_S)

    def all_reduce(self, tensor: torch.Tensor, op: dist.ReduceOp.RedOpType = dist.ReduceOp.SUM) -> torch.Tensor:
        """`tensor` summed over the group, in place."""
        if self.size > 1:
            with self._collective("all_reduce", tensor):
                dist.all_reduce(tensor, op=op, group=self.handle)
        return tensor

    def all_gather(self, out: torch.Tensor, tensor: torch.Tensor) -> torch.Tensor:
        """The tensors of all ranks one after the other, into `out`: size times as many elements."""
        if self.size == 1:
            return out.copy_(tensor.view(out.shape))
        with self._collective("all_gather", out, tensor):
            _ALL_GATHER(out, tensor, group=self.handle)
        return out

    def reduce_scatter(self, out: torch.Tensor, tensor: torch.Tensor) -> torch.Tensor:
        """This rank's part of the sum over the group, into `out`: 1/size of the elements."""
        if self.size == 1:
            return out.copy_(tensor.view(out.shape))
        with self._collective("reduce_scatter", out, tensor):
            _REDUCE_SCATTER(out, tensor, group=self.handle)
        return out

    def all_gather_rows(self, tensor: torch.Tensor, sizes: Sequence[int]) -> torch.Tensor:
        """The rows of all ranks one after the other, `sizes[i]` of the i-th."""
        out = tensor.new_empty(sum(sizes), *tensor.shape[1:])
        if len(set(sizes)) == 1:
            return self.all_gather(out, tensor)
        parts = torch.split(out, list(sizes))
        with self._collective("all_gather of rows", out, tensor):
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
        with self._collective("reduce_scatter of rows", out, tensor):
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
        with self._collective("all_to_all", out, tensor):
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

    def send(self, tensor: torch.Tensor, to: int, tag: int) -> tuple[Work, torch.Tensor]:
        """Starts sending to the global rank `to`. Returns the work and what must live until it is done.

        gloo never says that a message has left before somebody waits for it. It sends a copy in host memory, so that a
        rank on CPUs holds no more on its device than one with NCCL.
        """
        tensor = host.copy(tensor, tensor.dtype) if tensor.device.type == "cpu" else tensor.contiguous()
        with self._named(f"send to rank {to}"):
            work = dist.isend(tensor, to, group=self.handle, tag=tag)
        if work is None:
            raise CommunicationError(f"send to rank {to}: this rank is not in the group")
        return work, tensor

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
