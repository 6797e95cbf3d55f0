"""Collectives by axis. Each one records its name and its ranks, and its errors name both.

A `Group` of one rank communicates nothing, so that callers need no special case.
"""

from __future__ import annotations

import re
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass

import torch
import torch.distributed as dist

from ..status import Status
from . import host

Work = dist.Work
# torch 2.13 gave the two new names; 2.6 has only the old ones.
_ALL_GATHER = getattr(dist, "all_gather_single", None) or dist.all_gather_into_tensor
_REDUCE_SCATTER = getattr(dist, "reduce_scatter_single", None) or dist.reduce_scatter_tensor

# Seconds between two checks of the references to a tensor, spent asleep because the other thread may share the core.
# Seconds after which the remaining references must belong to other code, and the wait ends.
_LOOK_S, _LET_GO_S = 1e-5, 1.0


class CommunicationError(RuntimeError):
    """Raised for a failed collective, with its name, axis, ranks, and the message of the back end."""


def backend_reason(error: RuntimeError) -> str:
    """The message of a back end in one line, without its source location and without generic advice."""
    first = str(error).splitlines()[0]
    return re.sub(r"^\[\S+:\d+\] ", "", first).partition(" This is typically caused")[0]


def _holders(tensor: torch.Tensor) -> int:
    """The number of references to a tensor and its storage, including those outside Python."""
    of_tensor: int = tensor._use_count()  # type: ignore[attr-defined]
    return of_tensor + torch._C._storage_Use_Count(tensor.untyped_storage()._cdata)


def _holders_of(tensors: Sequence[torch.Tensor]) -> list[tuple[torch.Tensor, int]]:
    return [(tensor, _holders(tensor)) for tensor in tensors if not tensor.is_cuda]


def _wait_until_released(before: Sequence[tuple[torch.Tensor, int]]) -> None:
    """Waits until the back end has released tensors, which had so many references before.

    gloo ends a wait before its thread has dropped the tensors, and frees them when that thread runs next. An unused
    buffer would then count at the peak of a rank or not by chance.
    """
    deadline = time.monotonic() + _LET_GO_S
    while any(_holders(tensor) > count for tensor, count in before) and time.monotonic() < deadline:
        time.sleep(_LOOK_S)


@dataclass
class Pending:
    """A started collective, which runs beside what this rank computes. Its tensors must not be used before `wait`."""

    group: Group
    what: str = ""  # name of the collective
    work: Work | None = None  # None: complete
    before: Sequence[tuple[torch.Tensor, int]] = ()  # its tensors, which must live until it is complete

    def wait(self) -> None:
        """Waits for the end of the collective, on a GPU before what is computed next."""
        if self.work is not None:
            with host.memory():  # gloo copies, too, when it is waited for
                self.group.wait(self.work, self.what)
            self.work = None  # holds the tensors, too
            _wait_until_released(self.before)
        self.before = ()

    def keeping(self, tensor: torch.Tensor) -> Pending:
        """Does not wait for the release of `tensor`, to which other code will refer before the collective ends."""
        self.before = [(each, count) for each, count in self.before if each is not tensor]
        return self


