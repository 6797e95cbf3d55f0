"""Memory at the moments of a step, restated by hand for Llama-3.1-8B: h 4096, V 128256, 32 layers of 218 M."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from meshwright.cost_models.layouts import Layouts, parse
from meshwright.cost_models.problem import Problem
from meshwright.cost_models.quantities.activations import Activations
from meshwright.cost_models.quantities.device_memory import DeviceMemory
from meshwright.cost_models.quantities.ledger import Ledger
from meshwright.cost_models.quantities.moments import (
    AT_LOSS,
    IN_EMBEDDING,
    IN_HEAD,
    IN_LAYER,
    IN_PREDICTION,
    IN_W,
    TRANSIENT,
    unusable,
)
from meshwright.cost_models.specs.model import ModelSpec
from meshwright.cost_models.specs.workload import Lora, OptimizerName, Precision, Workload
from meshwright.planner.search.pricing import price_layouts
from meshwright.profiles.cluster.load import load_cluster
from meshwright.profiles.model.load import load_model
from meshwright.profiles.stack.load import load_stack
from meshwright.profiles.stack.rates import rates_for

H, V, F, SEQ, LAYER = 4096, 128256, 14336, 8192, 218_112_000


def held(layout_id: str, stack: str = "generic", global_batch: int = 64, **changes: Any) -> dict[str, float]:
    """Bytes by buffer on the last stage of Llama-3.1-8B."""
    ledger = built(layout_id, stack, global_batch, **changes)
    j = int(np.argmax(ledger.splits.first[0]))
    return {name: float(value[0]) for name, value in DeviceMemory(ledger).buffers(j).items()}


def built(
    layout_id: str, stack: str, global_batch: int, model: str | ModelSpec = "llama-3.1-8b",
    precision: Precision = "bf16", optimizer: OptimizerName = "adamw", **changes: Any,
) -> Ledger:  # fmt: skip
    layout, spec = parse(layout_id), replace(load_stack(stack), **changes)
    cluster = load_cluster("dgx-b200:1" if precision == "fp4" else "dgx-h100:1")
    known = load_model(model)[0] if isinstance(model, str) else model
    workload = Workload(seq_len=SEQ, global_batch=global_batch, precision=precision, optimizer=optimizer)
    problem = Problem(known, workload, spec, layout.num_gpus, 8)
    return price_layouts(problem, rates_for(cluster, spec, precision), Layouts.of([layout]))[0]


def test_the_loss_of_a_long_sequence_is_the_peak() -> None:
    found = held("dp8-mbs1-z3-rnone", "torch-fsdp")
    assert found["logits"] == 12 * SEQ * V
    assert found["gathered"] == pytest.approx(2 * V * H, rel=1e-4)  # the head's weights
    assert found["workspace"] == found["exchange"] == 0


@pytest.mark.parametrize(("stack", "times"), [("megatron-core", 4), ("torchtitan", 2)])
def test_gathered_keys_lie_beside_their_gradients_in_the_backward_pass(stack: str, times: int) -> None:
    """TransformerEngine has keys and values of all tokens, and whole gradients of both, until it scatters these; torch
    gathers keys and values alone. 32 heads of 128 in bf16."""
    keys = SEQ * 32 * 128 * 2
    ring, gathered = (built(f"cp8{how}-dp1-mbs1-z1-rfull", stack, 64, "llama-2-7b").tables for how in ("r", "g"))
    assert float(ring.workspace[0, 0]) < times * keys  # of products of 1024 tokens
    assert float(gathered.workspace[0, 0]) == times * keys


def test_the_backward_pass_of_a_layer_is_the_peak_where_there_is_no_head() -> None:
    ledger = built("pp2-dp4-mbs1-z1-rfull", "generic", 64)
    first = int(np.argmin(ledger.splits.first[0]))
    found = {name: float(value[0]) for name, value in DeviceMemory(ledger).buffers(first).items()}
    assert found["logits"] == 0
    assert found["workspace"] > 2 * SEQ * (2 * F + H)  # gradients of the widest product, and what the layer made again


@pytest.mark.parametrize(("overlap", "layers"), [(0.8, 2), (0.0, 1)])
def test_a_stack_that_gathers_ahead_holds_two_layers(overlap: float, layers: int) -> None:
    ledger = built("dp8-mbs1-z3-rnone", "generic", 64, fsdp_overlap=overlap)
    layer = DeviceMemory(ledger).moments(0)["gathered"][IN_LAYER, 0]
    assert layer == pytest.approx((2 * layers + 4) * LAYER, rel=1e-3)  # weights in bf16, whole gradients in fp32


def test_gpipe_keeps_the_softmax_of_every_micro_batch() -> None:
    one, all_ = held("pp2-dp4-mbs1-z1-rfull", global_batch=32), held("pp2-gpipe-dp4-mbs1-z1-rfull", global_batch=32)
    assert all_["logits"] - one["logits"] == 7 * 4 * SEQ * V


def test_cached_gradients_are_one_of_each_weight_of_a_layer() -> None:
    fused: dict[str, Any] = {"fused_accumulation": True}
    plain, cached = (held("tp2-dp4-mbs1-z1-rnone", cached_gradients=flag, **fused) for flag in (False, True))
    assert cached["workspace"] - plain["workspace"] == pytest.approx(2 * LAYER / 2, rel=1e-3)


def test_experts_share_one_cached_gradient() -> None:
    """Mixtral: eight experts of 3 x 4096 x 14336, attention of 4096 x (4096 + 1024 + 1024 + 4096), router 8 x 4096."""
    names: dict[str, Any] = {"model": "mixtral-8x7b", "fused_accumulation": True}
    ledgers = [built("dp8-ep4-mbs1-z1-rnone", "generic", 64, cached_gradients=flag, **names) for flag in (False, True)]
    plain, cached = (float(DeviceMemory(one).buffers(0)["workspace"][0]) for one in ledgers)
    assert cached - plain == pytest.approx(2 * (3 * H * F + H * (2 * H + 2 * 1024) + 8 * H), rel=1e-3)


def test_without_gradient_sync_gradients_stay_whole_over_micro_batches() -> None:
    several = held("dp8-mbs1-z3-rnone", sharded_states="fsdp2-no-sync", global_batch=64)
    single = held("dp8-mbs1-z3-rnone", sharded_states="fsdp2-no-sync", global_batch=8)
    assert several["gradients"] == pytest.approx(8 * single["gradients"])
    assert several["weights"] == single["weights"]


def test_bf16_without_master_weights_is_eight_bytes_a_parameter() -> None:
    found = held("dp8-mbs1-z0-rnone", master_weights=False, gradient_bytes=2)
    states = found["weights"] + found["gradients"] + found["optimizer"]
    assert states == pytest.approx(8 * 8.03e9, rel=1e-3)


def test_an_unsplit_loss_has_all_logits_on_every_rank() -> None:
    split, whole = (held("tp4-dp2-mbs1-z1-rfull", split_logits=flag) for flag in (True, False))
    assert whole["logits"] == 4 * split["logits"]


def test_no_moment_is_above_the_peak() -> None:
    for layout_id in ("dp8-mbs1-z3-rfull", "tp8-dp1-mbs1-z1-rnone", "pp4-dp2-mbs1-z1-rfull"):
        ledger = built(layout_id, "generic", 64)
        for j in range(ledger.num_profiles):
            peak = sum(float(DeviceMemory(ledger).buffers(j)[name][0]) for name in TRANSIENT)
            each = np.sum(list(DeviceMemory(ledger).moments(j).values()), axis=0)[:, 0]
            assert peak == pytest.approx(each.max())


# Matrices of the 32 layers of Llama-3.1-8B and their norms, and what is outside of layers.
LAYERS, OUTSIDE = 32 * LAYER, 2 * V * H + H


@pytest.mark.parametrize(("caches", "gathers", "layout", "layer_bytes"), [
    (False, False, "dp8-mbs1-z1-rfull-fp8", 4), (False, True, "dp8-mbs1-z1-rfull-fp8", 4),
    (True, False, "dp8-mbs1-z1-rfull-fp8", 4), (True, True, "dp8-mbs1-z1-rfull-fp8", 2),
    (True, True, "dp8-mbs1-z0-rfull-fp8", 4), (True, True, "dp8-mbs1-z1-rfull-oopt-fp8", 4),
    (True, False, "dp8-mbs1-z1-rfull-fp4", 2 + 2 * 9 / 16), (True, True, "dp8-mbs1-z1-rfull-fp4", 2 * 9 / 16),
])  # fmt: skip
def test_quantised_weights(caches: bool, gathers: bool, layout: str, layer_bytes: float) -> None:
    """bf16 weights with a quantised copy and its transpose (fp4: a byte of scale for 16 elements); these alone where
    a distributed optimizer on the GPU writes the weights of TransformerEngine."""
    found = held(layout, caches_fp8_weights=caches, fp8_gather=gathers, precision=layout[-3:])
    assert found["weights"] == pytest.approx(layer_bytes * LAYERS + 2 * OUTSIDE, rel=1e-4)


def test_a_table_that_tensor_parallelism_leaves_whole() -> None:
    """KempnerForge at tp 4: the token table on every rank, the head in parts; in a pipeline that whole too."""
    split, whole = (total("tp4-dp2-mbs1-z1-rfull", "generic", name) for name in ("megatron", "by-projection"))
    assert whole["weights"] - split["weights"] == pytest.approx(2 * V * H * 3 / 4)
    split, whole = (total("tp4-nosp-pp2-dp1-mbs1-z1-rfull", "generic", name) for name in ("megatron", "by-projection"))
    assert whole["weights"] - split["weights"] == pytest.approx(2 * V * H * 3 / 4)  # the last stage: its head


def total(layout_id: str, stack: str, plan: str) -> dict[str, float]:
    return held(layout_id, stack, tp_plan=plan)


def test_weights_gathered_for_a_pipeline_lie_beside_their_shards() -> None:
    """FSDP2 in a pipeline: bf16 shards without fp32 copies stay beside the whole weights that they make."""
    kept, alone = (held("pp2-dp4-mbs1-z3-rfull", "torch-fsdp", master_weights=flag) for flag in (False, True))
    assert kept["weights"] == pytest.approx(alone["weights"] * (1 + 1 / 4))


def test_flat_copies_of_deepspeed() -> None:
    """Of a rank of 8 with N parameters: N/8 in the gradients' dtype and in fp32, and two buckets of 5e8."""
    number = 8_030_261_248
    plain, flat = (held("dp8-mbs1-z1-rfull", "deepspeed", flat_buffers=name) for name in ("none", "deepspeed"))
    assert flat["workspace"] - plain["workspace"] == pytest.approx(6 * number / 8 + 4 * 5e8, rel=1e-4)
    plain, flat = (held("dp8-mbs1-z1-rfull", "deepspeed", flat_buffers=name, gradient_bytes=4)
                   for name in ("none", "deepspeed"))  # fmt: skip
    assert flat["workspace"] - plain["workspace"] == pytest.approx((2 + 2) * number + 2 * 5e8, rel=1e-4)


