"""Keys that differ in switches alone share their products and exchanges."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from meshwright.cost_models.layouts import Layouts, parse
from meshwright.cost_models.quantities.tables import build, index_keys
from meshwright.cost_models.rates.layer_seconds import COMPONENTS, layer_seconds
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


@pytest.mark.parametrize(("algorithm", "hides"), [("r", True), ("g", True), ("u", False)])
def test_messages_that_swap_heads_hide_unless_they_block(algorithm: str, hides: bool) -> None:
    """The stack `meshwright` hides the exchange of keys and values, not all-to-alls over cp."""
    resolved = resolve(load_request(None, {"model": "llama-3.1-8b", "cluster": "dgx-h100:1", "global_batch": 8,
                                           "target": "meshwright"}))  # fmt: skip
    tables = build(resolved.problem, index_keys(Layouts.of([parse(f"cp8{algorithm}-dp1-mbs1-z1-rnone")]))[0])
    operations = next(each for each in tables.operations if each.cores)

    def exchanged_s(**changes: Any) -> float:
        stack = replace(resolved.rates.stack, **changes)
        seconds = layer_seconds(operations, replace(resolved.rates, stack=stack), tables.num_keys)
        return float(seconds.forward[COMPONENTS.index("cp")].item())

    hidden = exchanged_s(cp_overlap=0.0) - exchanged_s()
    assert (hidden > 0) == hides
    assert exchanged_s(blocking_heads=False) < exchanged_s(cp_overlap=0.0)
