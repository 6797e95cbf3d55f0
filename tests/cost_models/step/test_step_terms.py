"""What a layer and a step are made of, restated by hand on small cases."""

from __future__ import annotations

import math
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from meshwright.cost_models.layouts import OFFLOADS, Layout, Layouts, parse
from meshwright.cost_models.problem import Problem
from meshwright.cost_models.quantities import edge_operations
from meshwright.cost_models.quantities.activations import Activations
from meshwright.cost_models.quantities.gradients import reductions
from meshwright.cost_models.quantities.layer_operations import decoder_layer
from meshwright.cost_models.quantities.ledger import Ledger
from meshwright.cost_models.quantities.lengths import imbalance
from meshwright.cost_models.quantities.operation_builder import Builder
from meshwright.cost_models.quantities.operations import LayerOperations
from meshwright.cost_models.quantities.params import total_parameters
from meshwright.cost_models.quantities.shards import KEY_FIELDS, Shard
from meshwright.cost_models.quantities.tables import operations as operations_of_tables
from meshwright.cost_models.rates import collectives
from meshwright.cost_models.rates import layer_seconds as pricing
from meshwright.cost_models.rates.layer_seconds import LayerSeconds, layer_seconds
from meshwright.cost_models.rates.rates import Rates
from meshwright.cost_models.rates.surfaces import gemm_seconds
from meshwright.cost_models.specs.model import ModelSpec
from meshwright.cost_models.specs.stack import StackSpec
from meshwright.cost_models.specs.workload import Precision, Workload
from meshwright.cost_models.step import stage_messages, step
from meshwright.planner import api
from meshwright.planner.request.load import request_from_dict
from meshwright.planner.request.resolve import resolve
from meshwright.planner.search.pricing import price_layouts
from meshwright.profiles.cluster.load import load_cluster
from meshwright.profiles.model.load import load_model
from meshwright.profiles.stack.load import load_stack
from meshwright.profiles.stack.rates import rates_for

from meshwright.errors import InputError

MIXTRAL, LLAMA = load_model("mixtral-8x7b")[0], load_model("llama-3.1-8b")[0]


def stack_of(**changed: Any) -> StackSpec:
    return replace(load_stack("generic"), **changed)


def operations(model: ModelSpec, stack: StackSpec, layout: Layout, precision: Precision = "bf16") -> LayerOperations:
    """The decoder layer of `model` under `layout`."""
    keys = {name: np.asarray(Layouts.of([layout])[name]) for name in KEY_FIELDS}
    workload = Workload(seq_len=4096, global_batch=64, precision=precision)
    return decoder_layer(Builder(model, workload, stack, Shard.of(keys, model, workload)), model.kinds[-1])


def priced(ops: LayerOperations, stack: StackSpec, precision: Precision = "bf16", **changed: Any) -> LayerSeconds:
    rates: Rates = rates_for(load_cluster("dgx-h100:2"), stack, precision)
    return layer_seconds(ops, replace(rates, **changed), 1)


def step_of(
    model: ModelSpec, stack: StackSpec, layout: Layout, batch: int = 64, precision: Precision = "bf16",
    cluster: str = "dgx-h100:2",
) -> tuple[dict[str, float], Ledger, Rates]:  # fmt: skip
    """Terms of the step of one layout, seconds; its ledger and rates."""
    spec = load_cluster(cluster)
    workload = Workload(seq_len=4096, global_batch=batch, precision=precision)
    problem = Problem(model, workload, stack, layout.num_gpus, spec.gpus_per_node)
    rates = rates_for(spec, stack, precision)
    ledger, _ = price_layouts(problem, rates, Layouts.of([layout]))
    return {name: float(term[0]) for name, term in step.price(ledger, rates).terms.items()}, ledger, rates


# --- launches ---------------------------------------------------------------------------------------------------------


def test_kernels_of_a_layer() -> None:
    """Dense: 21; fp8 adds three per product of quantised operands; collectives are launched too (two of each block with
    sequence parallelism, else one). Experts add a block, and two launches each."""
    stack = stack_of(kernels_per_layer=21, kernels_per_expert_block=110, kernels_per_expert=2, kernels_per_cast=3)
    assert np.all(operations(LLAMA, stack, Layout()).kernels == 21)
    assert np.all(operations(LLAMA, stack, Layout(), "fp8").kernels == 21 + 3 * 4)  # qkv, out, up and gate, down
    assert np.all(operations(LLAMA, stack, Layout(tp=2, sequence_parallel=1)).kernels == 21 + 2 * 2)
    assert np.all(operations(LLAMA, stack, Layout(tp=2)).kernels == 21 + 2)
    two = Layout(dp=4, shard=4, ep=4)  # 8 experts over 4 ranks; the router stays in bf16
    assert np.all(operations(MIXTRAL, stack, two).kernels == 21 + 110 + 2 * 2)
    assert np.all(operations(MIXTRAL, stack, two, "fp8").kernels == 21 + 110 + 2 * 2 + 3 * (2 + 2 * 2))


