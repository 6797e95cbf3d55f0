"""The frontier of time and memory equals brute force; a bound that is too high is seen."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from meshwright.cost_models.layouts import parse
from meshwright.cost_models.quantities.tables import build, index_keys
from meshwright.planner.search.branching import Branching
from meshwright.planner.search.dominance import dominated_recomputes
from meshwright.planner.search.exhaustive import Search
from meshwright.planner.search.node_bounds import NodeBounds
from meshwright.planner.search.pareto import FrontierSearch, nine_digits
from meshwright.planner.space.counting import LayoutCounts
from meshwright.planner.space.tree import MESH_FIELDS, Count
from meshwright.profiles.stack.rates import rates_for

from .test_search_exact import MANY, drawn, random_request

SEEDS = range(120)


def traced(request: dict[str, Any], memory_bytes: float, **more: Any) -> Any:
    space = request["space"]
    rates = rates_for(request["cluster"], space.problem.stack, space.problem.workload.precision)
    return FrontierSearch(space, rates, memory_bytes=memory_bytes, host_bytes=request["host"], **more).trace()


def mismatch(seed: int) -> str | None:
    """What differs between the frontier and all layouts that none beats, if anything."""
    case = drawn(seed)
    if case is None:
        return None
    request, layouts, estimate, memory_bytes, fits = (
        case.request, case.layouts, case.estimate, case.memory_bytes, case.fits
    )  # fmt: skip
    dominated = dominated_recomputes(case.space, case.rates)
    rows = [
        (float(f"{estimate.step_s[row]:.9g}"), float(f"{estimate.device_bytes[row]:.9g}"), row)
        for row in np.flatnonzero(fits).tolist()
        if (int(layouts["recompute"][row]), int(layouts["recompute_modules"][row])) not in dominated
    ]
    expected: dict[tuple[float, float], str] = {}
    least = np.inf
    for seconds, num_bytes, row in sorted(rows):
        if num_bytes < least or (seconds, num_bytes) in expected:
            named = str(layouts.layout(row))
            expected[seconds, num_bytes] = min(named, expected.get((seconds, num_bytes), named))
            least = num_bytes
    found = traced(request, memory_bytes)
    got = {(seconds, num_bytes): name for seconds, num_bytes, name, _ in found.frontier.points}
    if found.count.accounted != found.count.total or found.count.unvisited:
        return f"seed {seed}: counts {found.count}"
    return None if got == expected else f"seed {seed}: {set(got.items()) ^ set(expected.items())}"


@pytest.mark.slow
def test_equals_brute_force() -> None:
    assert [found for seed in SEEDS if (found := mismatch(seed))] == []


def test_equals_brute_force_after_a_warm_start(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("meshwright.planner.search.exhaustive.WARM_START_FROM", 0)
    assert [found for seed in SEEDS[:40] if (found := mismatch(seed))] == []


def test_a_stopped_search_keeps_what_it_has_and_a_bound(monkeypatch: pytest.MonkeyPatch) -> None:
    """It stops at once where a member is known: in the plain part, or after the first meshes of the whole space."""
    request = random_request(MANY)
    whole = traced(request, np.inf)
    stopped = traced(request, np.inf, should_stop=lambda: True)
    assert stopped.stopped == "time limit"
    assert stopped.frontier.points
    assert 0 < stopped.lower_bound <= whole.lower_bound == whole.frontier.points[0][0]
    monkeypatch.setattr("meshwright.planner.search.exhaustive.WARM_START_FROM", 0)
    plain = traced(request, np.inf, should_stop=lambda: True)
    assert plain.stopped == "time limit"
    assert 0 <= plain.lower_bound <= whole.lower_bound
    assert plain.frontier.points


@pytest.mark.slow
@pytest.mark.parametrize("which", [0, 1])
def test_inadmissible_bound_is_seen(which: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """A bound of seconds, or of bytes, 3 % too high prunes a point of some frontier, and the check above says so."""
    honest = NodeBounds.of

    def too_high(*args: Any) -> Any:
        found = list(honest(*args))
        found[which] = found[which] * 1.03
        return tuple(found)

    monkeypatch.setattr(NodeBounds, "of", too_high)
    assert any(mismatch(seed) for seed in SEEDS)


def least_shares(kind: type[Search]) -> tuple[float, float]:
    """The smallest ratios of seconds and of bytes of a layout to the bounds of its recomputation in such a search."""
    least = np.full(2, np.inf)
    for case in filter(None, map(drawn, range(100, 112))):  # some of these requests move activations to the host
        search = kind(case.space, case.rates, memory_bytes=np.inf)
        meshes = case.space.meshes(Count())
        search.branching = Branching(LayoutCounts(case.space, meshes))
        at = {mesh: row for row, mesh in enumerate(zip(*(meshes[name].tolist() for name in MESH_FIELDS), strict=True))}
        rows = [at[mesh] for mesh in zip(*(case.layouts[name].tolist() for name in MESH_FIELDS), strict=True)]
        keys, index = index_keys(case.layouts)
        nodes = {**case.layouts, "_key": index, "_signature": search.branching.counts.signature[rows]}
        seconds, needed = search._bounds(build(case.space.problem, keys), nodes, 1)
        shares = case.estimate.step_s / seconds, case.estimate.device_bytes / needed
        least = np.minimum(least, [share.min() for share in shares])
    return float(least[0]), float(least[1])


def test_bytes_of_activations_that_stay_bound_no_others() -> None:
    """A search of seconds asks for copies to the host only where nothing fits without; a frontier needs both."""
    assert min(least_shares(FrontierSearch)) > 1 - 1e-9
    seconds, num_bytes = least_shares(Search)
    assert seconds > 1 - 1e-9
    assert num_bytes < 0.995


def test_rivals_elsewhere_beat_what_is_no_better() -> None:
    """Layouts of another space take what they beat from a frontier, and nothing else."""
    request = random_request(MANY)
    alone = traced(request, float("inf")).frontier.points
    seconds, num_bytes = alone[len(alone) // 2][:2]
    left = traced(request, float("inf"), rivals=[(seconds, num_bytes * 0.99)]).frontier.points
    assert left == [row for row in alone if not (row[0] >= seconds and row[1] >= num_bytes * 0.99)]
    assert 0 < len(left) < len(alone)


def test_a_frontier_that_was_cut_says_so() -> None:
    request = random_request(MANY)
    cut = traced(request, float("inf"), should_stop=lambda: True)
    assert (cut.stopped, cut.count.accounted) == ("time limit", cut.count.total)
    for _, _, name, layout in cut.frontier.points:
        assert parse(name) == layout


@given(st.lists(st.floats(1e-12, 1e18), min_size=1, max_size=8))
def test_nine_digits_keep_order(values: list[float]) -> None:
    """As `%.9g`, and no value passes another."""
    rounded = nine_digits(np.array(values))
    assert rounded.tolist() == pytest.approx([float(f"{value:.9g}") for value in values], rel=1.1e-9)
    assert (np.diff(rounded[np.argsort(values)]) >= 0).all()
