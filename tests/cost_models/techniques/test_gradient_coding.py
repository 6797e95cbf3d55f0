"""Gradient coding: the shares of its codes, and who is slow, by draws."""

from __future__ import annotations

import random

import pytest
from meshwright.cost_models.techniques.gradient_coding import shares, waiting_share
from meshwright.planner.studies.systems.base import priced, shown_s

from meshwright.errors import InputError

ASKED = {"model": "llama-3.2-1b", "cluster": "dgx-h100:2", "seq_len": 1024, "global_batch": 256}


def test_the_shares_of_the_codes() -> None:
    """r + 1 without a window; with one (W - 1 + B) (r + 1) / (B + (W - 1) (r + 1)), bursts of B = 1 (M-SGC)."""
    assert shares(15, 1) == 16
    assert shares(27, 2) == pytest.approx(28 * 2 / 29)
    assert shares(0, 2) == shares(0, 1) == 1
    assert shares(10**9, 5) == pytest.approx(5 / 4)  # repeating whatever is missed


@pytest.mark.parametrize(("replicas", "tolerated", "window", "slow"), [
    (256, 15, 1, 0.05), (16, 0, 1, 0.1), (16, 2, 1, 0.1), (16, 2, 2, 0.1), (16, 4, 3, 0.05), (64, 8, 2, 0.02),
    (16, 6, 5, 0.03),
])  # fmt: skip
def test_steps_that_wait_by_draws(replicas: int, tolerated: int, window: int, slow: float) -> None:
    """A step waits where more than `tolerated` have been slow within the window, or one twice; no one is slow in it."""
    draw, recent, late = random.Random(0), list[set[int]](), 0
    steps = 20_000 if replicas < 99 else 2000
    for _ in range(steps):
        now = {replica for replica in range(replicas) if draw.random() < slow}
        before = set[int]().union(*recent)
        if now & before or len(now | before) > tolerated:
            now, late = set(), late + 1
        recent = [*recent, now][1 - window :] if window > 1 else []
    assert waiting_share(replicas, tolerated, window, slow) == pytest.approx(late / steps, abs=0.02, rel=0.1)


def test_steps_that_wait_in_corners() -> None:
    assert waiting_share(256, 27, 2, 0.0) == waiting_share(16, 16, 1, 1.0) == 0
    assert waiting_share(16, 4, 2, 1.0) == 1
    # Windows wait more often, and codes for more replicas less often.
    shares_of = [waiting_share(256, 27, window, 0.01) for window in (1, 2, 4, 8)]
    assert shares_of == sorted(shares_of)
    assert waiting_share(256, 27, 2, 0.01) < waiting_share(256, 4, 2, 0.01)
    # One of 256 is slow twice in 2 steps with the chance 256 x 0.005^2, but for the steps that wait.
    assert waiting_share(256, 27, 2, 0.005) == pytest.approx(256 * 0.005**2, rel=0.02)


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


@pytest.mark.parametrize(("patience", "extra"), [(0.5, 0.5), (1, 1), (9, 2)])
def test_a_step_waits_before_it_does_without_the_slow(patience: float, extra: float) -> None:
    """Where one of 16 is slow the step takes 1 + mu times as long, but not longer than all; where more are, 3 times."""
    asked = {"tolerated": 1, "window": 1, "slow": 0.1}
    at_once, patient = (priced("dp16-mbs1-z0-rnone", {"gradient-coding": {**asked, "patience": some}}, **ASKED)
                        for some in (0, patience))  # fmt: skip
    term = "waiting for slow GPUs"
    without = at_once.step_s - shown_s(at_once, term)
    assert patient.step_s - at_once.step_s == pytest.approx(without * extra * 16 * 0.1 * 0.9**15)


def test_patience_is_for_nothing_where_all_are_awaited() -> None:
    alike = [priced("dp16-mbs1-z0-rnone", {"gradient-coding": {"tolerated": 0, "slow": slow, "patience": patience}},
                    **ASKED).step_s for slow in (0.1, 1.0) for patience in (0, 1)]  # fmt: skip
    assert alike[0] == pytest.approx(alike[1], rel=1e-12)
    assert alike[2] == pytest.approx(alike[3], rel=1e-12)


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
