"""Properties that every price must have, on random legal layouts of real models."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from meshwright.cost_models.layouts import Layouts, parse
from meshwright.cost_models.rates.rates import Rates
from meshwright.cost_models.rates.surfaces import AttentionSurface, UnfusedSurface, at_training_factor
from meshwright.cost_models.specs.workload import Workload
from meshwright.cost_models.step import lower_bounds, step
from meshwright.planner.search.branching import ACTIVATIONS_ON_HOST, Branching
from meshwright.planner.search.exhaustive import Search
from meshwright.planner.space.counting import LayoutCounts
from meshwright.planner.space.rules import violations
from meshwright.planner.space.tree import Columns, select
from numpy.typing import NDArray

from .random_cases import (
    CASES,
    LINKED,
    SLACK,
    Case,
    case_named,
    cases,
    check,
    draw,
    factors,
    ledger_of,
    price,
    seeds,
    thorough,
    truncated,
)


@given(cases, seeds)
@thorough(60)
def test_terms_add_up(name: str, seed: int) -> None:
    """Exposed terms sum to the step, with and without the split of compute; all are finite and none is negative."""
    case = case_named(name)
    columns = draw(case, seed)
    short, detailed = price(case, columns), price(case, columns, detail=True)
    for estimate in (short, detailed):
        terms = np.array(list(estimate.terms.values()))
        check((np.isfinite(terms) & (terms >= 0)).all(axis=0), columns, terms.min(axis=0))
        summed = terms.sum(axis=0)
        check(np.isclose(summed, estimate.step_s, rtol=1e-12, atol=0), columns, summed, estimate.step_s)
    check(np.isclose(short.step_s, detailed.step_s, rtol=1e-12, atol=0), columns, short.step_s, detailed.step_s)
    assert set(detailed.terms) <= set(step.TERMS)
    assert np.array_equal(short.device_bytes, detailed.device_bytes)
    check((short.step_s > 0) & (short.device_bytes > 0) & np.isfinite(short.device_bytes), columns)


@given(cases, seeds)
@thorough(20)
def test_price_does_not_depend_on_the_batch(name: str, seed: int) -> None:
    """A layout costs the same alone as among others (tables, keys and padded stage profiles differ)."""
    case = case_named(name)
    columns = draw(case, seed)
    together = price(case, columns)
    for row in range(min(6, len(columns["tp"]))):
        alone = price(case, select(columns, np.array([row])))
        assert alone.step_s[0] == pytest.approx(together.step_s[row], rel=1e-12)
        assert alone.device_bytes[0] == pytest.approx(together.device_bytes[row], rel=1e-12)


@pytest.mark.parametrize(
    ("text", "reduces"), [("tp4-dp1-ep2-mbs1-z0-rnone", True), ("tp4-dp1-ep4-mbs1-z0-rnone", False)]
)
def test_copies_of_experts_are_reduced_without_data_parallelism(text: str, reduces: bool) -> None:
    """tp4 folded into ep2 leaves two copies of each expert: their gradients are summed even where dp x cp is 1."""
    case = Case(truncated("mixtral-8x7b", 4), Workload(seq_len=4096, global_batch=1), "4xh100-sxm-80gb")
    dp = float(price(case, dict(Layouts.of([parse(text)]))).terms["dp"][0])
    assert (dp > 0) == reduces


@st.composite
def warped(draw_: st.DrawFn, case: Case) -> Rates:
    """Rates with links, memory and host made slower or faster, and any overlap: bounds must hold for all."""
    rates = case.rates
    scale = st.sampled_from([1.0, 1.0, 0.01, 0.1, 0.3, 3.0])
    share = st.sampled_from([None, None, 0.0, 0.3, 0.8, 1.0])
    names = ("tp_overlap", "dp_overlap", "fsdp_overlap", "cp_overlap", "ep_overlap", "offload_overlap")
    shares: dict[str, Any] = {name: value for name in names if (value := draw_(share)) is not None}
    return replace(
        rates, stack=replace(rates.stack, **shares),
        levels=tuple(replace(level, bw_bytes_per_s=level.bw_bytes_per_s * draw_(scale)) for level in rates.levels),
        memory_bw_bytes_per_s=rates.memory_bw_bytes_per_s * draw_(scale),
        pcie_bw_bytes_per_s=rates.pcie_bw_bytes_per_s * draw_(scale),
        host_memory_bw_bytes_per_s=rates.host_memory_bw_bytes_per_s * draw_(scale),
    )  # fmt: skip


def bounds(case: Case, columns: Columns, rates: Rates) -> list[tuple[str, NDArray[np.float64], NDArray[np.float64]]]:
    """Seconds and bytes that the search believes nothing below the node of each row beats, level by level."""
    search = Search(case.space, rates, memory_bytes=np.inf)
    search.branching = Branching(LayoutCounts(case.space, case.meshes))
    names = sorted(case.meshes)
    row_of = {mesh: row for row, mesh in enumerate(zip(*(case.meshes[name].tolist() for name in names), strict=True))}
    at = [row_of[mesh] for mesh in zip(*(columns[name].tolist() for name in names), strict=True)]
    signature = search.branching.counts.signature[at]
    seconds, needed = search._mesh_bounds(case.meshes)
    found = [("mesh", seconds[at], needed[at])]
    for level, label in enumerate(("schedule", "recompute", "states")):
        choices = search.branching.relaxed({**columns, "_signature": signature}, level)
        relaxed = ledger_of(case, choices, rates)
        found.append((label, *lower_bounds.bound(relaxed, rates, states_known=level == 2, memory=level > 0)))
        found.append(("cycles", lower_bounds.least_cycles_s(relaxed, rates, states_known=level == 2), found[-1][2]))
        if level == 1:
            place = choices["offload"] & ~ACTIVATIONS_ON_HOST | columns["offload"] & ACTIVATIONS_ON_HOST
            placed = ledger_of(case, {**choices, "offload": place}, rates)
            found.append(("activations", *lower_bounds.bound(placed, rates, states_known=False, moves=True)))
            least_s = lower_bounds.least_cycles_s(placed, rates, states_known=False, moves=True)
            found.append(("cycles", least_s, found[-1][2]))
    return found


@pytest.mark.slow
@given(st.data(), st.sampled_from(sorted(CASES | LINKED)), seeds, st.booleans())
@thorough(110)
def test_no_layout_beats_its_bounds(data: st.DataObject, name: str, seed: int, pipelined: bool) -> None:
    """Admissibility, on which the proof of every search rests: some 6000 layouts, at every level of the tree."""
    case = case_named(name)
    rates = data.draw(warped(case))
    columns = draw(case, seed, pipelined=pipelined)
    estimate = price(case, columns, rates)
    for _level, seconds, needed in bounds(case, columns, rates):
        check(seconds <= estimate.step_s * (1 + SLACK), columns, seconds, estimate.step_s)
        check(needed <= estimate.device_bytes * (1 + SLACK), columns, needed, estimate.device_bytes)


@pytest.mark.parametrize(
    ("text", "cluster"),
    [
        ("cp2r-pp6-dp1-mbs24-z3-rfull2-oopt+act", "gb200-nvl72:3"),
        ("tp2-nosp-cp2r-pp8-dp1-mbs16-z3-rsel-oact", "dgx-h100:4"),
        ("pp8-gpipe-dp2-mbs1-z3-rfull1-oact", "dgx-a100:2"),
    ],
)
def test_bounds_hold_where_gathers_change_the_slowest_stage(text: str, cluster: str) -> None:
    """Once the fill repeated the slowest stage's offload; which stage that is depends on choices not made yet."""
    case = Case(truncated("gemma-2-9b", 13), Workload(seq_len=8192, global_batch=48), cluster)
    columns = dict(Layouts.of([parse(text)]))
    estimate = price(case, columns)
    search = Search(case.space, case.rates, memory_bytes=np.inf)
    search.branching = Branching(LayoutCounts(case.space, columns))
    for level in (0, 1, 2):
        nodes = {**columns, "_signature": search.branching.counts.signature}
        relaxed = ledger_of(case, search.branching.relaxed(nodes, level))
        seconds, _ = lower_bounds.bound(relaxed, case.rates, states_known=level == 2, moves=level == 1)
        assert seconds[0] <= estimate.step_s[0] * (1 + SLACK)


