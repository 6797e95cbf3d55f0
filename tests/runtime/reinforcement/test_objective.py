"""Parity with one process that has none of our parts: a model of transformers, plain torch, its own sampling."""

from __future__ import annotations

from collections.abc import Mapping
from copy import deepcopy
from typing import Any

import pytest
import torch
from meshwright.runtime.checkpoint.huggingface import converted
from meshwright.runtime.model.block import ParamShard
from meshwright.runtime.reinforcement.job import RlJob
from meshwright.runtime.reinforcement.rollout import prompts, uniforms
from meshwright.runtime.report import Event
from torch import Tensor

from ..model.families import Case, spec_of, state_of, theirs_of
from .rl_jobs import rl_job, run

RATE = 0.05


def log_probs_of(model: Any, tokens: Tensor) -> Tensor:
    """Log-probability of each token after the first, [n, s]."""
    logits: Tensor = model(tokens[:, :-1]).logits
    return logits.log_softmax(-1).gather(-1, tokens[:, 1:, None])[..., 0]


@torch.no_grad()
def answers_of(model: Any, job: RlJob, step: int) -> tuple[Tensor, Tensor]:
    """Tokens, and which targets train."""
    tokens, uniform, length = prompts(job, step), uniforms(job, step), job.seq_len + 1 - job.answer_len
    counted, over = torch.zeros(len(tokens), job.seq_len), torch.zeros(len(tokens), dtype=torch.bool)
    for number in range(job.answer_len):
        chances = model(tokens).logits[:, -1].softmax(-1).cumsum(-1)
        chosen = (chances < uniform[:, number, None]).sum(-1)
        chosen[over] = 0
        counted[:, length - 1 + number] = ~over
        tokens, over = torch.cat([tokens, chosen[:, None]], 1), over | (chosen == 0)
    return tokens, counted


def loss_of(job: RlJob, fresh: Tensor, old: Tensor, kept: Tensor, counted: Tensor, advantage: Tensor) -> Tensor:
    """GRPO by answers one at a time, or DAPO by all tokens."""
    total, high = torch.zeros(()), {"grpo": 1.2, "dapo": 1.28}[job.algorithm]
    for row in range(len(fresh)):
        for at in counted[row].nonzero().flatten().tolist():
            ratio = (fresh[row, at] - old[row, at]).exp()
            gain = min(ratio * advantage[row], ratio.clamp(0.8, high) * advantage[row])
            away = (kept[row, at] - fresh[row, at]).exp() - (kept[row, at] - fresh[row, at]) - 1
            share = counted.sum() if job.algorithm == "dapo" else counted[row].sum() * len(fresh)
            total = total + (0.04 * away - gain) / share
    return total


def trained_alone(model: Any, job: RlJob) -> list[tuple[float, float, float]]:
    """Reward, loss and gradient norm of each step."""
    frozen, out = deepcopy(model), []
    optimizer = torch.optim.SGD(model.parameters(), lr=RATE, momentum=0.9)
    for step in range(job.steps):
        tokens, counted = answers_of(model, job, step)
        reward = ((tokens[:, 1:] % 4 == 1) * counted).sum(1) / job.answer_len
        groups = reward.view(-1, job.samples)
        advantage = ((groups - groups.mean(1)[:, None]) / (groups.std(1)[:, None] + 1e-6)).flatten()
        old, kept = (log_probs_of(each, tokens).detach() for each in (model, frozen))
        losses = []
        for rows in torch.arange(len(tokens)).chunk(job.updates):
            fresh = log_probs_of(model, tokens[rows])
            loss = loss_of(job, fresh, old[rows], kept[rows], counted[rows], advantage[rows])
            optimizer.zero_grad()
            loss.backward()  # type: ignore[no-untyped-call]
            norm = torch.stack([weight.grad.norm() for weight in model.parameters() if weight.grad is not None]).norm()
            losses.append((float(loss.detach()), float(norm)))
            optimizer.step()
        mean_loss, mean_norm = (sum(values) / len(losses) for values in zip(*losses, strict=True))
        out.append((float(reward.mean()), mean_loss, mean_norm))
    return out


def init_from(weights: Mapping[str, Tensor]) -> Any:
    """Fills parameters from whole weights."""

    def init_param(parameter: Tensor, name: str, split: ParamShard, seed: int, *, tied: bool) -> None:
        whole = weights[name]
        for dim, first in split.firsts:
            whole = whole.narrow(dim, first, parameter.shape[dim])
        parameter.data.copy_(whole)

    return init_param


@pytest.mark.parametrize(("layouts", "algorithm"), [
    (("tp2-pp2-dp1-mbs2-z1-rnone", "dp4-mbs1-z0-rnone"), "grpo"),
    (("cp2r-dp2-mbs2-z2-rnone", "tp2-dp2-mbs1-z0-rnone"), "dapo"),
])  # fmt: skip
def test_steps_equal_those_of_one_process(layouts: tuple[str, str], algorithm: str) -> None:
    data = Case("llama-3.1-8b", {"num_hidden_layers": 2}).data()
    theirs = theirs_of(data).double()
    spec = spec_of(data)
    job = rl_job(*layouts, model=spec, algorithm=algorithm, updates=2, optimizer="sgd", learning_rate=RATE, clip=None,
                 scores={"reference": "dp4-mbs1-z0-rnone", "logprobs": "tp2-dp2-mbs1-z0-rnone"})  # fmt: skip
    events: list[Event] = run(job, init_param=init_from(converted(spec, state_of(theirs))))
    mine = [(it["reward"], it["loss"], it["gradient_norm"]) for it in events]
    alone = trained_alone(theirs, job)
    for ours, reference in zip(mine, alone, strict=True):
        assert ours == pytest.approx(reference, rel=1e-5, abs=1e-8)
    assert max(abs(loss) for _, loss, _ in alone) > 1e-3  # ratios and the frozen copy take part
