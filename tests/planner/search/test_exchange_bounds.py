"""Bounds of nodes with what data parallelism sends once per step: no layout below a node is faster."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest
from meshwright.cost_models import build_ledger
from meshwright.cost_models.layouts import Layouts
from meshwright.cost_models.quantities.tables import build, index_keys
from meshwright.cost_models.step import lower_bounds
from meshwright.planner.request.load import load_request
from meshwright.planner.request.resolve import Resolved, resolve
from meshwright.planner.search import exchange_bounds
from meshwright.planner.search.branching import Branching
from meshwright.planner.search.exchange_bounds import CutShares, ExchangeBounds
from meshwright.planner.search.run import search_of
from meshwright.planner.space.counting import LayoutCounts
from meshwright.planner.space.tree import MESH_FIELDS, Columns, Count, Space, select

from .test_search_exact import Drawn, drawn, mismatch

SEEDS = range(0, 200, 3)
MOST_LAYOUTS = 3000  # of a request


def branching_over(space: Space, layouts: Columns) -> tuple[Branching, Columns]:
    """How nodes of a space branch, and a node over each of these layouts."""
    meshes = space.meshes(Count())
    branching = Branching(LayoutCounts(space, meshes))
    rows = zip(*(meshes[name].tolist() for name in MESH_FIELDS), strict=True)
    signature = dict(zip(rows, branching.counts.signature.tolist(), strict=True))
    of_layout = zip(*(layouts[name].tolist() for name in MESH_FIELDS), strict=True)
    return branching, {**layouts, "_signature": np.array([signature[row] for row in of_layout])}


def nodes_of(case: Drawn) -> tuple[Branching, Columns, Any]:
    """How nodes branch, a node over each of some layouts that fit, and the step of these layouts."""
    some = np.random.default_rng(0).permutation(np.flatnonzero(case.fits))[:MOST_LAYOUTS]
    return *branching_over(case.space, select(dict(case.layouts), some)), case.estimate.step_s[some]


def bounds() -> Iterator[tuple[Any, Any, Any]]:
    """Of nodes over layouts of random requests, at every level and under several limits: bounds without and with what
    is sent once per step, and the steps of the layouts."""
    for case in filter(None, map(drawn, SEEDS)):
        if not case.fits.any():
            continue
        branching, layouts, step_s = nodes_of(case)
        keys, index = index_keys(layouts)
        tables = build(case.space.problem, keys)
        for level in range(3):
            relaxed = branching.relaxed(layouts, level)
            batch = build_ledger.build(case.space.problem, tables, Layouts(relaxed), index)
            seconds, _ = lower_bounds.bound(batch, case.rates, states_known=level == 2, memory=False)
            for limit_s in np.quantile(seconds, [0.5, 1.0]):
                exchanges = ExchangeBounds(branching, case.rates, case.memory_bytes, float(limit_s), CutShares())
                raised = exchanges.raised(seconds, batch, level)
                yield seconds, raised, step_s


def is_exceeded() -> bool:
    return any((raised > step_s * (1 + 1e-9)).any() for _, raised, step_s in bounds())


@pytest.mark.slow
def test_no_layout_is_faster() -> None:
    higher = []
    for seconds, raised, step_s in bounds():
        assert (raised <= step_s * (1 + 1e-9)).all()
        higher.append((raised > seconds * (1 + 1e-9)).mean())
    assert np.mean(higher) > 0.2  # of the nodes: the bound says something


def test_layouts_that_scatter_every_micro_batch_are_counted(monkeypatch: pytest.MonkeyPatch) -> None:
    """A bound of theirs that is 3 % too high is above some of them."""
    honest = exchange_bounds._Nodes._scattered_s
    monkeypatch.setattr(exchange_bounds._Nodes, "_scattered_s", lambda nodes: 1.03 * honest(nodes))
    assert is_exceeded()


def test_what_compute_hides_is_counted(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(exchange_bounds._Nodes, "_hidden_s", property(lambda nodes: np.zeros((2, len(nodes.key)))))
    assert is_exceeded()


def test_a_least_shard_group_that_is_too_large_is_seen(monkeypatch: pytest.MonkeyPatch) -> None:
    honest = vars(exchange_bounds._Sizes)["least"].fget
    monkeypatch.setattr(exchange_bounds._Sizes, "least", property(lambda sizes: 2 * honest(sizes)))
    assert is_exceeded()


def test_a_bound_that_is_too_high_is_seen(monkeypatch: pytest.MonkeyPatch) -> None:
    """One 3 % too high loses the best layout of some request."""
    honest = ExchangeBounds.raised
    monkeypatch.setattr(ExchangeBounds, "raised", lambda *of_nodes: 1.03 * honest(*of_nodes))
    assert any(mismatch(seed) for seed in range(200))


def best_under(technique: str) -> tuple[Resolved, Branching, Columns, Any]:
    """A small request under a technique, with nodes over its best layouts, and the steps of these."""
    asked = {"model": "llama-3.2-1b", "cluster": "dgx-h100:2", "seq_len": 1024, "global_batch": 128, "target": "any"}
    resolved = resolve(load_request(None, {**asked, "technique": technique}))
    rows = search_of(resolved, resolved.space, top=200).run().top.rows
    columns = dict(Layouts.of([layout for _, _, layout in rows]).columns)
    return resolved, *branching_over(resolved.space, columns), np.array([row[0] for row in rows])


@pytest.mark.parametrize("technique", ["zero-infinity:gb_per_s=0.05,optimizer=0", "luwu:network_gb_per_s=1"])
def test_the_first_bounds_have_the_traffic_of_a_store(technique: str) -> None:
    resolved, branching, nodes, step_s = best_under(technique)
    keys, index = index_keys(nodes)
    tables = build(resolved.problem, keys)
    for level in (0, 1):
        batch = build_ledger.build(resolved.problem, tables, Layouts(branching.relaxed(nodes, level)), index)
        for seconds in (lower_bounds.least_cycles_s(batch, resolved.rates, states_known=False),
                        lower_bounds.bound(batch, resolved.rates, states_known=False, memory=False)[0]):  # fmt: skip
            assert (seconds <= step_s * (1 + 1e-9)).all()
            assert (seconds > 0.5 * step_s).all()


def test_layouts_that_all_gather_weights_are_bounded_so(monkeypatch: pytest.MonkeyPatch) -> None:
    """Under ZeRO++ no layout scatters gradients of whole weights."""
    resolved, branching, nodes, step_s = best_under("zero++")
    keys, index = index_keys(nodes)
    exchanges = ExchangeBounds(branching, resolved.rates, resolved.budget_bytes, np.inf, CutShares())
    seconds = []
    for stage in (exchanges.scattering, 2):
        monkeypatch.setattr(ExchangeBounds, "scattering", stage)
        relaxed = exchange_bounds._Nodes(
            exchanges, build(resolved.problem, keys), branching.relaxed(nodes, 0), index, 0)  # fmt: skip
        seconds.append(relaxed._scattered_s())
        assert (seconds[-1] <= step_s * (1 + 1e-9)).all()
    gathering, scattering = seconds
    assert (gathering >= scattering).all()
    assert gathering.mean() > 1.05 * scattering.mean()
