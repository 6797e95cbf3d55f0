"""Exchanges of heads that are not a rank's own under tensor parallelism, and of a prediction's projection, by hand."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
from meshwright.cost_models.arrays import Array
from meshwright.cost_models.layer_kinds.attention import add_attention
from meshwright.cost_models.layouts import Layout, Layouts
from meshwright.cost_models.problem import Problem
from meshwright.cost_models.quantities.edge_operations import mtp
from meshwright.cost_models.quantities.operation_builder import Builder
from meshwright.cost_models.quantities.operations import LayerOperations
from meshwright.cost_models.quantities.shards import KEY_FIELDS, Shard
from meshwright.cost_models.quantities.stages import MTP
from meshwright.cost_models.quantities.tables import build
from meshwright.cost_models.specs.model import ModelSpec
from meshwright.cost_models.specs.workload import Workload
from meshwright.profiles.model.load import load_model
from meshwright.profiles.stack.load import load_stack

LLAMA = load_model("llama-3.1-8b")[0]  # 32 heads of 128, 8 for keys and values
WORKLOAD = Workload(seq_len=4096, global_batch=64)
MEGATRON, GENERIC = load_stack("megatron-core"), load_stack("generic")


def builder(stack: str, model: ModelSpec, *layouts: Layout) -> Builder:
    keys = {name: np.asarray(Layouts.of(layouts)[name]) for name in KEY_FIELDS}
    return Builder(model, WORKLOAD, load_stack(stack), Shard.of(keys, model, WORKLOAD))


def of_tp(*degrees: int, sequence_parallel: int = 1) -> list[Layout]:
    return [Layout(tp=tp, sequence_parallel=sequence_parallel * (tp > 1)) for tp in degrees]


def attention(stack: str, *layouts: Layout) -> LayerOperations:
    ops = LayerOperations(name="layer")
    spec = LLAMA.kinds[0].attention
    assert spec is not None
    add_attention(builder(stack, LLAMA, *layouts), ops, spec)
    return ops


def calls(ops: LayerOperations, place: int) -> list[tuple[str, float, float, float]]:
    """Collectives of a layout: operation, bytes, calls forward and backward."""

    def at(part: Array | float) -> float:
        return float(np.broadcast_to(part, ops.exchanges[0].size.shape)[place])

    every = [(each.op, at(each.num_bytes), at(each.forward_calls), at(each.backward_calls)) for each in ops.exchanges]
    return [(op, num_bytes, forward, backward) for op, num_bytes, forward, backward in every
            if num_bytes > 0 and forward + backward > 0]  # fmt: skip


def test_more_ranks_than_key_value_heads_gather_parts_of_all_projections() -> None:
    """Over tp 16 Megatron's rank makes a 16th of 48 heads, of 4,096 tokens; others make two heads and those of one key
    and one value each."""
    ops = attention("megatron-core", *of_tp(8, 16, 32))
    outputs = next(gemm.n for gemm in ops.gemms if gemm.name == "qkv")
    assert outputs.tolist() == [(4 + 2) * 128, 48 * 128 / 16, 48 * 128 / 32]
    whole = 2 * 4096 * 48 * 128
    assert [calls(ops, place) for place in range(3)] == [
        [], *[[("all_gather", whole, 1, 0), ("reduce_scatter", whole, 0, 1)]] * 2]  # fmt: skip
    joined = next(part for part in ops.traffic if part.name == "projections joined")
    assert joined.backward_bytes.tolist() == [0, 3 * whole, 3 * whole]
    others = attention("generic", *of_tp(16))
    assert next(gemm.n for gemm in others.gemms if gemm.name == "qkv").tolist() == [(2 + 2) * 128]
    assert not calls(others, 0)


@pytest.mark.parametrize(("sequence_parallel", "expected"), [
    (1, [("all_gather", 4, 1, 1), ("reduce_scatter", 4, 0, 1), ("all_gather", 2, 1, 1)]),
    (0, [("all_reduce", 4, 0, 1), ("all_gather", 2, 1, 0)]),
])  # fmt: skip
def test_a_projection_of_predictions_is_split(
    sequence_parallel: int, expected: list[tuple[str, float, float, float]]
) -> None:
    """2h -> h of 4,096 tokens over tp 4: a quarter of the outputs on each rank, gathered; beside the head's calls."""
    model = load_model("deepseek-v3")[0]
    h, layouts = model.hidden, of_tp(1, 4, sequence_parallel=sequence_parallel)
    split, whole = (mtp(builder(stack, model, *layouts)) for stack in ("megatron-core", "generic"))
    product = next(gemm for gemm in split.gemms if gemm.name == "mtp projection")
    assert (product.m.tolist(), product.n.tolist(), product.k[0]) == ([4096, 4096], [h, h / 4], 2 * h)
    added = calls(split, 1)
    for each in calls(whole, 1):
        added.remove(each)
    assert added == [(op, width * h * 4096, *number) for op, width, *number in expected]
    assert not calls(split, 0)


def test_ranks_hold_their_part_of_that_projection() -> None:
    model = load_model("deepseek-v3")[0]
    h, keys = model.hidden, {name: np.asarray(Layouts.of(of_tp(1, 8))[name]) for name in KEY_FIELDS}
    held = [build(Problem(model, WORKLOAD, stack, 8, 8), keys).parameters["dense"][MTP].tolist()
            for stack in (MEGATRON, GENERIC)]  # fmt: skip
    assert held == [[2 * h * h + 3 * h, 2 * h * h / 8 + 3 * h], [2 * h * h + 3 * h] * 2]


def test_muon_updates_the_part_that_a_rank_holds() -> None:
    model = load_model("deepseek-v3")[0]
    work = replace(WORKLOAD, optimizer="muon")
    for stack in (MEGATRON, GENERIC):
        (projection,) = (matrix for matrix in Problem(model, work, stack, 8, 8).matrices
                         if matrix.parts == ((model.hidden, 2 * model.hidden),))  # fmt: skip
        assert projection.split == stack.splits_mtp_projection
