"""Mixers: their sizes and FLOPs against formulas restated by hand, and what ranks split of them."""

from __future__ import annotations

import json
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from meshwright.cost_models.cuda_graphs import GRAPH_CODE
from meshwright.cost_models.layer_kinds.gated_delta_net import GatedDeltaNet
from meshwright.cost_models.layer_kinds.mamba2 import Mamba2
from meshwright.cost_models.layer_kinds.registry import MIXERS, kind_of
from meshwright.cost_models.layouts import Layout, Layouts
from meshwright.cost_models.problem import Problem
from meshwright.cost_models.quantities.layer_operations import decoder_layer
from meshwright.cost_models.quantities.operation_builder import Builder
from meshwright.cost_models.quantities.operations import LayerOperations
from meshwright.cost_models.quantities.params import layer_parameters
from meshwright.cost_models.quantities.shards import Shard
from meshwright.cost_models.specs.model import Layer, ModelSpec
from meshwright.cost_models.specs.workload import Precision, Workload
from meshwright.planner.space.rules import violations
from meshwright.profiles.model.huggingface import read_config
from meshwright.profiles.stack.load import load_stack

from meshwright.errors import InputError

from ...snapshots import ROOT

HYBRIDS = ("nemotron-h-56b", "nemotron-3-nano-30b-a3b", "qwen3-next-80b-a3b")


def config(name: str) -> dict[str, Any]:
    data: dict[str, Any] = json.loads((ROOT / "tests" / "data" / "configs" / f"{name}.json").read_text())
    return data


def model_of(name: str, **changes: Any) -> ModelSpec:
    return read_config({**config(name), **changes}, name)[0]


def operations(
    model: ModelSpec, kind: Layer, *layouts: Layout, tokens: int = 4096, precision: Precision = "bf16"
) -> LayerOperations:
    workload = Workload(seq_len=tokens, global_batch=64, precision=precision)
    shard = Shard.of(Layouts.of(list(layouts) or [Layout()]), model, workload)
    return decoder_layer(Builder(model, workload, load_stack("megatron-core"), shard), kind)


def mixing(model: ModelSpec) -> Layer:
    return next(kind for kind in model.kinds if kind.mixer is not None)


def test_flops_of_mamba2_are_those_of_its_chunked_scan() -> None:
    """arXiv 2405.21060, section 6: four products of a chunk, of Q tokens, N states, P channels, H heads, G groups."""
    model, tokens = model_of("nemotron-h-56b"), 4096
    h, heads, head_dim, groups, state, chunk = 8192, 256, 64, 8, 256, 128
    inner = heads * head_dim
    projections = 2 * tokens * h * (2 * inner + 2 * groups * state + heads) + 2 * tokens * inner * h
    scores, by_scores = 2 * tokens * chunk * state * groups, 2 * tokens * chunk * head_dim * heads
    states = 2 * 2 * tokens * state * head_dim * heads
    ops = operations(model, mixing(model), tokens=tokens)
    assert ops.forward_flops() == pytest.approx(projections + scores + by_scores + states, rel=1e-12)
    assert ops.backward_flops() == pytest.approx(2 * ops.forward_flops(), rel=1e-12)


def test_flops_of_gated_delta_net_are_those_of_its_chunked_scan() -> None:
    """arXiv 2412.06464, section 3.3, in chunks of 64: gated linear attention's products (FORMULAS of arXiv 2312.06635:
    2 Q (d_k + d_v) + 4 d_k d_v per token and head, key heads once), and four of the delta rule."""
    model, tokens, chunk = model_of("qwen3-next-80b-a3b"), 4096, 64
    h, key_heads, heads, dk, dv = 2048, 16, 32, 128, 128
    projections = 2 * tokens * h * (2 * key_heads * dk + 2 * heads * dv + 2 * heads) + 2 * tokens * heads * dv * h
    linear = tokens * (2 * chunk * dk * key_heads + 2 * chunk * dv * heads + 4 * dk * dv * heads)
    delta = tokens * heads * (2 * chunk * dk + 2 * chunk * dv + 2 * chunk * dk + 2 * dk * dv)
    kind = replace(mixing(model), feed_forward=None)
    ops = operations(model, kind, tokens=tokens)
    assert ops.forward_flops() == pytest.approx(projections + linear + delta, rel=1e-12)


@pytest.mark.parametrize("name", HYBRIDS)
def test_the_work_of_a_mixer_grows_as_the_tokens_and_that_of_attention_as_their_square(name: str) -> None:
    model = model_of(name)
    for kind in model.kinds:
        short, long = (operations(model, kind, tokens=tokens) for tokens in (4096, 8192))
        ratio = long.forward_flops() / short.forward_flops()
        cores = sum(float(core.flops[0]) for core in short.cores)
        assert ratio == pytest.approx(2 + 2 * cores / short.forward_flops(), rel=1e-12)
        assert bool(short.batched) == (kind.mixer is not None)


