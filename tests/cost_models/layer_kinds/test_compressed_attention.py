"""Compressed attention and residual streams: FLOPs against transformers on the meta device, and what ranks split."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import pytest
import torch
import yaml
from meshwright.cost_models.layouts import Layout, Layouts
from meshwright.cost_models.problem import Problem
from meshwright.cost_models.quantities.memory import layer_parameters as memory_parameters
from meshwright.cost_models.quantities.params import head_parameters, layer_parameters, total_parameters
from meshwright.cost_models.quantities.tables import build, index_keys
from meshwright.cost_models.specs.model import Layer, ModelSpec
from meshwright.cost_models.specs.workload import Workload
from meshwright.planner.space.rules import violations
from meshwright.profiles.model.huggingface import read_config
from meshwright.profiles.model.load import load_model
from meshwright.profiles.stack.load import load_stack
from torch.utils.flop_counter import FlopCounterMode
from transformers.models.deepseek_v4 import modeling_deepseek_v4 as theirs
from transformers.models.deepseek_v4.configuration_deepseek_v4 import DeepseekV4Config

from meshwright.errors import InputError

from ...meta_models import assert_equal_counts
from ...published_configs import LISTED
from ...snapshots import ROOT
from .test_mixers import operations

PUBLISHED = LISTED["deepseek-v4-flash"]
KINDS = ("sliding_attention", "compressed_sparse_attention", "heavily_compressed_attention")
TOKENS = 2048


def model_of(**changes: Any) -> ModelSpec:
    return read_config({**PUBLISHED, **changes}, "deepseek-v4-flash")[0]


def layer_of(model: ModelSpec, kind: str) -> Layer:
    """A layer of that kind, without its experts."""
    rate = {"sliding_attention": 0, "compressed_sparse_attention": 4, "heavily_compressed_attention": 128}[kind]
    layer = next(layer for layer in model.kinds if getattr(layer.mixer, "rate", None) == rate)
    return replace(layer, feed_forward=None)


def counted(kind: str, **changes: Any) -> float:
    """FLOPs of the forward pass of transformers' attention and of the streams around it."""
    fields = {name: value for name, value in PUBLISHED.items() if name != "compress_ratios"}
    config = DeepseekV4Config(**{**fields, **changes, "layer_types": [kind], "num_hidden_layers": 1})
    config._attn_implementation = "eager"
    with torch.device("meta"):
        attention, streams = theirs.DeepseekV4Attention(config, 0), theirs.DeepseekV4HyperConnection(config)
        rotary = theirs.DeepseekV4RotaryEmbedding(config)
        hidden = torch.zeros(1, TOKENS, config.hc_mult, config.hidden_size)
        places = torch.arange(TOKENS)[None]
        positions = {name: rotary(hidden[:, :, 0], places, name) for name in ("main", "compress")}
        mask = torch.zeros(1, 1, TOKENS, TOKENS)
        with FlopCounterMode(display=False) as counter:
            _, _, collapsed = streams(hidden)
            attention(collapsed, positions, places, mask)
    return float(counter.get_total_flops())


@pytest.mark.parametrize("kind", KINDS)
def test_flops_are_those_of_transformers(kind: str) -> None:
    """Its eager attention masks whole squares, where a window and an index that see all tokens leave half of them."""
    whole = {"sliding_window": TOKENS, "index_topk": TOKENS}
    model = model_of(**whole)
    ops = operations(model, layer_of(model, kind), tokens=TOKENS)
    products = sum(float((2 * gemm.m * gemm.n * gemm.k * gemm.count)[0]) for gemm in ops.gemms)
    squares = float(ops.cores[0].flops[0])
    squares += sum(float(product.flops[0]) for product in ops.batched if product.name == "index scores")

    assert products + 2 * squares == pytest.approx(counted(kind, **whole), rel=1e-3)


