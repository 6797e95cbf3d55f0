"""Lists hold the best layout of each family, whatever the size of the space: equal to brute force."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
from meshwright.cost_models.arrays import Array, Ints
from meshwright.planner.request.load import load_request
from meshwright.planner.request.resolve import resolve
from meshwright.planner.search import top_k
from meshwright.planner.search.dominance import dominated_recomputes
from meshwright.planner.search.exhaustive import Search
from meshwright.planner.search.run import search_of
from meshwright.planner.search.top_k import FAMILY, TopK
from meshwright.planner.space.tree import Columns

from .test_search_exact import drawn, search

SEEDS = range(60)
_honest = TopK.thresholds


def _of_list_only(self: TopK, columns: Columns, rows: Ints) -> Array:
    """The thresholds of a list without a window."""
    return _honest(replace(self, window=0.0), columns, rows)


def mismatch(seed: int) -> str | None:
    """What differs between the list of the search and the best of each family, if anything."""
    case = drawn(seed)
    if case is None:
        return None
    request, layouts, estimate, memory_bytes, fits = (
        case.request, case.layouts, case.estimate, case.memory_bytes, case.fits
    )  # fmt: skip
    value = estimate.device_bytes if case.space.problem.workload.objective == "memory" else estimate.step_s
    best: dict[tuple[int, ...], tuple[float, str]] = {}
    for row in np.flatnonzero(fits).tolist():
        family = tuple(int(layouts[name][row]) for name in FAMILY)
        known = best.get(family)
        if known is None or value[row] <= known[0] * (1 + 1e-8):
            offered = (float(f"{value[row]:.9g}"), str(layouts.layout(row)))
            best[family] = min(offered, known or offered)
    expected = sorted(best.values())[:3]
    outcome = search(request, memory_bytes, family=FAMILY)
    got = [(value, name) for value, name, _ in outcome.top.rows]
    if outcome.count.accounted != outcome.count.total or outcome.count.unvisited:
        return f"seed {seed}: counts {outcome.count}"
    return None if got == expected else f"seed {seed}: {got} {expected}"


def test_lists_the_best_of_each_family() -> None:
    assert [found for seed in SEEDS if (found := mismatch(seed))] == []


def unkept(seed: int, window: float = 0.05) -> str | None:
    """A layout within the window that the search does not keep, or the other way round; None where there is none."""
    case = drawn(seed)
    if case is None or not case.fits.any():
        return None
    value = case.estimate.device_bytes if case.space.problem.workload.objective == "memory" else case.estimate.step_s
    top = search(case.request, case.memory_bytes, family=FAMILY, window=window).top
    best = float(value[case.fits].min())
    near = np.flatnonzero(case.fits & (value <= best * (1 + top.kept_window) * (1 - 1e-8)))
    _, kept = top.kept
    names = {str(kept.layout(row)) for row in range(len(kept))}
    dominated = dominated_recomputes(case.space, case.rates)  # no search forms them
    expected = [layout for layout in map(case.layouts.layout, near.tolist())
                if (layout.recompute, layout.recompute_modules) not in dominated]  # fmt: skip
    missing = {str(layout) for layout in expected} - names
    return f"seed {seed}: {missing}" if missing or len(kept) > top_k.MOST_KEPT or top.kept_window > window else None


@pytest.mark.slow
def test_keeps_all_within_the_window() -> None:
    """Near twins of one family too."""
    assert [found for seed in SEEDS if (found := unkept(seed))] == []


def test_a_full_window_gets_narrower(monkeypatch: pytest.MonkeyPatch) -> None:
    """It keeps the best, and says within which share of the best it keeps all."""
    monkeypatch.setattr(top_k, "MOST_KEPT", 3)
    assert [found for seed in SEEDS[:30] if (found := unkept(seed))] == []


def test_a_window_that_is_not_searched_is_seen(monkeypatch: pytest.MonkeyPatch) -> None:
    """Pruned by the list alone, the search misses layouts that are slower than the list."""
    monkeypatch.setattr(TopK, "threshold", TopK._list_threshold)
    monkeypatch.setattr(TopK, "thresholds", _of_list_only)
    assert any(unkept(seed, window=0.5) for seed in SEEDS)


def test_a_threshold_too_low_is_seen(monkeypatch: pytest.MonkeyPatch) -> None:
    """Pruned 3 % below the best of its family, a better layout of some family is lost, and the check above says so."""
    honest = TopK.thresholds
    monkeypatch.setattr(Search, "first_rows", (1, 1, 1))  # the list is full before most nodes are looked at
    monkeypatch.setattr(TopK, "thresholds", lambda self, *rows: 0.97 * honest(self, *rows))
    assert any(mismatch(seed) for seed in SEEDS)


def test_no_space_is_too_large_for_families() -> None:
    """Above 10^9 layouts too."""
    resolved = resolve(load_request(None, {"model": "llama-3.1-8b", "cluster": "dgx-h100:192", "global_batch": 4608}))
    outcome = search_of(resolved, resolved.space, top=5, family=FAMILY).run()
    families = {tuple(getattr(layout, name) for name in FAMILY) for _, _, layout in outcome.top.rows}
    assert (len(families), len(outcome.top.rows)) == (5, 5)
    assert outcome.count.total > 10**9
