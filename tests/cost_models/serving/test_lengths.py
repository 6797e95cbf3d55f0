"""Distributions of lengths: moments, percentiles, pairs."""

from __future__ import annotations

import numpy as np
import pytest
from meshwright.cost_models.serving.lengths import Lengths, RequestLengths


def test_a_lognormal_distribution_has_its_moments_and_percentiles() -> None:
    """sigma^2 = ln(rms^2 / mean^2), median = mean exp(-sigma^2 / 2)."""
    found = Lengths.lognormal(1000, 1250)
    sigma = np.sqrt(2 * np.log(1.25))
    assert found.mean == pytest.approx(1000)
    assert np.sqrt(found.mean_square) == pytest.approx(1250, rel=0.01)
    median, p90 = found.at(np.array([0.5, 0.9]))
    assert median == pytest.approx(1000 * np.exp(-(sigma**2) / 2), rel=0.01)
    assert p90 == pytest.approx(median * np.exp(1.2816 * sigma), rel=0.01)


def test_a_histogram_is_counted_by_its_weights() -> None:
    found = Lengths.of({100: 3, 1000: 1})
    assert found.mean == 325
    assert found.mean_square == pytest.approx((3 * 100**2 + 1000**2) / 4)
    assert list(found.at(np.array([0.75, 0.76]))) == [100, 1000]
    assert found.strata(4) == pytest.approx([100, 100, 100, 1000])
    assert found.strata(2) == pytest.approx([100, 550])


def test_draws_have_the_moments() -> None:
    lengths = Lengths.lognormal(200, 310)
    drawn = lengths.draw(20_000, np.random.default_rng(0))
    assert drawn.mean() == pytest.approx(200, rel=0.03)
    assert np.sqrt((drawn**2).mean()) == pytest.approx(310, rel=0.05)


def test_pairs_of_independent_lengths_are_uncorrelated() -> None:
    prompt, answer = Lengths.lognormal(1000, 1250), Lengths.lognormal(200, 310)
    pairs = RequestLengths.independent(prompt, answer)
    assert pairs.prompt == pytest.approx(1000, rel=0.005)
    assert pairs.output == pytest.approx(200, rel=0.005)
    assert pairs.running_prompt == pytest.approx(1000, rel=0.02)
    assert pairs.running_output == pytest.approx(310**2 / 200, rel=0.03)


def test_of_the_requests_that_run_those_with_long_answers_are_more() -> None:
    """Two kinds in equal numbers, answers of 100 and of 300: three of four that decode are of the second."""
    pairs = RequestLengths(np.array([1000.0, 10.0]), np.array([100.0, 300.0]), np.full(2, 0.5))
    assert pairs.running_prompt == pytest.approx((1000 + 3 * 10) / 4)
    assert pairs.running_output == pytest.approx((100 + 3 * 300) / 4)


def test_equal_requests_are_one_pair() -> None:
    pairs = RequestLengths.independent(Lengths.constant(2000), Lengths.constant(300))
    assert (pairs.running_prompt, pairs.running_output, pairs.prompt_square) == (2000, 300, 2000**2)
    assert (pairs.arrival_scv, pairs.trace_rate) == (1, 0)
