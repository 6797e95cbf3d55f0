"""The answers of a step: prompts, sampling, the rule of rewards, advantages."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from ..data import Synthetic
from .job import END, RlJob

REWARDED = (4, 1)  # tokens that the rule rewards: their remainder by the first number is the second


@dataclass(frozen=True)
class Rollout:
    """All answers of a step, those to one prompt one after another. n: answers; s: tokens of a sequence.

    The i-th target of a row is its token i + 1. Log-probabilities are 0 where `counted` is false.
    """

    tokens: Tensor  # [n, s + 1], int64: the prompt, the answer, END from there on
    counted: Tensor  # [n, s], bool: targets that are tokens of the answer, its END included
    log_probs: Tensor  # [n, s], float64, by the weights that generated them

    @property
    def mean_len(self) -> float:
        """Tokens of an answer."""
        return float(self.counted.sum() / len(self.counted))


def prompts(job: RlJob, step: int) -> Tensor:
    """Random prompts of step 0, 1, ... [n, tokens of a prompt], each as often as it is answered."""
    tokens = Synthetic(job.model.vocab, job.prompt_len, job.prompts, job.seed, 0).batch(step)
    return tokens.repeat_interleave(job.samples, 0)


def pairs(job: RlJob, step: int) -> Rollout:
    """Random answers to the prompts of a step in pairs, in each pair first the one that the rule rewards more. Pairs
    that it rewards alike are drawn again."""
    generator, asked, alike = _generator(job, step), prompts(job, step), torch.ones(job.answers // 2, dtype=torch.bool)
    answers = torch.empty(job.answers, job.answer_len, dtype=torch.int64)
    while alike.any():
        shape = (2 * int(alike.sum()), job.answer_len)
        answers[alike.repeat_interleave(2)] = torch.randint(0, job.model.vocab, shape, generator=generator)
        tokens = torch.cat([asked, answers], 1)
        counted = answered(tokens, job.prompt_len)
        reward = rewards(job, Rollout(tokens, counted, torch.zeros(counted.shape))).view(-1, 2)
        alike = reward[:, 0] == reward[:, 1]
    tokens[:, 1:][~counted & (torch.arange(job.seq_len) >= job.prompt_len)] = END
    order = torch.where((reward[:, 0] < reward[:, 1])[:, None], torch.tensor([1, 0]), torch.tensor([0, 1]))
    rows = (order + 2 * torch.arange(len(order))[:, None]).flatten()
    return Rollout(tokens[rows], counted[rows], torch.zeros(counted.shape, dtype=torch.float64))


def uniforms(job: RlJob, step: int) -> Tensor:
    """The random numbers of a step, one for each token of each answer: equal under any layout."""
    return torch.rand(job.answers, job.answer_len, generator=_generator(job, step), dtype=torch.float64)


def _generator(job: RlJob, step: int) -> torch.Generator:
    """The source of the random numbers of a step."""
    return torch.Generator().manual_seed((job.seed * 1_000_003 + step) * 2 + 1)


def sampled(logits: Tensor, uniform: Tensor) -> tuple[Tensor, Tensor]:
    """Tokens [rows] drawn from logits [rows, vocab] at temperature 1, and their log-probabilities."""
    log_probs = logits.double().log_softmax(-1)
    reached = log_probs.exp().cumsum(-1)
    tokens = torch.searchsorted(reached, uniform[:, None] * reached[:, -1:]).squeeze(-1)
    tokens = tokens.clamp(max=logits.shape[-1] - 1)
    return tokens, log_probs.gather(-1, tokens[:, None]).squeeze(-1)


def rewards(job: RlJob, rollout: Rollout) -> Tensor:
    """Share of the longest answer that is rewarded tokens, [n] float64. An answer that ends early gains nothing."""
    base, remainder = REWARDED
    right = (rollout.tokens[:, 1:] % base == remainder) & rollout.counted
    return right.sum(1).double() / job.answer_len


def advantages(job: RlJob, reward: Tensor) -> Tensor:
    """Rewards relative to those of the answers to the same prompt (arXiv 2402.03300, section 4.1.2), [n]."""
    groups = reward.view(job.prompts, job.samples)
    spread = groups.std(1, keepdim=True) if job.samples > 1 else torch.zeros_like(groups)
    return ((groups - groups.mean(1, keepdim=True)) / (spread + 1e-6)).flatten()


def answered(tokens: Tensor, prompt_len: int) -> Tensor:
    """Targets [n, s] that are tokens of the answer up to its first END, from tokens [n, s + 1]."""
    ended = (tokens[:, prompt_len:] == END).long().cumsum(1)
    before = torch.cat([torch.zeros_like(ended[:, :1]), ended[:, :-1]], 1)
    counted = torch.zeros(len(tokens), tokens.shape[1] - 1, dtype=torch.bool, device=tokens.device)
    counted[:, prompt_len - 1 :] = before == 0
    return counted