def test_flat_copies_of_sharded_states_bound_no_whole_ones() -> None:
    """With few bytes of optimizer and two ranks DeepSpeed's copies are more than sharding saves."""
    workload = Workload(seq_len=512, global_batch=8, optimizer="sgd")
    case = Case(truncated("llama-3.2-1b", 4), workload, "2xh100-sxm-80gb", "deepspeed", target="meshwright")
    columns = dict(Layouts.of([parse("dp2-mbs1-z0-rfull")]))
    whole = price(case, columns).device_bytes[0]
    assert price(case, dict(Layouts.of([parse("dp2-mbs1-z1-rfull")]))).device_bytes[0] > whole
    assert all(needed[0] <= whole * (1 + SLACK) for _, _, needed in bounds(case, columns, case.rates))


@pytest.mark.parametrize(
    ("name", "text"),
    [
        # With the optimizer in host memory there are more weights on the GPU.
        ("llama, fp8 weights that are gathered", "pp2-dp32-mbs1-z1-rfull-fp8"),
        ("llama, fp8 weights that are gathered", "pp2-dp32-mbs1-z1-rfull-oopt-fp8"),
        ("llama, fp4 weights that are gathered", "pp2-dp16-mbs1-z1-rfull-fp4"),
        ("llama, fsdp2 without master weights", "tp4-cp2r-pp2-dp1-mbs1-z1-rfull-oopt+act"),  # ZeRO-3 adds a shard
    ],
)
def test_bytes_that_another_state_saves_bound_nothing(name: str, text: str) -> None:
    case, columns = case_named(name), dict(Layouts.of([parse(text)]))
    assert not violations(parse(text), case.problem)
    priced = price(case, columns).device_bytes[0]
    assert all(needed[0] <= priced * (1 + SLACK) for _, _, needed in bounds(case, columns, case.rates))


