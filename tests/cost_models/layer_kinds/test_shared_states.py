"""Mixers with a state over ranks of context parallelism: published formulas and what papers report."""

from __future__ import annotations

from dataclasses import replace
from typing import Any, Literal, get_args

import numpy as np
import pytest
from meshwright.cost_models.layer_kinds.mamba import Mamba
from meshwright.cost_models.layer_kinds.mamba2 import Mamba2
from meshwright.cost_models.layouts import Layout, Layouts
from meshwright.cost_models.problem import Problem
from meshwright.cost_models.quantities import tables
from meshwright.cost_models.quantities.exchanges import OPS
from meshwright.cost_models.quantities.operations import LayerOperations, tag
from meshwright.cost_models.rates.collectives import CollectiveRates, LevelRates, OpRates, curve, seconds
from meshwright.cost_models.rates.kernel_seconds import kernel_seconds
from meshwright.cost_models.rates.layer_seconds import LayerSeconds
from meshwright.cost_models.specs.cluster import NetworkLevel
from meshwright.cost_models.specs.model import Attention, FeedForward, Layer, Mixer, ModelSpec
from meshwright.cost_models.specs.workload import Workload
from meshwright.profiles.cluster.load import load_cluster
from meshwright.profiles.stack.load import load_stack
from meshwright.profiles.stack.rates import rates_for

Context = Literal["heads", "gather", "scan"]
# Linear attention of 32 heads with d_k = d_v = 128 in chunks of 64: a state of 2 MiB in fp32.
LINEAR = Mamba2(heads=32, head_dim=128, groups=32, state=128, chunk=64)
SOFTMAX = Attention(heads=32, kv_heads=32, head_dim=128, value_head_dim=128)
STATE = 32 * 128 * 128 * 4
SELECTIVE = Mamba(channels=4096, state=16, step_rank=256)


def model_of(layer: Layer) -> ModelSpec:
    return ModelSpec(name="linear", family="linear", hidden=4096, vocab=32000, kinds=(layer,), pattern=(0,) * 32,
                     max_positions=1 << 24)  # fmt: skip


def layer_seconds(layer: Layer, tokens: int, layout: Layout, cluster: str, context: Context = "scan") -> LayerSeconds:
    stack = replace(load_stack("megatron-core"), mixer_context=context)
    problem = Problem(model_of(layer), Workload(seq_len=tokens, global_batch=64), stack, layout.num_gpus, 8)
    table = tables.build(problem, Layouts.of([layout]))
    return kernel_seconds(table, rates_for(load_cluster(cluster), stack, "bf16")).layers[0]


def total(seconds_of: LayerSeconds) -> float:
    return float(seconds_of.forward.sum() + seconds_of.backward.sum())


def one_link(bw: float, start_s: float) -> tuple[CollectiveRates, tuple[NetworkLevel, ...]]:
    op = OpRates(base_s=start_s, hop_s=0.0, efficiency=1.0, ramp=0.0)
    level = LevelRates(ops=dict.fromkeys(OPS, op))
    return (CollectiveRates(kinds={}, inner=level, outer=level),
            (NetworkLevel(name="links", size=1024, bw_bytes_per_s=bw, latency_s=0.0, kind="links"),))  # fmt: skip


@pytest.mark.parametrize("ranks", [2, 8, 64, 256])
@pytest.mark.parametrize("num_bytes", [2**14, 2**20, 2**26])
def test_a_scan_takes_what_its_best_number_of_parts_takes(ranks: int, num_bytes: int) -> None:
    """ZeCO (arXiv 2507.01004), 3.2: min over K of (P-1+K) (S/(K bw) + start)."""
    bw, start_s = 50e9, 10e-6
    rates, levels = one_link(bw, start_s)
    found = float(seconds(curve(rates, levels, "all_scan", ranks, 1), num_bytes)[0])
    parts = np.arange(1, 4097)
    times = (ranks - 1 + parts) * (num_bytes / (parts * bw) + start_s)
    best = float(times.min())
    assert found <= best * (1 + 1e-9)  # parts need not be whole
    if int(times.argmin()) > 0:
        assert found == pytest.approx(best, rel=0.03)


def test_a_scan_over_64_ranks_beats_a_gather_of_their_states() -> None:
    """1 MiB a layer at 50 GB/s and 10 us: 0.9 ms against (P-1) S/bw = 1.3 ms, and 1/64 of the memory."""
    rates, levels = one_link(50e9, 10e-6)
    scan = float(seconds(curve(rates, levels, "all_scan", 64, 1), 2**20)[0])
    gather = float(seconds(curve(rates, levels, "all_gather", 64, 1), 64 * 2**20)[0])
    assert scan == pytest.approx(0.9e-3, rel=0.03)
    assert gather == pytest.approx(1.3e-3, rel=0.05)


def test_a_group_of_one_scans_nothing() -> None:
    rates, levels = one_link(50e9, 10e-6)
    assert float(seconds(curve(rates, levels, "all_scan", 1, 1), STATE)[0]) == 0.0


