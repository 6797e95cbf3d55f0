"""Streaming DiLoCo (arXiv 2501.18512): replicas train alone and exchange fragments of the model in turn.

Each fragment is exchanged once a period: x, its weights after the last exchange, less those of now, in few bits.
`delay` steps later the mean d is used by an outer step of Nesterov's method,

    v <- MOMENTUM v + d        x <- x - RATE (d + MOMENTUM v)

and weights become MIX of what they are then, and the rest x; without a delay they become x. Parts of the model
(embedding, layers, head) are dealt to the fragments in turn, as in the paper.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping

import torch
from torch import Tensor

from ..parallel import host
from ..parallel.comm import Group, Pending
from .base import Alone, State, Trained, scales_of
from .packed import E3M0, LateMean, start_mean

RATE, MOMENTUM, MIX = 0.4, 0.9, 0.5  # section 3 of the paper
_SUMMED = {32: torch.float32, 16: torch.bfloat16}  # bits -> dtype of a plain all-reduce


class DiLoCo(Alone):
    """Outer weights and momentum, which are the same on all replicas, and the means that are on their way."""

    def __init__(self, trainer: Trained, knobs: Mapping[str, float]) -> None:
        super().__init__(trainer, knobs)
        self.fragments, self.delay, self.bits = (int(knobs[name]) for name in ("fragments", "delay", "bits"))
        self.scales = [scales_of(unit.groups.replicate) for unit in self.units]
        self.on_host = knobs["copy_on_host"] == 1
        self.outer = [host.copy(master, master.dtype) for master in self.masters] if self.on_host else self.copies()
        self.momentum = self.zeros()
        self.means: dict[int, Tensor] = {}  # unit -> mean that is on its way
        self.under_way: dict[int, LateMean] = {}

    def _starts(self, unit: int, steps: int) -> bool:
        """Whether an exchange of a unit starts after so many steps."""
        fragment = unit % self.fragments
        return steps > 0 and steps % self.period == (fragment + 1) * self.period // self.fragments % self.period

    @torch.no_grad()
    def exchange(self) -> None:
        done = self.index + 1
        for unit in range(len(self.units)):
            if self.delay and self._starts(unit, done - self.delay):
                self._finish(unit)
            elif self._starts(unit, done - self.delay // 2) and unit in self.under_way and self.bits not in _SUMMED:
                self.under_way[unit].advance()  # the parts of the mean: they have arrived,
                self.under_way[unit].advance()  # and from here on the mean is on its way
            if self._starts(unit, done):
                self._start(unit)
                if not self.delay:
                    self._finish(unit)

    def _start(self, unit: int) -> None:
        master, group = self.masters[unit], self.units[unit].groups.replicate
        mean = self.outer[unit].to(master.device, copy=True).sub_(master)
        self.means[unit] = mean
        if self.bits in _SUMMED:
            hops = _plain(mean, group, _SUMMED[self.bits])
        else:
            hops = start_mean(mean, mean, group, self.scales[unit], E3M0())
        self.under_way[unit] = LateMean(hops)

    def _finish(self, unit: int) -> None:
        if unit in self.under_way:  # else it has arrived before a checkpoint
            self.under_way.pop(unit).finish()
        master, mean, v = self.masters[unit], self.means.pop(unit), self.momentum[unit]
        v.mul_(MOMENTUM).add_(mean)
        x = self.outer[unit].to(master.device).sub_(mean.add_(v, alpha=MOMENTUM), alpha=RATE)
        self.outer[unit].copy_(x)
        master.lerp_(x, 1 - MIX if self.delay else 1.0)

    def settle(self) -> None:
        for late in self.under_way.values():
            late.finish()
        self.under_way.clear()

    def states(self) -> Iterator[State]:
        yield from self.of_units("outer", self.outer, on_host=self.on_host)
        yield from self.of_units("outer_momentum", self.momentum)
        for unit, mean in self.means.items():
            yield State("late_mean", unit, mean, self.units[unit].first, of_replica=False)

    def expect(self, done: int) -> None:
        for unit, master in enumerate(self.masters):
            if any(self._starts(unit, done - ago) for ago in range(self.delay)):
                self.means[unit] = torch.zeros_like(master)


def _plain(mean: Tensor, group: Group, dtype: torch.dtype) -> Iterator[Pending]:
    """The all-reduce in `dtype` that turns a tensor into its mean."""
    total = mean.to(dtype, copy=True)
    yield group.start_all_reduce(total)
    mean.copy_(total).div_(group.size)
