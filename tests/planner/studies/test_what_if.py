"""What a plan costs when numbers differ: the arithmetic, by hand or against an evaluation of the changed request."""

from __future__ import annotations

import math
from dataclasses import replace
from functools import cache
from itertools import pairwise
from typing import Any
from unittest.mock import patch

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from meshwright.cli.screens.what_if import change_lines
from meshwright.cost_models.layouts import Layouts, parse
from meshwright.cost_models.quantities import tables
from meshwright.cost_models.quantities.stages import Partition
from meshwright.planner.document.plan import Plan
from meshwright.planner.evaluation.staged import Staged
from meshwright.planner.request.load import load_request, request_from_dict
from meshwright.planner.request.resolve import Resolved, resolve
from meshwright.planner.search.pricing import price_layouts
from meshwright.planner.search.run import search_of
from meshwright.planner.studies import pricing
from meshwright.planner.studies.axes import parse_vary
from meshwright.planner.studies.changes import apply
from meshwright.planner.studies.compare import Comparison
from meshwright.planner.studies.generations import Generations
from meshwright.planner.studies.knobs import HARDWARE, KNOBS, Knob
from meshwright.planner.studies.paths import Value, current, known_paths
from meshwright.planner.studies.pricing import HeldLayout, follow, price_held
from meshwright.planner.studies.reliability import Reliability
from meshwright.planner.studies.scaling import Scaling
from meshwright.planner.studies.searches import together
from meshwright.planner.studies.sensitivity import WORTH, Row, Sensitivity
from meshwright.planner.studies.sweep import Sweep
from meshwright.planner.studies.values import parse_sets

import meshwright as mw
from meshwright.errors import InputError, NoFeasibleLayoutError

LAYOUT = "tp4-pp2-dp2-mbs1-z1-rsel"


@cache
def plan() -> Plan:
    return mw.evaluate(None, LAYOUT, model="llama-3.1-8b", cluster="dgx-h100:2", global_batch=64)


@cache
def base() -> Resolved:
    return resolve(request_from_dict(plan().request))


def closed_s() -> float:
    """Seconds of the plan's layout by the closed form."""
    return Staged.of(base(), parse(LAYOUT)).closed_s


def best_of(**asked: Any) -> tuple[str, float]:
    """The best layout with even stages by the closed form, searched from nothing."""
    resolved = resolve(load_request(None, {"model": "llama-3.1-8b", **asked}))
    step_s, layout_id, _ = search_of(resolved, resolved.space, objective="step").run().top.rows[0]
    return layout_id, step_s


def compared(*sets: str, **options: object) -> Comparison:
    result = mw.what_if(plan(), set=sets, **options)  # type: ignore[arg-type]
    assert isinstance(result, Comparison)
    return result


def step_s(values: dict[str, Value]) -> float:
    return price_held(parse(LAYOUT), [apply(base(), values)])[0].step_s


def test_nothing_changed_is_the_plan() -> None:
    same = compared("gpu.peak=x1")

    assert same.before.step_s == pytest.approx(closed_s(), rel=1e-12)
    assert same.before.step_s == pytest.approx(plan().best.step_s, rel=0.02)  # which is simulated
    assert same.after.held == same.before
    assert same.before.device_bytes == pytest.approx(plan().best.device_bytes, rel=1e-8)
    assert same.warnings == ()


def test_techniques_stand_by_name() -> None:
    asked = {**plan().request, "target": "any"}
    asked["workload"] = {**asked["workload"], "techniques": {"diloco": {}, "zero++": {}}}
    several = resolve(request_from_dict(asked))

    assert current(several, "workload.techniques") == "diloco, zero++"
    assert current(base(), "workload.techniques") is None


@pytest.mark.parametrize("path", [path for path in known_paths() if current(base(), path) is not None])
def test_the_value_that_is_there_changes_nothing(path: str) -> None:
    now = current(base(), path)
    assert now is not None
    if path in ("cluster.links.intra_node.bandwidth", "cluster.links.inter_node.bandwidth") or path in KNOBS:
        now = f"{now:.17g} {KNOBS[path].dimension}" if KNOBS[path].dimension != "count" else f"{now:.17g}"
    values = parse_sets([f"{path}={now}"])

    assert step_s(values) == pytest.approx(closed_s(), rel=1e-8)


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
    together = price_held(parse(LAYOUT), founds)

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


