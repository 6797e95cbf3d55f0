"""Attention to tokens that an index chooses: FLOPs restated by hand, and what ranks hold and send of it."""

from __future__ import annotations

from dataclasses import replace
from importlib import import_module

import numpy as np
import pytest
import torch
import yaml
from meshwright.cost_models.layouts import CP_ALGORITHMS, Layout, Layouts
from meshwright.cost_models.problem import Problem
from meshwright.cost_models.quantities.device_memory import DeviceMemory
from meshwright.cost_models.quantities.layer_operations import decoder_layer
from meshwright.cost_models.quantities.operation_builder import Builder
from meshwright.cost_models.quantities.operations import BatchedProduct, LayerOperations
from meshwright.cost_models.quantities.shards import Shard
from meshwright.cost_models.rates.products import batched
from meshwright.cost_models.specs.model import Layer, ModelSpec
from meshwright.cost_models.specs.workload import Workload
from meshwright.planner.space.rules import violations
from meshwright.planner.targets.registry import target as load_target
from meshwright.profiles.cluster.load import load_cluster
from meshwright.profiles.model.load import load_model
from meshwright.profiles.stack.load import load_stack
from meshwright.profiles.stack.rates import rates_for
from torch.utils.flop_counter import FlopCounterMode
from transformers import AutoConfig

from ...snapshots import ROOT
from .test_moments import SEQ, built

H, HEADS, RANK, ROPE, NOPE, VALUE, QUERY_RANK = 7168, 128, 512, 64, 128, 128, 1536
INDEX_HEADS, INDEX_DIM, TOP_K = 64, 128, 2048
CATALOGUE = ROOT / "profiles" / "catalogue" / "models"
ALLGATHER = CP_ALGORITHMS.index("allgather")


@pytest.fixture(name="model", scope="module")
def fixture_model() -> ModelSpec:
    return load_model("deepseek-v3.2")[0]


def attention_only(model: ModelSpec) -> Layer:
    return replace(model.kinds[0], feed_forward=None)


def operations(model: ModelSpec, kind: Layer, *layouts: Layout, tokens: int = 16384) -> LayerOperations:
    workload = Workload(seq_len=tokens, global_batch=64)
    shard = Shard.of(Layouts.of(list(layouts) or [Layout()]), model, workload)
    return decoder_layer(Builder(model, workload, load_stack("megatron-core"), shard), kind)


def pairs(tokens: int, limit: int) -> float:
    """(query, key) pairs where a query sees at most `limit` of the tokens before it, by continuous sums."""
    return limit * tokens - limit**2 / 2 if limit < tokens else tokens**2 / 2


@pytest.mark.parametrize("tokens", [1024, 16384])
def test_flops_are_those_of_the_index_and_of_the_chosen_tokens(model: ModelSpec, tokens: int) -> None:
    """arXiv 2512.02556, section 2.1: the index scores all pairs, attention runs on latents of the chosen ones."""
    projections = 2 * tokens * (
        H * QUERY_RANK + QUERY_RANK * HEADS * (NOPE + ROPE) + H * (RANK + ROPE) + RANK * HEADS * (NOPE + VALUE)
        + HEADS * VALUE * H
    )  # fmt: skip
    index = 2 * tokens * (QUERY_RANK * INDEX_HEADS * INDEX_DIM + H * INDEX_DIM + H * INDEX_HEADS)
    chosen, every = pairs(tokens, TOP_K), pairs(tokens, tokens)
    core = 2 * HEADS * (RANK + ROPE + RANK) * chosen
    scores = 2 * INDEX_HEADS * INDEX_DIM * every
    loss_scores, loss_target = 2 * INDEX_HEADS * INDEX_DIM * chosen, 2 * HEADS * (RANK + ROPE) * chosen
    ops = operations(model, attention_only(model), tokens=tokens)

    forward = projections + index + core + scores + loss_scores + loss_target
    assert ops.forward_flops() == pytest.approx(forward, rel=1e-12)
    assert ops.backward_flops() == pytest.approx(2 * (projections + index + core + loss_scores), rel=1e-12)


def test_attention_to_chosen_tokens_grows_as_the_sequence(model: ModelSpec) -> None:
    short, long = (operations(model, attention_only(model), tokens=tokens) for tokens in (65536, 131072))
    grown = float(long.cores[0].flops[0] / short.cores[0].flops[0])
    scores = [float(ops.batched[0].flops[0]) for ops in (short, long)]

    assert grown == pytest.approx(2.0, rel=0.02)
    assert scores[1] / scores[0] == pytest.approx(4.0)


def test_a_layer_that_shares_a_choice_has_no_index() -> None:
    model = load_model("glm-5.2")[0]
    own, shared = (
        next(kind for kind in model.kinds if kind.is_moe and kind.attention and kind.attention.index
             and kind.attention.index.shared is shares)
        for shares in (False, True)
    )  # fmt: skip
    assert any("index" in gemm.name for gemm in operations(model, own).gemms)
    assert not any("index" in gemm.name for gemm in operations(model, shared).gemms)
    assert not operations(model, shared).batched
    assert sum(number == model.kinds.index(shared) for number in model.pattern) == 57  # 18 of 75 choose


def test_ranks_split_heads_but_each_has_the_whole_index(model: ModelSpec) -> None:
    ops = operations(model, attention_only(model), Layout(), Layout(tp=8, sequence_parallel=1))
    scores = {product.name: product.flops for product in ops.batched}

    assert ops.cores[0].flops[1] == ops.cores[0].flops[0] / 8
    assert scores["index scores"][1] == scores["index scores"][0]
    assert scores["attention of the loss"][1] == scores["attention of the loss"][0] / 8


