"""Keys that differ in switches alone share their products and exchanges."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
from meshwright.cost_models.quantities.tables import build, index_keys
from meshwright.cost_models.rates.rates import layer_seconds
from meshwright.planner.request.load import load_request
from meshwright.planner.request.resolve import resolve
from meshwright.planner.space.tree import Count, select


@pytest.mark.parametrize("model", ["qwen3-30b-a3b", "llama-3.1-8b"])
def test_seconds_are_those_of_keys_priced_alone(model: str) -> None:
    fields = {"model": model, "cluster": "dgx-h100:2", "global_batch": 512, "target": "megatron"}
    resolved = resolve(load_request(None, fields))
    meshes = resolved.space.meshes(Count())
    few = np.random.default_rng(0).permutation(len(meshes["tp"]))[:2000]
    tables = build(resolved.problem, index_keys(select(meshes, few))[0])
    layers = [operations for operations in tables.operations if operations.gemms]
    assert all(operations.alike is not None and len(operations.alike[0]) < tables.num_keys for operations in layers)
    for operations in layers:
        shared = layer_seconds(operations, resolved.rates, tables.num_keys)
        alone = layer_seconds(replace(operations, alike=None), resolved.rates, tables.num_keys)
        for name in ("forward", "backward", "weight"):
            np.testing.assert_array_equal(getattr(shared, name), getattr(alone, name))
        assert shared.recompute_by_tag.keys() == alone.recompute_by_tag.keys()
        for tag, seconds in alone.recompute_by_tag.items():
            np.testing.assert_array_equal(shared.recompute_by_tag[tag], seconds)