def test_host_and_device_overlap_unless_the_host_waits() -> None:
    """Soft maximum with exponent 3 of host and device time; a dropless dispatch adds them in the forward pass."""
    layout = Layout(dp=4, shard=4, ep=4)
    for dropless in (False, True):
        stack = stack_of(host_s_per_kernel=50e-6, dropless=dropless)
        ops = operations(MIXTRAL, stack, layout)
        found = priced(ops, stack)
        host_s = 50e-6 * float(np.max(ops.kernels))
        free = priced(ops, replace(stack, host_s_per_kernel=0.0))
        forward, backward = (float(part.sum()) for part in (free.forward, free.backward))
        assert 0.2 < host_s / forward < 5  # both matter
        soft = (forward**3 + host_s**3) ** (1 / 3)
        assert float(found.forward.sum()) == pytest.approx(forward + host_s if dropless else soft, rel=1e-12)
        assert float(found.backward.sum()) == pytest.approx((backward**3 + (2 * host_s) ** 3) ** (1 / 3), rel=1e-12)
        assert float(found.forward[pricing.COMPONENTS.index("host")].sum()) > 0


# --- kernels that do one step each ------------------------------------------------------------------------------------

TOKENS = 4096.0
# Values that every kernel reads and writes per one of the hidden states: (in bf16, in fp32).
NORM = [(1, 1), (0, 2), (0, 1), (0, 2), (1, 1), (2, 0)]  # cast, square, mean, scale, cast back, weights
NORM_BACKWARD = [(6, 0), (1, 1), (0, 6), (0, 1), (0, 7), (0, 3), (1, 1)]


@pytest.mark.parametrize(
    ("name", "field", "per_token", "forward", "backward"),
    [
        ("norms", "fused_norms", 2 * LLAMA.hidden, NORM, NORM_BACKWARD),  # two of each layer
        ("positions", "fused_positions", (32 + 8) * 128, [(1, 1), (0, 2), (1, 1)], [(1, 1), (0, 2), (1, 1)]),
        ("activation", "fused_activation", 14336, [(2, 0), (3, 0)], [(3, 0), (3, 0), (3, 0)]),
    ],
)
def test_what_separate_kernels_move(
    name: str, field: str, per_token: int, forward: list[tuple[int, int]], backward: list[tuple[int, int]]
) -> None:
    """What is counted kernel by kernel is not raised by what an eager stack moves over fused ones."""
    found = {fused: next(t for t in operations(LLAMA, stack_of(**{field: fused}), Layout()).traffic if t.name == name)
             for fused in (True, False)}  # fmt: skip
    values = TOKENS * per_token
    assert found[False].forward_bytes[0] == values * sum(2 * half + 4 * single for half, single in forward)
    assert found[False].backward_bytes[0] == values * sum(2 * half + 4 * single for half, single in backward)
    assert found[True].fusable
    assert not found[False].fusable
    assert found[False].forward_bytes[0] > found[True].forward_bytes[0]


def test_what_is_fp32_already_is_not_cast() -> None:
    """Then the passes to fp32 and back are gone: of a norm 28 and 92 bytes are left, of a position 8."""
    stack = stack_of(fused_norms=False, fused_positions=False)
    found = {t.name: t for t in operations(LLAMA, stack, Layout(), "fp32").traffic}
    for name, per_token, forward, backward in (("norms", 2 * LLAMA.hidden, 28, 92), ("positions", 40 * 128, 8, 8)):
        assert found[name].forward_bytes[0] == TOKENS * per_token * forward
        assert found[name].backward_bytes[0] == TOKENS * per_token * backward


def test_layer_norms_are_one_kernel() -> None:
    gpt = load_model("gpt-175b")[0]
    eager, fused = (operations(gpt, stack_of(fused_norms=flag), Layout()) for flag in (False, True))
    assert [t.forward_bytes[0] for t in eager.traffic] == [t.forward_bytes[0] for t in fused.traffic]
    assert [s.num_bytes[0] for s in eager.saved] == [s.num_bytes[0] for s in fused.saved]