def test_products_keep_their_quantised_inputs() -> None:
    """In fp8 two norm outputs and the activation's at one byte; the attention output twice, as two bytes and as one."""
    workload = Workload(seq_len=SEQ, global_batch=8, precision="fp8")
    saved = []
    for flag in (False, True):
        stack = replace(load_stack("generic"), saves_fp8_inputs=flag)
        problem = Problem(load_model("llama-3.1-8b")[0], workload, stack, 8, 8)
        rates = rates_for(load_cluster("dgx-h100:1"), stack, "fp8")
        ledger = price_layouts(problem, rates, Layouts.of([parse("dp8-mbs1-z1-rnone-fp8")]))[0]
        saved.append(float(Activations(ledger).saved[0][0]))
    assert saved[0] - saved[1] == pytest.approx(32 * SEQ * (2 * H + F - H))


def test_a_loss_in_fp32_leaves_the_block_of_the_half_precision_logits() -> None:
    for stack, bytes_per_logit in (("torch-fsdp", 2), ("megatron-core", 0)):
        ledger = built("dp8-mbs1-z3-rnone", stack, 64)
        assert unusable(ledger, 0)[0] == bytes_per_logit * SEQ * V
    pipeline = built("pp4-dp2-mbs1-z0-rnone", "torch-fsdp", 64)
    last = int(np.argmax(pipeline.splits.first[0]))
    assert unusable(pipeline, last)[0] == 2 * SEQ * V
    assert unusable(pipeline, int(np.argmin(pipeline.splits.first[0])))[0] == 0.0