@pytest.mark.parametrize(("kind", "entries"), [
    ("sliding_attention", 0.0),
    # 16,384 tokens have 4,096 entries of 4; a query sees the 512 best of those before it, from the 2,048th token on.
    ("compressed_sparse_attention", 512 - 512**2 / (2 * 4096)),
    ("heavily_compressed_attention", 128 / 2),
])  # fmt: skip
def test_a_query_sees_its_window_and_entries(kind: str, entries: float) -> None:
    tokens, heads, width, window = 16384, 64, 512, 128
    model = model_of()
    seen = window - window**2 / (2 * tokens) + entries
    ops = operations(model, layer_of(model, kind), tokens=tokens)
    assert float(ops.cores[0].flops[0]) == pytest.approx(2 * heads * 2 * width * tokens * seen, rel=1e-12)


def test_ranks_split_heads_and_groups_but_have_the_key_entries_and_index_whole() -> None:
    model = model_of()
    kind = layer_of(model, "compressed_sparse_attention")
    ops = operations(model, kind, Layout(), Layout(tp=8, sequence_parallel=1))
    flops = {gemm.name: 2 * gemm.m * gemm.n * gemm.k * gemm.count for gemm in ops.gemms}
    shares = {name: float(of[1] / of[0]) for name, of in flops.items() if name.startswith("mixer")}

    assert shares == {
        "mixer query down": 1.0, "mixer query up": 1 / 8, "mixer key": 1.0, "mixer output groups": 1 / 8,
        "mixer out": 1 / 8, "mixer entries": 1.0, "mixer index query": 1.0, "mixer index entries": 1.0,
    }  # fmt: skip
    assert ops.cores[0].flops[1] == ops.cores[0].flops[0] / 8
    problem = Problem(model, Workload(seq_len=8192, global_batch=64), load_stack("megatron-core"), 64, 8)
    broken = [text for text in violations(Layout(tp=16, sequence_parallel=1), problem) if "output groups" in text]
    assert broken
    assert not any("output groups" in text for text in violations(Layout(tp=8, sequence_parallel=1), problem))


def test_tensor_parallel_ranks_hold_the_key_entries_and_index_whole() -> None:
    model = model_of()
    h, rank, d, heads, index = 4096, 1024, 512, 64, 128
    key, entries = h * d, (2 * h + 4) * 2 * d + d
    own_index = (2 * h + 4) * 2 * index + index + rank * 64 * index + h * 64
    streams = (2 + 4) * 4 * (4 * h + 1) + 3
    workload = Workload(seq_len=8192, global_batch=64)
    held = memory_parameters(model, layer_of(model, "compressed_sparse_attention"), "all", workload)
    assert held.replicated == h * rank + key + (rank + d) + entries + own_index + streams + 2 * h
    assert held.sharded == rank * heads * d + heads * d * 1024 + 8 * 1024 * h + heads


def test_context_parallel_ranks_get_a_window_of_keys_and_all_entries() -> None:
    model, tokens, cp = model_of(), 65536, 8
    width, index, rate, window = 512, 128, 4, 128
    ops = operations(model, layer_of(model, "compressed_sparse_attention"), Layout(cp=cp), tokens=tokens)
    sent = {exchange.op: float(exchange.num_bytes[0]) for exchange in ops.exchanges if exchange.axis == "cp"}

    entries = 2 * tokens * (width + index) / rate
    # The first entry of a rank pools 4 tokens of the rank before: values and gates of one series.
    before = 2 * ((window - 1) * width + 2 * (width + index) * rate)
    assert sent == {"p2p": before, "all_gather": entries, "reduce_scatter": entries}
    assert entries < 2 * tokens * 2 * width / 3  # less than a third of the keys and values of one head


def test_attention_to_compressed_tokens_grows_as_the_sequence() -> None:
    model = model_of()
    short, long = (
        operations(model, layer_of(model, "compressed_sparse_attention"), tokens=tokens) for tokens in (2**18, 2**19)
    )
    assert float(long.cores[0].flops[0] / short.cores[0].flops[0]) == pytest.approx(2.0, rel=0.02)


