"""DPO: against one process in plain torch, the pairs, and their margin."""

from __future__ import annotations

import pytest
import torch
from meshwright.runtime.checkpoint.states import weights
from meshwright.runtime.reinforcement import loop as loops
from meshwright.runtime.reinforcement.job import RlJob
from meshwright.runtime.reinforcement.rollout import Rollout, pairs, rewards
from meshwright.runtime.report import Event
from torch import Tensor

from ..fork import fork
from ..jobs import llama
from . import plain
from .rl_jobs import loop_of, rl_job, run
from .test_transfer import Box, boxes, wholes

RATE, BETA = 0.05, 0.1


def dpo(train: str, reference: str, **changes: object) -> RlJob:
    how = {"algorithm": "dpo", "model": llama(2), "updates": 2, "samples": 2, "prompts": 16, "optimizer": "sgd",
           "global_batch": 16, "learning_rate": RATE, "clip": None, "scores": {"reference": reference}}  # fmt: skip
    return rl_job(train, None, **{**how, **changes})  # type: ignore[arg-type]


def answered(tokens: Tensor, first: int) -> list[range]:
    """The targets of each row that are its answer, from target `first` on, its end at token 0 included."""
    ends = [row[first + 1 :].tolist() for row in tokens]
    return [range(first, first + (each.index(0) + 1 if 0 in each else len(each))) for each in ends]


def loss_of(fresh: Tensor, kept: Tensor, targets: list[range]) -> tuple[Tensor, Tensor]:
    """Loss and margin, means of pairs."""
    gained = [(fresh[row, answer] - kept[row, answer]).sum() for row, answer in enumerate(map(list, targets))]
    margins = [BETA * (better - worse) for better, worse in zip(gained[::2], gained[1::2], strict=True)]
    losses = [-(1 / (1 + (-margin).exp())).log() for margin in margins]
    return torch.stack(losses).mean(), torch.stack(margins).mean().detach()


def trained_alone(job: RlJob) -> tuple[list[list[float]], plain.Weights]:
    """Margin, loss and gradient norm of each step; the weights after them."""
    policy, frozen = (plain.llama_weights(job.model, job.seed, job.model.vocab) for _ in range(2))
    out, momenta = [], plain.Weights()
    for index in range(job.steps):
        tokens, steps = pairs(job, index).tokens, []
        kept = plain.log_probs_of(frozen, job.model, tokens).detach()
        for rows in torch.arange(len(tokens)).chunk(job.updates):
            fresh = plain.log_probs_of(policy, job.model, tokens[rows])
            loss, margin = loss_of(fresh, kept[rows], answered(tokens[rows], job.prompt_len - 1))
            steps.append((float(margin), *plain.descend(policy, loss, momenta, RATE)))
        out.append([sum(column) / len(steps) for column in zip(*steps, strict=True)])
    return out, policy


def trained_on_four_ranks(job: RlJob) -> list[tuple[list[Event], list[Box]]]:
    """[rank] events of the steps, and its weights behind the last one; none on a rank that does not train."""

    def one(rank: int) -> tuple[list[Event], list[Box]]:
        loop = loop_of(job, rank, plain.fill)
        events = [loop.step(index)[0] for index in range(job.steps)]
        if loop.trainer is None:
            return events, []
        loop.trainer.settle()
        return events, boxes(list(weights(loop.trainer)))

    return fork(4, one)


@pytest.mark.parametrize("layouts", [
    ("tp2-pp2-dp1-mbs2-z1-rnone", "dp4-mbs1-z0-rnone"), ("cp2r-dp2-mbs4-z2-rnone", "tp2-dp2-mbs1-z0-rnone"),
])  # fmt: skip
def test_steps_and_weights_equal_those_of_one_process(layouts: tuple[str, str]) -> None:
    job = dpo(*layouts)
    every = trained_on_four_ranks(job)
    expected, policy = trained_alone(job)
    for event, values in zip(every[0][0], expected, strict=True):
        assert [event["margin"], event["loss"], event["gradient_norm"]] == pytest.approx(values, rel=1e-9, abs=1e-12)
        assert set(event["calls"]) == {"reference", "train"}
    assert plain.largest_difference(wholes([each[1] for each in every]), policy) < 1e-10


def test_pairs_have_the_better_answer_first() -> None:
    job = dpo("dp1-mbs2-z0-rnone", "dp1-mbs1-z0-rnone", prompts=64)
    given, others = pairs(job, 0), pairs(job, 1)
    reward = rewards(job, given).view(-1, 2)
    assert bool((reward[:, 0] > reward[:, 1]).all())
    assert torch.equal(given.tokens[0::2, : job.prompt_len], given.tokens[1::2, : job.prompt_len])
    assert not torch.equal(given.tokens, others.tokens)
    ends = answered(given.tokens, job.prompt_len - 1)
    assert [row.nonzero().flatten().tolist() for row in given.counted] == [list(answer) for answer in ends]
    assert all(not given.tokens[row, answer.stop + 1 :].any() for row, answer in enumerate(ends))


def grows(seed: int) -> float:
    """The mean margin of the last 3 of 8 steps, of pairs that no step before has seen; the first one's is 0."""
    events = run(dpo("tp2-dp2-mbs2-z1-rnone", "dp4-mbs1-z0-rnone", seed=seed, steps=8, updates=1, optimizer="adamw",
                     learning_rate=0.01, clip=1.0, prompts=32, global_batch=64))  # fmt: skip
    assert events[0]["margin"] == pytest.approx(0, abs=1e-12)
    margins: list[float] = [it["margin"] for it in events]
    return sum(margins[-3:]) / 3


def turned(job: RlJob, step: int) -> Rollout:
    """Pairs with the worse answer first."""
    given = pairs(job, step)
    rows = torch.arange(len(given.tokens)).view(-1, 2).flip(1).flatten()
    return Rollout(given.tokens[rows], given.counted[rows], given.log_probs)


@pytest.mark.slow
@pytest.mark.parametrize("seed", [1, 2, 3])
def test_the_margin_grows_and_falls_with_turned_preferences(seed: int, monkeypatch: pytest.MonkeyPatch) -> None:
    assert grows(seed) > 0.05
    monkeypatch.setattr(loops, "pairs", turned)
    assert -grows(seed) < -0.05  # of the better answers