def test_a_link_of_a_node_is_shared_by_its_gpus() -> None:
    """8 GPUs and 8 NICs of a DGX H100: 400 GB/s of a node are 50 GB/s of each, the catalogue's 400 Gb/s."""
    path = "cluster.links.inter_node.bandwidth"
    for same in ("400 GB/s per node", "400 Gb/s per nic"):
        sets = parse_sets([f"{path}={same}"])
        assert step_s(sets) == pytest.approx(step_s({}), rel=1e-12)
        assert mw.what_if(plan(), set=[f"{path}={same}"]).changes[0].after == same
    assert step_s(parse_sets([f"{path}=50 GB/s per node"])) == pytest.approx(step_s({path: "x0.125"}), rel=1e-12)


def test_a_latency_without_a_knob_has_both_ends() -> None:
    (change,) = mw.what_if(plan(), set=["cluster.links.intra_node.latency=1us"]).changes
    assert (change.before, change.after) == (None, 1e-6)


SITES: dict[str, Any] = {
    "groups": [{"node": "dgx-h100", "count": 3}],
    "sites": [{"name": "a", "nodes": 1}, {"name": "b", "nodes": 2}],
    "wan": {"bandwidth": "400 Gb/s", "latency": "5 ms"},
}  # fmt: skip
INTER = "cluster.links.inter_node.bandwidth"
NODES: dict[str, Any] = {"groups": ["dgx-h100:2"]}


@pytest.mark.parametrize(("cluster", "path", "value"), [
    (SITES, "cluster.wan.bandwidth", 50e9),
    ({**SITES, "wan": {**SITES["wan"], "per": "gpu"}}, "cluster.wan.bandwidth", 50e9),
    ({**SITES, "wan": {**SITES["wan"], "per": "node"}}, "cluster.wan.bandwidth", 50e9),
    ({**NODES, "links": {"inter_node": {"bandwidth": "400 Gb/s"}}}, INTER, 50e9),
    ({**NODES, "links": {"inter_node": {"bandwidth": "400 Gb/s per node"}}}, INTER, 50e9),
    ({**NODES, "links": {"inter_node": {"bandwidth": "400 Gb/s", "per": "nic"}}}, INTER, 50e9),
])  # fmt: skip
def test_a_link_reads_as_the_request_states_it(cluster: dict[str, Any], path: str, value: float) -> None:
    own = resolve(load_request(None, {"model": "llama-3.1-8b", "cluster": cluster, "global_batch": 48}))
    assert current(own, path) == pytest.approx(value)
    doubled = apply(own, {path: "x2"})
    assert doubled.cluster.levels[-1].bw_bytes_per_s == pytest.approx(2 * own.cluster.levels[-1].bw_bytes_per_s)
    assert apply(own, {path: 100e9}).cluster.levels[-1].bw_bytes_per_s == doubled.cluster.levels[-1].bw_bytes_per_s


SLOW = "[{node: 1, share: 0.25}]"


def test_the_repair_of_a_slow_node_can_be_asked_for() -> None:
    path = "cluster.links.slow_nodes"
    slow = compared(f"{path}={SLOW}").after.held
    cluster = {"groups": ["dgx-h100:2"], "links": {"slow_nodes": [{"node": 1, "share": 0.25}]}}
    broken = mw.evaluate(None, LAYOUT, model="llama-3.1-8b", cluster=cluster, global_batch=64)
    repaired = mw.what_if(broken, set=[f"{path}=[]"])
    assert isinstance(repaired, Comparison)

    assert repaired.before.step_s == pytest.approx(slow.step_s, rel=1e-9)
    assert repaired.after.held.step_s == pytest.approx(closed_s(), rel=1e-9)
    assert slow.step_s > closed_s()
    assert [(change.before, change.after) for change in repaired.changes] == [(SLOW, "[]")]


