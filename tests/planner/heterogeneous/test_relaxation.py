"""Bounds of pipelines over islands: their columns, their multipliers, and what brute force finds."""

from __future__ import annotations

import itertools
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from meshwright.cost_models.arrays import Array
from meshwright.cost_models.layouts import Layout, parse
from meshwright.cost_models.quantities.stages import Partition
from meshwright.planner import api
from meshwright.planner.document.plan import Plan
from meshwright.planner.heterogeneous.columns import PipelineColumns, columns_of
from meshwright.planner.heterogeneous.frontier import LISTED, PROVEN, SETTLED, Frontier, OpenOrder
from meshwright.planner.heterogeneous.islands import IslandPart, bridge_between, parts_of
from meshwright.planner.heterogeneous.nodes import SearchNode
from meshwright.planner.heterogeneous.pipeline import CrossIslandPipeline
from meshwright.planner.heterogeneous.stages import joint_problem
from meshwright.planner.request.load import load_request
from meshwright.planner.request.resolve import Resolved, resolve
from meshwright.planner.stages.coefficients import runs_of
from meshwright.planner.stages.problem import PartitionProblem
from meshwright.planner.stages.solve import solve

from ...snapshots import ROOT

THREE = str(ROOT / "examples" / "three_groups.yaml")
SMALL: dict[str, Any] = {
    "groups": [{"gpu": "h100-sxm-80gb", "gpus_per_node": 4, "count": 1, "nics": 1, "nic_bandwidth": "200 Gb/s"},
               {"gpu": "a100-sxm-40gb", "gpus_per_node": 2, "count": 1, "nics": 1, "nic_bandwidth": "200 Gb/s"}],
}  # fmt: skip
LAYOUTS = ("tp2-pp3-dp1-mbs1-z0-rnone", "tp2-pp3-dp1-mbs1-z0-rfull", "tp2-pp3-gpipe-dp1-mbs1-z0-rnone",
           "tp2-pp3-zbh1-dp1-mbs1-z0-rnone", "tp2-pp3-zbv-vpp2-dp1-mbs1-z0-rsel(norm)",
           "tp2-pp3-vpp2-dp1-mbs1-z0-rnone", "pp3-dp2-mbs1-z1-rnone", "pp3-dp2-mbs1-z1-rnone-oopt")  # fmt: skip


def resolved_on(cluster: Any, layers: int | None = None, **asked: Any) -> Resolved:
    resolved = resolve(load_request(None, {"model": "llama-3.1-8b", "cluster": cluster, **asked}))
    if layers is None:
        return resolved
    return replace(resolved, model=replace(resolved.model, pattern=resolved.model.pattern[:layers]))


def columns_on(resolved: Resolved, parts: tuple[IslandPart, ...], layout: Layout) -> PipelineColumns:
    return columns_of(parts, [layout], lambda a, b: bridge_between(resolved.cluster, parts[a], parts[b]))


@pytest.mark.parametrize("model", ["llama-3.1-8b", "deepseek-v3"])
@pytest.mark.parametrize("name", ["pp6-dp8-mbs1-z1-rfull-oopt", "cp2r-pp6-zbv-vpp2-dp4-mbs1-z1-rsel(norm)",
                                  "pp12-zbh1-dp4-mbs1-z1-rnone", "tp2-pp6-vpp2-dp4-mbs1-z2-rnone"])  # fmt: skip