@pytest.mark.parametrize("name", HYBRIDS)
def test_tensor_and_context_parallel_ranks_share_the_work(name: str) -> None:
    model = model_of(name)
    kind = replace(mixing(model), feed_forward=None)
    layouts = [Layout(), Layout(tp=2, sequence_parallel=1), Layout(cp=4, cp_algorithm=2)]
    ops = operations(model, kind, *layouts)
    flops = np.sum([*(2 * g.m * g.n * g.k * g.count for g in ops.gemms), *(p.flops for p in ops.batched)], axis=0)
    assert flops / flops[0] == pytest.approx(np.array([1.0, 0.5, 0.25]), rel=1e-12)
    saved = np.sum([s.num_bytes for s in ops.saved], axis=0)
    assert saved / saved[0] == pytest.approx(np.array([1.0, 0.5, 0.25]), rel=1e-12)
    sent = [e for e in ops.exchanges if e.axis == "cp"]
    assert [e.op for e in sent] == ["all_to_all"] * 2
    assert all((e.num_bytes > 0).tolist() == [False, False, True] for e in sent)


@pytest.mark.parametrize("name", HYBRIDS)
def test_every_mixer_has_a_kind_that_counts_all_its_parameters(name: str) -> None:
    model = model_of(name)
    for kind in model.kinds:
        if kind.mixer is not None:
            own = kind_of(kind.mixer)
            counts = own.parameters(kind.mixer, model.hidden)
            with_all = replace(kind.mixer, out_bias=True) if isinstance(kind.mixer, Mamba2) else kind.mixer
            assert set(own.replicated) <= own.parameters(with_all, model.hidden).keys()
            assert counts.items() <= layer_parameters(model, kind).items()
    assert len({own.name for own in MIXERS}) == len(MIXERS)


def problem_of(name: str) -> Problem:
    return Problem(model_of(name), Workload(seq_len=4096, global_batch=64), load_stack("megatron-core"), 16, 8)


@pytest.mark.parametrize(
    ("layout", "message"),
    [
        (Layout(tp=16, sequence_parallel=1), "tp 16 x cp 1 does not divide the heads of the layers' mixers: "
         "256 state-space heads, 8 state-space groups"),
        (Layout(tp=8, sequence_parallel=1, dp=2, shard=2), ""),
        (Layout(cp=16), ""),  # two ranks have the same group
    ],
)  # fmt: skip
def test_a_layout_splits_whole_heads(layout: Layout, message: str) -> None:
    found = [text for text in violations(layout, problem_of("nemotron-h-56b")) if "mixers" in text]
    assert found == ([message] if message else [])


def test_a_model_without_attention_has_no_algorithm_of_its_context() -> None:
    pattern = "M-" * 8
    model = model_of("nemotron-h-56b", hybrid_override_pattern=pattern, num_hidden_layers=16)
    problem = replace(problem_of("nemotron-h-56b"), model=model)
    assert not violations(Layout(cp=16), problem)
    assert violations(Layout(cp=16, cp_algorithm=1), problem) == [
        "cp_algorithm allgather is of attention, and the model has none"
    ]


@pytest.mark.parametrize(
    ("changes", "field", "message"),
    [
        ({"hybrid_override_pattern": "M-X*"}, "hybrid_override_pattern",
         "must be made of the letters M (linear_attention), * (full_attention), - (mlp), E (moe), is 'M-X*'"),
        ({"hybrid_override_pattern": "M-M*"}, "hybrid_override_pattern", "has 4 entries for 118 layers"),
        ({"hybrid_override_pattern": None}, "hybrid_override_pattern", "is missing: which layers are of which kind"),
        ({"hybrid_override_pattern": None, "layers_block_type": ["mamba", "conv"], "num_hidden_layers": 2},
         "layers_block_type", "holds conv; known are linear_attention, full_attention, mlp, moe"),
        ({"n_groups": 7}, "n_groups", "7 groups do not divide 256 heads"),
        ({"mamba_num_heads": 0}, "mamba_num_heads", "must be 1 or more"),
    ],
)  # fmt: skip
def test_what_is_wrong_with_a_pattern_is_named(changes: dict[str, Any], field: str, message: str) -> None:
    with pytest.raises(InputError) as caught:
        model_of("nemotron-h-56b", **changes)
    assert (field, message) in [(problem.field, problem.message) for problem in caught.value.problems]


def test_sizes_are_of_the_published_models() -> None:
    """Nemotron-H-56B: 56.3 B parameters (arXiv 2504.03624); Qwen3-Next: 80 B, 3 B of them active (its model card)."""
    assert isinstance(mixing(model_of("nemotron-h-56b")).mixer, Mamba2)
    delta = mixing(model_of("qwen3-next-80b-a3b")).mixer
    assert isinstance(delta, GatedDeltaNet)
    assert (delta.keys, delta.values, delta.convolved, delta.projected) == (2048, 4096, 8192, 12352)


def test_a_graph_of_attention_leaves_layers_without_it_their_launches() -> None:
    """Nemotron-H has layers of Mamba-2, of attention and of an MLP."""
    model = model_of("nemotron-h-56b")
    for kind in model.kinds:
        eager, graphed = (float(np.max(operations(model, kind, Layout(cuda_graphs=GRAPH_CODE[name])).kernels))
                          for name in ("none", "attn"))  # fmt: skip
        assert graphed < eager if kind.attention is not None else graphed == eager
