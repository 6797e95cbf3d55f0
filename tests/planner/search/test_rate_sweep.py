"""One search under many rates finds at each what a search of its own finds; a planted fault is seen."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from meshwright.cost_models.arrays import Array
from meshwright.cost_models.layouts import Layout, Layouts
from meshwright.cost_models.rates.rates import Rates
from meshwright.cost_models.specs.cluster import ClusterSpec
from meshwright.planner.search.exhaustive import Search
from meshwright.planner.search.rate_sweep import RateSweep
from meshwright.planner.space.tree import Columns, Space
from meshwright.profiles.stack.rates import rates_for

from meshwright.errors import NoFeasibleLayoutError

from .test_search_exact import random_request

Point = tuple[float, float, float]  # factors of peak, of the links, of the memory


def rates_at(request: dict[str, Any], point: Point) -> Rates:
    cluster: ClusterSpec = request["cluster"]
    space: Space = request["space"]
    peak, link, _ = point
    groups = tuple(
        replace(group, gpu=replace(group.gpu, peak_flops_per_s={
            dtype: value * peak for dtype, value in group.gpu.peak_flops_per_s.items()}))
        for group in cluster.groups
    )  # fmt: skip
    levels = tuple(replace(level, bw_bytes_per_s=level.bw_bytes_per_s * link) for level in cluster.levels)
    turned = replace(cluster, groups=groups, levels=levels)
    return rates_for(turned, space.problem.stack, space.problem.workload.precision)


def least_bytes(request: dict[str, Any]) -> float:
    search = Search(request["space"], rates_at(request, (1, 1, 1)), memory_bytes=np.inf, objective="memory",
                    host_bytes=request["host"])  # fmt: skip
    rows = search.run().top.rows
    return rows[0][0] if rows else 1.0


def differing(seed: int, points: list[Point]) -> list[tuple[int, Point, Layout | None, Layout | None]]:
    """Where the shared search and one of its own disagree."""
    request = random_request(seed)
    space, host_bytes, least = request["space"], request["host"], least_bytes(request)
    most = least * max(point[2] for point in points)
    shared = RateSweep(space, rates_at(request, points[0]), memory_bytes=most, host_bytes=host_bytes)
    out = []
    for point in points:
        rates, memory_bytes = rates_at(request, point), least * point[2]
        rows = Search(space, rates, memory_bytes=memory_bytes, host_bytes=host_bytes).run().top.rows
        alone = rows[0][2] if rows else None
        try:
            found = shared.best(rates, memory_bytes=memory_bytes)
        except NoFeasibleLayoutError:
            found = None
        if found != alone:
            out.append((seed, point, found, alone))
    return out


FACTOR = st.sampled_from((0.05, 0.3, 0.7, 1.0, 1.5, 4.0, 30.0))
MEMORY = st.sampled_from((0.9, 1.0, 1.2, 2.0, 8.0, 100.0))


@settings(max_examples=12, deadline=None)
@given(st.integers(0, 199), st.lists(st.tuples(FACTOR, FACTOR, MEMORY), min_size=2, max_size=4))
def test_what_one_search_finds_under_many_rates_is_what_each_finds_alone(seed: int, points: list[Point]) -> None:
    assert differing(seed, points) == []


CORNERS: list[Point] = [(1, 1, 8), (0.05, 1, 8), (30, 1, 8), (1, 0.05, 2), (1, 30, 1.2), (0.3, 0.3, 100)]


def test_bytes_that_are_too_many_are_seen(monkeypatch: pytest.MonkeyPatch) -> None:
    """Bounds of the bytes 10 % too high lose the best layout of some point."""
    honest = RateSweep._needed
    monkeypatch.setattr(RateSweep, "_needed", lambda search, level, columns: 1.1 * honest(search, level, columns))
    assert any(differing(seed, CORNERS) for seed in range(12))


def test_seconds_that_are_too_many_are_seen(monkeypatch: pytest.MonkeyPatch) -> None:
    honest = RateSweep._seconds

    def too_high(search: RateSweep, level: int, columns: Columns) -> tuple[Layouts, Array]:
        layouts, seconds = honest(search, level, columns)
        return layouts, seconds * (1.0 if level == 3 else 1.03)

    monkeypatch.setattr(RateSweep, "_seconds", too_high)
    assert any(differing(seed, CORNERS) for seed in range(40))
