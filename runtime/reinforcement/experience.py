"""Numbers that training takes, out of answers and their scores: rewards of tokens, advantages, returns."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, fields, replace

import torch
from torch import Tensor

from .job import RlJob
from .rollout import Rollout, advantages, rewards

# PPO's coefficient of the KL in the reward: initial_policy_kl_penalty in the user guide on RLHF (rlhf.rst) of
# NVIDIA/NeMo-Aligner@af2b3bd9. Defaults elsewhere: 0.001 (verl-project/verl@1dda039b), 0.01
# (OpenRLHF/OpenRLHF@3c3be623), 0.05 (huggingface/trl@f2cd5771), 0.1 (openpsi-project/ReaLHF@be75fce9). Lambda of its
# advantages without discount: openai/lm-human-preferences@1ab856db, PPOTrainer.loss.
REWARD_KL, LAMBDA = 0.02, 0.95
REWARD = "reward"  # the call of a reward model


@dataclass(frozen=True)
class Scored:
    """Answers to train on; n: answers, s: targets of a row. None: the algorithm has no such numbers."""

    tokens: Tensor  # [n, s + 1], int64
    counted: Tensor  # [n, s], bool: targets that train
    advantages: Tensor | None = None  # [n, s]
    old: Tensor | None = None  # [n, s] log-probabilities that the ratio is taken to
    reference: Tensor | None = None  # [n, s] log-probabilities of the frozen copy, for the loss
    values: Tensor | None = None  # [n, s] of the critic before the step
    returns: Tensor | None = None  # [n, s] that the critic learns

    def part(self, index: int, parts: int) -> Scored:
        """The answers of update `index` of `parts`."""
        size = len(self.tokens) // parts
        rows = slice(index * size, (index + 1) * size)
        columns: dict[str, Tensor | None] = {each.name: getattr(self, each.name) for each in fields(self)}
        return replace(self, **{name: column[rows] for name, column in columns.items() if column is not None})


def scored(job: RlJob, rollout: Rollout, scores: Mapping[str, Tensor]) -> tuple[Scored, float]:
    """The answers with all that training needs, and their mean reward. scores: call -> [n, s]; those of a reward model
    are at the last target of an answer, and 0 elsewhere."""
    tokens, counted = rollout.tokens, rollout.counted
    reward = scores[REWARD].sum(1) if REWARD in scores else rewards(job, rollout)
    if job.algorithm == "dpo":
        return Scored(tokens, counted, reference=scores["reference"]), float(reward.mean())
    old, reference = scores.get("logprobs", rollout.log_probs), scores.get("reference")
    if job.algorithm != "ppo":
        gains = advantages(job, reward)[:, None].expand(counted.shape)
        return Scored(tokens, counted, gains, old, reference), float(reward.mean())
    values = scores["values"]
    gained = estimates(token_rewards(reward, old, reference, counted), values, counted)
    return (Scored(tokens, counted, whitened(gained, counted), old, values=values, returns=gained + values),
            float(reward.mean()))  # fmt: skip


def last_targets(counted: Tensor) -> Tensor:
    """The last target of each answer, [n]."""
    return torch.where(counted, torch.arange(counted.shape[1], device=counted.device), 0).amax(1)


def token_rewards(reward: Tensor, old: Tensor, reference: Tensor | None, counted: Tensor) -> Tensor:
    """[n, s] the reward of an answer [n] at its last target, less the KL estimate of each target (2203.02155, equation
    2)."""
    out = torch.zeros_like(old)
    if reference is not None:
        out = (REWARD_KL * (reference - old)).masked_fill(~counted, 0.0)
    return out.scatter_add(1, last_targets(counted)[:, None], reward[:, None].to(out.dtype))


def estimates(reward: Tensor, values: Tensor, counted: Tensor) -> Tensor:
    """Generalised advantage estimates of counted targets (arXiv 1506.02438, equation 16) without discount, from [n, s]
    each. Nothing follows the end of an answer."""
    out = torch.zeros_like(values)
    later, following = torch.zeros_like(values[:, 0]), torch.zeros_like(values[:, 0])
    for at in reversed(range(values.shape[1])):
        here = counted[:, at].to(values.dtype)
        later = here * (reward[:, at] + following - values[:, at] + LAMBDA * later)
        following, out[:, at] = here * values[:, at], later
    return out


def whitened(values: Tensor, counted: Tensor) -> Tensor:
    """Counted values with mean 0 and variance 1, by the formula of `PPOTrainer.loss` over a whole step; 0 elsewhere."""
    number = counted.sum()
    mean = (values * counted).sum() / number
    variance = ((values - mean) ** 2 * counted).sum() / number
    return (values - mean) * (variance + 1e-8).rsqrt() * counted