def test_deepspeed_keeps_what_a_stage_hands_on() -> None:
    """The first of four stages has four micro-batches of eight layers' inputs in flight, and their four outputs."""
    layout = "pp4-dp2-mbs1-z0-rfull"
    for stack, outputs in (("megatron-lm", 0), ("megatron-deepspeed-2022", 1)):
        ledger = built(layout, stack, 64)
        first = int(np.argmin(ledger.splits.first[0]))
        memory = DeviceMemory(ledger)
        expected = 4 * (8 + outputs) * 2 * H * SEQ
        assert memory.buffers(first)["activations"][0] == pytest.approx(expected, rel=1e-9)
        last = int(np.argmax(ledger.splits.first[0]))
        of_last = float(memory.activations(last, np.array([3.0]))[:, 0].max())
        assert of_last < 9 * 2 * H * SEQ + 4 * H * SEQ  # one in flight, handed to nobody


@pytest.mark.parametrize(
    ("layout_id", "global_batch", "last", "first"),
    [("pp2-dp4-mbs1-z1-rnone", 64, 2, 2), ("pp2-dp4-mbs1-z1-rnone", 8, 1, 1), ("pp2-dp4-mbs1-z1-rnone", 4, 0, 0),
     ("pp2-vpp2-dp4-mbs1-z1-rnone", 8, 2, 2), ("pp2-dpv-vpp2-dp4-mbs1-z1-rnone", 64, 2, 2),
     ("pp2-gpipe-dp4-mbs1-z1-rnone", 64, 0, 2), ("dp8-mbs1-z1-rnone", 64, 0, 0)],
)  # fmt: skip
def test_messages_that_are_asked_for_ahead_have_a_buffer(
    layout_id: str, global_batch: int, last: int, first: int
) -> None:
    """At most as many as there are others; none on the last stage of gpipe, which has had all when it is fullest."""
    ledgers = [built(layout_id, "generic", global_batch, messages_ahead=number) for number in (0, 2)]
    by_device = np.argsort(ledgers[0].splits.first[0])
    none, two = ([sum(float(held[0]) for held in DeviceMemory(ledger).buffers(int(j)).values()) for j in by_device]
                 for ledger in ledgers)  # fmt: skip
    assert two[-1] - none[-1] == pytest.approx(last * 2 * SEQ * H)
    assert two[0] - none[0] == pytest.approx(first * 2 * SEQ * H)


