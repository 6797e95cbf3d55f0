"""What a plan costs when numbers differ: the arithmetic, by hand or against an evaluation of the changed request."""

from __future__ import annotations

import math
from dataclasses import replace
from functools import cache

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from meshwright.cost_models.layouts import Layouts, parse
from meshwright.planner.plan import Plan
from meshwright.planner.request import request_from_dict
from meshwright.planner.resolve import Resolved, resolve
from meshwright.planner.search.exhaustive import price_layouts
from meshwright.planner.studies.changes import Value, apply, current, known_paths, parse_sets
from meshwright.planner.studies.compare import Comparison
from meshwright.planner.studies.knobs import HARDWARE, KNOBS, Knob
from meshwright.planner.studies.pricing import follow, held

import meshwright as mw
from meshwright.errors import InputError

LAYOUT = "tp4-pp2-dp2-mbs1-z1-rsel"


@cache
def plan() -> Plan:
    return mw.evaluate(None, LAYOUT, model="llama-3.1-8b", cluster="dgx-h100:2", global_batch=64)


@cache
def base() -> Resolved:
    return resolve(request_from_dict(plan().request))


def compared(*sets: str, **options: object) -> Comparison:
    result = mw.what_if(plan(), set=sets, **options)  # type: ignore[arg-type]
    assert isinstance(result, Comparison)
    return result


def step_s(values: dict[str, Value]) -> float:
    return held(parse(LAYOUT), [apply(base(), values)])[0].step_s


def test_nothing_changed_is_the_plan() -> None:
    same = compared("gpu.peak=x1")

    assert same.before.step_s == pytest.approx(plan().best.step_s, rel=1e-8)
    assert same.after.held == same.before
    assert same.before.terms == pytest.approx({t.name: t.seconds for t in plan().best.terms}, rel=1e-8)
    assert same.before.device_bytes == pytest.approx(plan().best.device_bytes, rel=1e-8)
    assert same.warnings == ()


@pytest.mark.parametrize("path", [path for path in known_paths() if current(base(), path) is not None])
def test_the_value_that_is_there_changes_nothing(path: str) -> None:
    now = current(base(), path)
    assert now is not None
    if path in ("cluster.links.intra_node.bandwidth", "cluster.links.inter_node.bandwidth") or path in KNOBS:
        now = f"{now:.17g} {KNOBS[path].dimension}" if KNOBS[path].dimension != "count" else f"{now:.17g}"
    values = parse_sets([f"{path}={now}"])

    assert step_s(values) == pytest.approx(plan().best.step_s, rel=1e-8)


@settings(max_examples=30, deadline=None)
@given(st.sampled_from([knob for knob in HARDWARE if knob.better and knob.read(base()) is not None]),
       st.floats(1.0, 50.0), st.floats(0.02, 1.0))  # fmt: skip
def test_faster_hardware_is_never_slower(knob: Knob, up: float, down: float) -> None:
    factors = (down, 1.0, up) if knob.better == "more" else (up, 1.0, down)
    slow, now, fast = (step_s({knob.path: f"x{factor:.9g}"}) for factor in factors)

    assert slow >= now * (1 - 1e-12) >= fast * (1 - 2e-12)


STACKED = ("gpu.peak", "gpu.memory.bandwidth", "cluster.links.inter_node.bandwidth",
           "cluster.links.intra_node.bandwidth", "cluster.links.inter_node.latency")  # fmt: skip


@pytest.mark.parametrize("path", STACKED)
def test_priced_together_is_priced_one_by_one(path: str) -> None:
    layouts = Layouts.of([parse(LAYOUT)])
    founds = [apply(base(), {path: f"x{factor:g}"}) for factor in (0.1, 0.5, 1, 2, 8)]
    together = held(parse(LAYOUT), founds)

    for found, one in zip(founds, together, strict=True):
        alone = price_layouts(found.problem, found.rates, layouts)[1]
        assert one.step_s == pytest.approx(float(alone.step_s[0]), rel=1e-12)
        assert sum(one.terms.values()) == pytest.approx(one.step_s, rel=1e-12)
    assert len({one.step_s for one in together}) > 1


def test_twice_the_peak_halves_nothing_but_arithmetic() -> None:
    changed = compared("gpu.peak=x2")
    before, after = changed.before.terms, changed.after.held.terms

    assert 0.5 * before["matmul"] <= after["matmul"] < 0.7 * before["matmul"]
    assert after["norms, elementwise"] == before["norms, elementwise"]


def test_a_link_is_the_same_by_value_and_by_factor() -> None:
    for place, now in (("inter_node", "800 Gb/s"), ("intra_node", "900 GB/s")):
        path = f"cluster.links.{place}.bandwidth"
        assert step_s(parse_sets([f"{path}={now}"])) == pytest.approx(step_s({path: "x2"}), rel=1e-12)