def test_separate_kernels_keep_what_is_between_them() -> None:
    """A norm its input in fp32 and what its weights multiply, in place of its input; gate and product the activation.
    Recomputing norms or activations drops them."""
    def kept(**fields: bool) -> float:
        return float(sum(each.num_bytes[0] for each in operations(LLAMA, stack_of(**fields), Layout()).saved))

    assert kept(fused_norms=False) - kept() == 2 * (4 + 2 - 2) * TOKENS * LLAMA.hidden
    assert kept(fused_activation=False) - kept() == 2 * TOKENS * 14336
    between = [each for each in operations(LLAMA, stack_of(fused_norms=False, fused_activation=False), Layout()).saved
               if each.name.endswith("norm steps") or each.name == "activation of the gate"]  # fmt: skip
    assert len(between) == 3
    assert all(each.tag for each in between)


# --- once per micro-batch, once per step ------------------------------------------------------------------------------


def test_a_mean_number_of_tokens_is_no_alignment() -> None:
    """Products of experts take time in proportion to their tokens: no operand of a weight gradient lies along them."""
    layout = Layout(dp=8, shard=8, ep=8)

    def matmul(imbalance: float) -> float:
        stack = stack_of(moe_imbalance=imbalance)
        return float(priced(operations(MIXTRAL, stack, layout), stack).backward[0, 0])

    assert matmul(1.0) < matmul(1.1) < 1.1 * matmul(1.0)


def test_gradient_accumulation_by_hand() -> None:
    """Per micro-batch: the fp32 sum is read and written; a product that cannot add writes bf16, which is read again."""
    params = total_parameters(LLAMA)
    for fused, num_bytes in ((True, 2 * 4), (False, 2 * 4 + 2 * 2)):
        stack = stack_of(fused_accumulation=fused, gradient_bytes=4)
        terms, _, rates = step_of(LLAMA, stack, Layout(dp=8, shard=8, zero=1), batch=64)
        assert terms["accumulate"] == pytest.approx(8 * params * num_bytes / rates.memory_bw_bytes_per_s, rel=1e-9)
        terms, _, _ = step_of(LLAMA, stack, Layout(dp=8, shard=8, zero=1), batch=8)
        assert terms["accumulate"] == 0  # one micro-batch: nothing to add to
    sharded, _, rates = step_of(LLAMA, stack, Layout(dp=8, shard=8, zero=3), batch=64)
    assert sharded["accumulate"] == pytest.approx(8 * params / 8 * 8 / rates.memory_bw_bytes_per_s, rel=1e-9)


def test_optimizer_by_hand() -> None:
    """Adam on a rank's eighth: gradient 4, moments and main weight 12 read and written, weight 2, and what is extra."""
    params = total_parameters(LLAMA)
    for extra in (0.0, 64.0):
        stack = stack_of(optimizer_extra_bytes=extra, gradient_bytes=4)
        terms, _, rates = step_of(LLAMA, stack, Layout(dp=8, shard=8, zero=1))
        moved = params / 8 * (4 + 2 * 12 + 2 + extra)
        assert terms["optimizer"] == pytest.approx(moved / rates.memory_bw_bytes_per_s, rel=1e-9)


def test_parts_of_a_model_are_reduced_by_themselves() -> None:
    """34 parts: 32 layers and both ends. Under tp the norms of 33 go apart, and are summed over tp as well."""
    (buckets, ledger, rates), (parts, _, _) = (
        step_of(LLAMA, stack_of(reduces=how, dp_overlap=0.0), Layout(dp=16)) for how in ("buckets", "parts")
    )
    num_bytes, calls = 4 * total_parameters(LLAMA), float(reductions(ledger)[0][0])
    assert calls == math.ceil(total_parameters(LLAMA) / 40e6)

    def seconds(group: int, stride: int, calls: float, num_bytes: float) -> float:
        curve = collectives.curve(rates.collectives, rates.levels, "all_reduce", group, stride)
        return calls * float(collectives.seconds(curve, num_bytes / calls)[0])

    assert buckets["dp"] == pytest.approx(seconds(16, 1, calls, num_bytes), rel=1e-9)
    assert parts["dp"] == pytest.approx(seconds(16, 1, 34, num_bytes), rel=1e-9)
    stack, norms = stack_of(reduces="parts", dp_overlap=0.0), 65 * 4096
    under_tp = step_of(LLAMA, stack, Layout(tp=2, sequence_parallel=1, dp=8))[0]["dp"]
    own = (total_parameters(LLAMA) - norms) / 2 + norms
    expected = seconds(8, 2, 34 + 33, 4 * own) + seconds(2, 1, 33, 4 * norms)
    assert under_tp == pytest.approx(expected, rel=1e-9)
    alone = step_of(LLAMA, stack, Layout(tp=2, sequence_parallel=1))[0]["dp"]
    assert alone == pytest.approx(seconds(2, 1, 33, 4 * norms), rel=1e-9)