@pytest.mark.parametrize(("link", "per", "ends"), [
    ({}, "gpu", (12.5e9, 50e9, 3.125e9, 12.5e9)),
    ({"bandwidth": "3.2 Tb/s per node"}, "node", (100e9, 400e9, 3.125e9, 12.5e9)),
])  # fmt: skip
def test_a_bandwidth_has_both_ends_where_pairs_differ(link: dict[str, str], per: str, ends: tuple[float, ...]) -> None:
    """400 Gb/s for each of 8 GPUs, a quarter on one node; then 100 Gb/s for each, or for all of a node."""
    links = {"slow_nodes": [{"node": 2, "share": 0.25}], **({"inter_node": link} if link else {})}
    cluster = {"groups": ["dgx-h100:3"], "links": links}
    slow = mw.evaluate(None, "dp24-mbs1-z3-rfull", model="llama-3.1-8b", cluster=cluster, global_batch=96)
    changed = mw.what_if(slow, set=["cluster.links.inter_node.bandwidth=100Gb/s"])
    assert isinstance(changed, Comparison)
    (change,) = changed.changes
    assert change.per == per
    found = (change.before, change.fastest_before, change.after, change.fastest_after)
    assert found == pytest.approx(ends)
    said = "\n".join(change_lines(changed.changes))
    assert f"per {per.replace('gpu', 'GPU')}, of the slowest to the fastest pair" in said
    doubled = mw.what_if(slow, set=["cluster.links.inter_node.bandwidth=x2"])
    assert isinstance(doubled, Comparison)
    assert (doubled.changes[0].after, doubled.changes[0].fastest_after) == pytest.approx((2 * ends[0], 2 * ends[1]))


@pytest.mark.parametrize(("text", "hint"), [
    ("cluster.nodes=7", "`gpus=56` for 7 nodes of 8"), ("nodes=two", "`gpus=56` for 7 nodes of 8"),
    ("cluster.num_nodes=3", "`gpus=24` for 3 nodes"),
])  # fmt: skip
def test_a_number_of_nodes_is_that_of_their_gpus(text: str, hint: str) -> None:
    with pytest.raises(InputError) as caught:
        parse_sets([text])
    assert hint in caught.value.hint


def test_a_request_field_is_what_evaluate_says() -> None:
    other = mw.evaluate(None, LAYOUT, model="llama-3.1-8b", cluster="dgx-h100:2", global_batch=128, seq_len=4096)
    changed = compared("workload.global_batch=128", "workload.seq_len=4096")

    there = Staged.of(resolve(request_from_dict(other.request)), parse(LAYOUT))
    assert changed.after.held.step_s == pytest.approx(there.closed_s, rel=1e-12)
    assert [(c.path, c.before, c.after) for c in changed.changes] == [
        ("workload.global_batch", "64", "128"), ("workload.seq_len", "8192", "4096")]  # fmt: skip


def test_a_new_plan_is_what_plan_says() -> None:
    changed = compared("gpus=32", replan=True)

    assert changed.after.replanned is not None
    layout_id, seconds = best_of(cluster="dgx-h100:4", global_batch=64)
    assert changed.after.replanned.layout_id == layout_id
    assert changed.after.replanned.step_s == pytest.approx(seconds)
    assert changed.after.held.num_gpus == 32


@pytest.mark.parametrize("share", ["70%", "72%"])
def test_a_layout_that_leaves_too_little_headroom_bounds_no_search(share: str) -> None:
    """It is faster than all that leave it, so as a bound it would rule them out."""
    fast = mw.evaluate(None, "tp2-pp1-dp8-mbs1-z1-rnone", model="llama-3.1-8b", cluster="dgx-h100:2", global_batch=64)
    changed = mw.what_if(fast, set=[f"workload.headroom={share}"], replan=True)
    assert isinstance(changed, Comparison)
    resolved = apply(resolve(request_from_dict(fast.request)), {"workload.headroom": share})
    step_s, layout_id, _ = search_of(resolved, resolved.space, objective="step").run().top.rows[0]

    held, best = changed.after.held, changed.after.replanned
    assert held.runs
    assert not held.eligible
    assert held.step_s < step_s
    assert best is not None
    assert best.eligible
    assert best.layout_id == layout_id


def test_searches_that_share_their_bounds_keep_to_the_headroom() -> None:
    sweep = swept("workload.headroom=5%,50%,70%,72%", replan=True)
    for point in sweep.points:
        found = apply(base(), point.values)
        _, layout_id, _ = search_of(found, found.space, objective="step").run().top.rows[0]
        assert point.replanned is not None
        assert point.replanned.layout_id == layout_id


