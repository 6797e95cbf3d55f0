"""Connected parts and spanning trees, beside scipy's."""

from __future__ import annotations

import numpy as np
import pytest
from meshwright.planner.placement.graphs import connected_parts, spanning_tree
from scipy.sparse.csgraph import connected_components, minimum_spanning_tree


@pytest.mark.parametrize("size", [1, 2, 7, 40, 200])
@pytest.mark.parametrize("seed", range(4))
def test_they_are_those_of_scipy(size: int, seed: int) -> None:
    draw = np.random.default_rng(seed)
    joined = draw.random((size, size)) < 1.0 / size
    count, parts = connected_components(joined)
    found = connected_parts(joined)
    assert found.max() + 1 == count
    assert ((found[:, None] == found) == (parts[:, None] == parts)).all()
    weights = draw.choice([1.0, 1.5, 2.25, 7.0], (size, size)) * draw.choice([1.0, 1.1], (size, size))
    np.fill_diagonal(weights, 0.0)
    assert (np.sort(spanning_tree(weights)) == np.sort(minimum_spanning_tree(weights).data)).all()
