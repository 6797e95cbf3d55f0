"""Trains the policy and the critic on scored answers, through the schedule and the optimizer of their layouts."""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Callable
from dataclasses import replace
from functools import partial
from typing import TypeVar

import torch
import torch.nn.functional as F
from torch import Tensor

from ...cost_models.specs.model import ModelSpec
from ...planner.document.objective import CLIP, CLIP_HIGH
from ..model.decoder import DecoderChunk, ValueChunk
from ..model.head import Head
from ..model.initial_weights import InitParam, init_param
from ..parallel import tensor_parallel
from ..parallel.mesh import Mesh
from ..parallel.pipeline import Batch
from ..parallel.strategies import HEAD
from ..trainer import Step, Trainer
from .experience import Scored
from .job import KL_COEFFICIENT, RlJob

# The clip of a new value of PPO's critic around the old one (openai/lm-human-preferences@1ab856db, PPOTrainer.loss).
VALUE_CLIP = 0.2
# Of DPO (arXiv 2305.18290, appendix B), the default of huggingface/trl@f2cd5771 (DPOConfig), too.
BETA = 0.1

Given = TypeVar("Given")
Rows = Callable[[Tensor], Tensor]  # a micro-batch of this rank out of all rows of an update


def weights(algorithm: str, counted: Tensor) -> Tensor:
    """The weight of each target [n, s] in the loss, in float64. GRPO takes the mean of each answer, and then of all
    answers (arXiv 2402.03300, equation 3); PPO, as in `PPOTrainer.loss`, and DAPO take the mean of all tokens
    (2503.14476, section 3.3)."""
    if algorithm == "grpo":
        return counted.double() / (counted.sum(1, keepdim=True) * len(counted))
    return counted.double() / counted.sum()


def given(numbers: Given | None) -> Given:
    """Numbers that the algorithm has, or answers. Raises RuntimeError where there are none."""
    if numbers is None:
        raise RuntimeError("no answers with the numbers that this training needs")
    return numbers


class RlTrainer(Trainer):
    """This rank of a training call. All its ranks must construct it at the same time."""

    def __init__(
        self, job: RlJob, mesh: Mesh, device: torch.device, init_param: InitParam = init_param
    ) -> None:
        # Answers come from the loop, and not from files.
        super().__init__(replace(job, data="synthetic"), mesh, device, init_param=init_param)
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
        scored = given(self.scored)
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
        return values if cp is None else values[:, cp.positions(self.job.seq_len).to(self.device)]

    @abstractmethod
    def _objective(
        self, head: Head, scored: Scored, weight: Tensor, rows: Rows, logits: Tensor, targets: Tensor
    ) -> Tensor:
        """The part of the loss of a micro-batch, from outputs and targets of the head. weight: of each target [n,
        s]."""


class PolicyTrainer(RlTrainer):
    """The policy of GRPO, DAPO and PPO."""

    def _objective(
        self, head: Head, scored: Scored, weight: Tensor, rows: Rows, logits: Tensor, targets: Tensor
    ) -> Tensor:
        """The clipped loss of PPO (arXiv 1707.06347, equation 7) with the KL estimate of GRPO (2402.03300, equation
        4), a sum of weighted targets."""
        log_probs, counted = head.scores(logits, targets), rows(scored.counted)
        dtype, advantage = log_probs.dtype, rows(given(scored.advantages)).to(log_probs.dtype)
        ratio = (log_probs - rows(given(scored.old)).to(dtype)).masked_fill(~counted, 0.0).exp()
        clipped = ratio.clamp(1 - CLIP, 1 + CLIP_HIGH[self.rl_job.algorithm])
        loss = -torch.minimum(ratio * advantage, clipped * advantage)
        if scored.reference is not None:
            behind = (rows(scored.reference).to(dtype) - log_probs).masked_fill(~counted, 0.0)
            loss = loss + KL_COEFFICIENT * (behind.exp() - behind - 1)
        return (loss * rows(weight).to(dtype)).sum()


class CriticTrainer(RlTrainer):
    """The critic of PPO."""

    @staticmethod
    def kind_of(spec: ModelSpec) -> type[DecoderChunk]:
        return ValueChunk

    def _objective(
        self, head: Head, scored: Scored, weight: Tensor, rows: Rows, logits: Tensor, targets: Tensor
    ) -> Tensor:
        """Half of the squared distance to the returns, the larger one of the value and the clipped value, as in
        `PPOTrainer.loss`."""
        values = head.scores(logits, targets)
        old, returns = (rows(given(numbers)).to(values.dtype) for numbers in (scored.values, scored.returns))
        clipped = torch.minimum(torch.maximum(values, old - VALUE_CLIP), old + VALUE_CLIP)
        loss = 0.5 * torch.maximum((values - returns) ** 2, (clipped - returns) ** 2)
        return (loss * rows(weight).to(values.dtype)).sum()


class PairTrainer(RlTrainer):
    """The policy of DPO. Rows are pairs, the chosen answer first."""

    margin = 0.0  # mean of the last step's pairs, beta times the difference of log-ratios

    def train(self, index: int, scored: Scored) -> Step:
        self._margins = torch.zeros((), dtype=torch.float64, device=self.device)
        step = super().train(index, scored)
        total = float(self.mesh["world"].all_reduce(self._margins[None]))
        self.margin = total / self.parts.mesh(HEAD)["tp"].size / self.rl_job.updates
        return step

    def _objective(
        self, head: Head, scored: Scored, weight: Tensor, rows: Rows, logits: Tensor, targets: Tensor
    ) -> Tensor:
        """The negative log-likelihood that the chosen answer is preferred (arXiv 2305.18290, equation 7), a part of
        the mean over pairs."""
        log_probs, pairs = head.scores(logits, targets), self.job.global_batch / 2
        better = (log_probs - rows(given(scored.reference)).to(log_probs.dtype)) * rows(scored.counted)
        cp = self.parts.context(HEAD).cp
        ratio = better.sum(1) if cp is None else tensor_parallel.summed(better.sum(1), cp.group)
        margins = BETA * (ratio[0::2] - ratio[1::2])
        loss = -F.logsigmoid(margins).sum() / pairs
        if cp is not None and cp.group.rank:  # one of the ranks that have a part of these answers counts them
            return loss - loss.detach()
        self._margins += margins.detach().double().sum() / pairs
        return loss