def test_a_request_field_is_what_evaluate_says() -> None:
    other = mw.evaluate(None, LAYOUT, model="llama-3.1-8b", cluster="dgx-h100:2", global_batch=128, seq_len=4096)
    changed = compared("workload.global_batch=128", "workload.seq_len=4096")

    assert changed.after.held.step_s == pytest.approx(other.best.step_s, rel=1e-8)
    assert [(c.path, c.before, c.after) for c in changed.changes] == [
        ("workload.global_batch", "64", "128"), ("workload.seq_len", "8192", "4096")]  # fmt: skip


def test_a_new_plan_is_what_plan_says() -> None:
    found = mw.plan(model="llama-3.1-8b", cluster="dgx-h100:4", global_batch=64)
    changed = compared("gpus=32", replan=True)

    assert changed.after.replanned is not None
    assert changed.after.replanned.layout_id == found.best.layout_id
    assert changed.after.replanned.step_s == pytest.approx(found.best.step_s, rel=1e-8)
    assert changed.after.held.num_gpus == 32


def test_money_and_energy_by_hand() -> None:
    after = compared("cluster.price=98.32 USD/h", "gpu.tdp=500 W").after.held
    steps = 1e12 / (64 * 8192)

    assert after.usd_per_ttoken == pytest.approx(steps * after.step_s / 3600 * 2 * 98.32)
    assert after.mwh_per_ttoken == pytest.approx(steps * after.step_s / 3600 * 16 * 500 / 1e6)
    assert compared("gpu.peak=x2").before.usd_per_ttoken is None  # no price is known: not 0


def test_the_layout_held_follows_gpus_and_precision() -> None:
    grown = follow(parse(LAYOUT), apply(base(), {"gpus": "64", "workload.precision": "fp8"}))
    assert str(grown) == "tp4-pp2-dp8-mbs1-z1-rsel-fp8"
    kept = follow(parse("tp4-pp1-dp4-sh2-mbs1-z1-rsel"), apply(base(), {"gpus": "32"}))
    assert (kept.dp, kept.shard) == (8, 2)


@pytest.mark.parametrize("cluster", [{"cluster": "dgx-h100:2"}, {"gpu": "h100-sxm-80gb", "gpus": 16},
                                     {"cluster": "dgx-h100", "gpus": 16},
                                     {"cluster": {"groups": [{"node": "dgx-h100", "count": 2}]}}])  # fmt: skip
def test_gpus_and_links_of_every_way_to_name_a_cluster(cluster: dict[str, object]) -> None:
    own = mw.evaluate(None, LAYOUT, model="llama-3.1-8b", global_batch=64, **cluster)
    sets = ["gpus=32", "cluster.links.inter_node.bandwidth=800Gb/s"]
    result = mw.what_if(own, set=sets)
    assert isinstance(result, Comparison)

    assert result.after.held.num_gpus == 32
    other = apply(resolve(request_from_dict(own.request)), parse_sets(sets))
    assert other.cluster.levels[-1].bw_bytes_per_s == 100e9


def test_out_of_memory_and_illegal_say_so() -> None:
    assert compared("gpu.memory.capacity=20GiB").after.held.problems == ("out of memory",)
    illegal = compared("gpus=24").after.held  # tp 4 x pp 2 x dp 3, and 3 does not divide 64 sequences
    assert math.isnan(illegal.step_s)
    assert "64" in illegal.problems[0]


def test_a_plan_of_other_constants_says_so() -> None:
    old = plan().model_copy(deep=True)
    slower = old.best.model_copy(update={"step_s": old.best.step_s * 1.1})
    result = mw.what_if(old.model_copy(update={"candidates": (slower,)}), set=["gpu.peak=x2"])

    assert "plan again" in result.warnings[0]


@pytest.mark.parametrize(("text", "message", "hint"), [
    ("gpu.memry.bandwidth=4TB/s", "no such field", "gpu.memory.bandwidth"),
    ("workload.seqlen=4096", "no such field", "workload.seq_len"),
    ("bandwidth=4TB/s", "no such field", "bandwidth"),
    ("gpu.memory.bandwidth=4800", "4800 has no unit", "50 GB/s"),
    ("cluster.links.inter_node.bandwidth=800", "800 has no unit", "Gb/s"),
    ("cluster.price=98", "98 has no unit", "USD/h"),
    ("workload.seq_len=x2", "is a factor", "value itself"),
    ("gpu.peak", "is not `path=value`", "--set"),
    ("cluster.wan.bandwidth=x2", "has no network between sites", ""),
    ("gpu=h100sxm", "unknown GPU `h100sxm`", "h100-sxm-80gb"),
    ("gpus=many", "not a whole number", "512"),
    ("workload.precision=fp7", "`fp7` is none of", ""),
])  # fmt: skip
def test_bad_changes(text: str, message: str, hint: str) -> None:
    with pytest.raises(InputError) as caught:
        compared(text)
    assert message in caught.value.message
    assert hint in caught.value.hint


def test_rates_that_differ_in_kind_are_priced_one_by_one() -> None:
    founds = [base(), apply(base(), {"cluster.links.inter_node.kind": "ethernet"})]
    one, other = held(parse(LAYOUT), founds)
    assert other.step_s > one.step_s
    assert other.step_s == held(parse(LAYOUT), founds[1:])[0].step_s
    assert replace(founds[0]).cluster == base().cluster
