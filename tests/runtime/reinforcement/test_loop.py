"""The loop of post-training on 4 ranks: placements, lag, rewards."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from meshwright.cli.screens.launch import calls_table
from meshwright.cli.text import significant
from meshwright.runtime.reinforcement import experience
from meshwright.runtime.reinforcement.job import PlannedCall
from meshwright.runtime.reinforcement.rollout import Rollout, advantages, answered, rewards, sampled
from rich.table import Table
from torch import Tensor

from .rl_jobs import ANSWER_LEN, PROMPTS, SAMPLES, rl_job, run

APART: dict[str, Any] = {"train": "dp2-mbs2-z1-rnone", "engine": "tp2-dp1-mbs1-z0-rnone", "engine_at": 2}
TOGETHER: dict[str, Any] = {"train": "tp2-pp2-dp1-mbs2-z1-rnone", "engine": "dp4-mbs1-z0-rnone"}


def test_separated_trains_what_colocated_trains() -> None:
    kl = {"reference": "tp2-dp1-mbs1-z0-rnone"}
    here, there = (run(rl_job(**how, scores=kl, updates=2)) for how in (TOGETHER, APART))
    assert [it["reward"] for it in here] == [it["reward"] for it in there]
    for key in ("loss", "gradient_norm"):
        assert [it[key] for it in here] == pytest.approx([it[key] for it in there], rel=1e-9, abs=1e-12)


def test_with_lag_answers_are_of_older_weights() -> None:
    still, on_time, late = (run(rl_job(**APART, steps=4, **how))
                            for how in ({"learning_rate": 0.0}, {}, {"lag": 2}))  # fmt: skip
    rewards_of = [[it["reward"] for it in events] for events in (still, on_time, late)]
    assert rewards_of[2][:3] == rewards_of[0][:3]  # by the first weights, the third step's too
    assert rewards_of[1][:3] != rewards_of[0][:3]
    assert rewards_of[2][3] != rewards_of[0][3]


def rises(seed: int, steps: int) -> float:
    """By how much the reward of the last steps is above that of the first ones."""
    events = run(rl_job("tp2-dp2-mbs2-z1-rnone", "dp4-mbs1-z0-rnone", seed=seed, steps=steps, learning_rate=0.01),
                 timeout_s=120.0)  # fmt: skip
    values: list[float] = [it["reward"] for it in events]
    return sum(values[-3:]) / 3 - sum(values[:3]) / 3


def flipped(usual: Callable[..., Tensor]) -> Callable[..., Tensor]:
    return lambda *given: -usual(*given)


def test_the_reward_rises_and_with_flipped_advantages_falls(monkeypatch: pytest.MonkeyPatch) -> None:
    assert rises(0, 10) > 0.1
    monkeypatch.setattr(experience, "advantages", flipped(advantages))
    assert rises(0, 10) < -0.05


@pytest.mark.slow
@pytest.mark.parametrize("seed", [1, 2, 3])
def test_the_reward_rises_from_any_seed(seed: int, monkeypatch: pytest.MonkeyPatch) -> None:
    assert rises(seed, 16) > 0.3
    monkeypatch.setattr(experience, "advantages", flipped(advantages))
    assert rises(seed, 16) < -0.1


def test_rewards_and_advantages_by_hand() -> None:
    job = rl_job(**TOGETHER)
    tokens = torch.full((PROMPTS * SAMPLES, job.seq_len + 1), 2)
    tokens[0, job.prompt_len :] = torch.tensor([1, 5, 3, 9, 0, 1, 1, 1])  # three that count; it ends at 0
    counted = answered(tokens, job.prompt_len)
    assert counted[0].sum() == 5
    assert counted[1].sum() == ANSWER_LEN
    assert not counted[:, : job.prompt_len - 1].any()
    reward = rewards(job, Rollout(tokens, counted, torch.zeros(counted.shape)))
    assert reward.tolist() == [3 / 8] + [0.0] * 15
    mean, spread = 3 / 32, ((9 / 32) ** 2 / 3 + (3 / 32) ** 2) ** 0.5
    assert advantages(job, reward)[:2].tolist() == pytest.approx([(3 / 8 - mean) / spread, -mean / spread], rel=1e-4)
    assert advantages(job, reward)[4:].tolist() == [0.0] * 12


def test_tokens_are_drawn_as_often_as_they_are_likely() -> None:
    logits = torch.tensor([0.0, 1.0, -1.0, 2.0]).expand(20_000, 4)
    tokens, log_probs = sampled(logits, torch.rand(20_000, generator=torch.Generator().manual_seed(0)).double())
    expected = logits[0].softmax(0)
    assert (torch.bincount(tokens, minlength=4) / 20_000).tolist() == pytest.approx(expected.tolist(), abs=0.01)
    assert log_probs[:9].tolist() == pytest.approx(expected.log()[tokens[:9]].tolist(), rel=1e-6)


def test_the_last_steps_of_a_lag_name_no_generation_and_do_not_count_in_its_mean() -> None:
    job = rl_job(**APART, steps=4, lag=2, planned=(PlannedCall("generate", 2, 1.0), PlannedCall("train", 2, 1.0)),
                 planned_step_s=2.0, planned_sync_s=0.1)  # fmt: skip
    events = run(job)
    assert ["generate" in event["calls"] for event in events] == [True, True, False, False]
    assert all(event["calls"]["train"] > 0 for event in events)
    taken = [event["calls"]["generate"] for event in events[:2]]
    share = sum(taken) / sum(event["step_s"] for event in events[:2])
    assert _cells(calls_table(job, events), 2)[0] == f"{significant(sum(taken) / 2)} ({share:.0%})"


def _cells(shown: object, column: int) -> list[str]:
    assert isinstance(shown, Table)
    return [str(cell) for cell in shown.columns[column].cells]
