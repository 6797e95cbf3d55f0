"""Bytes and seconds of Muon, restated by hand."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from meshwright.cost_models import build_ledger
from meshwright.cost_models.layouts import Layouts, parse
from meshwright.cost_models.problem import Problem
from meshwright.cost_models.quantities.device_memory import DeviceMemory
from meshwright.cost_models.quantities.ledger import Ledger
from meshwright.cost_models.quantities.tables import build, index_keys
from meshwright.cost_models.rates import collectives
from meshwright.cost_models.rates.surfaces import gemm_seconds
from meshwright.cost_models.specs.workload import Workload
from meshwright.cost_models.step import optimizer_seconds, step
from meshwright.cost_models.step.data_parallel import group_curve, once_per_step_s
from meshwright.planner.evaluation.interruptions import checkpoint_bytes
from meshwright.planner.evaluation.simulator_costs import single_layers
from meshwright.planner.request.load import load_request
from meshwright.planner.request.resolve import resolve
from meshwright.profiles.cluster.load import load_cluster
from meshwright.profiles.model.load import load_model
from meshwright.profiles.stack.load import load_stack
from meshwright.profiles.stack.rates import rates_for

CLUSTER = load_cluster("dgx-h100:8")
STACK = load_stack("megatron-core")
RATES = rates_for(CLUSTER, STACK, "bf16")
TABLE, NORMS = 128256 * 4096, 65 * 4096  # llama-3-8b: token table, head as large; norms
QKV, OUT, UP, DOWN = 6144 * 4096, 4096 * 4096, 28672 * 4096, 4096 * 14336
LAYER = QKV + OUT + UP + DOWN


def ledger(layout: str, optimizer: str = "muon", model: str = "llama-3-8b", **stack: Any) -> Ledger:
    workload = Workload(seq_len=4096, global_batch=512, optimizer=optimizer)  # type: ignore[arg-type]
    problem = Problem(load_model(model)[0], workload, replace(STACK, **stack), 64, 8)
    layouts = Layouts.of([parse(layout)])
    keys, index = index_keys(layouts)
    return build_ledger.build(problem, build(problem, keys), layouts, index)


def optimizer_bytes(of: Ledger) -> float:
    return max(float(DeviceMemory(of).buffers(j)["optimizer"][0]) for j in range(of.num_profiles))


def test_one_moment_of_matrices_and_two_of_the_rest() -> None:
    adam = 2 * TABLE + NORMS
    assert optimizer_bytes(ledger("dp64-mbs1-z0-rnone")) == 12 * adam + 8 * 32 * LAYER
    assert optimizer_bytes(ledger("dp64-mbs1-z0-rnone", "adamw")) == 12 * (adam + 32 * LAYER)
    assert optimizer_bytes(ledger("tp8-dp8-mbs1-z0-rnone")) == 12 * (2 * TABLE / 8 + NORMS) + 8 * 32 * LAYER / 8
    assert optimizer_bytes(ledger("dp64-mbs1-z0-rnone", master_weights=False)) == 4 * adam + 2 * 32 * LAYER


def test_shared_states_are_whole_matrices() -> None:
    adam = 2 * TABLE + NORMS
    # 128 matrices on 64 ranks: 32 of 28672 x 4096 go to half of them, and all others are smaller.
    assert optimizer_bytes(ledger("dp64-mbs1-z1-rnone")) == 12 * adam / 64 + 8 * max(UP, 32 * LAYER / 64)
    # 32 layers over 8 ranks: four layers each.
    shared = ledger("tp8-dp8-mbs1-z1-rnone")
    assert optimizer_bytes(shared) == 12 * (2 * TABLE / 8 + NORMS) / 8 + 8 * 4 * LAYER / 8


def test_without_a_layout_the_token_table_is_whole_too() -> None:
    dealt = ledger("dp64-mbs1-z1-rnone", layer_wise_layout=False)
    assert optimizer_bytes(dealt) == pytest.approx(12 * NORMS / 64 + 12 * TABLE)
    assert optimizer_bytes(ledger("dp64-mbs1-z0-rnone", layer_wise_layout=False)) == optimizer_bytes(
        ledger("dp64-mbs1-z0-rnone"))  # fmt: skip


def test_gradients_are_summed_by_all_without_a_layout() -> None:
    scattered, summed = (ledger("dp64-mbs1-z1-rnone", layer_wise_layout=on) for on in (True, False))
    (of_scatter,), (of_sum,) = (once_per_step_s(of, RATES, of.traffic[0])[0] for of in (scattered, summed))
    plain = ledger("dp64-mbs1-z0-rnone", layer_wise_layout=False)
    (of_copies,) = once_per_step_s(plain, RATES, plain.traffic[0])[0]
    assert of_scatter < of_sum
    assert of_sum == pytest.approx(of_copies, rel=1e-9)


def newton_schulz_s(rows: int, columns: int) -> float:
    m, n = min(rows, columns), max(rows, columns)
    of = RATES.wide_gemm
    return 5 * float(gemm_seconds(of, m, m, n, 2.0) + gemm_seconds(of, m, m, m, 2.0) + gemm_seconds(of, m, n, m, 2.0))


def layer_s() -> float:
    shapes = [(4096, 4096), (1024, 4096), (1024, 4096), (4096, 4096), (28672, 4096), (4096, 14336)]
    return sum(newton_schulz_s(*shape) for shape in shapes) + 32 * LAYER / RATES.memory_bw_bytes_per_s


def test_every_rank_without_zero_orthogonalises_everything() -> None:
    of = ledger("dp64-mbs1-z0-rnone")
    bandwidth = RATES.bandwidth("update")[0]
    gradient, extra = of.problem.state_bytes.gradient, STACK.optimizer_extra_bytes
    by_adam = (2 * TABLE + NORMS) * (gradient + 24 + 2 + extra) / bandwidth
    moved = 32 * LAYER * (gradient + 16 + 2 + extra) / bandwidth
    expected = 32 * layer_s() + by_adam + moved
    assert float(optimizer_seconds.optimizer_s(of, RATES)[0]) == pytest.approx(expected, rel=1e-9)


def test_ranks_of_a_tensor_parallel_group_all_orthogonalise_what_they_gather() -> None:
    of = ledger("tp8-dp8-mbs1-z1-rnone")
    bandwidth = RATES.bandwidth("update")[0]
    gradient, extra = of.problem.state_bytes.gradient, STACK.optimizer_extra_bytes
    curve = group_curve(RATES, "tp", "all_gather", np.array([8]), np.array([1]))
    parts = (4096 * 4096, 1024 * 4096, 1024 * 4096, OUT, UP, DOWN)
    gathers = sum(float(collectives.seconds(curve, 4.0 * elements)[0]) for elements in parts)
    by_adam = (2 * TABLE / 8 + NORMS) / 8 * (gradient + 24 + 2 + extra) / bandwidth
    moved = 4 * LAYER / 8 * (gradient + 16 + 2 + extra) / bandwidth
    expected = 4 * (layer_s() + gathers) + by_adam + moved
    assert float(optimizer_seconds.optimizer_s(of, RATES)[0]) == pytest.approx(expected, rel=1e-9)


@pytest.mark.parametrize("layout", ["dp64-mbs1-z0-rnone", "tp2-dp32-mbs1-z1-rnone", "pp4-dp16-mbs1-z1-rnone"])
def test_muon_takes_fewer_bytes_and_more_time_than_adam(layout: str) -> None:
    muon, adam = ledger(layout), ledger(layout, "adamw")
    assert optimizer_bytes(muon) < optimizer_bytes(adam)
    of_muon, of_adam = step.price(muon, RATES), step.price(adam, RATES)
    assert of_muon.terms["optimizer"][0] > 2 * of_adam.terms["optimizer"][0]
    others = [name for name in of_adam.terms if name not in ("optimizer", "stragglers")]
    assert all(of_muon.terms[name][0] == of_adam.terms[name][0] for name in others)


def test_more_ranks_never_take_more() -> None:
    layouts = [f"pp4-dp16-{f'sh{shard}-' if shard < 16 else ''}mbs1-z1-rnone" for shard in (2, 4, 8, 16)]
    ledgers = [ledger(layout) for layout in layouts]
    num_bytes = [optimizer_bytes(of) for of in ledgers]
    seconds = [float(optimizer_seconds.optimizer_s(of, RATES)[0]) for of in ledgers]
    assert num_bytes == sorted(num_bytes, reverse=True)
    assert seconds == sorted(seconds, reverse=True)


def test_experts_are_shared_by_their_own_ranks() -> None:
    spread, kept = (ledger(f"dp64-ep{ep}-mbs1-z1-rnone", model="qwen3-30b-a3b") for ep in (64, 8))
    experts = 48 * 128 * 3 * 2048 * 768  # layers, experts, matrices
    # ep 64: nobody shares an expert; ep 8: eight ranks share what each of them computes with, eight times as much.
    assert 8 * experts / 64 < optimizer_bytes(spread) < 1.1 * 8 * experts / 64
    assert optimizer_bytes(spread) == pytest.approx(optimizer_bytes(kept), rel=0.02)


def test_mean_stages_bound_stages_that_hold_unlike_layers() -> None:
    """The mean of a stage with a dense layer and of one with experts has half of each matrix, not one of each."""
    model = load_model("deepseek-v3")[0]
    two = replace(model, pattern=(0, 1), mtp_layers=0, vocab=1024)
    problem = Problem(two, Workload(seq_len=4096, global_batch=512, optimizer="muon"), STACK, 64, 8)
    layouts = Layouts.of([parse("pp2-dp32-ep8-mbs1-z1-rnone")])
    keys, index = index_keys(layouts)
    stages, mean = (build_ledger.build(problem, build(problem, keys), layouts, index, mean=on) for on in (False, True))
    assert stages.num_profiles == 2
    assert optimizer_bytes(mean) <= optimizer_bytes(stages)
    assert optimizer_seconds.optimizer_s(mean, RATES)[0] <= optimizer_seconds.optimizer_s(stages, RATES)[0]


def test_layers_by_themselves_add_up_to_no_more_than_their_stage() -> None:
    stage = ledger("dp64-mbs1-z1-rnone")
    single = single_layers(stage)
    alone = np.asarray(DeviceMemory(single).buffers(0)["optimizer"])
    together = float(stage.splits.counts[0, 0] @ alone[:-1])
    assert 0.8 * optimizer_bytes(stage) < together <= optimizer_bytes(stage)


def test_a_checkpoint_holds_one_moment_of_a_matrix() -> None:
    asked = {"model": "llama-3-8b", "cluster": "dgx-h100", "target": "megatron"}
    sizes = [checkpoint_bytes(resolve(load_request(None, {**asked, "optimizer": name}))) for name in ("adamw", "muon")]
    assert sizes[0] - sizes[1] == 4 * 32 * LAYER
