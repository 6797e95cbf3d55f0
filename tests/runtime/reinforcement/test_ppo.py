"""PPO: against one process in plain torch, rewards, advantages, and weights on their way."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from meshwright.runtime.checkpoint.states import weights, weights_of
from meshwright.runtime.reinforcement import experience
from meshwright.runtime.reinforcement.experience import estimates, last_targets, token_rewards, whitened
from meshwright.runtime.reinforcement.job import RlJob
from meshwright.runtime.reinforcement.rollout import prompts, uniforms
from meshwright.runtime.report import Event
from torch import Tensor

from ..fork import fork
from ..jobs import llama
from . import plain
from .rl_jobs import loop_of, rl_job, run
from .test_loop import flipped
from .test_transfer import Box, boxes, wholes

RATE, LAMBDA, KL = 0.02, 0.95, 0.02
SCORES = {"reference": "dp2-mbs1-z0-rnone", "values": "tp2-dp1-mbs1-z0-rnone", "logprobs": "dp2-mbs1-z0-rnone"}
MODEL = {"scores": {**SCORES, "reward": "tp2-dp1-mbs1-z0-rnone"}}
RULE = {"scores": SCORES}
# Calls on all ranks in turn; policy and critic each on two ranks of their own, the engine on both; a lag.
TOGETHER = {"train": "tp2-pp2-dp1-mbs2-z1-rnone", "engine": "dp4-mbs1-z0-rnone", "critic": ("tp2-dp2-mbs1-z3-rnone", 0)}
APART = {"train": "cp2r-dp1-mbs2-z2-rnone", "engine": "tp2-dp2-mbs1-z0-rnone", "critic": ("pp2-dp1-mbs4-z0-rnone", 2)}


def estimated(score: Tensor, old: Tensor, kept: Tensor, values: Tensor, targets: list[range]) -> tuple[Tensor, Tensor]:
    """Advantages, not yet whitened, and returns, by answers one at a time from their sums."""
    gains, returns = torch.zeros_like(values), torch.zeros_like(values)
    for row, answer in enumerate(targets):
        ends = [*values[row, answer.start : answer.stop].tolist(), 0.0]
        reward = [-KL * float(old[row, at] - kept[row, at]) for at in answer]
        reward[-1] += float(score[row])
        errors = [reward[i] + ends[i + 1] - ends[i] for i in range(len(answer))]
        for i, at in enumerate(answer):
            gains[row, at] = sum(LAMBDA ** (j - i) * errors[j] for j in range(i, len(answer)))
            returns[row, at] = gains[row, at] + ends[i]
    return gains, returns


class Alone:
    """PPO in one process."""

    def __init__(self, job: RlJob) -> None:
        self.job, self.spec, self.clipped = job, job.model, [0, 0]  # clipped: targets of policy and critic
        self.policy, self.frozen = (plain.llama_weights(job.model, job.seed, job.model.vocab) for _ in range(2))
        self.critic, self.judge = (plain.llama_weights(job.model, job.seed + each, 1) for each in (1, 2))
        self.momenta: tuple[plain.Weights, plain.Weights] = ({}, {})

    def step(self, index: int) -> list[float]:
        """Reward, loss and norm of the policy and of the critic."""
        job, spec = self.job, self.spec
        tokens, targets = plain.answer(self.policy, spec, prompts(job, index), uniforms(job, index))
        with torch.no_grad():
            old, kept = (plain.log_probs_of(each, spec, tokens) for each in (self.policy, self.frozen))
            values = plain.forward(self.critic, spec, tokens[:, :-1])[..., 0]
            score = self._score(tokens, targets)
        gains, returns = estimated(score, old, kept, values, targets)
        every = [(row, at) for row, answer in enumerate(targets) for at in answer]
        seen = torch.stack([gains[place] for place in every])
        gains = (gains - seen.mean()) / (seen.var(correction=0) + 1e-8).sqrt()
        steps: tuple[list[tuple[float, float]], ...] = ([], [])
        models = self.policy, self.critic
        for rows in torch.arange(len(tokens)).chunk(job.updates):
            chosen = [place for place in every if rows[0] <= place[0] <= rows[-1]]
            losses = (self._policy_loss(tokens, old, gains, chosen), self._critic_loss(tokens, values, returns, chosen))
            for model, loss, momenta, out in zip(models, losses, self.momenta, steps, strict=True):
                out.append(plain.descend(model, loss, momenta, RATE))
        return [float(score.mean()), *plain.mean_steps(steps[0]), *plain.mean_steps(steps[1])]

    def _score(self, tokens: Tensor, targets: list[range]) -> Tensor:
        if any(place.name == "reward" for place in self.job.scores):
            read = plain.forward(self.judge, self.spec, tokens)[..., 0]
            return torch.stack([read[row, answer[-1] + 1] for row, answer in enumerate(targets)])
        right = [sum(int(tokens[row, at + 1]) % 4 == 1 for at in answer) for row, answer in enumerate(targets)]
        return torch.tensor(right).double() / self.job.answer_len

    def _policy_loss(self, tokens: Tensor, old: Tensor, gains: Tensor, chosen: list[tuple[int, int]]) -> Tensor:
        ratios, losses = (plain.log_probs_of(self.policy, self.spec, tokens) - old).exp(), []
        for place in chosen:
            self.clipped[0] += not 0.8 < float(ratios[place].detach()) < 1.2
            losses.append(-min(ratios[place] * gains[place], ratios[place].clamp(0.8, 1.2) * gains[place]))
        return torch.stack(losses).mean()

    def _critic_loss(self, tokens: Tensor, before: Tensor, returns: Tensor, chosen: list[tuple[int, int]]) -> Tensor:
        values, losses = plain.forward(self.critic, self.spec, tokens[:, :-1])[..., 0], []
        for place in chosen:
            near = before[place] + (values[place] - before[place]).clamp(-0.2, 0.2)
            self.clipped[1] += abs(float((values[place] - before[place]).detach())) > 0.2
            losses.append(max((values[place] - returns[place]) ** 2, (near - returns[place]) ** 2) / 2)
        return torch.stack(losses).mean()


def ppo(how: dict[str, Any], **changes: Any) -> RlJob:
    return rl_job(**{**how, "algorithm": "ppo", "model": llama(2), "updates": 2, "optimizer": "sgd",
                     "learning_rate": RATE, "clip": None, **changes})  # fmt: skip


Ran = tuple[list[Event], list[Box], list[Box]]


def ran(job: RlJob) -> tuple[list[Event], dict[str, Tensor], dict[str, Tensor]]:
    """Events, and the weights of policy and critic after the last step."""

    def one(rank: int) -> Ran:
        loop = loop_of(job, rank, plain.fill)
        events = [loop.step(index)[0] for index in range(job.steps)]
        for trainer in loop.trainers.values():
            if trainer is not None:
                trainer.settle()
        held = [[] if each is None else boxes(list(weights(each)))
                for each in (loop.trainers["policy"], loop.trainers["critic"])]  # fmt: skip
        return events, held[0], held[1]

    every: list[Ran] = fork(job.world_size, one)
    return every[0][0], wholes([each[1] for each in every]), wholes([each[2] for each in every])


@pytest.mark.parametrize(("how", "scored"), [(TOGETHER, RULE), (APART, MODEL)])
def test_steps_and_weights_equal_those_of_one_process(how: dict[str, Any], scored: dict[str, Any]) -> None:
    job = ppo(how, **scored)
    events, policy, critic = ran(job)
    alone = Alone(job)
    for event in events:
        expected = alone.step(event["step"] - 1)
        names = ("reward", "loss", "gradient_norm", "critic_loss", "critic_gradient_norm")
        assert [event[name] for name in names] == pytest.approx(expected, rel=1e-9, abs=1e-11)
    assert min(alone.clipped) > 0, alone.clipped  # both clips take part
    assert plain.largest_difference(policy, alone.policy) < 1e-10
    assert plain.largest_difference(critic, alone.critic) < 1e-10


def test_the_critics_values_come_from_its_own_weights_to_the_bit() -> None:
    job = ppo(APART, dtype="bf16", steps=1, scores=SCORES)

    def one(rank: int) -> tuple[list[Box], list[Box], list[Box]]:
        loop = loop_of(job, rank)
        loop.step(0)
        for each in loop.trainers.values():
            if each is not None:
                each.settle()
        critic, policy = loop.trainers["critic"], loop.trainers["policy"]
        copy = loop.replicas["values"]
        return ([] if critic is None else boxes(list(weights(critic))),
                [] if copy is None else boxes(list(weights_of(copy.chunks))),
                [] if policy is None else boxes(list(weights(policy))))  # fmt: skip

    critic, copy, policy = (wholes(parts) for parts in zip(*fork(4, one), strict=True))
    assert set(critic) == set(copy)
    assert all(torch.equal(whole, copy[name]) for name, whole in critic.items())
    assert critic["weights.head.projection"].shape == (1, job.model.hidden)
    assert not torch.equal(critic["weights.layers.0.attention.q"], policy["weights.layers.0.attention.q"])


def rises(seed: int, steps: int) -> float:
    """By how much the reward of the last steps is above that of the first ones."""
    how = {"train": "tp2-dp2-mbs2-z1-rnone", "engine": "dp4-mbs1-z0-rnone", "critic": ("dp4-mbs2-z1-rnone", 0),
           "scores": {"reference": "dp4-mbs1-z0-rnone", "values": "dp4-mbs1-z0-rnone"}}  # fmt: skip
    events = run(ppo(how, seed=seed, steps=steps, learning_rate=0.01, optimizer="adamw", clip=1.0, updates=1,
                     prompts=16, samples=1), timeout_s=150.0)  # fmt: skip
    values: list[float] = [it["reward"] for it in events]
    return sum(values[-3:]) / 3 - sum(values[:3]) / 3


@pytest.mark.slow
@pytest.mark.parametrize("seed", [1, 2, 3])
def test_the_reward_rises_and_with_flipped_advantages_does_not(seed: int, monkeypatch: pytest.MonkeyPatch) -> None:
    assert rises(seed, 16) > 0.2
    monkeypatch.setattr(experience, "whitened", flipped(whitened))
    assert rises(seed, 16) < 0


def test_estimates_by_hand() -> None:
    counted = torch.tensor([[0, 1, 1, 1, 0], [0, 1, 0, 0, 0]]).bool()
    assert last_targets(counted).tolist() == [3, 1]
    old, kept = torch.full((2, 5), -1.0).double(), torch.full((2, 5), -1.5).double()
    reward = token_rewards(torch.tensor([2.0, 3.0]).double(), old, kept, counted)
    assert reward[0].tolist() == pytest.approx([0, -0.01, -0.01, 1.99, 0])
    assert reward[1].tolist() == pytest.approx([0, 2.99, 0, 0, 0])
    assert token_rewards(torch.ones(2), old, None, counted).sum() == 2
    values = torch.tensor([[9, 0.5, 0.25, 0.125, 9], [9, 1, 9, 9, 9]]).double()
    gains = estimates(reward, values, counted)
    third = 1.99 - 0.125
    second = -0.01 + 0.125 - 0.25 + LAMBDA * third
    assert gains[0].tolist() == pytest.approx([0, -0.01 + 0.25 - 0.5 + LAMBDA * second, second, third, 0])
    assert gains[1].tolist() == pytest.approx([0, 1.99, 0, 0, 0])
    white = whitened(gains, counted)[counted]
    assert [float(white.mean()), float(white.var(correction=0))] == pytest.approx([0, 1], abs=1e-6)
