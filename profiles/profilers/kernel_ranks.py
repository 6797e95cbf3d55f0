"""Kernels timed by all ranks of a torchrun job at once, as they run them in training: what they share is then shared.

Every rank times every kernel. The first rank of each device (ranks under other quotas are other devices) keeps what it
finds; the others are the load beside it.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from datetime import timedelta
from typing import TypeVar

import torch.distributed as dist

from ...errors import MeshwrightError
from .link_ranks import under_torchrun

SAVED, TIME_IT = "saved", ""
TIMEOUT_S = 600.0  # the longest wait for the slowest rank's largest kernel
T = TypeVar("T")


class RankLost(MeshwrightError):
    """A rank that dropped out while kernels were timed."""

    code, exit_code = "run_failed", 1


@dataclass(frozen=True)
class Ranks:
    """This rank among those that time kernels."""

    rank: int = 0  # of this process
    devices: tuple[str, ...] = ("",)  # [ranks] names

    @property
    def writes(self) -> bool:
        return self.devices.index(self.devices[self.rank]) == self.rank

    @property
    def is_of_another_device(self) -> bool:
        return self.devices[self.rank] != self.devices[0]

    def agree(self, word: str) -> str:
        """The decision of all ranks on the next kernel: SAVED if every rank that writes has it, the first rank's reason
        against it if it has one, else TIME_IT. A barrier: no rank goes on before all have come here."""
        if len(self.devices) == 1:
            return word
        words = _everyones((word, self.writes))
        if words[0][0] not in (SAVED, TIME_IT):
            return words[0][0]
        return SAVED if all(word == SAVED for word, writes in words if writes) else TIME_IT

    def of_this_device(self, samples: list[float]) -> list[float]:
        """The samples of all ranks of this rank's device."""
        if len(self.devices) == 1:
            return samples
        mine = self.devices[self.rank]
        return [value for name, values in zip(self.devices, _everyones(samples), strict=True) if name == mine
                for value in values]  # fmt: skip


def _everyones(mine: T) -> list[T]:
    """The objects of all ranks, in their order."""
    gathered = [mine] * dist.get_world_size()
    try:
        dist.all_gather_object(gathered, mine)
    except RuntimeError as error:
        raise RankLost(f"a rank did not answer: {str(error).splitlines()[0]}",
                       hint="with `-o` what was timed is kept: `--resume` goes on") from error  # fmt: skip
    return gathered


@contextmanager
def joined(device: str) -> Iterator[Ranks]:
    """The ranks of the torchrun job that this process is part of, or this process alone."""
    if not under_torchrun():
        yield Ranks(0, (device,))
        return
    dist.init_process_group("gloo", timeout=timedelta(seconds=TIMEOUT_S))
    try:
        names: list[str] = [device] * dist.get_world_size()
        dist.all_gather_object(names, device)
        yield Ranks(dist.get_rank(), tuple(names))
    finally:
        dist.destroy_process_group()
