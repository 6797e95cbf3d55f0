"""Properties of the closed forms of pipelines, and of the micro-batches in flight."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from meshwright.cost_models.layouts import SCHEDULES
from meshwright.cost_models.quantities.even_stages import chunk_sizes
from meshwright.cost_models.quantities.resident import in_flight
from meshwright.cost_models.quantities.stages import chunk_devices
from meshwright.cost_models.schedule_kinds import CODE, KINDS
from meshwright.cost_models.step.pipeline import Fill, Messages, bubble_s, exposed_hop_s

from ..even_pipeline import even_step_s
from ..random_cases import SLACK, case_named, cases, check, draw, price, seeds, thorough


@given(
    st.sampled_from(SCHEDULES), st.integers(1, 64), st.integers(1, 512), st.integers(1, 8),
    st.floats(1e-3, 10), st.floats(1e-3, 10), st.floats(1e-3, 10), st.floats(0, 1),
)  # fmt: skip
@thorough(300, shrinks=True)
def test_pipeline_forms(
    schedule: str, p: int, m: int, v: int, forward: float, backward: float, weight: float, hop: float
) -> None:
    """One stage has no bubble and sends nothing; no step is below m x C; no schedule has a longer bubble than 1f1b."""
    whole = backward + weight
    c = forward + whole
    got = even_step_s(schedule, p, m, v, forward, whole, weight, hop)
    assert got >= m * c * (1 - SLACK)
    assert even_step_s(schedule, 1, m, v, forward, whole, weight, hop) == pytest.approx(m * c, rel=1e-12)
    if schedule != "dualpipe-v":  # overlapped pairs of its bubble count B twice
        plain = even_step_s("1f1b", p, m, 1, forward, whole, weight)
        assert even_step_s(schedule, p, m, v, forward, whole, weight) <= plain * (1 + SLACK)
    code, one = np.array([SCHEDULES.index(schedule)]), np.ones(1)
    each = (hop * one, hop * one)
    alone = Messages(one, v * one, m * one, *each, c * one, c * one, forward * one, whole * one, weight * one)
    assert exposed_hop_s(code, alone)[0] == 0
    assert exposed_hop_s(code, replace(alone, pp=p * one, sum_c=p * c * one))[0] >= 0
    assert bubble_s(code, Fill(p * one, v * one, m * one, *[0 * one] * 6))[0] == 0


@given(st.sampled_from(SCHEDULES), st.integers(2, 16), st.integers(1, 40), seeds)
@thorough(300)
def test_a_slower_stage_never_shortens_a_step(schedule: str, p: int, m: int, seed: int) -> None:
    """m x the slowest stage, the bubble and the messages together: the bounds of the search rest on it."""
    rng, n = np.random.default_rng(seed), 200
    stages = rng.uniform(0.1, 5, (p, n)) ** rng.uniform(0.1, 2, n)
    slower, row = stages.copy(), np.arange(n)
    slower[np.where(row % 2, stages.argmax(axis=0), rng.integers(p, size=n)), row] += rng.uniform(0, 3, n)
    part = stages.sum(axis=0) * (1 - 1 / p) / 3  # F, I and W of the others stay; what slows the stage comes on top
    code = np.full(n, SCHEDULES.index(schedule))
    pp, mm, hop = np.full(n, float(p)), np.full(n, float(m)), rng.uniform(0, 5, n)
    vpp = np.full(n, 3.0 if schedule == "interleaved" else 2.0 if KINDS[CODE[schedule]].folded else 1.0)
    link, of_mean = hop * rng.uniform(0, 1, n), (part / (p - 1), 2 * part / (p - 1), part / (p - 1))
    before, after = (
        m * c.max(axis=0)
        + bubble_s(
            code, Fill(pp, vpp, mm, c.mean(axis=0), 0 * part, c.sum(axis=0) - c.max(axis=0), part, 2 * part, part)
        )
        + exposed_hop_s(code, Messages(pp, vpp, mm, hop, link, c.sum(axis=0), c.max(axis=0), *of_mean))
        for c in (stages, slower)
    )
    assert (after >= before * (1 - SLACK)).all()


@given(st.sampled_from(SCHEDULES), st.integers(1, 64), st.integers(1, 512), st.integers(1, 8))
@thorough(300, shrinks=True)
def test_micro_batches_in_flight(schedule: str, p: int, m: int, v: int) -> None:
    """At least one, never more than there are, and later devices hold no more than earlier ones."""
    devices = np.arange(p, dtype=float)
    code = np.full(p, SCHEDULES.index(schedule))
    held = in_flight(code, np.full(p, float(p)), np.full(p, float(v)), np.full(p, float(m)), devices)
    assert (held <= m).all()
    assert (held >= 1 / v).all()
    assert (np.diff(held) <= 0).all()
    if schedule == "1f1b" and m >= p:
        assert held[0] == p
    if schedule == "interleaved" and m >= 2 * p and m % p == 0:
        assert held[0] == pytest.approx(p * (1 + (p - 1) / (p * v)))


@given(st.integers(1, 130), st.integers(1, 32), st.integers(1, 4), st.sampled_from(SCHEDULES))
@thorough(200, shrinks=True)
def test_chunks_are_even(layers: int, pp: int, vpp: int, schedule: str) -> None:
    devices = chunk_devices(pp, vpp, KINDS[CODE[schedule]].folded)
    sizes = chunk_sizes(layers, len(devices))
    assert sum(sizes) == layers
    assert max(sizes) - min(sizes) <= 1
    assert set(devices) == set(range(pp))
    assert devices[0] == 0
    assert devices[-1] == (0 if KINDS[CODE[schedule]].folded else pp - 1)


@given(cases, seeds)
@thorough(25)
def test_one_stage_costs_no_bubble(name: str, seed: int) -> None:
    case = case_named(name)
    columns = draw(case, seed)
    terms = price(case, columns).terms
    alone = columns["pp"] == 1
    check(~alone | ((terms["bubble"] == 0) & (terms["pp"] == 0)), columns, terms["bubble"], terms["pp"])
    check(alone | (terms["pp"] > 0), columns)