def test_the_first_product_to_be_differentiated_makes_the_gradient_of_its_weight() -> None:
    """Of 4096 x 14336, beside the gradients of its input and output (1,024 tokens); not where it adds to the sum."""
    tables = [built("cp8g-dp1-mbs1-z1-rnone", "generic", 64, fused_accumulation=flag).tables for flag in (False, True)]
    up, down = 2 * SEQ / 8 * (H + 2 * F), 2 * SEQ / 8 * (H + F) + 2 * H * F
    assert down > up
    assert [float(one.workspace[0, 0]) for one in tables] == [down, up]
    assert [float(one.made_gradient[0, 0]) for one in tables] == [2 * H * 2 * F, 0.0]


@pytest.mark.parametrize(("layout_id", "expected"), [("pp2-zbh1-dp4-mbs1-z1-rnone", 2 * H * 2 * F),
                                                     ("pp2-dp4-mbs1-z1-rnone", 0.0)])  # fmt: skip
def test_the_first_w_after_an_i_makes_a_gradient(layout_id: str, expected: float) -> None:
    assert DeviceMemory(built(layout_id, "generic", 64)).moments(0)["workspace"][IN_W, 0] == expected


@pytest.mark.parametrize(
    ("layout_id", "in_flight", "waits"),
    [("cp8g-pp16-dp1-mbs1-z0-rfull", 16 - 1, 0), ("cp8g-pp16-gpipe-dp1-mbs1-z0-rfull", 64 - 1, 0),
     ("cp8g-pp16-vpp2-dp1-mbs1-z0-rfull", 16 + 15 / 2 - 1 / 2, 0), ("cp8g-pp16-zbh1-dp1-mbs1-z0-rfull", 16 - 1, 1)],
)  # fmt: skip
def test_the_gradient_of_the_embedding_is_made_beside_other_micro_batches(
    layout_id: str, in_flight: float, waits: int
) -> None:
    """Of two layers a stage, 1,024 tokens: their inputs for all micro-batches but one of a chunk, which may wait for
    its W, and V x h in bf16."""
    ledger = built(layout_id, "generic", 64)
    first = int(np.argmin(ledger.splits.first[0]))
    found = {name: float(value[0]) for name, value in DeviceMemory(ledger).buffers(first).items()}
    saved, late = 2 * 2 * H * SEQ / 8, waits * float(Activations(ledger).wgrad_stash[first].sum())
    assert found["activations"] == pytest.approx(in_flight * saved + late)
    assert found["workspace"] == 2 * V * H
    others = [j for j in range(ledger.num_profiles) if ledger.splits.first[0, j] > 0]
    assert not any(DeviceMemory(ledger).moments(j)["workspace"][IN_EMBEDDING].any() for j in others)


