"""The costs that FlexSP published give the static steps that it measured on Wikipedia."""

from __future__ import annotations

import numpy as np
from meshwright.planner.batches import one_degree
from meshwright.planner.batches.draws import draw
from meshwright.planner.batches.published_costs import flexsp_costs
from meshwright.planner.request.lengths import parse_lengths

# DeepSpeed, arXiv:2412.01523: heights of bars in figs/main-result.jpg of AFDWang/Hetu-Galvatron, branch flexsp.
MEASURED_S = {("gpt-6.7b", 192): 8.07, ("gpt-6.7b", 384): 8.19, ("gpt-13b", 192): 13.48, ("gpt-13b", 384): 14.55}
DEGREES = {192: 32, 384: 64}


def static(model: str, length_k: int) -> tuple[int, float]:
    """The least degree that holds the longest of 30 batches of Wikipedia, and its mean step, seconds."""
    costs = flexsp_costs(model, length_k)
    lengths = tuple(pair for pair in parse_lengths("wikipedia").items() if pair[0] <= length_k * 1024)
    batches = [np.ceil(drawn / 128) * 128 for drawn in draw(lengths, 512, 30)]
    degree = one_degree.least_degree(max(float(batch.max()) for batch in batches), costs)
    plans = [one_degree.with_degree(batch, costs, degree) for batch in batches]
    return degree, float(np.mean([plan.step_s for plan in plans if plan is not None]))


def test_static_steps_are_near_the_measured_ones() -> None:
    found = {cell: static(*cell) for cell in MEASURED_S}
    assert {cell: degree for cell, (degree, _) in found.items()} == {cell: DEGREES[cell[1]] for cell in MEASURED_S}
    errors = [abs(step_s / MEASURED_S[cell] - 1) for cell, (_, step_s) in found.items()]
    assert max(errors) <= 0.30
    assert sum(errors) / len(errors) <= 0.16