def test_points_without_the_headroom_have_what_a_plan_has() -> None:
    """The layout that needs least memory, whether points share a search or not. 5 GiB hold none."""
    path = "gpu.memory.capacity"
    points = swept(f"{path}=5GiB,5.4GiB,8GiB", replan=True).points
    assert [point.best is not None and point.best.eligible for point in points] == [False, False, True]
    assert points[0].why_not == "no layout fits"
    alone = compared(f"{path}=5.4GiB", replan=True).after.replanned
    assert alone is not None
    assert points[1].replanned == alone
    apart = swept("workload.global_batch=32,64", set=[f"{path}=5.4GiB"], replan=True).points
    assert [point.replanned == alone for point in apart] == [False, True]
    assert all(point.replanned is not None and point.replanned.runs for point in apart)


def test_nothing_within_a_bound_is_not_nothing_that_fits() -> None:
    """A seed from outside of the space may be faster than all of it."""
    resolved, (best, _) = base(), best_of(cluster="dgx-h100:2", global_batch=64)
    shared = together([resolved, apply(resolved, {"gpu.peak": "x2"})])[0]
    assert shared is not None

    limit = resolved.budget_bytes
    assert str(shared.best(resolved.rates, memory_bytes=limit, incumbent=1e-9)) == best
    assert str(pricing._searched(resolved, 1e-9, None, explain=False)) == best


def test_money_and_energy_by_hand() -> None:
    after = compared("cluster.price=98.32 USD/h", "gpu.tdp=500 W").after.held
    steps = 1e12 / (64 * 8192)

    assert after.usd_per_ttoken == pytest.approx(steps * after.step_s / 3600 * 2 * 98.32)
    assert after.mwh_per_ttoken == pytest.approx(steps * after.step_s / 3600 * 16 * 500 / 1e6)
    before = compared("gpu.peak=x2").before
    rent = base().cluster.groups[0].rent
    assert rent is not None
    assert before.usd_per_ttoken == pytest.approx(steps * before.step_s / 3600 * 16 * rent.usd_per_gpu_hour)
    assert before.price_source == rent.source


def test_without_a_price_there_are_no_dollars() -> None:
    plain = mw.evaluate(None, "dp8-mbs1-z3-rfull", model="llama-3.1-8b", cluster="8xrtx-4090", global_batch=64)
    result = mw.what_if(plain, set=["gpu.peak=x2"])
    assert isinstance(result, Comparison)
    before = result.before
    assert (before.usd_per_ttoken, before.price_source) == (None, "")


def test_the_layout_held_follows_gpus_and_precision() -> None:
    grown = follow(parse(LAYOUT), apply(base(), {"gpus": "64", "workload.precision": "fp8"}))
    assert str(grown) == "tp4-pp2-dp8-mbs1-z1-rsel-fp8"
    kept = follow(parse("tp4-pp1-dp4-sh2-mbs1-z1-rsel"), apply(base(), {"gpus": "32"}))
    assert (kept.dp, kept.shard) == (8, 2)


@pytest.mark.parametrize("cluster", [{"cluster": "dgx-h100:2"}, {"gpu": "h100-sxm-80gb", "gpus": 16},
                                     {"cluster": "dgx-h100", "gpus": 16},
                                     {"cluster": {"groups": [{"node": "dgx-h100", "count": 2}]}}])  # fmt: skip
def test_gpus_and_links_of_every_way_to_name_a_cluster(cluster: dict[str, Any]) -> None:
    own = mw.evaluate(None, LAYOUT, model="llama-3.1-8b", global_batch=64, **cluster)
    sets = ["gpus=32", "cluster.links.inter_node.bandwidth=800Gb/s"]
    result = mw.what_if(own, set=sets)
    assert isinstance(result, Comparison)

    assert result.after.held.num_gpus == 32
    other = apply(resolve(request_from_dict(own.request)), parse_sets(sets))
    assert other.cluster.levels[-1].bw_bytes_per_s == 100e9


def test_stages_of_its_own_stay_with_the_layout() -> None:
    uneven = HeldLayout(parse(LAYOUT), Partition((17, 15)))
    assert uneven.id.startswith(f"{LAYOUT}-x")
    founds = [apply(base(), {"gpu.peak": factor}) for factor in ("x1", "x2")]
    for found, one in zip(founds, price_held(uneven, founds), strict=True):
        assert one.layout_id == uneven.id
        assert one.step_s == pytest.approx(Staged.of(found, uneven.layout, uneven.partition).closed_s, rel=1e-12)
        assert one.step_s < price_held(parse(LAYOUT), [found])[0].step_s  # the last stage has the head to do as well
    other = apply(base(), {"model": "llama-3.2-3b"})  # 28 layers: the stages are even there
    assert price_held(uneven, [other])[0].layout_id == LAYOUT


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
    ("workload.techniques.diloco.period=0", "diloco: period is 0, must be a whole number", "steps between"),
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
    one, other = price_held(parse(LAYOUT), founds)
    assert other.step_s > one.step_s
    assert other.step_s == price_held(parse(LAYOUT), founds[1:])[0].step_s
    assert replace(founds[0]).cluster == base().cluster