def test_without_a_pipeline_the_gradient_of_the_embedding_is_made_when_all_activations_are_gone() -> None:
    memory = DeviceMemory(built("dp8-mbs1-z0-rfull", "generic", 64))
    assert memory.moments(0)["workspace"][IN_EMBEDDING, 0] == 2 * V * H
    assert memory.activations(0)[0] == pytest.approx(memory.of_micro_batch.saved[0])  # of one micro-batch


def tied(layout_id: str, moment: int, name: str = "workspace", **changes: Any) -> float:
    """Bytes of a buffer on the stage of the head by which a model with tied embeddings has more than another one."""
    untied = load_model("llama-3.1-8b")[0]
    rows = [built(layout_id, "generic", 64, replace(untied, tied_embeddings=ties), **changes) for ties in (True, False)]
    found = [DeviceMemory(ledger).moments(int(np.argmax(ledger.splits.first[0])))[name] for ledger in rows]
    return float((found[0] - found[1])[moment, 0])


@pytest.mark.parametrize(("layout_id", "changes", "waits"), [
    ("dp8-mbs1-z0-rnone", {}, True), ("tp2-dp4-mbs1-z3-rfull", {}, True),
    ("pp2-dp4-mbs1-z0-rnone", {}, False),  # the head has a graph of its own
    ("dp8-mbs1-z0-rnone", {"fused_accumulation": True}, False),
])  # fmt: skip
def test_the_head_s_gradient_of_tied_embeddings_waits_for_the_embedding_s(
    layout_id: str, changes: dict[str, Any], waits: bool
) -> None:
    expected = 2 * V * H / parse(layout_id).tp if waits else 0
    assert tied(layout_id, IN_LAYER, **changes) == expected
    assert tied(layout_id, IN_HEAD, **changes) == pytest.approx(0, abs=2 * H)  # the gradient of the final norm


def test_a_gradient_that_waits_for_another_part_of_it_is_not_in_the_buffer_to_scatter() -> None:
    assert tied("cp2g-dp4-mbs1-z2-rnone", IN_HEAD, "gathered") == pytest.approx(-(4 * V * H - V * SEQ), rel=1e-4)
    assert tied("cp2g-dp4-mbs1-z2-rnone", IN_EMBEDDING, "gathered") == 0


@pytest.mark.parametrize(("layout_id", "at_once"), [("dp8-mbs1-z2-rnone", sum), ("dp8-ep2-mbs1-z2-rnone", max)])
def test_experts_that_every_rank_has_are_scattered_with_their_layer(layout_id: str, at_once: Any) -> None:
    """Mixtral 8x7B: h 4096, f 14336, a router, two norms, 4096 x (4096 + 1024) twice."""
    ledger = built(layout_id, "generic", 64, "mixtral-8x7b")
    parts = 8 * 3 * H * F / parse(layout_id).ep, 2 * H * (H + 1024) + 8 * H + 2 * H
    assert DeviceMemory(ledger).moments(0)["gathered"][IN_LAYER, 0] == 4 * at_once(parts)


