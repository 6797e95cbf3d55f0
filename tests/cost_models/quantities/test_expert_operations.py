"""What a block of experts moves beside its products: copies of tokens, padding, biases; counted by hand."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from meshwright.cost_models.cuda_graphs import GRAPH_CODE
from meshwright.cost_models.layouts import Layout, Layouts
from meshwright.cost_models.quantities.layer_operations import decoder_layer
from meshwright.cost_models.quantities.operation_builder import Builder
from meshwright.cost_models.quantities.operations import LayerOperations, MemoryTraffic, tag
from meshwright.cost_models.quantities.shards import KEY_FIELDS, Shard
from meshwright.cost_models.specs.model import MixtureOfExperts, ModelSpec
from meshwright.cost_models.specs.workload import Precision, Workload
from meshwright.profiles.model.load import load_model
from meshwright.profiles.stack.load import load_stack

MIXTRAL, QWEN = load_model("mixtral-8x7b")[0], load_model("qwen3-30b-a3b")[0]
TOKENS = 4096.0


def operations(model: ModelSpec, layout: Layout, precision: Precision = "bf16", **changed: Any) -> LayerOperations:
    """A layer with experts of one sequence; every expert gets the same number of tokens."""
    keys = {name: np.asarray(Layouts.of([layout])[name]) for name in KEY_FIELDS}
    workload = Workload(seq_len=int(TOKENS), global_batch=64, precision=precision)
    stack = replace(load_stack("generic"), **{"moe_imbalance": 1.0, **changed})
    return decoder_layer(Builder(model, workload, stack, Shard.of(keys, model, workload)), model.kinds[-1])


def traffic(ops: LayerOperations, name: str) -> MemoryTraffic:
    return next(each for each in ops.traffic if each.name == name)


@pytest.mark.parametrize(
    ("ep", "precision", "changed", "tokens_moved"),
    [
        # a token read, two copies written, both sorted by expert (2 x 2); the same on the way back
        (4, "bf16", {}, 2 * (1 + 2 + 2 * 2)),
        (8, "bf16", {}, 2 * (1 + 2)),  # one expert per rank: nothing to sort
        (1, "bf16", {}, 2 * (1 + 2 + 2 * 2)),  # all experts: sorted again, or copied in their order
        (1, "bf16", {"sorts_own_rows": False}, 2 * (1 + 2)),
        (4, "bf16", {"sorts_own_rows": False}, 2 * (1 + 2 + 2 * 2)),
        # scatter_add sums up in 4.3 times, index_add in 9.1 times the seconds of a copy; sorting only copies
        (8, "bf16", {"sums_rows": "scatter_add"}, (1 + 4.3) * (1 + 2)),
        (4, "bf16", {"sums_rows": "index_add"}, (1 + 9.1) * (1 + 2) + 2 * 2 * 2),
        (4, "fp8", {}, 2 * (1 + 2 + 2 * 2 + 2 * 2)),  # rows of every expert padded, and the padding taken off
        (4, "fp8", {"dropless": False}, 2 * (1 + 2 + 2 * 2)),  # counts are known: no padding
        # one copy per rank arrives: of two experts on four ranks 4 (1 - (3/4)^2) = 1.75 differ
        (4, "bf16", {"ep_dispatch": "deduplicated"}, 2 * (1.75 + 2)),
        (4, "fp8", {"ep_dispatch": "deduplicated"}, 2 * (1.75 + 2)),  # padded as they are copied
        (1, "bf16", {"ep_dispatch": "deduplicated"}, 2 * (1 + 2)),
        (4, "bf16", {"ep_dispatch": "allgather"}, 2 * (4 + 2)),  # tokens of four ranks read for two copies
    ],
)
def test_copies_of_tokens(ep: int, precision: Precision, changed: dict[str, Any], tokens_moved: float) -> None:
    ops = operations(MIXTRAL, Layout(dp=8, shard=8, ep=ep), precision, **changed)
    copied, ordered = (traffic(ops, name) for name in ("permute", "sort"))
    assert copied.forward_bytes + ordered.forward_bytes == pytest.approx(2 * TOKENS * MIXTRAL.hidden * tokens_moved)
    assert all(each.backward_bytes[0] == each.forward_bytes[0] for each in (copied, ordered))


def test_gathered_tokens() -> None:
    """All tokens of the four ranks of an expert group on each of them; their outputs are summed up and scattered."""
    layout = Layout(tp=2, dp=4, shard=4, ep=2, etp=2, sequence_parallel=True)
    found = operations(MIXTRAL, layout, ep_dispatch="allgather")
    exchanges = {each.op: each for each in found.exchanges if each.axis == "ep"}
    everyone = 4 * TOKENS / 2 * MIXTRAL.hidden  # a rank of two tensor-parallel ones routes half of the sequence
    assert set(exchanges) == {"all_gather", "reduce_scatter"}
    assert all(each.size[0] == 4 and each.num_bytes[0] == 2 * everyone for each in exchanges.values())
    copies = 2 * 4 * TOKENS / 2 / 2 * MIXTRAL.hidden  # each token has two experts, half of them are here
    assert np.asarray(found.reordered_bytes)[0] == 2 * (everyone + copies)


@pytest.mark.parametrize("changed", [{}, {"ep_dispatch": "deduplicated"}])
def test_counts_of_tokens(changed: dict[str, Any]) -> None:
    """8 bytes for each of 8 experts to the ep ranks of a block, and of all blocks to the two that share an expert, once
    per forward pass and once more where it is made again."""
    found = operations(MIXTRAL, Layout(tp=2, dp=4, shard=4, ep=2, etp=2, sequence_parallel=True), **changed)
    counts = [each for each in found.exchanges if each.awaited]
    sent = [(each.op, each.links, each.num_bytes[0], each.size[0], each.stride[0], each.forward_calls)
            for each in counts]  # fmt: skip
    assert sent == [("all_to_all", "", 64, 2, 2, 1), ("all_gather", "etp", 2 * 64, 2, 1, 1)]
    assert all((each.tag, each.backward_calls) == (tag("moe"), 0) for each in counts)


@pytest.mark.parametrize("changed", [{"dropless": False}, {"ep_dispatch": "allgather"}])
def test_no_counts_where_every_rank_knows_them(changed: dict[str, Any]) -> None:
    found = operations(MIXTRAL, Layout(dp=8, shard=8, ep=4), **changed)
    assert not any(each.awaited for each in found.exchanges)


def test_counts_of_whole_experts_stay() -> None:
    """Ranks with all experts send no tokens, so no numbers of them."""
    found = operations(MIXTRAL, Layout(dp=8, shard=8))
    assert not any(each.num_bytes.any() for each in found.exchanges if each.axis == "ep")


# Values that each kernel of the bias reads and writes per output value: (in bf16, in fp32).
BIAS = [(0, 1), (1, 2), (0, 2), (1, 1)]  # product, sum, experts joined, cast
BIAS_BACKWARD = [(1, 1), (1, 1), (0, 2), (0, 1), (0, 2), (0, 1), (2, 0)]  # casts, products and their sums, parts joined


def test_biases_of_experts() -> None:
    """Added one expert after another in fp32, as Megatron Core does it: two launches more per expert of a rank."""
    kind = MIXTRAL.kinds[-1]
    assert isinstance(kind.feed_forward, MixtureOfExperts)
    with_bias = replace(MIXTRAL, kinds=(replace(kind, feed_forward=replace(kind.feed_forward, expert_bias=True)),))
    layout = Layout(dp=4, shard=4, ep=4)
    found, plain = operations(with_bias, layout), operations(MIXTRAL, layout)
    values = 2 * TOKENS * MIXTRAL.hidden
    bias = traffic(found, "expert bias")
    assert bias.forward_bytes[0] == values * sum(2 * half + 4 * single for half, single in BIAS)
    assert bias.backward_bytes[0] == values * sum(2 * half + 4 * single for half, single in BIAS_BACKWARD)
    assert np.all(np.asarray(found.kernels) - np.asarray(plain.kernels) == 2 * 2)
    assert not any(each.name == "expert bias" for each in plain.traffic)


def test_norms_of_queries_and_keys() -> None:
    """Qwen 3: 32 heads of queries and 4 of keys, 128 wide; read and written, backward twice that."""
    found = traffic(operations(QWEN, Layout()), "query and key norms")
    assert found.forward_bytes[0] == 2 * 2 * TOKENS * (32 + 4) * 128
    assert found.backward_bytes[0] == 4 * 2 * TOKENS * (32 + 4) * 128
    assert not any(each.name == "query and key norms" for each in operations(MIXTRAL, Layout()).traffic)
    latent = traffic(operations(load_model("deepseek-v3")[0], Layout()), "query and key norms")
    assert latent.forward_bytes[0] == 2 * 2 * TOKENS * (1536 + 512)


def test_scaled_positions_of_megatron() -> None:
    """YaRN multiplies cosine and sine by 1.35 in gpt-oss, which TransformerEngine's kernel does not. 64 heads of
    queries and 8 of keys, 64 wide; values moved forward: 2 + 2 + 1 + 2 + 3 + 2, backward 4 + 1 + 2 + 3 + 4 + 3."""
    gpt_oss, values = load_model("gpt-oss-120b")[0], 2 * TOKENS * (64 + 8) * 64
    for fused, forward, backward in ((True, 2, 2), (False, 12, 17)):
        found = traffic(operations(gpt_oss, Layout(), fused_scaled_positions=fused), "positions")
        assert (found.forward_bytes[0], found.backward_bytes[0]) == (forward * values, backward * values)
    plain = traffic(operations(QWEN, Layout(), fused_scaled_positions=False), "positions")
    assert plain.forward_bytes[0] == 2 * 2 * TOKENS * (32 + 4) * 128


@pytest.mark.parametrize(
    ("precision", "changed"), [("bf16", {}), ("fp8", {}), ("fp8", {"fuses_expert_blocks": True}), ("fp4", {})]
)
def test_activation_of_experts_in_a_graph_of_the_iteration(precision: Precision, changed: dict[str, Any]) -> None:
    """Where no kernel fuses it with the products: the activation moves 3 values per output forward and 5 backward, by
    itself. Forward: gates and values apart 4, product with the weight 2. Backward: apart 4, product 2, gradients
    together 4, activation again 3, gradient of the weight 2. All on 1.5 times the rows."""
    of = {graphs: operations(MIXTRAL, Layout(dp=4, shard=4, ep=4, cuda_graphs=GRAPH_CODE[graphs]), precision,
                             dropless=True, moe_imbalance=1.0, **changed)
          for graphs in ("none", "full_iteration")}  # fmt: skip
    one = traffic(of["none"], "activation").forward_bytes[0] / 3
    assert not any(each.name == "activation in steps" and each.forward_bytes.any() for each in of["none"].traffic)
    found = [each for each in of["full_iteration"].traffic if each.name == "activation in steps"]
    if changed or precision == "fp4":
        assert not found
    else:
        (steps,) = found
        assert (steps.forward_bytes[0], steps.backward_bytes[0]) == pytest.approx((1.5 * 6 * one, 1.5 * 15 * one))


@pytest.mark.parametrize(
    ("precision", "changed", "kept", "computed"),
    [
        ("fp8", {"fuses_expert_blocks": True}, 1.2, 1.0),
        ("fp4", {}, 1.2, 1.0),
        ("fp8", {}, 1.5, 1.5),
        ("bf16", {}, 1.5, 1.5),
        ("bf16", {"moe_imbalance": 1.25}, 1.2, 1.2),  # room for 1.5 times the average, of which 1.25 are in use
        ("bf16", {"moe_imbalance": 2.0}, 1.0, 1.0),
        ("bf16", {"dropless": False}, 1.0, 1.0),
    ],
)
def test_room_of_experts(precision: Precision, changed: dict[str, Any], kept: float, computed: float) -> None:
    """A graph of the iteration has room for half as many rows again as a rank gets on average: kernels that are fused
    compute none of it, and what they save is copied to pages, a fifth more than the average. Others do and keep all."""
    saved, moved = {}, {}
    for graphs in ("none", "full_iteration"):
        found = operations(MIXTRAL, Layout(dp=4, shard=4, ep=4, cuda_graphs=GRAPH_CODE[graphs]), precision,
                           **{"dropless": True, **changed})  # fmt: skip
        saved[graphs] = sum(each.num_bytes[0] for each in found.saved if each.tag & tag("moe"))
        moved[graphs] = traffic(found, "activation")
    assert saved["full_iteration"] == pytest.approx(kept * saved["none"])
    for passes in ("forward_bytes", "backward_bytes"):
        alone, room = (getattr(moved[graphs], passes)[0] for graphs in ("none", "full_iteration"))
        assert room == pytest.approx(computed * alone)
