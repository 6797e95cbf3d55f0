"""Layers and modules that send what they save to the host: bytes counted by hand, and what always holds."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from meshwright.cost_models.layouts import Layout, Layouts, encode, parse
from meshwright.cost_models.offload_modules import OF_EXPERTS, OFFLOAD_MODULES, SENDERS
from meshwright.cost_models.problem import Problem
from meshwright.cost_models.quantities.device_memory import DeviceMemory
from meshwright.cost_models.quantities.ledger import Ledger
from meshwright.cost_models.quantities.offloads import Offloads
from meshwright.cost_models.specs.workload import Workload
from meshwright.cost_models.step import step
from meshwright.planner.search.pricing import price_layouts
from meshwright.profiles.cluster.load import load_cluster
from meshwright.profiles.model.load import load_model
from meshwright.profiles.stack.load import load_stack
from meshwright.profiles.stack.rates import rates_for

SEQ, H, KV, F, LAYERS = 8192, 4096, 1024, 14336, 32  # llama-3.1-8b, 32 heads
CLUSTER = load_cluster("dgx-h100:1")
DENSE, EXPERTS, LATENT = "llama-3.1-8b", "mixtral-8x7b", "deepseek-v2-lite"


def built(layouts: list[Layout], model: str = DENSE, overlap: float = 0.8) -> tuple[Ledger, step.Estimate]:
    stack = replace(load_stack("megatron-core"), offload_overlap=overlap)
    problem = Problem(load_model(model)[0], Workload(seq_len=SEQ, global_batch=64), stack, 8, 8)
    return price_layouts(problem, rates_for(CLUSTER, stack, "bf16"), Layouts.of(layouts))


def of_layer(name: str, layout: str = "dp8-mbs1-z1-rnone", model: str = DENSE) -> tuple[float, float]:
    """Elements per token of a layer that leave the GPU and that are copied, in bf16."""
    ledger, _ = built([parse(f"{layout}-off({name})")], model)
    gone, sent = (rows[0][0] / (2 * SEQ * LAYERS) for rows in (Offloads(ledger).gone, Offloads(ledger).sent))
    return float(gone), float(sent)


@pytest.mark.parametrize(
    ("name", "gone", "sent"),
    [
        ("core_attn", H + 2 * KV, 2 * H + 2 * KV),  # its output stays, as the projection has it too
        ("core_attn+attn_proj", 2 * H + 2 * KV, 3 * H + 2 * KV),
        ("qkv_linear", 2 * H, 2 * H),  # the input and the output of the norm that is fused with it
        ("attn_proj", 0, H),  # the core of attention has it too
        ("attn_norm", 0, 0),
        ("mlp_norm", 0, 0),
    ],
)
def test_modules_of_a_dense_layer(name: str, gone: float, sent: float) -> None:
    assert of_layer(name) == pytest.approx((gone, sent))


def test_modules_of_experts() -> None:
    """Two experts per token: what they take, the inputs of their activation, and the input of the norm before them."""
    assert of_layer("expert_fc1", model=EXPERTS) == pytest.approx((2 * H, 2 * H))
    assert of_layer("moe_act", model=EXPERTS) == pytest.approx((2 * 2 * F, 2 * 2 * F))
    assert of_layer("mlp_norm", model=EXPERTS) == pytest.approx((H, H))


def test_what_is_recomputed_is_not_sent() -> None:
    assert of_layer("core_attn+attn_proj", "dp8-mbs1-z1-rfull") == (0, 0)
    with_norm = of_layer("qkv_linear", "dp8-mbs1-z1-rsel(norm)")
    assert with_norm == pytest.approx((H, H))
    half = of_layer("core_attn+attn_proj", "dp8-mbs1-z1-rfull8")
    assert half[0] == pytest.approx(0.75 * (2 * H + 2 * KV))


def test_ulysses_sends_the_output_between_the_two_that_keep_it() -> None:
    """By heads and by tokens: two tensors, each sent once."""
    gone, sent = (value * 8 for value in of_layer("core_attn+attn_proj", "cp8u-dp1-mbs1-z1-rnone"))
    assert gone == sent == pytest.approx(3 * H + 2 * KV)


def test_graphs_end_at_the_inputs_of_norms() -> None:
    plain, held = (of_layer("attn_norm", f"dp8{graphs}-mbs1-z1-rnone", LATENT) for graphs in ("", "-g(attn)"))
    assert plain[0] > 0
    assert held == (0, 0)


@pytest.mark.parametrize(("overlap", "beside"), [(0.8, 1), (0.0, 0)])
def test_layers_leave_but_for_the_last_that_is_on_its_way(overlap: float, beside: int) -> None:
    ledger, estimate = built([parse(f"dp8-mbs1-z1-rnone{token}") for token in ("", "-off8", "-off31")], overlap=overlap)
    memory = DeviceMemory(ledger)
    layer = ledger.tables.saved(0, 0)[0, 0]
    here, host = memory.activations(0).max(axis=0), memory.host_bytes(0)
    assert np.array([here[0] - row for row in here]) == pytest.approx([0, (8 - beside) * layer, (31 - beside) * layer])
    assert host == pytest.approx([0, (8 - beside) * layer, (31 - beside) * layer])
    ways = 2 * 8 * layer / rates_for(CLUSTER, ledger.problem.stack, "bf16").pcie_bw_bytes_per_s
    if not overlap:  # eight micro-batches, out and back
        assert estimate.terms["offload"][1] == pytest.approx(8 * ways)


def test_modules_leave_but_for_two_layers() -> None:
    ledger, _ = built([parse(f"dp8-mbs1-z1-rnone{token}") for token in ("", "-off(core_attn+attn_proj)")])
    here = DeviceMemory(ledger).activations(0).max(axis=0)
    gone = 2 * SEQ * (2 * H + 2 * KV)
    assert here[0] - here[1] == pytest.approx((LAYERS - 2) * gone)
    host = DeviceMemory(ledger).host_bytes(0)  # with the second copy of what both modules save
    assert host[1] == pytest.approx((LAYERS - 2) * gone * (3 * H + 2 * KV) / (2 * H + 2 * KV))


def test_copies_of_what_stays_are_on_the_host() -> None:
    ledger, _ = built([parse("dp8-mbs1-z1-rnone-off(attn_proj)")])
    assert DeviceMemory(ledger).host_bytes(0)[0] == pytest.approx(LAYERS * 2 * SEQ * H)


def test_every_micro_batch_in_flight_sends() -> None:
    names = ("", "-off(core_attn+attn_proj)")
    ledger, _ = built([parse(f"pp4-dp2-mbs1-z1-rnone{token}") for token in names])
    first = int(np.argmin(ledger.splits.first[0]))
    here = DeviceMemory(ledger).activations(first).max(axis=0)
    layers = ledger.layers[first][0]
    assert here[0] - here[1] == pytest.approx((4 * layers - 2) * 2 * SEQ * (2 * H + 2 * KV))


plain_layouts = st.sampled_from((
    "dp8-mbs1-z1-rnone", "tp2-dp4-mbs2-z1-rsel(norm)", "pp4-vpp2-dp2-mbs1-z1-rsel(norm+act)", "cp2u-dp4-mbs1-z3-rnone",
    "pp2-zbh1-dp4-mbs1-z1-rnone",
))  # fmt: skip


@given(st.sampled_from([DENSE, EXPERTS, LATENT]), st.sampled_from([0.0, 0.8]), st.integers(1, 4))
@settings(max_examples=25, deadline=None, derandomize=True, database=None)
def test_more_layers_never_need_more(model: str, overlap: float, micro_batch: int) -> None:
    """Neither bytes of the GPU grow with their number, nor the step falls; none of them changes nothing."""
    layers = load_model(model)[0].num_layers
    rows = [Layout(dp=8, shard=8, zero=1, micro_batch=micro_batch, offload_layers=n) for n in range(layers)]
    _, estimate = built(rows, model, overlap)
    assert (np.diff(estimate.device_bytes) <= 1e-6 * estimate.device_bytes[0]).all()
    assert (np.diff(estimate.step_s) >= -1e-9 * estimate.step_s[0]).all()
    assert (np.diff(estimate.host_bytes) >= -1.0).all()
    assert estimate.device_bytes[-1] < estimate.device_bytes[0]


@given(plain_layouts, st.sampled_from([DENSE, EXPERTS, LATENT]), st.integers(0, 127), st.integers(0, 127))
@settings(max_examples=60, deadline=None, derandomize=True, database=None)
def test_more_modules_never_need_more(text: str, model: str, mask: int, more: int) -> None:
    """A larger set of modules holds no more on the GPU and takes no less time; the empty set changes nothing."""
    base = parse(text)
    if base.tp > 1 and model != DENSE:
        base = replace(base, sequence_parallel=1)
    ledger, estimate = built([replace(base, offload_modules=bits) for bits in (0, mask, mask | more)], model)
    assert estimate.device_bytes[0] * (1 + 1e-9) >= estimate.device_bytes[1]
    assert estimate.device_bytes[1] * (1 + 1e-9) >= estimate.device_bytes[2]
    assert estimate.step_s[0] <= estimate.step_s[1] * (1 + 1e-9) <= estimate.step_s[2] * (1 + 1e-9) ** 2
    alone, _ = built([base], model)
    assert DeviceMemory(alone).buffers(0)["activations"][0] == DeviceMemory(ledger).buffers(0)["activations"][0]


def test_beside_all_activations_they_are_nothing_more() -> None:
    rows = [parse(f"dp8-mbs1-z1-rnone-oact{token}") for token in ("", "-off9", "-off(core_attn)")]
    _, estimate = built(rows)
    assert len(set(estimate.device_bytes)) == len(set(estimate.step_s)) == len(set(estimate.host_bytes)) == 1


@pytest.mark.parametrize("text", ["dp8-mbs1-z1-rnone-off3", "dp8-mbs1-z1-rsel-oopt-off(core_attn+attn_proj)-fp8"])
def test_ids(text: str) -> None:
    layout = parse(text)
    assert str(layout) == text
    assert Layout.from_dict(layout.as_dict()) == layout


def test_names_of_sets() -> None:
    assert len(OFFLOAD_MODULES) == 1 << len(SENDERS)
    for spelled in ("attn_proj+core_attn", ["core_attn", "attn_proj"]):
        assert OFFLOAD_MODULES[encode("offload_modules", spelled)] == "core_attn+attn_proj"
    assert encode("offload_modules", "none") == 0
    assert encode("offload_modules", "expert_fc1+moe_act") == OF_EXPERTS