def test_columns_are_those_of_the_partition_problem_or_less(model: str, name: str) -> None:
    resolved = resolve(load_request(None, {"model": model, "cluster": THREE, "global_batch": 96}))
    parts, layout = parts_of(resolved)[0], parse(name)
    columns = columns_on(resolved, parts, layout)
    pipeline = CrossIslandPipeline.over(resolved, parts, layout)
    problem = joint_problem(pipeline)
    island = np.array(pipeline.on)[columns.devices]
    kinds = [kind for kind, _ in runs_of(resolved.problem.pattern)]
    of_problem = np.array([problem.forward_s, problem.input_s, problem.weight_s])
    assert columns.pass_s[:, island][:, :, kinds, 0] == pytest.approx(of_problem)
    edges = np.array([problem.edge_forward_s, problem.edge_input_s, problem.edge_weight_s])
    assert np.einsum("ck,pck->pc", columns.edges, columns.pass_s[..., 0][:, island]) == pytest.approx(edges)
    before = np.array([[island[0], *island[:-1]], island]), np.array([island, [*island[1:], island[-1]]])
    assert columns.message_s[:, *before, 0] == pytest.approx(np.array([problem.hop_s, problem.link_s]))
    states, saved, stash = columns.kept_bytes[:, np.searchsorted(columns.kinds, kinds), 0]
    resident = states + columns.moments[0][..., None] * saved + columns.moments[1][..., None] * stash
    assert resident == pytest.approx(problem.needs.resident_bytes)
    assert (columns.fixed_bytes[..., 0] <= problem.needs.fixed_bytes * (1 + 1e-9)).all()
    if model == "llama-3.1-8b":
        assert columns.fixed_bytes[..., 0] == pytest.approx(problem.needs.fixed_bytes)


def least_of(resolved: Resolved, order: tuple[IslandPart, ...], layout: Layout) -> float:
    """The fastest step of a layout in one order of the islands: every split that fits."""
    base, best = CrossIslandPipeline.over(resolved, order, layout), np.inf
    layers, chunks = resolved.model.num_layers, len(base.devices)
    for ends in itertools.combinations_with_replacement(range(layers + 1), chunks - 1):
        sizes = tuple(np.diff([0, *ends, layers]).tolist())
        there, back = np.array(sizes), np.array(sizes)[::-1]
        folded = chunks > layout.pp and base.devices[layout.pp] == layout.pp - 1
        if all(size > 0 for size in sizes[1:-1]) and not (folded and (there < back)[: layout.pp - 1].any()):
            one = base.split(Partition(sizes))
            best = min(best, one.step_s if one.fits else np.inf)
    return best


@pytest.fixture(scope="module")
def brute_force() -> list[tuple[OpenOrder, Array]]:
    """Every order of the islands, and the fastest step of each of its layouts."""
    resolved = resolved_on(SMALL, layers=7, seq_len=1024, global_batch=12)
    parts = parts_of(resolved)[0]
    nodes = [SearchNode(0.0, "across", parts, parse(name)) for name in LAYOUTS]
    return [(where, np.array([least_of(resolved, where.order, layout) for layout in where.of.layouts]))
            for where in Frontier(resolved, nodes).orders]  # fmt: skip


@pytest.mark.slow
def test_no_split_beats_a_bound_and_one_3_percent_higher_is_beaten(brute_force: list[tuple[OpenOrder, Array]]) -> None:
    shares, borrowed = [], []
    for where, least in brute_force:
        where.prove_floor(np.inf)
        borrowed += (where.bounds / least).tolist()
        for row in range(len(least)):
            where.prove(row, np.inf)
            shares.append(where.bounds[row] / least[row])
            borrowed += (where.bounds / least).tolist()  # by the multipliers of `row` and those before
    assert max(shares + borrowed) <= 1 + 1e-9
    assert max(shares) * 1.03 > 1
    assert min(shares) > 0.7  # layers are whole: 7 of them on 3 stages


@pytest.mark.slow
def test_no_split_of_a_layout_beats_the_program_of_the_floor(brute_force: list[tuple[OpenOrder, Array]]) -> None:
    shares = []
    for where, least in brute_force:
        for rows in (np.arange(len(least)), *np.arange(len(least))[:, None]):
            solved = solve(where.floor_problem(rows), lambda partition: np.inf, beat_s=0.0)
            shares.append(solved.bound_s / least[rows].min())
    assert max(shares) <= 1 + 1e-9
    assert max(shares) * 1.03 > 1