def swept(*vary: str, **options: object) -> Sweep:
    result = mw.what_if(plan(), vary=vary, **options)  # type: ignore[arg-type]
    assert isinstance(result, Sweep)
    return result


@pytest.mark.parametrize("field", ["workload.global_batch=32", "gpus=32", "workload.seq_len=4096"])
def test_numbers_that_are_set_hold_where_a_field_of_the_request_varies(field: str) -> None:
    """A field is read anew, with the catalogue's GPU: it has the numbers of `--set` as well."""
    (there,) = swept(field, set=["gpu.peak=x2"]).points
    assert there.held.step_s == pytest.approx(compared(field, "gpu.peak=x2").after.held.step_s, rel=1e-9)
    assert there.held.step_s < 0.9 * compared(field).after.held.step_s


@pytest.mark.parametrize(("text", "values"), [
    ("gpus=8..64", ("8", "16", "32", "64")),
    ("gpus=8..72", ("8", "16", "32", "64", "72")),
    ("gpus=8..11:linear", ("8", "9", "10", "11")),
    ("gpus=8, 16", ("8", "16")),
    ("gpu.peak=x1..x4:3", ("x1", "x2", "x4")),
    ("gpu.memory.capacity=40GiB,80GiB", (40 * 2.0**30, 80 * 2.0**30)),
    ("gpu.memory.bandwidth=1TB/s..4TB/s:linear:4", (1e12, 2e12, 3e12, 4e12)),
    ("workload.precision=bf16,fp8", ("bf16", "fp8")),
])  # fmt: skip
def test_ranges(text: str, values: tuple[Value, ...]) -> None:
    assert parse_vary(text).values == pytest.approx(values) if isinstance(values[0], float) else values
    assert len(parse_vary("gpu.memory.bandwidth=1TB/s..4TB/s").values) == 9  # four to the octave


@settings(max_examples=50)
@given(st.floats(1e9, 1e15), st.floats(1.1, 1e6), st.integers(2, 300))
def test_a_range_runs_from_end_to_end_by_one_factor(low: float, factor: float, count: int) -> None:
    values = parse_vary(f"gpu.memory.bandwidth={low:.17g} B/s..{low * factor:.17g} B/s:{count}").values
    numbers = [float(value) for value in values]

    assert (len(numbers), numbers[0], numbers[-1]) == (count, low, low * factor)
    for one, two in pairwise(numbers):
        assert two / one == pytest.approx(factor ** (1 / (count - 1)), rel=1e-6)


@pytest.mark.parametrize(("text", "message"), [
    ("gpu.memory.bandwidth=1TB/s..4TB/s:10000000", "10,000,000 points"),
    ("gpus=1..100000000:linear", "100,000,000 points"),
    ("gpu.memory.bandwidth=1..4TB/s", "1 has no unit"),
    ("gpu.memory.bandwidth=4TB/s..1TB/s", "does not run from a smaller"),
    ("gpu.memory.bandwidth=1TB/s..4TB/s:cubic", "`cubic` is no spacing"),
    ("gpu.memory.bandwidth=1TB/s..4TB/s:1", "2 points or more"),
    ("gpu.memory.bandwidth=1TB/s..2TB/s..3TB/s", "is not `a..b`"),
    ("model=llama-3.1-8b..llama-3.1-70b", "is no number"),
    ("gpu.memry=1..2", "no such field"),
])  # fmt: skip
def test_bad_ranges(text: str, message: str) -> None:
    with pytest.raises(InputError, match="--vary") as caught:
        swept(text)
    assert message in caught.value.message


def test_points_are_single_changes_and_the_plan_is_among_them() -> None:
    sweep = swept("cluster.links.inter_node.bandwidth=100Gb/s..1.6Tb/s:4")
    (axis,) = sweep.axes

    assert axis.now in axis.values
    assert len(sweep.points) == 5
    for point in sweep.points:
        value = point.values[axis.path]
        assert point.held.step_s == pytest.approx(step_s({axis.path: value}), rel=1e-12)
    at_plan = sweep.points[axis.values.index(axis.now)].held.step_s
    assert at_plan == pytest.approx(closed_s(), rel=1e-8)