def test_numbers_that_all_ranks_sum_up() -> None:
    """The norm of the gradient and the loss: eight bytes over all ranks, whatever the layout, one after the other."""
    for layout in (Layout(dp=16), Layout(dp=2, pp=8)):
        none, two = (step_of(LLAMA, stack_of(step_reductions=n), layout)[0]["optimizer"] for n in (0, 2))
        rates = step_of(LLAMA, stack_of(), layout)[2]
        curve = collectives.curve(rates.collectives, rates.levels, "all_reduce", 16, 1)
        assert two - none == pytest.approx(2 * float(collectives.seconds(curve, 8.0)[0]), rel=1e-6)


def test_updated_weights_are_gathered_or_broadcast() -> None:
    """16 ranks broadcast a sixteenth each, one after the other: as many starts, and hops along both nodes each time."""
    layout = Layout(dp=16, shard=16, zero=1)
    found = {}
    for how in ("all_gather", "broadcasts"):
        stack = stack_of(dp_gather=how, dp_overlap=1.0, dp_gather_overlap=0.0, contention=0.0)
        terms, ledger, rates = step_of(LLAMA, stack, layout, batch=64)
        found[how] = terms["dp"]
        curve = collectives.curve(rates.collectives, rates.levels, "broadcast", 16, 1)
        each = collectives.seconds(curve, total_parameters(LLAMA) * 2 / 16)
    assert found["broadcasts"] == pytest.approx(float(16 * each[0]), rel=1e-9)
    gather = collectives.curve(rates.collectives, rates.levels, "all_gather", 16, 1)
    buckets = float(reductions(ledger)[0][0])
    expected = buckets * collectives.seconds(gather, total_parameters(LLAMA) * 2 / buckets)
    assert found["all_gather"] == pytest.approx(float(expected[0]), rel=1e-9)
    hidden = stack_of(dp_overlap=1.0, dp_gather_overlap=1.0, contention=0.0)
    assert step_of(LLAMA, hidden, layout, batch=1024)[0]["dp"] < 0.2 * found["all_gather"]


def test_fp8_weights_are_quantised_once_per_step() -> None:
    """Activations (inputs of the products) at every pass; weights too, or by the optimizer where they are kept."""
    layout, tokens, h, f, kv = Layout(dp=8, shard=8, zero=1), 4096, 4096, 14336, 1024
    weights = (h + 2 * kv) * h + h * h + 3 * h * f  # qkv, out, gate and up, down
    inputs, outputs = tokens * (3 * h + f), tokens * (2 * h + 2 * kv + 2 * f + h)
    for caches in (True, False):
        stack = stack_of(cast_bytes=6.0, caches_fp8_weights=caches)
        casts = [t for t in operations(LLAMA, stack, layout, "fp8").traffic if t.name.startswith("casts")]
        assert sum(float(t.forward_bytes[0]) for t in casts) == 6 * (inputs + (0 if caches else weights))
        assert sum(float(t.backward_bytes[0]) for t in casts) == 6 * outputs
    kept, every = (
        step_of(LLAMA, stack_of(cast_bytes=6.0, caches_fp8_weights=caches), layout, precision="fp8")
        for caches in (True, False)
    )
    more = (kept[0]["optimizer"] - every[0]["optimizer"]) * kept[2].memory_bw_bytes_per_s
    assert more == pytest.approx(6 * 32 * (weights + 2 * h), rel=1e-9)  # with the two norms of each layer
    bf16 = [step_of(LLAMA, stack_of(caches_fp8_weights=caches), layout)[0]["optimizer"] for caches in (True, False)]
    assert bf16[0] == bf16[1]