@pytest.mark.slow
@given(seeds, st.sampled_from(["2xh100-sxm-80gb", "4xl40s"]), st.floats(0.02, 0.9), st.floats(1.0, 1.5))
@thorough(12)
def test_more_memory_removes_no_layout(seed: int, cluster: str, share: float, more: float) -> None:
    """What is found in M1 is found in M2 > M1, and the best of M2 is no worse."""
    batch = (2, 4)[seed % 2]
    case = Case(truncated("llama-3.2-1b", 2), Workload(seq_len=512, global_batch=batch), cluster)
    sizes = price(case, draw(case, seed)).device_bytes
    low = float(np.quantile(sizes, share))
    space = case.space
    few, many = (Search(space, case.rates, memory_bytes=limit, top=10**9).run() for limit in (low, low * more))
    names = [{name for _, name, _ in outcome.top.rows} for outcome in (few, many)]
    assert names[0] <= names[1]
    best = [Search(space, case.rates, memory_bytes=limit).run().top.rows for limit in (low, low * more)]
    assert [rows[0][1] for rows in best if rows] == [out.top.rows[0][1] for out in (few, many) if out.top.rows]
    assert len(best[1]) >= len(best[0])
    assert not best[0] or best[1][0][0] <= best[0][0][0]


@given(cases, seeds, factors)
@thorough(40)
def test_slower_links_never_shorten_a_step(name: str, seed: int, factor: float) -> None:
    case = case_named(name)
    columns, rates = draw(case, seed), case.rates
    levels = tuple(replace(level, bw_bytes_per_s=level.bw_bytes_per_s * factor) for level in rates.levels)
    before, after = price(case, columns).step_s, price(case, columns, replace(rates, levels=levels)).step_s
    check(after >= before * (1 - SLACK), columns, before, after)
    outer = (*rates.levels[:-1], levels[-1])  # the fabric alone
    after = price(case, columns, replace(rates, levels=outer)).step_s
    check(after >= before * (1 - SLACK), columns, before, after)


def _factor_of(surface: AttentionSurface | UnfusedSurface) -> float:
    return surface.products.training_factor if isinstance(surface, UnfusedSurface) else surface.training_factor


@given(cases, seeds, factors, st.sampled_from(["memory", "gemm", "attention", "pcie", "host"]))
@thorough(80)
def test_a_slower_gpu_never_shortens_a_step(name: str, seed: int, factor: float, what: str) -> None:
    """Memory bandwidth, efficiency of products or attention, the link to the host and its memory: less is no faster."""
    case = case_named(name)
    columns, rates = draw(case, seed), case.rates
    gemm, attention = rates.gemm, rates.attention
    slower = {
        "memory": replace(rates, memory_bw_bytes_per_s=rates.memory_bw_bytes_per_s * factor),
        "gemm": replace(rates, gemm=replace(gemm, efficiency=gemm.efficiency * factor)),
        "attention": replace(rates, attention=at_training_factor(attention, _factor_of(attention) * factor)),
        "pcie": replace(rates, pcie_bw_bytes_per_s=rates.pcie_bw_bytes_per_s * factor),
        "host": replace(rates, host_memory_bw_bytes_per_s=rates.host_memory_bw_bytes_per_s * factor),
    }[what]
    before, after = price(case, columns), price(case, columns, slower)
    check(after.step_s >= before.step_s * (1 - SLACK), columns, before.step_s, after.step_s)
    assert np.array_equal(before.device_bytes, after.device_bytes)  # no rate enters a quantity