def test_streams_are_as_many_hidden_states_between_blocks_and_stages() -> None:
    model = model_of()
    one = replace(model, residual_streams=1)
    h, n = 4096, 4
    keys = index_keys(Layouts.of([Layout()]))[0]
    workload = Workload(seq_len=TOKENS, global_batch=64)
    many_tables, one_tables = (
        build(Problem(spec, workload, load_stack("megatron-core"), 64, 8), keys) for spec in (model, one)
    )
    assert many_tables.message == n * one_tables.message == pytest.approx(2 * n * h * TOKENS)
    assert many_tables.operations[0].input_bytes == n * one_tables.operations[0].input_bytes
    weights = (2 + n) * n * (n * h + 1) + 3
    counts = [layer_parameters(spec, spec.kinds[0]) for spec in (model, one)]
    assert counts[0]["streams"] + counts[0]["stream_biases"] == 2 * weights
    assert "streams" not in counts[1]
    assert head_parameters(model) == head_parameters(one)


@pytest.mark.parametrize(("changes", "words"), [
    ({"o_groups": 7}, "7 groups do not divide 64 heads"),
    ({"compress_ratios": [0, 4, 5]}, "must be a list of 0, 4 or 128 for each of 43 layers"),
    ({"num_key_value_heads": 8}, "must be 1: all heads share a key"),
    ({"hc_mult": 1}, "must be 2 or more"),
    ({"scoring_func": "relu"}, "`relu` is none of softmax, sigmoid, sqrtsoftplus"),
    ({"compress_rates": {"sparse": 4}}, "unknown field"),
    ({"attention_bias": True}, "there is no formula for biases"),
])  # fmt: skip
def test_bad_fields_are_named(changes: dict[str, Any], words: str) -> None:
    with pytest.raises(InputError) as caught:
        model_of(**changes)
    assert words in caught.value.message
    assert next(iter(changes)) in caught.value.message


def test_saved_bytes_and_traffic_are_positive_on_every_rank() -> None:
    model = model_of()
    for kind in KINDS:
        ops = operations(model, layer_of(model, kind), Layout(), Layout(tp=8, cp=4, sequence_parallel=1))
        assert all(np.all(part.num_bytes > 0) for part in ops.saved if "output of graphs" not in part.name)
        assert all(np.all(part.forward_bytes > 0) for part in ops.traffic)


def test_a_prediction_module_has_the_layer_that_the_config_has_for_it() -> None:
    """Entry 44 of the published `compress_ratios`, of 43 layers: a window alone."""
    ratios = PUBLISHED["compress_ratios"]
    published, heavy = model_of(), model_of(compress_ratios=[*ratios[:43], 128])
    rates = [getattr(model.kinds[model.mtp_pattern[0]].mixer, "rate", None) for model in (published, heavy)]
    assert (len(ratios), published.num_layers, rates) == (44, 43, [0, 128])
    assert model_of(compress_ratios=ratios[:43]).mtp_pattern == ()
    only = model_of(compress_ratios=[4] * 43 + [0])  # a kind that no layer of the model has
    assert getattr(only.kinds[only.mtp_pattern[0]].mixer, "rate", None) == 0
    with pytest.raises(InputError, match="prediction modules 0, 4 are not the same layers"):
        model_of(compress_ratios=[*ratios, 4], num_nextn_predict_layers=2)


def test_the_large_one_of_the_catalogue_has_the_parameters_of_transformers() -> None:
    """1.6 T in its publication."""
    text = (ROOT / "profiles" / "catalogue" / "models" / "deepseek-v4-pro.yaml").read_text()
    assert_equal_counts(yaml.safe_load(text)["config"])
    assert total_parameters(load_model("deepseek-ai/DeepSeek-V4-Pro")[0]) == 1_572_997_179_491