@pytest.mark.parametrize(("cluster", "recipe", "moved"), [
    ("dgx-h100:1", "current", 6.0), ("dgx-b200:1", "current", 5.0), ("dgx-h100:1", "delayed", 2.0),
    ("dgx-b200:1", "delayed", 1.0), ("dgx-b200:1", "mxfp8", 4.0), ("8xrtx-5090", "current", 6.0),
])  # fmt: skip
def test_tensors_are_written_once_where_products_take_them_as_they_lie(cluster: str, recipe: str, moved: float) -> None:
    """TransformerEngine, csrc/quantizer.cpp: no transpose where nvte_is_non_tn_fp8_gemm_supported."""
    asked = {"model": "llama-3.1-8b", "cluster": cluster, "target": "megatron", "fix": {"fp8_recipe": recipe},
             "workload": {"seq_len": 4096, "global_batch": 64, "precision": "fp8"}}  # fmt: skip
    problem = resolve(request_from_dict(asked)).problem
    layouts = Layouts.of([parse("dp8-mbs1-z1-rnone-fp8")])
    layer = operations_of_tables(problem, {name: np.asarray(layouts[name]) for name in KEY_FIELDS})[0]
    elements = 4096 * (3 * 4096 + 14336)
    casts = sum(float(t.forward_bytes[0]) for t in layer.traffic if t.name.startswith("casts"))
    assert casts == moved * elements


def test_sharded_states_by_hand() -> None:
    """ZeRO-3 over two nodes, one layer at a time: weights gathered for both passes, gradients scattered.

    Four fifths hide behind the layer's compute, 18 % of that shows; buffers are copied at memory bandwidth.
    """
    layout, layers = Layout(dp=16, shard=16, zero=3), 32
    stack = stack_of(fsdp_overlap=0.8, contention=0.18, gather_copy_bytes=4.0, scatter_copy_bytes=6.0)
    terms, _, rates = step_of(LLAMA, stack, layout, batch=16 * 4)  # four sequences: compute is ample
    params = total_parameters(LLAMA)
    wire = {}
    for op, num_bytes in (("all_gather", 2.0), ("reduce_scatter", 4.0)):
        curve = collectives.curve(rates.collectives, rates.levels, op, 16, 1)  # type: ignore[arg-type]
        wire[op] = 4 * layers * float(collectives.seconds(curve, params * num_bytes / layers)[0])
    shown = (0.2 + 0.18 * 0.8) * (2 * wire["all_gather"] + wire["reduce_scatter"])
    copied = 4 * params * (2 * 4 + 6) / rates.memory_bw_bytes_per_s
    assert terms["fsdp"] == pytest.approx(shown + copied, rel=1e-9)
    blocking = step_of(LLAMA, replace(stack, fsdp_overlap=0.0), layout, batch=16 * 4)[0]["fsdp"]
    assert blocking == pytest.approx(2 * wire["all_gather"] + wire["reduce_scatter"] + copied, rel=1e-9)


def test_stragglers() -> None:
    """Half a percent of everything else per doubling above 8 GPUs."""
    stack = stack_of(straggler_share=0.005)
    assert step_of(LLAMA, stack, Layout(dp=8, shard=8, zero=1))[0]["stragglers"] == 0
    assert step_of(LLAMA, stack, Layout(dp=4, shard=4, zero=1))[0]["stragglers"] == 0
    terms = step_of(LLAMA, stack, Layout(dp=64, shard=64, zero=1), cluster="dgx-h100:8")[0]
    assert terms["stragglers"] == pytest.approx(3 * 0.005 * (sum(terms.values()) - terms["stragglers"]), rel=1e-12)


@pytest.mark.parametrize("recompute", ["rnone", "rsel(attn)", "rfull"])
def test_the_longest_documents_are_also_recomputed(recompute: str) -> None:
    """The busiest rank's attention takes longer by one factor, whatever of it runs twice."""
    best = api.evaluate(None, f"dp8-mbs1-z3-{recompute}", model="llama-3.1-8b", cluster="dgx-h100:1", seq_len=32768,
                        global_batch=64, lengths={2048: 0.7, 32768: 0.3}, target="any").best  # fmt: skip
    terms = {term.name: term.seconds for term in best.terms}
    asked = request_from_dict({"model": "llama-3.1-8b", "cluster": "dgx-h100:1",
                               "workload": {"seq_len": 32768, "global_batch": 64,
                                            "lengths": {2048: 0.7, 32768: 0.3}}})  # fmt: skip
    factor = imbalance(resolve(asked).workload, 8)
    assert factor > 1.1
    assert terms["uneven lengths"] == pytest.approx((factor - 1) * terms["attention"], rel=1e-6)


