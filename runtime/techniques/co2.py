"""CO2 (arXiv 2401.16265): replicas train a round alone while the sum of the round before is on its way.

In round t the replicas start from the same weights x_t, and replica i ends at y_t,i. At the end of the round the sum of
x_t - y_t,i is started. It is used a round later, with the outer momentum m:

    m <- clip(MOMENTUM m + mean(x_(t-1) - y_(t-1)) / PENALTY, +-CLIP)        x_(t+1) = x_t - RATE m

The penalty is for the staleness of the mean. With `late=0` a round waits for its own sum. Momenta of the inner
optimizer stay with each replica. Changes are summed and not weights: x_t is the same on all, and bf16 keeps more of a
change.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping

import torch

from ..parallel.comm import Pending
from .base import Alone, State, Trained

# Defaults of the published code (github.com/weigao266/fairscale-CO2: outer_lr, outer_momentum, co2_gap_penalty,
# co2_clip_threshold). The paper clips the momentum; that code drops the clipped one.
RATE, MOMENTUM, PENALTY, CLIP = 1.0, 0.5, 1.0, 1.0


class CO2(Alone):
    """Outer weights and momentum, which are the same on all replicas, and the sum that is on its way."""

    def __init__(self, trainer: Trained, knobs: Mapping[str, float]) -> None:
        super().__init__(trainer, knobs)
        self.late = knobs["late"] == 1
        self.outer, self.momentum = self.copies(), self.zeros()
        self.sums = [torch.zeros_like(master, dtype=unit.flat.dtype)
                     for unit, master in zip(self.units, self.masters, strict=True)]  # fmt: skip
        self.under_way: list[Pending] = []

    @torch.no_grad()
    def exchange(self) -> None:
        if (self.index + 1) % self.period:
            return
        self.settle()
        for unit, master, x, m, total in zip(
            self.units, self.masters, self.outer, self.momentum, self.sums, strict=True
        ):
            group, before = unit.groups.replicate, total.to(unit.wide, copy=True)
            pending = group.start_all_reduce(total.copy_(x - master))
            if self.late:
                self.under_way.append(pending)
            else:
                pending.wait()
                before = total.to(unit.wide)
            m.mul_(MOMENTUM).add_(before, alpha=1 / (PENALTY * group.size)).clamp_(-CLIP, CLIP)
            x.sub_(m, alpha=RATE)
            master.copy_(x)

    def settle(self) -> None:
        for pending in self.under_way:
            pending.wait()
        self.under_way.clear()

    def states(self) -> Iterator[State]:
        yield from self.of_units("outer", self.outer)
        yield from self.of_units("outer_momentum", self.momentum)
        if self.late:
            yield from self.of_units("late_sum", self.sums)