@pytest.mark.parametrize(("layout_id", "rows"), [("dp8-mbs1-z1-rnone", 0), ("dp8-ep8-mbs1-z1-rnone", SEQ * 8 * 1.1),
                                                 ("dp8-ep2-etp4-mbs1-z1-rnone", SEQ * 8 * 1.1 * 4)])  # fmt: skip
def test_rows_of_experts_are_there_in_two_orders(layout_id: str, rows: float) -> None:
    """Qwen3 30B-A3B: h 2048, experts of 768, which take 8 of 128: more than any product of theirs."""
    ledger = built(layout_id, "generic", 64, "qwen3-30b-a3b")
    found = float(DeviceMemory(ledger).moments(0)["workspace"][IN_LAYER, 0])
    down = 2 * SEQ * 8 * (768 + 2048) + 2 * 128 * 768 * 2048  # with the gradient of its weight
    assert found == pytest.approx(2 * 2 * rows * 2048 or down)


@pytest.mark.parametrize(("recompute", "more"), [("rnone", 1), ("rsel(act)", 0)])
def test_relu_keeps_what_the_next_product_keeps(recompute: str, more: int) -> None:
    """OPT-1.3B, 24 layers of f 8192: GELU keeps its input, and the product its output unless that is made again."""
    opt = load_model("opt-1.3b")[0]
    relu, gelu = (float(Activations(built(f"dp8-mbs1-z1-{recompute}", "generic", 64, replace(opt, activation=name)))
                        .saved[0][0]) for name in ("relu", "gelu"))  # fmt: skip
    assert gelu - relu == pytest.approx(more * 24 * 2 * SEQ * 8192)


def test_a_gradient_of_the_embedding_that_is_scattered_is_whole_before() -> None:
    ledger = built("pp2-dp4-mbs1-z2-rfull", "generic", 64)
    first = int(np.argmin(ledger.splits.first[0]))
    assert DeviceMemory(ledger).moments(first)["gathered"][IN_EMBEDDING, 0] == 4 * V * H


def test_a_prediction_is_differentiated_with_its_layer_and_the_head() -> None:
    """DeepSeek-V3 under ZeRO-3: a layer of experts, the projection of 2 x 7168 x 7168 and the head's weights; the
    softmax of the main head, whose loss is differentiated later, waits."""
    ledger = built("dp256-ep64-mbs1-z3-rfull", "generic", 256, "deepseek-v3", fsdp_overlap=0.0)
    h, vocab = 7168, 129280
    passing = DeviceMemory(ledger).moments(0)
    layer, found = passing["gathered"][IN_LAYER, 0], passing["gathered"][IN_PREDICTION, 0]
    assert found - layer == pytest.approx((2 + 4) * 2 * h * h + 2 * vocab * h, rel=1e-3)
    assert passing["logits"][IN_PREDICTION, 0] == 4 * SEQ * vocab
    assert passing["logits"][AT_LOSS, 0] == (8 + 4) * SEQ * vocab