def test_weights_gathered_in_fp8() -> None:
    """One byte for what layers multiply with, two for the embedding and the head, that stay in bf16."""
    bytes_of = {}
    for fp8_gather in (True, False):
        ledger = step_of(LLAMA, stack_of(fp8_gather=fp8_gather), Layout(dp=8, shard=8, zero=3), precision="fp8")[1]
        bytes_of[fp8_gather] = ledger.tables.parameters["dense_gathered_bytes"][:, 0]
    assert list(bytes_of[False][:3] / bytes_of[True][:3]) == [2, 1, 1]  # layer, embedding, head
    bf16 = step_of(LLAMA, stack_of(fp8_gather=True), Layout(dp=8, shard=8, zero=3))[1]
    assert (bf16.tables.parameters["dense_gathered_bytes"][:, 0] == bytes_of[False]).all()


# Precision, changes of the stack, and bytes of a weight of a layer that is gathered after an update.
NEW_WEIGHTS: list[tuple[Precision, dict[str, Any], float]] = [
    ("bf16", {"fp8_gather": True}, 2), ("fp8", {}, 2), ("fp8", {"fp8_gather": True}, 1),
    ("fp8", {"fp8_gather": True, "gathers_in_bf16": True}, 2), ("fp4", {"fp8_gather": True}, 2),
    ("fp4", {"fp8_gather": True, "caches_fp8_weights": True}, 0.5),
]  # fmt: skip


@pytest.mark.parametrize(("precision", "changed", "width"), NEW_WEIGHTS)
def test_updated_weights_are_gathered_as_they_are_kept(
    precision: Precision, changed: dict[str, Any], width: float
) -> None:
    """ZeRO-1: token table, head and final norm are in bf16 throughout; an optimizer on the host writes bf16, too."""
    stack = stack_of(dp_overlap=0.0, dp_gather_overlap=0.0, contention=0.0, gradient_bytes=4, **changed)
    params, ends = total_parameters(LLAMA), 2 * 128256 * 4096 + 4096
    for offload, of_layer in (("none", width), ("opt", 2.0)):
        layout = Layout(dp=8, shard=8, zero=1, offload=OFFLOADS.index(offload))
        terms, ledger, rates = step_of(LLAMA, stack, layout, cluster="dgx-b200:1", precision=precision)
        buckets, expected = float(reductions(ledger)[0][0]), 0.0
        for op, num_bytes in (("reduce_scatter", 4 * params), ("all_gather", 2 * ends + of_layer * (params - ends))):
            curve = collectives.curve(rates.collectives, rates.levels, op, 8, 1)  # type: ignore[arg-type]
            expected += buckets * float(collectives.seconds(curve, num_bytes / buckets)[0])
        assert terms["dp"] == pytest.approx(expected, rel=1e-9)


def test_traffic_beside_the_same_compute_shows_once() -> None:
    """Activations go to the host and sharded states round the ranks over links of their own: the longer shows."""
    layout = Layout(dp=16, shard=16, zero=3)
    stack = stack_of(fsdp_overlap=0.0, offload_overlap=0.0, contention=0.0)
    plain = step_of(LLAMA, stack, layout, batch=16)[0]
    both = step_of(LLAMA, stack, replace(layout, offload=OFFLOADS.index("act")), batch=16)
    saved = float(Activations(both[1]).saved[0][0]) / both[2].pcie_bw_bytes_per_s
    assert plain["fsdp"] == both[0]["fsdp"] > 0
    ways = both[0]["offload"] + both[0]["fsdp"]
    assert max(2 * saved, plain["fsdp"]) * (1 - 1e-12) <= ways < 2 * saved + plain["fsdp"]


def test_replicas_are_reduced_behind_what_sharded_states_leave() -> None:
    """HSDP: what gathers and scatters of the last micro-batch hide behind is lost to the sum over replicas."""
    layout, layers = Layout(dp=16, shard=8, zero=3), 32
    shown = {}
    for overlap in (0.0, 1.0):
        stack = stack_of(fsdp_overlap=overlap, dp_overlap=1.0, contention=0.0)
        _, ledger, rates = step_of(LLAMA, stack, layout, batch=16 * 4)
        slow = (*rates.levels[:-1], replace(rates.levels[-1], bw_bytes_per_s=1e9))
        shown[overlap] = float(step.price(ledger, replace(rates, levels=slow)).terms["dp"][0])
    params, traffic = total_parameters(LLAMA), 0.0
    for op, num_bytes in (("all_gather", 2.0), ("reduce_scatter", 4.0)):
        curve = collectives.curve(rates.collectives, rates.levels, op, 8, 1)  # type: ignore[arg-type]
        traffic += layers * float(collectives.seconds(curve, params * num_bytes / layers)[0])
    assert shown[1.0] - shown[0.0] == pytest.approx(traffic * (layers - 1) / layers, rel=1e-9)


