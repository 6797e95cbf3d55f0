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
from meshwright.planner.search import exchange_bounds
from meshwright.planner.search.branching import Branching
from meshwright.planner.search.exchange_bounds import CutShares, ExchangeBounds
from meshwright.planner.space.counting import LayoutCounts
from meshwright.planner.space.tree import MESH_FIELDS, Columns, Count, select

from .test_search_exact import Drawn, drawn, mismatch

SEEDS = range(0, 200, 3)
MOST_LAYOUTS = 3000  # of a request


def nodes_of(case: Drawn) -> tuple[Branching, Columns, Any]:
    """How nodes branch, a node over each of some layouts that fit, and the step of these layouts."""
    meshes = case.space.meshes(Count())
    branching = Branching(LayoutCounts(case.space, meshes))
    rows = zip(*(meshes[name].tolist() for name in MESH_FIELDS), strict=True)
    signature = dict(zip(rows, branching.counts.signature.tolist(), strict=True))
    some = np.random.default_rng(0).permutation(np.flatnonzero(case.fits))[:MOST_LAYOUTS]
    layouts = select(dict(case.layouts), some)
    of_layout = zip(*(layouts[name].tolist() for name in MESH_FIELDS), strict=True)
    layouts["_signature"] = np.array([signature[row] for row in of_layout])
    return branching, layouts, case.estimate.step_s[some]


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