@pytest.mark.parametrize("vary", ["gpu.memory.bandwidth=1TB/s..9TB/s:400", "gpu.peak=200TFLOP/s..2000TFLOP/s:400"])
def test_four_hundred_prices_take_one_table(vary: str) -> None:
    """The order of growth, not a time: 400 points build the tables once."""
    with patch("meshwright.planner.studies.pricing.build", wraps=tables.build) as built:
        swept(vary)
    assert built.call_count < 10


def test_a_map_has_its_points_in_order() -> None:
    sweep = swept("gpu.peak=x1,x2", "gpus=16,32,64")
    assert [tuple(p.values.values()) for p in sweep.points] == [
        (a, b) for a in ("x1", "x2") for b in ("16", "32", "64")]  # fmt: skip
    assert [p.held.num_gpus for p in sweep.points] == [16, 32, 64] * 2


def test_searches_that_start_from_neighbours_find_what_a_fresh_one_finds() -> None:
    sweep = swept("cluster.links.inter_node.bandwidth=12.5Gb/s..3.2Tb/s:9", replan=True)
    for point in sweep.points:
        found = apply(base(), point.values)
        _, layout_id, _ = search_of(found, found.space, objective="step").run().top.rows[0]
        assert point.replanned is not None
        assert point.replanned.layout_id == layout_id
        assert point.replanned.step_s <= point.held.step_s * (1 + 1e-9)
    assert len({point.replanned.layout_id for point in sweep.points if point.replanned}) > 1


def test_two_processes_find_what_one_finds() -> None:
    vary = ("gpu.memory.capacity=30GiB,60GiB", "cluster.links.inter_node.bandwidth=25Gb/s,400Gb/s")
    assert swept(*vary, replan=True, jobs=2) == swept(*vary, replan=True)


def test_a_sweep_with_nothing_anywhere_says_where_the_border_is() -> None:
    with pytest.raises(NoFeasibleLayoutError) as caught:
        swept("gpu.memory.capacity=1GiB..4GiB:3", replan=True)
    assert "no layout runs at any of 3 points" in caught.value.message
    assert "gpu.memory.capacity=4 GiB" in caught.value.message
    assert "needs" in caught.value.message
    with pytest.raises(NoFeasibleLayoutError, match="GiB per GPU of"):
        swept("gpu.memory.capacity=1GiB..4GiB:3")


def test_bad_sweeps() -> None:
    for vary, sets, message in (
        (["gpus=8,16", "gpus=8,16"], [], "at once"),
        (["gpus=8,16"], ["gpus=32"], "at once"),
        (["gpus=8,16", "gpu.peak=x1,x2", "gpu.tdp=x1,x2"], [], "3 --vary"),
        (["gpu.peak=x1..x2:200", "gpu.memory.bandwidth=x1..x2:200"], [], "200 x 200 = 40,000 points"),
        (["gpus=8,12"], [], "at gpus=12"),
    ):
        with pytest.raises(InputError) as caught:
            mw.what_if(plan(), vary=vary, set=sets)
        assert message in caught.value.message


def sensitivity(**options: object) -> dict[str, Row]:
    result = mw.what_if(plan(), study="sensitivity", **options)  # type: ignore[arg-type]
    assert isinstance(result, Sensitivity)
    return {row.path: row for row in result.rows}


def test_elasticities_add_up_to_a_step() -> None:
    """Twice as fast everything halves a step: the elasticities of all rates sum to about -1 (latencies and fixed kernel
    times are the rest)."""
    rows = sensitivity()
    rates = sum(row.elasticity for row in rows.values() if row.better == "more" and not row.path.startswith("stack."))
    assert -1.001 < rates < -0.85


def test_elasticity_and_gain_by_hand() -> None:
    row = sensitivity()["gpu.peak"]
    more, less = step_s({"gpu.peak": "x1.0001"}), step_s({"gpu.peak": "x0.9999"})
    assert row.elasticity == pytest.approx((more - less) / step_s({}) / 0.0002, rel=0.02)
    assert row.gain == pytest.approx(1 - step_s({"gpu.peak": "x2"}) / step_s({}), rel=1e-9)