@pytest.mark.parametrize("cluster", ["dgx-a100:8", "dgx-h100:8"])
def test_a_million_tokens_on_64_ranks_take_what_16_thousand_take_on_one(cluster: str) -> None:
    """ZeCO (arXiv 2507.01004), abstract. Swapping tokens for heads moves all activations, and takes much longer."""
    layer = Layer(attention=None, feed_forward=FeedForward(inner=11008), mixer=LINEAR)
    one = total(layer_seconds(layer, 2**14, Layout(), cluster))
    assert total(layer_seconds(layer, 2**20, Layout(cp=64), cluster, "scan")) == pytest.approx(one, rel=0.03)
    assert total(layer_seconds(layer, 2**20, Layout(cp=64), cluster, "heads")) > 1.3 * one


def test_linear_attention_overtakes_flash_attention_between_1_and_8_thousand_tokens() -> None:
    """GLA (arXiv 2312.06635), figure 4: heads of 128, chunks of 64, one A100, where kernels of 2023 cross at 2 to 8
    thousand; these prices cross below 2. Compared without projections, convolution and norms, which softmax attention
    has too, or which gated linear attention lacks."""
    cores = {}
    for tokens in (1024, 2048, 8192):
        for name, layer in (("softmax", Layer(attention=SOFTMAX, feed_forward=None, num_norms=1)),
                            ("linear", Layer(attention=None, feed_forward=None, mixer=LINEAR, num_norms=1))):
            found = layer_seconds(layer, tokens, Layout(micro_batch=16384 // tokens), "dgx-a100:1")
            cores[name, tokens] = float(found.forward[1, 0] + found.backward[1, 0])
    traffic = scan_traffic_s()
    assert cores["linear", 1024] + traffic > cores["softmax", 1024]
    assert cores["linear", 8192] + traffic < cores["softmax", 8192]


def scan_traffic_s() -> float:
    """Seconds that the decays and states of 16,384 tokens take through the memory of an A100, forward and backward."""
    chunks = 16384 / 64
    moved = 2 * 4 * chunks * 32 * 128 * 128 + 5 * 4 * 16384 * 32
    return 3 * moved / 2.039e12 / 0.9


@pytest.mark.parametrize("context", get_args(Context))
def test_context_of_a_mixer_is_a_fact_of_the_stack(context: Context) -> None:
    layer = Layer(attention=None, feed_forward=FeedForward(inner=11008), mixer=LINEAR)
    stack = replace(load_stack("megatron-core"), mixer_context=context)
    problem = Problem(model_of(layer), Workload(seq_len=65536, global_batch=64), stack, 8, 8)
    (ops, *_) = tables.build(problem, Layouts.of([Layout(cp=8)])).operations
    sent = {exchange.op: float(exchange.num_bytes[0]) for exchange in ops.exchanges if exchange.axis == "cp"}
    tokens = 65536 / 8
    swapped = 2 * tokens * 4096  # the last all-to-all: what the scan puts out
    halo = 2 * 3 * (4096 + 2 * 4096)  # three tokens of x, B and C
    assert sent == {"heads": {"all_to_all": swapped}, "gather": {"all_gather": 8.0 * STATE, "p2p": halo},
                    "scan": {"all_scan": 1.0 * STATE, "p2p": halo}}[context]  # fmt: skip


@pytest.mark.parametrize(("mixer", "state", "convolved"), [(LINEAR, STATE, 3 * 4096), (SELECTIVE, 4096 * 16 * 4, 4096)])
@pytest.mark.parametrize("ring", [False, True])
def test_states_are_in_fp32_and_a_ring_has_two_of_them(mixer: Mixer, state: int, convolved: int, ring: bool) -> None:
    """A ring of keys gives a rank a chunk from each end of a sequence."""
    layer = Layer(attention=SOFTMAX if ring else None, feed_forward=FeedForward(inner=11008), mixer=mixer)
    ops = operations_of(layer, "scan")
    sent = {(exchange.op, float(exchange.num_bytes[0])) for exchange in ops.exchanges}
    kept = {(saved.name, float(saved.num_bytes[0])) for saved in ops.saved}
    chunks = 2 if ring else 1
    assert ("all_scan", 1.0 * chunks * state) in sent
    assert ("p2p", 2.0 * chunks * 3 * convolved) in sent
    assert ("incoming states", 1.0 * chunks * state) in kept


@pytest.mark.parametrize(("again", "dropped"), [(True, 0), (False, tag("attn"))])
def test_steps_that_run_again_keep_the_states_that_came(again: bool, dropped: int) -> None:
    """They are inputs of what runs again: no recomputation of the core asks for them once more."""
    layer = Layer(attention=None, feed_forward=FeedForward(inner=11008), mixer=LINEAR)
    ops = operations_of(layer, "gather", recomputes_scans=again)
    assert {exchange.tag for exchange in ops.exchanges if exchange.axis == "cp"} == {dropped}
    assert next(saved.tag for saved in ops.saved if saved.name == "incoming states") == dropped


def operations_of(layer: Layer, context: Context, **facts: Any) -> LayerOperations:
    stack = replace(load_stack("megatron-core"), mixer_context=context, **facts)
    problem = Problem(model_of(layer), Workload(seq_len=65536, global_batch=64), stack, 8, 8)
    return tables.build(problem, Layouts.of([Layout(cp=8)])).operations[0]