class Group:
    """The ranks that communicate along `axis`."""

    def __init__(self, axis: str, ranks: Sequence[int], rank: int, handle: dist.ProcessGroup | None, status: Status):
        self.axis, self.ranks, self.handle, self.status = axis, tuple(ranks), handle, status
        self.size, self.rank = len(self.ranks), self.ranks.index(rank)
        # Bytes that this rank has sent through this object, where collectives are rings.
        self.sent_bytes = 0.0

    def _sends(self, num_bytes: int, times: int = 1) -> None:
        """Counts a collective in which each rank sends every other a part of `num_bytes`, `times` times."""
        self.sent_bytes += times * (self.size - 1) * num_bytes / self.size

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
        """Excludes the back end's own buffers from this rank's memory, and waits until it has released `tensors`."""
        before = _holders_of(tensors)
        with self._named(what), host.memory():
            yield
        _wait_until_released(before)

    def _start(self, what: str, start: Callable[[], Work | None], *tensors: torch.Tensor) -> Pending:
        before = _holders_of(tensors)
        with self._named(what), host.memory():
            work = start()
        if work is None:
            raise CommunicationError(f"{what}: this rank is not in the group")
        return Pending(self, what, work, before)

    def all_reduce(self, tensor: torch.Tensor, op: dist.ReduceOp.RedOpType = dist.ReduceOp.SUM) -> torch.Tensor:
        """Sums `tensor` over the group, in place."""
        self.start_all_reduce(tensor, op).wait()
        return tensor

    def all_gather(self, out: torch.Tensor, tensor: torch.Tensor) -> torch.Tensor:
        """Concatenates the tensors of all ranks into `out`, which has size times as many elements."""
        self.start_all_gather(out, tensor).wait()
        return out

    def reduce_scatter(self, out: torch.Tensor, tensor: torch.Tensor) -> torch.Tensor:
        """Writes this rank's part of the sum over the group into `out`: 1/size of the elements."""
        self.start_reduce_scatter(out, tensor).wait()
        return out

    def start_all_reduce(
        self, tensor: torch.Tensor, op: dist.ReduceOp.RedOpType = dist.ReduceOp.SUM
    ) -> Pending:
        """Starts `all_reduce`. All ranks must start the collectives of a group in one order."""
        if self.size == 1:
            return Pending(self)
        self._sends(tensor.nbytes, times=2)
        return self._start("all_reduce", lambda: dist.all_reduce(tensor, op, self.handle, async_op=True), tensor)

    def start_all_gather(self, out: torch.Tensor, tensor: torch.Tensor) -> Pending:
        """Starts `all_gather`."""
        if self.size == 1:
            out.copy_(tensor.view(out.shape))
            return Pending(self)
        self._sends(out.nbytes)
        return self._start("all_gather", lambda: _ALL_GATHER(out, tensor, self.handle, async_op=True), out, tensor)

    def start_reduce_scatter(self, out: torch.Tensor, tensor: torch.Tensor) -> Pending:
        """Starts `reduce_scatter`. `out` may be this rank's part of `tensor`."""
        if self.size == 1:
            out.copy_(tensor.view(out.shape))
            return Pending(self)
        self._sends(tensor.nbytes)
        return self._start("reduce_scatter", lambda: _REDUCE_SCATTER(out, tensor, group=self.handle, async_op=True),
                           out, tensor)  # fmt: skip

    def all_gather_rows(self, tensor: torch.Tensor, sizes: Sequence[int]) -> torch.Tensor:
        """Concatenates the rows of all ranks, `sizes[i]` rows of rank i."""
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
        """This rank's rows of the sum over the group, `sizes[i]` rows for rank i. `tensor` is overwritten."""
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
        """Sends `sent[i]` rows of `tensor` to rank i, and receives rows of all ranks into `out` in rank order."""
        if self.size == 1:
            return out.copy_(tensor)
        with self._collective("all_to_all", out, tensor):
            dist.all_to_all_single(out, tensor, list(received), list(sent), group=self.handle)
        return out

    def start_all_to_all(self, out: torch.Tensor, tensor: torch.Tensor) -> Pending:
        """Starts to send the i-th of `size` equal parts of `tensor` to rank i. `out` gets a part of every rank."""
        if self.size == 1:
            out.copy_(tensor)
            return Pending(self)
        self._sends(tensor.nbytes)
        return self._start("all_to_all", lambda: dist.all_to_all_single(out, tensor, group=self.handle, async_op=True),
                           out, tensor)  # fmt: skip

    def swap(self, tensor: torch.Tensor, other: int) -> torch.Tensor:
        """Sends `tensor` to rank `other` of the group. Returns the tensor that it sent."""
        out, to = torch.empty_like(tensor), self.ranks[other]
        self.sent_bytes += tensor.nbytes
        both = [dist.P2POp(dist.isend, tensor, to, self.handle), dist.P2POp(dist.irecv, out, to, self.handle)]
        with self._collective(f"swap with rank {to}", out, tensor):
            works = dist.batch_isend_irecv(both)
            while works:
                works.pop().wait()
            both.clear()  # the tensors must live until here
        return out

    def pass_on(self, tensor: torch.Tensor) -> Callable[[], torch.Tensor]:
        """Starts to send `tensor` to the next rank of the group. The result waits for that of the previous rank."""
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
            both.clear()  # the tensor must live until here
            return out

        return arrived

    def send(self, tensor: torch.Tensor, to: int, tag: int) -> tuple[Work, torch.Tensor]:
        """Starts to send to the global rank `to`. Returns the work, and the tensor that must live until it is done.

        gloo reports a sent message only to a wait. It sends a copy in host memory, so that a rank on CPUs holds no more
        on its device than one with NCCL.
        """
        tensor = tensor.contiguous() if tensor.is_cuda else host.copy(tensor, tensor.dtype)
        with self._named(f"send to rank {to}"):
            work = dist.isend(tensor, to, group=self.handle, tag=tag)
        self.sent_bytes += tensor.nbytes
        if work is None:
            raise CommunicationError(f"send to rank {to}: this rank is not in the group")
        return work, tensor

    def receive(self, tensor: torch.Tensor, source: int, tag: int) -> Work:
        """Starts to fill `tensor` with the message of the global rank `source`."""
        with self._named(f"receive from rank {source}"):
            work = dist.irecv(tensor, source, group=self.handle, tag=tag)
        if work is None:
            raise CommunicationError(f"receive from rank {source}: this rank is not in the group")
        return work

    def wait(self, work: Work, what: str) -> None:
        """Waits for started work, under its name."""
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