def test_beyond_the_break_even_twice_as_much_buys_less_than_it_says() -> None:
    found = {path: row for path, row in sensitivity().items() if row.saturates is not None and row.better == "more"}
    assert "cluster.links.inter_node.bandwidth" in found
    for path, row in found.items():
        assert row.saturates is not None
        factor = row.saturates / row.now
        at, twice = step_s({path: f"x{factor:.17g}"}), step_s({path: f"x{2 * factor:.17g}"})
        assert 1 - twice / at < WORTH
        if factor > 2**-6:
            below, at = step_s({path: f"x{factor / 2**0.25:.17g}"}), step_s({path: f"x{factor * 2**0.75:.17g}"})
            assert 1 - at / below >= WORTH


def test_sensitivity_with_new_plans_gains_no_less() -> None:
    for row in sensitivity(replan=True).values():
        assert row.gain_replanned is not None
        assert row.gain_replanned >= row.gain - 1e-9


def scaled(mode: str, **options: object) -> Scaling:
    result = mw.what_if(plan(), study=f"{mode}-scaling", vary=["gpus=8..32"], **options)  # type: ignore[arg-type]
    assert isinstance(result, Scaling)
    return result


def test_strong_scaling_is_a_plan_for_each_number() -> None:
    result = scaled("strong")
    for point, count in zip(result.points, (8, 16, 32), strict=True):
        assert point.replanned is not None
        layout_id, seconds = best_of(cluster="dgx-h100", gpus=count, global_batch=64)
        assert point.replanned.layout_id == layout_id
        assert point.replanned.step_s == pytest.approx(seconds)
    first, last = result.points[0].replanned, result.points[-1].replanned
    assert first is not None
    assert last is not None
    assert result.efficiency[0] == 1
    assert result.efficiency[-1] == pytest.approx(first.step_s / last.step_s / 4)


def test_weak_scaling_keeps_sequences_per_gpu() -> None:
    result = scaled("weak")
    assert [point.values["workload.global_batch"] for point in result.points] == ["32", "64", "128"]
    one, two = result.points[0].replanned, result.points[1].replanned
    assert one is not None
    assert two is not None
    assert result.efficiency[1] == pytest.approx(one.step_s / two.step_s)
    with pytest.raises(InputError, match=r"63 x 8 / 16 = 31\.5 sequences"):
        mw.what_if(plan(), study="weak-scaling", vary=["gpus=8"], set=["workload.global_batch=63"])


def test_generations_come_in_their_own_nodes() -> None:
    result = mw.what_if(plan(), study="generations", vary=["gpu=h100-sxm-80gb,h200-sxm-141gb"],
                        set=["cluster.price=100 USD/h"])  # fmt: skip
    assert isinstance(result, Generations)
    assert result.nodes == ("dgx-h100:2", "hgx-h200:2")
    layout_id, step_s = best_of(gpu="h200-sxm-141gb", gpus=16, global_batch=64)
    best = result.points[1].replanned
    assert best is not None
    assert best.layout_id == layout_id
    assert best.usd_per_ttoken == pytest.approx(1e12 / (64 * 8192) * step_s / 3600 * 200)
    assert result.speedup[0] == 1
    with pytest.raises(InputError, match="usually built into"):
        mw.what_if(plan(), study="generations", set=["cluster.links.inter_node.bandwidth=1Tb/s"])


def test_llama_3_had_over_nine_tenths_of_its_time() -> None:
    """arXiv 2407.21783, 3.3.4: higher than 90 % effective training time on 16,384 GPUs, a stop about every 3 hours."""
    large = mw.evaluate(None, "tp8-pp16-dp128-mbs1-z1-rnone", model="llama-3.1-405b", cluster="dgx-h100:2048",
                        global_batch=2048)  # fmt: skip
    result = mw.what_if(large, study="reliability")
    assert isinstance(result, Reliability)
    row = next(row for row in result.rows if row.num_gpus == 16_384)
    assert row.mtbf_s / 3600 == pytest.approx(54 * 24 / 419, rel=1e-3)
    assert 0.90 < row.goodput < 0.96


def test_bad_assumptions() -> None:
    for assume, message in (({"mtbf": "3 h"}, "unknown assumption"), ({"detect": "3"}, "has no unit"),
                            ({"gpu_mtbf": "0 h"}, "more than 0")):  # fmt: skip
        with pytest.raises(InputError, match=message):
            mw.what_if(plan(), study="reliability", assume=assume)