# --- tensor parallelism and recomputation as torch does them ----------------------------------------------------------


def test_recomputation_that_stops_early_leaves_out_the_last_product_and_its_collective() -> None:
    layout = Layout(tp=2, sequence_parallel=1, recompute=2)
    step_s, ledger, rates = {}, None, None
    for early in (False, True):
        terms, ledger, rates = step_of(LLAMA, stack_of(recompute_stops_early=early), layout)
        step_s[early] = terms["compute"]
    assert ledger is not None
    assert rates is not None
    ops = ledger.tables.operations[0]
    down = next(gemm for gemm in ops.gemms if gemm.name == "down")
    product = float(gemm_seconds(rates.gemm, down.m, down.n, down.k)[0])
    scatter = next(e for e in ops.exchanges if e.op == "reduce_scatter" and e.tag)
    saved = 64 * LLAMA.num_layers * (product + float(pricing.exchange_seconds(scatter, rates)[0]))
    assert step_s[False] - step_s[True] == pytest.approx(saved, rel=1e-6)


def test_every_projection_reduces_the_gradient_of_its_input_by_itself() -> None:
    """Backward: query, key, value; gate and up: five reductions where one plan has two. Forward the same."""

    def calls(plan: str, layout: Layout) -> tuple[float, float]:
        ops = operations(LLAMA, stack_of(tp_plan=plan), layout)
        reduced = [e for e in ops.exchanges if e.op in ("reduce_scatter", "all_reduce") and e.num_bytes[0] > 0]
        return sum(float(e.forward_calls) for e in reduced), sum(float(e.backward_calls) for e in reduced)

    for layout in (Layout(tp=2, sequence_parallel=1), Layout(tp=2, sequence_parallel=0)):
        assert calls("megatron", layout) == (2, 2)
        assert calls("by-projection", layout) == (2, 5)


def test_a_whole_head_does_all_of_the_work_on_every_rank() -> None:
    """Without sequence parallelism that plan leaves the head whole: its product and loss do not shrink with tp."""

    def head(plan: str, split: bool, **layout: int) -> tuple[float, float, float]:
        keys = {name: np.asarray(Layouts.of([Layout(**layout)])[name]) for name in KEY_FIELDS}
        workload = Workload(seq_len=4096, global_batch=64)
        shard = Shard.of(keys, LLAMA, workload)
        ops = edge_operations.head(Builder(LLAMA, workload, stack_of(tp_plan=plan, split_logits=split), shard))
        loss = next(t for t in ops.traffic if t.name == "loss")
        joined = sum(float(e.num_bytes[0]) for e in ops.exchanges if e.op == "all_gather" and e.backward_calls == 0)
        return float(ops.gemms[0].n[0]), float(loss.forward_bytes[0]), joined

    logits, vocab, half = 4096 * LLAMA.vocab, LLAMA.vocab, load_stack("generic").loss_traffic_bytes / 2
    assert head("megatron", True, tp=4, sequence_parallel=1) == (vocab / 4, half * logits / 4, 0)
    assert head("megatron", False, tp=4, sequence_parallel=1) == (vocab / 4, half * logits, 2 * logits)
    assert head("by-projection", False, tp=4, sequence_parallel=1) == (vocab / 4, half * logits, 2 * logits)
    assert head("by-projection", False, tp=4, sequence_parallel=0) == (vocab, half * logits, 0)


def test_dropout_writes_masks_and_passes_over_them_again() -> None:
    """Two masks of a byte per element; backward each with the gradient read and written: 1 + 2 + 2."""
    plain, with_masks = (operations(replace(LLAMA, dropout=flag), stack_of(), Layout()) for flag in (False, True))
    more = {t.name for t in with_masks.traffic} - {t.name for t in plain.traffic}
    assert more == {"dropout"}
    dropout = next(t for t in with_masks.traffic if t.name == "dropout")
    elements = 2 * 4096 * LLAMA.hidden
    assert (float(dropout.forward_bytes[0]), float(dropout.backward_bytes[0])) == (elements, 5 * elements)


