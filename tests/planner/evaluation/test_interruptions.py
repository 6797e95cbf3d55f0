"""Runs that are interrupted: the best time between checkpoints, and the expected days and dollars on spot nodes."""

from __future__ import annotations

import math
import random

import pytest
from hypothesis import given
from hypothesis import strategies as st
from meshwright.planner.document.plan import Plan
from meshwright.planner.evaluation.interruptions import checkpoint_bytes, goodput, run_mtbf_s
from meshwright.planner.explain.outlook import outlook
from meshwright.planner.request.load import load_request
from meshwright.planner.request.resolve import resolve
from meshwright.planner.studies.compare import Comparison

import meshwright as mw
from meshwright.errors import InputError

REQUEST = {"model": "llama-3.1-8b", "cluster": "dgx-h100:2", "global_batch": 512}
LAYOUT = "tp2-dp8-mbs1-z1-rsel"


@pytest.mark.parametrize(("mtbf_min", "interval_min"), [(24 * 60, 117), (6 * 60, 57), (15, 9.1)])
def test_the_intervals_that_daly_publishes(mtbf_min: float, interval_min: float) -> None:
    """Figures 3 to 5: checkpoints of 5 minutes, 10 minutes to recover."""
    found = goodput(mtbf_min * 60, 300.0, 600.0).interval_s / 60
    assert found == pytest.approx(interval_min, abs=0.06 if interval_min < 10 else 0.5)


def test_goodput_to_first_order() -> None:
    """A failure every 1e5 s, 20 s for a checkpoint: Young's interval is sqrt(2 x 20 x 1e5) = 2,000 s."""
    found = goodput(1e5, 20.0, 600.0)
    assert found.interval_s == pytest.approx(2000, rel=0.01)
    assert found.goodput == pytest.approx(1 - 0.01 - (1000 + 600) / 1e5, abs=3e-4)


@given(st.floats(1.0, 1e4), st.floats(1e4, 1e7))
def test_the_interval_is_the_best_one(checkpoint_s: float, mtbf_s: float) -> None:
    found = goodput(mtbf_s, checkpoint_s, 0.0)

    def share(interval_s: float) -> float:
        return interval_s / (mtbf_s * math.expm1((interval_s + checkpoint_s) / mtbf_s))

    assert found.goodput == pytest.approx(share(found.interval_s))
    assert found.goodput >= max(share(found.interval_s * 1.2), share(found.interval_s / 1.2))


def test_goodput_is_that_of_simulated_failures() -> None:
    """Poisson interruptions drawn with a seed: segments of training and a checkpoint, repeated until one passes."""
    mtbf_s, checkpoint_s, recover_s, draw = 3000.0, 100.0, 200.0, random.Random(0)
    found, total, passed = goodput(mtbf_s, checkpoint_s, recover_s), 0.0, 0
    left = draw.expovariate(1 / mtbf_s)
    while passed < 20_000:
        segment = found.interval_s + checkpoint_s
        if left >= segment:
            total, left, passed = total + segment, left - segment, passed + 1
            continue
        total, left = total + left, draw.expovariate(1 / mtbf_s)
        while left < recover_s:  # interrupted while it recovers
            total, left = total + left, draw.expovariate(1 / mtbf_s)
        total, left = total + recover_s, left - recover_s
    assert found.goodput == pytest.approx(passed * found.interval_s / total, rel=0.01)


def test_nothing_is_left_where_interruptions_come_too_fast() -> None:
    assert goodput(1.0, 100.0, 600.0).goodput == 0.0


def test_a_checkpoint_is_weights_and_states() -> None:
    assert checkpoint_bytes(resolve(load_request(None, REQUEST))) == pytest.approx(8_030_261_248 * 14, rel=1e-9)


def evaluated(**more: object) -> Plan:
    return mw.evaluate(None, LAYOUT, **{**REQUEST, "total_tokens": "1T", **more})  # type: ignore[arg-type]


def test_days_and_dollars_on_spot_by_hand() -> None:
    """Two nodes, each interrupted every 20 h, and 16 GPUs of 50,677 h: 1 / (2/20 + 16/50,677) = 9.97 h."""
    plain, spot = evaluated(), evaluated(spot="20h:30USD/h")
    expected = spot.resolved["spot"]
    assert expected["mtbf_s"] / 3600 == pytest.approx(1 / (2 / 20 + 16 / 50_677))
    assert expected["checkpoint_s"] == pytest.approx(8_030_261_248 * 14 / 2 / 2e9)
    assert spot.best.step_s == plain.best.step_s
    assert plain.best.days is not None
    assert spot.best.days is not None
    assert spot.best.days == pytest.approx(plain.best.days / expected["goodput"])
    assert spot.best.cost_usd == pytest.approx(2 * 30 * spot.best.days * 24)
    seen = outlook(spot, spot.best)
    assert seen.days == pytest.approx(spot.best.days)
    assert seen.usd == pytest.approx(spot.best.cost_usd)
    assert seen.price_of == "price of dgx-h100"


def test_every_node_of_a_mixed_cluster_is_interrupted() -> None:
    """Two nodes of 8 GPUs and one of 4: three nodes, whatever their size."""
    small = {"node": "dgx-h100", "count": 1, "name": "small", "gpus_per_node": 4}
    described = {"groups": [{"node": "dgx-h100", "count": 2}, small]}
    resolved = resolve(load_request(None, {**REQUEST, "cluster": described, "spot": "20h"}))
    rate = 1 / run_mtbf_s(resolved, resolved.cluster.num_gpus, math.inf)
    assert rate * 20 * 3600 == pytest.approx(3)


def test_without_a_price_that_of_the_cluster_stands() -> None:
    plan = evaluated(spot="20h")
    assert outlook(plan, plan.best).price_of.startswith("assumed: the median")


def test_equal_spellings_are_one_request() -> None:
    digests = {load_request(None, {**REQUEST, "spot": spot}).sha256
               for spot in ("2d:30 USD/h", {"interrupted_every": "48 h", "price": "30USD/h"})}  # fmt: skip
    assert len(digests) == 1


def test_what_if_takes_the_same_days_and_dollars() -> None:
    plan = evaluated(spot="20h:30USD/h")
    result = mw.what_if(plan, set=["gpu.peak=x2"])
    assert isinstance(result, Comparison)
    assert result.before.usd_per_ttoken == pytest.approx(plan.best.cost_usd, rel=0.01)
    assert result.before.tokens_per_s == pytest.approx(plan.best.tokens_per_s_per_gpu * 16, rel=0.01)
    assert any("include the interruptions of spot nodes" in note for note in result.notes)


@pytest.mark.parametrize(
    ("spot", "words"),
    [("20", "has no unit"), ("0h", "more than 0"), ("20h:5", "has no unit"), ("20h:5 EUR/h", "unknown unit"),
     ("1s", "makes no progress"), ({"every": "3h"}, "unknown key")],
)  # fmt: skip
def test_bad_spot(spot: object, words: str) -> None:
    with pytest.raises(InputError, match=words):
        evaluated(spot=spot)
