"""Trains the policy on scored answers, through the schedule and the optimizer of the training layout."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import partial

import torch
from torch import Tensor

from ...planner.document.objective import CLIP, CLIP_HIGH
from ..model.head import Head
from ..model.initial_weights import InitParam, init_param
from ..parallel.mesh import Mesh
from ..parallel.pipeline import Batch
from ..parallel.strategies import HEAD
from ..trainer import Step, Trainer
from .job import KL_COEFFICIENT, RlJob

Rows = Callable[[Tensor], Tensor]  # a micro-batch of this rank out of all rows of an update


@dataclass(frozen=True)
class Scored:
    """Answers to train on; n: answers, s: targets of a row."""

    tokens: Tensor  # [n, s + 1], int64
    counted: Tensor  # [n, s], bool: targets that train
    advantages: Tensor  # [n]
    old: Tensor  # [n, s] log-probabilities that the ratio is taken to
    reference: Tensor | None  # [n, s] log-probabilities of the frozen copy; None: no KL

    def part(self, index: int, parts: int) -> Scored:
        """The answers of update `index` of `parts`."""
        size = len(self.tokens) // parts
        rows = slice(index * size, (index + 1) * size)
        reference = None if self.reference is None else self.reference[rows]
        return Scored(self.tokens[rows], self.counted[rows], self.advantages[rows], self.old[rows], reference)


def weights(algorithm: str, counted: Tensor) -> Tensor:
    """The weight of each target [n, s] in the loss, in float64. GRPO takes the mean of each answer, and then of all
    answers (arXiv 2402.03300, equation 3); DAPO takes the mean of all tokens (2503.14476, section 3.3)."""
    if algorithm == "dapo":
        return counted.double() / counted.sum()
    return counted.double() / (counted.sum(1, keepdim=True) * len(counted))


class RlTrainer(Trainer):
    """This rank of the training call. All its ranks must construct it at the same time."""

    def __init__(
        self, job: RlJob, mesh: Mesh, device: torch.device, init_param: InitParam = init_param
    ) -> None:
        super().__init__(job, mesh, device, init_param=init_param)
        self.rl_job = job
        self.scored: Scored | None = None  # of the update
        self.pipeline.tokens_per_step = 1  # the objective has weights

    def train(self, index: int, scored: Scored) -> Step:
        """All updates of step index, from 0. Loss and norm are means of the updates."""
        steps = list[Step]()
        for update in range(self.rl_job.updates):
            self.scored = scored.part(update, self.rl_job.updates)
            steps.append(self.step(index))
        return Step(*(sum(values) / len(steps) for values in zip(*((it.loss, it.gradient_norm) for it in steps),
                                                                strict=True)))  # fmt: skip

    def batch(self, index: int) -> Batch:
        scored = self.scored
        if scored is None:
            raise RuntimeError("no answers to train on")
        weight = weights(self.rl_job.algorithm, scored.counted)
        inputs = self._divided(scored.tokens)

        def micro_batch(number: int) -> tuple[Tensor, ...]:
            rows = partial(self._rows_of, number)
            for chunk in self.chunks:
                if chunk.head is not None:
                    chunk.head.objective = partial(self._objective, chunk.head, scored, weight, rows)
            return inputs(number)

        return micro_batch

    def _rows_of(self, number: int, values: Tensor) -> Tensor:
        """Micro-batch `number` of this rank, and its cp part of the targets, as `inputs` has them."""
        size, cp = self.job.layout.micro_batch, self.parts.context(HEAD).cp
        first = self.mesh.coords.dp * (self.job.global_batch // self.job.layout.dp) + number * size
        values = values[first : first + size].to(self.device)
        return values if cp is None or values.dim() == 1 else values[:, cp.positions(self.job.seq_len).to(self.device)]

    def _objective(
        self, head: Head, scored: Scored, weight: Tensor, rows: Rows, logits: Tensor, targets: Tensor
    ) -> Tensor:
        """The clipped loss of PPO (arXiv 1707.06347, equation 7) with the KL estimate of GRPO (2402.03300, equation
        4), a sum of weighted targets."""
        log_probs, counted = head.log_probs(logits, targets), rows(scored.counted)
        dtype, advantage = log_probs.dtype, rows(scored.advantages)[:, None].to(log_probs.dtype)
        ratio = (log_probs - rows(scored.old).to(dtype)).masked_fill(~counted, 0.0).exp()
        clipped = ratio.clamp(1 - CLIP, 1 + CLIP_HIGH[self.rl_job.algorithm])
        loss = -torch.minimum(ratio * advantage, clipped * advantage)
        if scored.reference is not None:
            behind = (rows(scored.reference).to(dtype) - log_probs).masked_fill(~counted, 0.0)
            loss = loss + KL_COEFFICIENT * (behind.exp() - behind - 1)
        return (loss * rows(weight).to(dtype)).sum()
