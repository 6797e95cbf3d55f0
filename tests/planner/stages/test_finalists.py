"""The finalists of `--stages own` against all layouts in all splits; the best is not among the closed form's three."""

from __future__ import annotations

from functools import cache
from typing import Any

import numpy as np
import pytest
from meshwright.cost_models.layouts import Layout
from meshwright.cost_models.step import lower_bounds
from meshwright.planner.evaluation.staged import Staged
from meshwright.planner.request.resolve import Resolved
from meshwright.planner.stages import finalists
from meshwright.planner.stages.finalists import Finalists
from meshwright.planner.stages.problem import GAP

from ..search.test_search_exact import everything
from .test_partition import all_partitions, model, request

FIXED = {"micro_batch": 1, "recompute": "none", "offload": "none", "cp": 1, "dp": 1,
         "sequence_parallel": False}  # fmt: skip


@cache
def small_space() -> tuple[Resolved, list[Layout], float, Layout]:
    """A request; its layouts, the best by the closed form first; the least step of any split, and whose it is."""
    resolved = request(model(6, vocab=64000), 4, 8, fix=FIXED)
    formed = everything(resolved.space)
    assert formed is not None
    even = [Staged.of(resolved, formed.layout(row), simulate=True) for row in range(len(formed))]
    steps = [min(one.split(part).step_s for part in all_partitions(resolved, one.layout, False)) for one in even]
    best = int(np.argmin(steps))
    ranked = sorted(even, key=lambda one: one.closed_s)
    return resolved, [one.layout for one in ranked], steps[best], even[best].layout


def run(number: int) -> Finalists:
    found, ranked, _, _ = small_space()
    return Finalists(found, lambda: np.inf).run(ranked[:number], split=True)


def test_the_best_is_found_from_far_behind() -> None:
    _, ranked, least_s, best = small_space()
    assert ranked.index(best) >= 3
    found = run(3)
    assert found.step_s == pytest.approx(least_s, rel=2 * GAP)
    assert found.lower_bound_s <= least_s * (1 + 1e-9)
    assert found.lower_bound_s >= least_s * 0.9


def test_one_finalist_too_few_is_seen(monkeypatch: pytest.MonkeyPatch) -> None:
    """Without the proof the three lose the best layout; the bound still covers it."""
    _, ranked, least_s, best = small_space()
    monkeypatch.setattr(finalists, "REAL_CHUNKS", 0)
    few = run(3)
    assert few.step_s > least_s * (1 + 2 * GAP)
    assert few.lower_bound_s <= least_s
    monkeypatch.setattr(finalists, "SPLIT", len(ranked))  # every finalist gets its best stages
    assert run(ranked.index(best)).step_s > least_s * (1 + 2 * GAP)
    assert run(ranked.index(best) + 1).step_s == pytest.approx(least_s, rel=2 * GAP)


def test_an_inadmissible_bound_is_seen(monkeypatch: pytest.MonkeyPatch) -> None:
    """A bound of splits that is too high prunes the best layout, and the certificate would be wrong."""
    honest = lower_bounds.bound

    def too_high(*arguments: Any, any_split: bool = False, **options: Any) -> Any:
        seconds, needed = honest(*arguments, any_split=any_split, **options)
        return seconds * (1.5 if any_split else 1.0), needed

    monkeypatch.setattr(lower_bounds, "bound", too_high)
    found, least_s = run(3), small_space()[2]
    assert found.step_s > least_s * (1 + 2 * GAP)
    assert found.lower_bound_s > least_s