@pytest.mark.parametrize(("layout_id", "tokens", "fused", "whole"), [
    ("cp2g-dp4-mbs1-z2-rnone", SEQ // 2, False, 4 * V * H - V * SEQ), ("dp8-mbs2-z2-rnone", 2 * SEQ, False, 0),
    ("dp8-mbs2-z2-rnone", 2 * SEQ, True, 4 * V * H), ("dp8-mbs1-z1-rnone", SEQ, False, 0),
])  # fmt: skip
def test_the_gradient_of_the_head_is_whole_after_that_of_the_logits(
    layout_id: str, tokens: int, fused: bool, whole: int
) -> None:
    """Beside the gradient as the product makes it, 2 V h, the larger of 2 V s and 4 V h; a product that adds to the sum
    by itself needs both."""
    passing = DeviceMemory(built(layout_id, "generic", 64, fused_accumulation=fused)).moments(0)
    assert passing["logits"][IN_HEAD, 0] == 2 * V * tokens
    assert passing["gathered"][IN_HEAD, 0] == pytest.approx(whole, rel=1e-4)  # the final norm


@pytest.mark.parametrize(("layout_id", "stack"), [("pp16-dp8-ep8-mbs1-z1-rfull", "generic"),
                                                  ("pp16-zbh1-dp8-ep8-mbs1-z3-rnone", "generic"),
                                                  ("pp16-dp8-ep8-mbs1-z2-rsel", "megatron-core")])  # fmt: skip
def test_a_stage_needs_what_its_own_layers_do(layout_id: str, stack: str) -> None:
    """DeepSeek-V3: its first three layers are dense, and are all of the first stage."""
    ledger = built(layout_id, stack, 256, "deepseek-v3", cached_gradients=stack != "generic")
    first = int(np.argmin(ledger.splits.first[0]))
    dense = replace(ledger.problem.model, kinds=ledger.problem.model.kinds[:1], pattern=(0,) * 61, mtp_layers=0)
    alone = built(layout_id, stack, 256, dense, cached_gradients=stack != "generic")
    same = int(np.argmin(alone.splits.first[0]))
    found = DeviceMemory(ledger).moments(first)
    wanted = DeviceMemory(alone).moments(same)
    for name in TRANSIENT:
        assert (found[name][:IN_PREDICTION] == wanted[name]).all(), name
    others = DeviceMemory(ledger).moments(1 - first)
    assert sum(others[name][IN_LAYER, 0] for name in TRANSIENT) > sum(found[name][IN_LAYER, 0] for name in TRANSIENT)


def test_gradients_of_experts_are_scattered_before_the_others_come() -> None:
    """Mixtral over ep 4: two experts of 3 x 4096 x 14336 on a rank."""
    ledger = built("dp8-ep4-mbs1-z2-rnone", "generic", 64, "mixtral-8x7b")
    gathered = DeviceMemory(ledger).moments(0)["gathered"]
    assert gathered[IN_LAYER, 0] == pytest.approx(4 * 2 * 3 * H * F, rel=1e-3)


@pytest.mark.parametrize(
    ("layout", "stack", "precision", "optimizer", "bytes_each"),
    [
        ("dp8-mbs1-z1-rnone", "megatron-core", "bf16", "adamw-bf16", 6),  # half of the master weight is the weight
        ("dp8-mbs1-z1-rnone", "megatron-core", "bf16", "adamw", 12),
        ("dp8-mbs1-z1-rnone-fp8", "megatron-core", "fp8", "adamw-bf16", 8),  # Megatron keeps fp32 weights itself
        ("dp8-mbs1-z3-rnone", "megatron-core", "bf16", "adamw-bf16", 8),  # as does its FSDP
        ("dp8-mbs1-z1-rnone", "generic", "bf16", "adamw-bf16", 8),
        ("dp8-mbs1-z1-rnone-oopt", "megatron-core", "bf16", "adamw-bf16", 0),
    ],
)  # fmt: skip
def test_narrow_moments_leave_half_of_the_master_weights_to_the_weights(
    layout: str, stack: str, precision: Precision, optimizer: OptimizerName, bytes_each: int
) -> None:
    """FusedAdam of TransformerEngine, store_param_remainders: int16 beside a parameter in bf16."""
    found = held(layout, stack, precision=precision, optimizer=optimizer)
    assert found["optimizer"] == bytes_each * (32 * LAYER + 2 * V * H + H) / 8


@pytest.mark.parametrize(("zero", "sharers"), [(0, 1), (3, 8)])
def test_adapters_beside_layers_that_train_are_sharded_as_these(zero: int, sharers: int) -> None:
    """8.03e9 weights in bf16, and adapters of q and v in the other 16 layers: 16 x (4096 + 4096 + 4096 + 1024)."""
    spec = load_stack("generic")
    workload = Workload(seq_len=SEQ, global_batch=64, lora=Lora(rank=16, targets=("q", "v")), trains_layers=16)
    problem = Problem(load_model("llama-3.1-8b")[0], workload, spec, 8, 8)
    layouts = Layouts.of([parse(f"dp8-mbs1-z{zero}-rfull")])
    ledger = price_layouts(problem, rates_for(load_cluster("dgx-h100:1"), spec, "bf16"), layouts)[0]
    weights = 8_030_261_248 + 16 * 16 * (4 * H - 3072)
    assert float(DeviceMemory(ledger).states(0)["weights"][0]) == pytest.approx(2 * weights / sharers, rel=1e-9)
