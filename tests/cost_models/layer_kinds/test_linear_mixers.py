"""Mamba, Kimi Delta Attention, lightning and gated linear attention, short convolutions: restated by hand."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
from meshwright.cost_models.layer_kinds.gated_linear_attention import GatedLinearAttention
from meshwright.cost_models.layer_kinds.registry import kind_of
from meshwright.cost_models.layouts import Layout
from meshwright.cost_models.quantities.graph_parts import part_of_product, parts_of
from meshwright.cost_models.quantities.params import layer_parameters, total_parameters
from meshwright.cost_models.specs.model import Layer, ModelSpec
from meshwright.planner.accuracy.recipes import published_meshes
from meshwright.profiles.model.huggingface import read_config

from ...published_configs import LISTED
from .test_mixers import mixing, operations

NAMES = ("jamba-v0.1", "kimi-linear-48b-a3b", "minimax-text-01", "lfm2-1.2b", "rwkv-7-2.9b")
TOKENS = 8192


def model_of(name: str) -> ModelSpec:
    return read_config(LISTED[name], name)[0]


def mixer_only(model: ModelSpec) -> Layer:
    return replace(mixing(model), feed_forward=None)


def scan(tokens: int, chunk: int, heads: int, dk: int, dv: int) -> int:
    """arXiv 2312.06635, section 4: scores and their product with values inside chunks; states made and read."""
    return tokens * heads * (2 * chunk * (dk + dv) + 4 * dk * dv)


def by_hand(name: str) -> int:
    """Forward FLOPs of the mixer of a layer, out of the published sizes."""
    n = TOKENS
    if name == "jamba-v0.1":  # arXiv 2312.00752, section 3.4: h -> 2d, d -> rank + 2N, rank -> d, d -> h
        h, d, rank, state = 4096, 8192, 256, 16
        return 2 * n * (2 * d * h + d * (rank + 2 * state) + rank * d + d * h)
    if name == "kimi-linear-48b-a3b":  # arXiv 2510.26692, section 3: low ranks of decay and gate are as wide as a head
        h, heads, d, chunk = 2304, 32, 128, 64
        width = heads * d
        projections = 3 * h * width + h * heads + 2 * (h * d + d * width) + width * h
        delta = n * heads * (4 * chunk * d + 2 * chunk * d + 2 * d * d)  # arXiv 2406.06484, section 3.2
        return 2 * n * projections + scan(n, chunk, heads, d, d) + delta
    if name == "minimax-text-01":  # arXiv 2501.08313, section 2.2; queries, keys, values, gate; blocks of 256
        h, width = 6144, 64 * 128
        return 2 * n * (4 * h * width + width * h) + scan(n, 256, 64, 128, 128)
    if name == "rwkv-7-2.9b":  # arXiv 2503.14456, appendix: three products in, four low ranks; chunks of 16 (DPLR)
        h, heads, d, chunk, ranks = 2560, 40, 64, 16, 96 + 96 + 320
        return 2 * n * (4 * h * h + 2 * h * ranks) + n * heads * (10 * chunk * d + 8 * chunk * d + 8 * d * d)
    h = 2048  # LFM2: B, C, x in, one out
    return 2 * n * (3 * h * h + h * h)


@pytest.mark.parametrize("name", NAMES)
def test_flops_are_those_of_the_paper(name: str) -> None:
    model = model_of(name)
    ops = operations(model, mixer_only(model), tokens=TOKENS)

    assert ops.forward_flops() == pytest.approx(by_hand(name), rel=1e-12)
    assert ops.backward_flops() == pytest.approx(2 * ops.forward_flops(), rel=1e-12)


@pytest.mark.parametrize("name", NAMES)
def test_every_product_is_in_a_part_of_its_layer(name: str) -> None:
    model = model_of(name)
    for kind in model.kinds:
        parts = {part_of_product(gemm.name, kind) for gemm in operations(model, kind).gemms}
        assert parts <= set(parts_of(kind))


@pytest.mark.parametrize("name", NAMES)
def test_work_and_memory_grow_as_the_tokens(name: str) -> None:
    model = model_of(name)
    short, long = (operations(model, mixer_only(model), tokens=tokens) for tokens in (4096, 8192))
    kept = [sum(float(part.num_bytes[0]) for part in ops.saved) for ops in (short, long)]
    moved = [sum(float(part.forward_bytes[0]) for part in ops.traffic) for ops in (short, long)]
    assert kept[1] / kept[0] == pytest.approx(2.0)
    assert moved[1] / moved[0] == pytest.approx(2.0)
    assert long.forward_flops() / short.forward_flops() == pytest.approx(2.0)


@pytest.mark.parametrize("name", NAMES)
def test_ranks_of_tensor_and_context_parallelism_share_the_work(name: str) -> None:
    model = model_of(name)
    layouts = [Layout(), Layout(tp=2, sequence_parallel=1), Layout(cp=4, cp_algorithm=2)]
    ops = operations(model, mixer_only(model), *layouts, tokens=TOKENS)
    flops = np.sum([*(2 * g.m * g.n * g.k * g.count for g in ops.gemms), *(p.flops for p in ops.batched)], axis=0)
    whole = sum(float((2 * g.m * g.n * g.k * g.count)[0]) for g in ops.gemms if g.name.endswith("down"))

    # A projection down to a low rank is whole on every rank of tensor parallelism.
    assert flops / flops[0] == pytest.approx(np.array([1.0, 0.5 + 0.5 * whole / flops[0], 0.25]), rel=1e-12)
    sent = [exchange for exchange in ops.exchanges if exchange.axis == "cp"]
    assert {exchange.op for exchange in sent} == ({"p2p"} if name == "lfm2-1.2b" else {"all_to_all"})
    assert all((exchange.num_bytes > 0).tolist() == [False, False, True] for exchange in sent)


@pytest.mark.parametrize("name", NAMES)
def test_parameters_that_ranks_have_whole_are_among_those_of_the_layer(name: str) -> None:
    model = model_of(name)
    kind = mixing(model)
    assert kind.mixer is not None
    own = kind_of(kind.mixer)
    counts = own.parameters(kind.mixer, model.hidden)
    assert counts.items() <= layer_parameters(model, kind).items()
    products = sum(matrix.elements for matrix in own.matrices(kind.mixer, model.hidden))
    assert products / sum(counts.values()) == pytest.approx(1.0, abs=0.01)


def test_published_runs_are_of_no_model_without_attention() -> None:
    assert published_meshes(model_of("rwkv-7-2.9b")) == []


def test_parameters_of_rwkv_7() -> None:
    """arXiv 2503.14456, appendix on parameters: 2DV + 4D + LD(12D + 2(d_w + d_a + d_v + d_g) + 19) - (2 D d_v + D)."""
    d, layers, vocab, value_rank = 2560, 32, 65536, 64
    published = 2 * d * vocab + 4 * d + layers * d * (12 * d + 2 * (96 + 96 + value_rank + 320) + 19)
    assert total_parameters(model_of("rwkv-7-2.9b")) == published - (2 * d * value_rank + d)


def test_parameters_of_gated_linear_attention() -> None:
    """fla's layer of GLA at hidden 1024, 4 heads: keys half as wide as values, decays of rank 16 with a bias."""
    mixer = GatedLinearAttention(heads=4, key_head_dim=128, value_head_dim=256, decay_rank=16)
    h, keys, values = 1024, 512, 1024
    by_part = h * (2 * keys + 2 * values) + values * h + h * 16 + 16 * keys + keys + 256
    assert sum(kind_of(mixer).parameters(mixer, h).values()) == by_part
