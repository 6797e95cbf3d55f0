"""NoLoCo (arXiv 2506.10911): a replica averages with one random other; nothing is summed over all of them.

After each period the replicas form pairs, by the seed. A pair swaps its outer weights p and what its weights changed
since, d. Both then take the outer step

    v <- MOMENTUM v + RATE mean(d) + RATE (mean(p) - p)        p <- p + v

and go on from p. The means are over the pair. The last term, a change of Nesterov's, pulls the two together.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping

import torch
from torch import Tensor

from .base import Alone, State, Trained

# The published runs (github.com/gensyn-ai/noloco: outer_lr, outer_momentum of c4_noloco_mean_*).
RATE, MOMENTUM = 0.7, 0.5


def partner(rank: int, size: int, exchange: int, seed: int) -> int:
    """The replica that `rank` of `size` swaps with in exchange 0, 1, ...; itself, where it is left over."""
    generator = torch.Generator().manual_seed(seed * 1_000_003 + exchange)
    order = torch.randperm(size, generator=generator).tolist()
    place = order.index(rank) ^ 1
    return int(order[place]) if place < size else rank


class NoLoCo(Alone):
    """The outer weights and the outer momentum of each replica."""

    def __init__(self, trainer: Trained, knobs: Mapping[str, float]) -> None:
        super().__init__(trainer, knobs)
        self.outer, self.momentum = self.copies(), self.zeros()

    @torch.no_grad()
    def exchange(self) -> None:
        if (self.index + 1) % self.period:
            return
        number = (self.index + 1) // self.period - 1
        for unit, master, outer, momentum in zip(self.units, self.masters, self.outer, self.momentum, strict=True):
            group = unit.groups.replicate
            other = partner(group.rank, group.size, number, self.trainer.job.seed)
            # In the dtype of the weights, the own ones too: where all agree, nothing pulls.
            sent = torch.stack([outer, master - outer]).to(unit.flat.dtype)
            weights, change = (self._mean(sent, group.swap(sent, other)) if other != group.rank else sent).to(unit.wide)
            momentum.mul_(MOMENTUM).add_(change, alpha=RATE).add_(weights - sent[0].to(unit.wide), alpha=RATE)
            outer.add_(momentum)
            master.copy_(outer)

    @staticmethod
    def _mean(one: Tensor, other: Tensor) -> Tensor:
        return (one.double() + other.double()) / 2

    def states(self) -> Iterator[State]:
        yield from self.of_units("outer", self.outer, of_replica=True)
        yield from self.of_units("outer_momentum", self.momentum, of_replica=True)
