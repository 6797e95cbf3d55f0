"""Gradient coding: the shares of its codes, and who is slow, by draws."""

from __future__ import annotations

import random

import pytest
from meshwright.cost_models.techniques.gradient_coding import more_are_slow, shares
from meshwright.planner.studies.systems.base import priced, shown_s

from meshwright.errors import InputError

ASKED = {"model": "llama-3.2-1b", "cluster": "dgx-h100:2", "seq_len": 1024, "global_batch": 256}


def test_the_shares_of_the_codes() -> None:
    """r + 1 without a window; with one (W - 1 + B) (r + 1) / (B + (W - 1) (r + 1)), bursts of B = 1 (M-SGC)."""
    assert shares(15, 1) == 16
    assert shares(27, 2) == pytest.approx(28 * 2 / 29)
    assert shares(0, 2) == shares(0, 1) == 1
    assert shares(10**9, 5) == pytest.approx(5 / 4)  # repeating whatever is missed


@pytest.mark.parametrize(("replicas", "tolerated", "slow"), [(256, 15, 0.05), (16, 0, 0.1), (16, 2, 0.1)])
def test_who_is_slow_by_draws(replicas: int, tolerated: int, slow: float) -> None:
    draw, steps = random.Random(0), 20_000
    late = sum(sum(draw.random() < slow for _ in range(replicas)) > tolerated for _ in range(steps if replicas < 99
               else 2000)) / (steps if replicas < 99 else 2000)  # fmt: skip
    assert more_are_slow(replicas, tolerated, slow) == pytest.approx(late, abs=0.03)


def test_a_step_waits_for_the_slowest_and_repeats_the_work() -> None:
    """16 replicas: 1 - 0.9^16 of the steps wait for a replica that takes three times as long; with a code for one of
    them every micro-batch is computed twice, and 1 - 0.9^16 - 16 x 0.1 x 0.9^15 of the steps wait."""
    plain = priced("dp16-mbs1-z0-rnone", None, **ASKED)
    waiting, coded = (
        priced("dp16-mbs1-z0-rnone", {"gradient-coding": {"tolerated": tolerated, "window": 1, "slow": 0.1}}, **ASKED)
        for tolerated in (0, 1)
    )
    late = 1 - 0.9**16
    late_2 = late - 16 * 0.1 * 0.9**15

    term = "waiting for slow GPUs"
    without = plain.step_s - shown_s(plain, term)
    share = shown_s(plain, term) / without
    assert waiting.step_s == pytest.approx(without * (1 + share + 2 * late))
    assert shown_s(coded, "matmul") == pytest.approx(2 * shown_s(plain, "matmul"))
    assert shown_s(coded, term) / (coded.step_s - shown_s(coded, term)) == pytest.approx(share + 2 * late_2)


@pytest.mark.parametrize(
    ("knobs", "message"),
    [
        ({"slow": 1.5}, "slow is 1.5, must be in 0 to 1"),
        ({"slow": -0.1}, "slow is -0.1"),
        ({"tolerated": 16}, "more replicas than it does without"),
        ({"tolerated": 0.5}, "a whole number"),
        ({"factor": 0}, "factor is 0"),
    ],
)
def test_bad_knobs(knobs: dict[str, float], message: str) -> None:
    with pytest.raises(InputError, match=message):
        priced("dp16-mbs1-z0-rnone", {"gradient-coding": knobs}, **ASKED)