def test_the_floor_of_layouts_is_as_good_as_any_of_them() -> None:
    resolved = resolved_on(THREE, global_batch=64)
    layouts = [parse(f"cp2{ring}-pp6-zbv-vpp2-dp4-mbs1-z1-r{recompute}") for ring in "rgu"
               for recompute in ("none", "full")]  # fmt: skip
    nodes = [SearchNode(0.0, "across", parts_of(resolved)[0], layout) for layout in layouts]
    where, rows = Frontier(resolved, nodes).orders[1], np.arange(len(layouts))
    floor, singles = where.floor_problem(rows), [where.floor_problem(rows[i : i + 1]) for i in rows]

    def numbers(problem: PartitionProblem) -> Array:
        needs = [problem.needs.resident_bytes, problem.needs.fixed_bytes]
        of_edges = [problem.edge_forward_s, problem.edge_input_s, problem.edge_weight_s]
        of_layers = [problem.forward_s, problem.input_s, problem.weight_s, problem.hop_s, problem.link_s]
        return np.concatenate([x.ravel() for x in (*needs, *of_edges, *of_layers, np.array(problem.once_s))])

    assert numbers(floor) == pytest.approx(np.min([numbers(single) for single in singles], axis=0), rel=1e-12)
    assert (numbers(floor) < numbers(singles[0])).any()


def test_multipliers_of_one_layout_bound_others_nearly_as_well() -> None:
    resolved = resolved_on(THREE, global_batch=64)
    parts = parts_of(resolved)[0]
    layouts = [parse(f"cp2{ring}-pp6-zbv-vpp2-dp4-mbs1-z1-r{recompute}") for ring in "rgu"
               for recompute in ("none", "sel(norm)", "sel(act)", "sel(norm+act)")]  # fmt: skip
    where = Frontier(resolved, [SearchNode(0.0, "across", parts, layout) for layout in layouts]).orders[0]
    where.prove_floor(np.inf)
    assert where.stage.tolist() == [LISTED] * len(layouts)
    where.prove(0, np.inf)
    borrowed = where.bounds.copy()
    for row in range(len(layouts)):
        where.prove(row, np.inf)
    assert (borrowed <= where.bounds + 1e-12).all()
    assert np.median(borrowed / where.bounds) > 0.95


def test_the_frontier_hands_out_the_least_bound_of_each_stage() -> None:
    resolved = resolved_on(SMALL, layers=7, seq_len=1024, global_batch=12)
    parts = parts_of(resolved)[0]
    frontier = Frontier(resolved, [SearchNode(1.0, "across", parts, parse(LAYOUTS[0])),
                                   SearchNode(2.0, "across", parts, parse(LAYOUTS[1]))])  # fmt: skip
    assert len(frontier.orders) == 2  # one class, two orders of the islands
    first = frontier.orders[0]
    assert frontier.least(PROVEN) == (1.0, first)
    first.settle(0, SETTLED, 3.0)
    assert first.stage.tolist() == [SETTLED, LISTED]
    assert frontier.least(SETTLED)[0] == 1.0  # in the other order
    assert frontier.bound_s == 1.0
    frontier.orders[1].settle(0, SETTLED, 0.5)  # no bound falls
    assert frontier.least(SETTLED)[0] == 2.0


def test_three_groups_are_used_with_a_gap_that_says_something() -> None:
    plan = api.plan(model="llama-3.1-8b", cluster=THREE, global_batch=64, fix={"cp": 1, "schedule": "zb-v"}, top=2)
    assert_three_groups(plan, 1.4)


@pytest.mark.slow
@pytest.mark.parametrize("asked", [{"global_batch": 64}, {}], ids=["batch 64", "default batch"])
def test_three_groups_are_used_whatever_the_layout(asked: dict[str, Any]) -> None:
    assert_three_groups(api.plan(model="llama-3.1-8b", cluster=THREE, **asked), 1.5)


def assert_three_groups(plan: Plan, faster: float) -> None:
    """All groups are used, `faster` times as fast as the best of them alone."""
    assert plan.best.spread is not None
    assert {use.name for use in plan.best.spread.islands} == {"dgx-h100", "dgx-a100-80gb", "8xl40s"}
    assert plan.certificate.gap is not None
    assert plan.certificate.gap <= 0.05
    assert plan.ways is not None
    assert min(way.step_s for way in plan.ways if way.manner == "together") > faster * plan.best.step_s