def test_context_parallel_ranks_gather_latents_and_index_keys(model: ModelSpec) -> None:
    ops = operations(model, attention_only(model), Layout(cp=8, cp_algorithm=ALLGATHER))
    gathered = next(exchange for exchange in ops.exchanges if exchange.op == "all_gather" and exchange.axis == "cp")

    assert gathered.num_bytes == pytest.approx(np.array([2 * 16384 * (RANK + ROPE + INDEX_DIM)]))
    problem = Problem(model, Workload(seq_len=16384, global_batch=64), load_stack("megatron-core"), 64, 8)
    text = "cp_algorithm ring: an index chooses among the keys of all tokens, so ranks gather them (allgather)"
    assert text in violations(Layout(cp=8), problem)
    assert text not in violations(Layout(cp=8, cp_algorithm=ALLGATHER), problem)


def masked(model: ModelSpec, kind: Layer, *, tokens: int) -> LayerOperations:
    """As transformers computes it."""
    workload = Workload(seq_len=tokens, global_batch=64)
    shard = Shard.of(Layouts.of([Layout()]), model, workload)
    return decoder_layer(Builder(model, workload, load_stack("deepspeed"), shard), kind)


@pytest.mark.parametrize(("name", "module", "place"), [
    ("deepseek-v3.2", "deepseek_v32.modeling_deepseek_v32.DeepseekV32Attention", 0),
    ("glm-5.2", "glm_moe_dsa.modeling_glm_moe_dsa.GlmMoeDsaAttention", 0),
    ("glm-5.2", "glm_moe_dsa.modeling_glm_moe_dsa.GlmMoeDsaAttention", 3),
])  # fmt: skip
@pytest.mark.parametrize("tokens", [1024, 4096])
def test_flops_of_masked_attention_are_those_of_transformers(name: str, module: str, place: int, tokens: int) -> None:
    model = load_model(name)[0]
    forward, backward = counted(name, module, place, tokens)
    ops = masked(model, replace(model.kinds[model.pattern[place]], feed_forward=None), tokens=tokens)

    assert ops.forward_flops() == pytest.approx(forward, rel=1e-9)
    assert ops.backward_flops() == pytest.approx(backward, rel=1e-9)


def counted(name: str, module: str, place: int, tokens: int) -> tuple[float, float]:
    """FLOPs of the passes of an attention of transformers."""
    data = yaml.safe_load((CATALOGUE / f"{name}.yaml").read_text())["config"]
    config = AutoConfig.for_model(**{**data, "rms_norm_eps": 1e-6})
    config._attn_implementation = "eager"
    package, _, kind = module.rpartition(".")
    with torch.device("meta"):
        attention = getattr(import_module(f"transformers.models.{package}"), kind)(config, place)
        hidden = torch.zeros(1, tokens, config.hidden_size, requires_grad=True)
        mask, chosen = torch.zeros(1, 1, tokens, tokens), torch.zeros(1, tokens, TOP_K, dtype=torch.int32)
        angles = torch.zeros(1, tokens, config.qk_rope_head_dim)
        shared = {"prev_topk_indices": chosen} if getattr(attention, "skip_topk", False) else {}
        with FlopCounterMode(display=False) as forward:
            out = attention(hidden, position_embeddings=(angles, angles), attention_mask=mask, **shared)[0]
        with FlopCounterMode(display=False) as backward:
            out.sum().backward()
    return float(forward.get_total_flops()), float(backward.get_total_flops())


def test_masked_attention_keeps_a_mask_and_makes_scores_of_all_heads_at_once(model: ModelSpec) -> None:
    tokens = 4096
    ops = masked(model, attention_only(model), tokens=tokens)
    kept = {saved.name: float(saved.num_bytes[0]) for saved in ops.saved}

    assert kept["mask of chosen tokens"] == 2 * tokens**2
    assert {"chosen tokens", "index queries, keys, weights"}.isdisjoint(kept)
    assert float(np.asarray(ops.steps)[0]) == 2 * 4 * INDEX_HEADS * tokens**2  # fp32, before and after a step
    assert {product.name for product in ops.batched if product.fp32} == {"index scores", "weighted index scores"}


@pytest.mark.parametrize("target", ["deepspeed", "accelerate"])
def test_plans_of_frameworks_that_mask_have_its_memory_and_no_context_parallelism(target: str) -> None:
    stack, model = load_target(target).stack, load_model("glm-5")[0]
    ledgers = [built("dp8-mbs1-z3-rfull", stack, 64, model, masks_chosen_tokens=masks) for masks in (False, True)]
    sparse, squares = (DeviceMemory(ledger).workspace(0) for ledger in ledgers)
    assert squares.max() >= 2 * 4 * 32 * SEQ**2 > sparse.max()

    problem = Problem(model, Workload(seq_len=SEQ, global_batch=64), load_stack(stack), 8, 8)
    columns = Layouts.of([Layout(cp=2, cp_algorithm=ALLGATHER)])
    refused = [rule.name for rule in load_target(target).rules if not rule.allows(columns, problem)[0]]
    assert f"{target}: chosen tokens" in refused


def test_scores_in_fp32_take_what_vector_units_take() -> None:
    stack = load_stack("deepspeed")
    rates = rates_for(load_cluster("dgx-h100:1"), stack, "bf16")
    product = BatchedProduct("index scores", 4096, 4096, 128, np.array([32.0]), 0, fp32=True)
    output = batched(product, rates)[0]
    assert output == pytest.approx(2 * 4096**2 * 128 * 32 / 67e12, rel=0.01)  # H100 datasheet
    assert output > 4 * batched(replace(product, fp32=False), rates)[0]
