"""Bounds of meshes beyond a limit, which are taken without what depends on switches."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from meshwright.planner.request.load import load_request
from meshwright.planner.request.resolve import resolve
from meshwright.planner.search.mesh_bounds import MeshBounds
from meshwright.planner.space.counting import LayoutCounts
from meshwright.planner.space.tree import Count

REQUESTS: dict[str, dict[str, Any]] = {
    "dropless experts": {"model": "mixtral-8x7b", "cluster": "dgx-h100:2", "global_batch": 64, "target": "megatron"},
    "shared experts": {"model": "deepseek-v2-lite", "cluster": "dgx-h100:2", "global_batch": 64,
                       "target": "megatron-bridge"},
    "dense": {"model": "llama-3.1-8b", "cluster": "dgx-h100:2", "global_batch": 64, "target": "any"},
}  # fmt: skip


@pytest.mark.parametrize("name", REQUESTS)
def test_a_limit_lowers_only_bounds_beyond_it(name: str) -> None:
    resolved = resolve(load_request(None, {**REQUESTS[name], "seq_len": 4096}))
    meshes = resolved.space.meshes(Count())
    bounds = MeshBounds(LayoutCounts(resolved.space, meshes), resolved.rates)
    seconds, needed = bounds.bounds(meshes)
    for limit_s in np.quantile(seconds, [0.0, 0.1, 0.5, 1.0]).tolist():
        lower, same = bounds.bounds(meshes, limit_s=limit_s)
        equal = np.isclose(lower, seconds, rtol=1e-12, atol=0.0)  # products of other keys at once round otherwise
        assert (equal | (lower < seconds)).all()
        assert (equal | (lower > limit_s)).all()
        assert np.array_equal(same, needed)
