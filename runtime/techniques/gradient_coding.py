"""Gradient coding (arXiv 1612.03301): replicas compute shares of one another, and a step does without the slowest.

The batch is divided into n shares, as many as there are replicas. To do without any r of them replica i computes shares
i, ..., i + r and adds up their gradients with coefficients B[i]. For any n - r replicas there are numbers a with
a B = (1, ..., 1): the sum of their messages, each times its number, is the gradient of the whole batch.

The first n - r replicas that have theirs, the fast ones, agree over the store of torchrun. They scatter the sum among
themselves around a ring, and each sends its part to all others. A slow one drops what it computes when it sees that the
step is decided, receives the sum, and so catches up. Loss and stop signal take the same way.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Mapping, Sequence
from itertools import count

import numpy as np
import torch
import torch.distributed as dist
from numpy.typing import NDArray
from torch import Tensor

from ..optimizer import clip_
from ..parallel.comm import Group, Work
from ..parallel.sharding import squared_norm
from .base import Exchange, Trained, scales_of

Matrix = NDArray[np.float64]
# Steps that a slow replica may be behind before the others wait for it; they keep what they send it as long.
MOST_BEHIND = 8
_TRIES = 64  # random codes, of which the best is taken
_instances = count()


def code(replicas: int, tolerated: int) -> Matrix:
    """[n, n] the coefficients B. Shares of all replicas in a group of r + 1 where such groups divide n (fractional
    repetition), else cyclic ones, by the paper's algorithm 2: each row is orthogonal to r random vectors that are
    orthogonal to ones."""
    n, r = replicas, tolerated
    if n % (r + 1) == 0:
        return np.asarray(np.kron(np.eye(n // (r + 1)), np.ones((r + 1, r + 1))), dtype=np.float64)
    return min((_cyclic(n, r, seed) for seed in range(_TRIES)), key=lambda made: float(np.abs(made).max()))


def _cyclic(n: int, r: int, seed: int) -> Matrix:
    vectors = np.random.default_rng(seed).standard_normal((r, n))
    vectors[:, -1] = -vectors[:, :-1].sum(1)
    made = np.zeros((n, n))
    for i in range(n):
        others = [(i + k) % n for k in range(1, r + 1)]
        made[i, i] = 1.0
        made[i, others] = np.linalg.solve(vectors[:, others], -vectors[:, i])
    return made


def decoding(coefficients: Matrix, fast: Sequence[int]) -> Matrix:
    """[n - r] the numbers a for the messages of the replicas `fast`."""
    numbers, *_ = np.linalg.lstsq(coefficients[list(fast)].T, np.ones(len(coefficients)), rcond=None)
    return np.asarray(numbers)


class _Decided(Exception):
    """Raised in a forward pass of a slow replica."""


class GradientCoding(Exchange):
    """The code, and messages on their way to slow replicas."""

    on_gpu = traceable = False  # replicas that drop out of a sum were tried over gloo only

    def __init__(self, trainer: Trained, knobs: Mapping[str, float]) -> None:
        super().__init__(trainer, knobs)
        self.group = trainer.mesh["replicate"]
        n, self.tolerated = self.group.size, int(knobs["tolerated"])
        self.needed, self.scales = n - self.tolerated, [scales_of(self.group)]  # for loss and stop signal
        self.coefficients = code(n, self.tolerated)
        self.mine = [int(share) for share in np.flatnonzero(self.coefficients[self.group.rank])]
        self.store, self.name = dist.distributed_c10d._get_default_store(), f"gradient coding {next(_instances)}"
        self.fast: list[int] = []  # replicas of this step, in order
        self.first: int | None = None  # step of this process
        self.steps_in_time = 0  # in which this replica was among them
        self.sending: deque[tuple[int, Work, Tensor]] = deque()  # step, message to a slow replica
        self.kept: deque[int] = deque()  # steps whose keys this replica deletes
        for unit in self.units:
            unit.sums_copies, unit.num_passes = False, unit.num_passes * len(self.mine)

    # ---- who is fast

    def _key(self, place: int | str, step: int | None = None) -> str:
        return f"{self.name}/{self.index if step is None else step}/{place}"

    def _is_decided(self) -> bool:
        return bool(self.store.check([self._key(self.needed)]))

    def _agree(self, in_time: bool) -> None:
        """Finds the fast replicas, of which this one may be the last."""
        place = self.store.add(self._key("arrived"), 1) if in_time else self.needed + 1
        if place <= self.needed:
            self.store.set(self._key(place), str(self.group.rank))
            self.steps_in_time += 1
        self.fast = sorted(int(self.store.get(self._key(each))) for each in range(1, self.needed + 1))
        if self.fast[0] == self.group.rank:
            self.kept.append(self.index)

    # ---- the step

    def begin(self, index: int) -> None:
        super().begin(index)
        self._wait(until=index - MOST_BEHIND)
        self.first = index if self.first is None else self.first

    def loss(self) -> Tensor:
        trainer, row = self.trainer, self.coefficients[self.group.rank]
        total, before = torch.zeros((), dtype=torch.float64, device=trainer.device), 0.0
        try:
            for share in self.mine:
                for unit in self.units:
                    unit.gradient.mul_(before / row[share])  # so that the last factor alone is left for the end
                before = float(row[share])
                total += before * trainer.pipeline.run(self._watched(trainer.share(self.index, share)))
        except _Decided:
            trainer.pipeline.drop()
            self._agree(in_time=False)
            return total
        self._agree(in_time=not self._is_decided())
        if self.group.rank in self.fast:
            total *= self._number
            for unit in self.units:
                unit.gradient.mul_(before * self._number)
        return total

    def _watched(self, batch: Callable[[int], tuple[Tensor, ...]]) -> Callable[[int], tuple[Tensor, ...]]:
        """The micro-batches of a share, until the step is decided."""

        def micro_batch(number: int) -> tuple[Tensor, ...]:
            if self._is_decided():
                raise _Decided
            return batch(number)

        return micro_batch

    @property
    def _number(self) -> float:
        """The factor of this replica in the sum."""
        return float(decoding(self.coefficients, self.fast)[self.fast.index(self.group.rank)])

    @torch.no_grad()
    def clip(self, parts: Sequence[Tensor]) -> float:
        for tag, part in enumerate(parts, 1):
            self._sum(part, tag, self.group)
        norm = float(torch.stack([squared_norm(part) for part in parts]).sum().sqrt())  # all have the whole gradient
        clip_(parts, norm, self.trainer.job.clip)
        return norm

    def total(self, loss_and_stop: Tensor) -> Tensor:
        self._sum(loss_and_stop, 0, self.scales[0])
        return loss_and_stop

    # ---- sums of the fast replicas, for all

    def _sum(self, tensor: Tensor, number: int, group: Group) -> None:
        """Sums `tensor`, the `number`-th of the step, over the fast replicas; all get it."""
        if tensor.numel() < len(self.fast):  # all have a piece
            padded = torch.cat([tensor, tensor.new_zeros(len(self.fast))])
            self._sum(padded, number, group)
            tensor.copy_(padded[: tensor.numel()])
            return
        tag = (self.index * (len(self.units) + 1) + number) % (1 << 20)
        pieces, rank = tensor.tensor_split(len(self.fast)), group.rank
        if rank in self.fast:
            place = self.fast.index(rank)
            self._scatter(pieces, place, tag, group)
            for other in range(group.size):
                if other != rank:
                    work, sent = group.send(pieces[place], group.ranks[other], tag)
                    self.sending.append((self.index, work, sent))
        works = [group.receive(piece, group.ranks[source], tag)
                 for source, piece in zip(self.fast, pieces, strict=True) if source != rank]  # fmt: skip
        for work in works:
            group.wait(work, "the sum of coded gradients")

    def _scatter(self, pieces: Sequence[Tensor], place: int, tag: int, group: Group) -> None:
        """Leaves the sum of piece `place` there, around the ring of the fast replicas."""
        size = len(self.fast)
        after, before = (group.ranks[self.fast[(place + way) % size]] for way in (1, -1))
        for hop in range(1, size):
            mine, arriving = pieces[(place - hop) % size], pieces[(place - hop - 1) % size]
            work, _ = group.send(mine, after, tag)
            received = torch.empty_like(arriving)
            group.wait(group.receive(received, before, tag), "coded gradients")
            arriving.add_(received)
            group.wait(work, "coded gradients")

    def _wait(self, until: int) -> None:
        """Waits for the messages of all steps up to `until`."""
        while self.sending and self.sending[0][0] <= until:
            _, work, _ = self.sending.popleft()
            self.group.wait(work, "a sum that a slow replica has not taken")
        # A message leaves when its receiver asks for it, which it does after it has read who is fast.
        while self.kept and self.kept[0] <= until:
            step = self.kept.popleft()
            for place in ("arrived", *range(1, self.needed + 1)):
                self.store.delete_key(self._key(place, step))

    def share_in_time(self) -> float:
        return self.steps_in_time / (self.index + 1 - (self.first or 0))

    def settle(self) -> None:
        self._wait(until=self.index)