# --- messages that take turns -----------------------------------------------------------------------------------------


@pytest.mark.parametrize(("words", "turns"), [
    ("pp2-dp8-mbs1-z1-rnone", 8.0),  # the ranks of a node are those of eight replicas
    ("tp2-pp2-dp4-mbs1-z1-rnone", 4.0),  # two of each: both of its messages have to arrive
    ("tp2-cp2u-pp2-dp2-mbs1-z1-rnone", 2.0),
    ("tp8-pp2-dp1-mbs1-z1-rnone", 1.0),
    ("pp8-dp2-mbs1-z1-rnone", 2.0),  # there are no more replicas
    ("pp2-dp8-ep4-mbs1-z1-rnone", 2.0),  # four of them wait for one another's tokens
])  # fmt: skip
def test_replicas_that_share_a_nic_take_turns(words: str, turns: float, tmp_path: Path) -> None:
    def cluster(network: str) -> str:
        path = tmp_path / "cluster.yaml"
        path.write_text(f"groups: [{{node: dgx-h100, count: 2}}]\nlinks: {{inter_node: {{{network}}}}}\n")
        return str(path)

    layout, stack = parse(words), stack_of()
    model = MIXTRAL if layout.ep > 1 else LLAMA
    plain, ledger, rates = step_of(model, stack, layout, cluster=cluster("bandwidth: 1 GB/s"))
    sending = float(stage_messages.link_s(ledger, rates)[0])
    terms, ledger, rates = step_of(model, stack, layout, cluster=cluster("bandwidth: 1 GB/s, shared_by: 8"))
    assert float(stage_messages.link_s(ledger, rates)[0]) == sending
    other = 1 - 1 / turns
    alone = replace(rates, levels=tuple(replace(level, shared_by=1.0) for level in rates.levels))
    alone_s = float(stage_messages.hop_s(ledger, alone)[0])
    assert float(stage_messages.hop_s(ledger, rates)[0]) == pytest.approx(alone_s - other * sending)
    once_s = float(stage_messages.messages_once_s(ledger, rates)[0])
    assert once_s == pytest.approx(other * sending)  # no embedding is tied here
    assert terms["pp"] <= plain["pp"] * (1 + 1e-12)
    assert (terms["pp"] < plain["pp"]) == (turns > 1)


def test_a_nic_is_shared_by_one_at_least(tmp_path: Path) -> None:
    path = tmp_path / "cluster.yaml"
    path.write_text("groups: [{node: dgx-h100, count: 2}]\nlinks: {inter_node: {shared_by: 0.5}}\n")
    with pytest.raises(InputError, match=r"`0\.5` must be a ratio of at least 1"):
        load_cluster(path)


# --- latent attention over tp -----------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("model", "stack", "width"),
    [
        ("deepseek-v3", "megatron-core", 1536 + 512 + 64),  # latents of queries, of keys and values; positions
        ("deepseek-v2-lite", "megatron-core", 2048 + 512 + 64),  # queries come out of all of h
        ("deepseek-v3", "meshwright", 1536 + 512 + 64),
        ("deepseek-v3", "torch-fsdp", 7168),  # torchtitan gathers the input of attention
    ],
)
def test_latent_attention_gathers_latents(model: str, stack: str, width: int) -> None:
    """The input of attention is gathered and scattered at the width of the latents, its output at that of h."""
    spec = load_model(model)[0]
    for sequence_parallel in (1, 0):
        layout = Layout(tp=8, sequence_parallel=sequence_parallel)
        keys = {name: np.asarray(Layouts.of([layout])[name]) for name in KEY_FIELDS}
        workload = Workload(seq_len=4096, global_batch=64)
        builder = Builder(spec, workload, load_stack(stack), Shard.of(keys, spec, workload))
        dense = decoder_layer(builder, next(kind for kind in spec.kinds if not kind.is_moe))
        block = [e for e in dense.exchanges if e.axis == "tp"]
        sent = {"forward": 0.0, "backward": 0.0}  # elements per token
        for exchange in block:
            elements = float(exchange.num_bytes[0]) / 2 / 4096
            sent["forward"] += elements * float(np.max(exchange.forward_calls))
            sent["backward"] += elements * float(np.max(exchange.backward_calls))
        h, mlp = spec.hidden, spec.hidden * (1 + sequence_parallel)
        forward = mlp + h + width * sequence_parallel
        assert sent == {"forward": forward, "backward": mlp + width + h * sequence_parallel}
