"""1-bit Adam (arXiv 2102.02888): after a warm-up the variance is frozen and replicas exchange signs of their momentum.

In the warm-up replicas sum their gradients, and AdamW updates. From then on each replica adds its own gradient g to the
momentum that all have, and the mean m of these over the replicas comes back in signs, in two phases, with what encoding
left out added to what is encoded next, on each replica and for its part of the mean:

    m <- mean(BETA1 m + (1 - BETA1) g)        w <- w - rate (m' / (sqrt(v') + eps) + decay w)

v is the variance at the end of the warm-up. m' and v' are divided by 1 - BETA^t as in AdamW, v' with the t at which it
was frozen. Gradients are not clipped after the warm-up. An element whose variance is 0, as the row of a token that did
not occur in the warm-up, keeps a momentum of 0: a sign over eps would throw it away (`exp_avg_mask` of DeepSpeed's).
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence

import torch
from torch import Tensor

from ..parallel.sharding import gradient_norm
from .base import Exchange, State, Trained, scales_of
from .packed import Errors, LateMean, Signs, byte_parts, start_mean


class OneBitAdam(Exchange):
    """The errors of encoding on each replica; the momentum and the variance are the optimizer's states."""

    def __init__(self, trainer: Trained, knobs: Mapping[str, float]) -> None:
        super().__init__(trainer, knobs)
        self.warmup_steps, self.replica = trainer.job.warmup_steps, trainer.mesh.replica(trainer.job.layout)
        groups = [unit.groups.replicate for unit in self.units]
        self.scales = [scales_of(group) for group in groups]
        self.mine = [byte_parts(unit.part, group, Signs())[group.rank]
                     for unit, group in zip(self.units, groups, strict=True)]  # fmt: skip
        self.errors = [Errors(torch.zeros_like(unit.master), unit.master.new_zeros(part.stop - part.start))
                       for unit, part in zip(self.units, self.mine, strict=True)]  # fmt: skip

    @property
    def frozen(self) -> bool:
        return self.index >= self.warmup_steps

    def begin(self, index: int) -> None:
        super().begin(index)
        for unit in self.units:
            unit.sums_copies = not self.frozen

    @torch.no_grad()
    def clip(self, parts: Sequence[Tensor]) -> float:
        if not self.frozen:
            return super().clip(parts)
        for unit, part in zip(self.units, parts, strict=True):
            part.mul_(unit.groups.replicate.size)  # the mean over the tokens of this replica
        return gradient_norm(self.units, parts, self.replica, self.trainer.device)

    @torch.no_grad()
    def optimize(self) -> None:
        if not self.frozen:
            super().optimize()
            return
        (how,) = self.trainer.optimizer.param_groups
        beta1, beta2 = how["betas"]
        for unit, scales, errors in zip(self.units, self.scales, self.errors, strict=True):
            state, weights = self.trainer.optimizer.state[unit.master], unit.master
            m, v = state["exp_avg"], state["exp_avg_sq"]
            state["step"] += 1
            m.lerp_(weights.grad, 1 - beta1)
            LateMean(start_mean(m, m, unit.groups.replicate, scales, Signs(), errors)).finish()
            m.mul_(v > 0)
            variance = v / (1 - beta2**self.warmup_steps)
            weights.mul_(1 - how["lr"] * how["weight_decay"])
            rate = how["lr"] / (1 - beta1 ** float(state["step"]))
            weights.addcdiv_(m, variance.sqrt_().add_(how["eps"]), value=-rate)

    def states(self) -> Iterator[State]:
        for index, (unit, mine, errors) in enumerate(zip(self.units, self.mine, self.errors, strict=True)):
            yield State("sent_error", index, errors.sent, unit.first, of_replica=True)
            # Replica R has the R-th part.
            yield State("mean_error", index, errors.mean, unit.first + mine.start, of_replica=False)
