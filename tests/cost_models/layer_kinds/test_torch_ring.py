"""Context parallelism of torch: what travels, and what eager kernels move to merge parts."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from meshwright.cost_models.layouts import Layouts, parse
from meshwright.cost_models.quantities.layer_operations import decoder_layer
from meshwright.cost_models.quantities.operation_builder import Builder
from meshwright.cost_models.quantities.operations import LayerOperations
from meshwright.cost_models.quantities.shards import Shard
from meshwright.cost_models.specs.workload import Workload
from meshwright.profiles.model.load import load_model
from meshwright.profiles.stack.load import load_stack

TOKENS, HIDDEN, KV = 16384, 4096, 2 * 1024  # of llama-3.1-8b; elements of keys and values per token


def operations(layout: str, **changes: Any) -> LayerOperations:
    model, workload = load_model("llama-3.1-8b")[0], Workload(seq_len=TOKENS, global_batch=8)
    stack = replace(load_stack("torchtitan"), **changes)
    shard = Shard.of(Layouts.of([parse(layout)]), model, workload)
    return decoder_layer(Builder(model, workload, stack, shard), model.kinds[0])


def sent(ops: LayerOperations) -> dict[tuple[str, float, float], float]:
    """(collective, calls forward, calls backward) -> bytes of a call."""
    found = ((e, float(e.num_bytes[0])) for e in ops.exchanges if e.axis == "cp")
    return {(e.op, float(np.max(e.forward_calls)), float(np.max(e.backward_calls))): num_bytes
            for e, num_bytes in found if num_bytes > 0}  # fmt: skip


def moved(ops: LayerOperations, name: str) -> tuple[float, float]:
    return next((float(t.forward_bytes[0]), float(t.backward_bytes[0])) for t in ops.traffic if t.name == name)


@pytest.mark.parametrize("heads", [1, 4])
def test_gradients_of_keys_go_round_in_fp32_whatever_brings_the_keys(heads: int) -> None:
    """Copied for every query head, four times as many keys and values travel."""
    kv = heads * KV * TOKENS / 4
    for layout, keys in (("cp4r-dp2-mbs1-z3-rfull", {("p2p", 3.0, 3.0): 2 * kv}),
                         ("cp4g-dp2-mbs1-z3-rfull", {("all_gather", 1.0, 1.0): 4 * 2 * kv})):  # fmt: skip
        assert sent(operations(layout, repeats_keys=heads > 1)) == {**keys, ("p2p", 0.0, 4.0): 4 * kv}


def test_merging_parts_moves_fp32_copies() -> None:
    """Of 4 ranks 3 parts are merged, 34 bytes an element beside casts of 5 in all; sums of 3 tensors in 4 parts."""
    own, kv = TOKENS / 4 * HIDDEN, TOKENS / 4 * KV
    forward, backward = moved(operations("cp4g-dp2-mbs1-z3-rfull"), "merged parts")
    buffer = 4 * kv * 3
    assert forward == pytest.approx(buffer + (34 * 3 + 6 * 5) * own)
    assert backward == pytest.approx(buffer + 10 * 5 * (own + kv) + 8 * 4 * kv)
    assert not any(t.name == "merged parts" for t in operations("dp8-mbs1-z3-rfull").traffic)
    assert not any(t.name == "merged parts" for t in operations("cp4g-dp2-mbs1-z3-rfull", rings_in_torch=False).traffic)


def test_keys_and_values_are_copied_for_every_query_head() -> None:
    """Read 8 heads and written 32, of keys and of values; backward their gradients, and both again."""
    forward, backward = moved(operations("dp8-mbs1-z3-rfull", repeats_keys=True), "keys and values repeated")
    assert forward == 2 * TOKENS * 2 * 128 * (8 + 32)
    assert backward == 2 * forward
    assert load_stack("torchtitan-2024").repeats_keys
    assert not load_stack("torchtitan").repeats_keys
