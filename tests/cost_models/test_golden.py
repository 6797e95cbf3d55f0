"""Golden values of published runs and papers, restated here with their sources.

Parameters, FLOPs and days of Megatron-LM (SC21, arXiv 2104.04473), ZeRO states (arXiv 1910.02054), the closed forms of
the pipeline schedules, and the memory table of Korthikanti et al. (arXiv 2205.05198), which the ledger reproduces to
0.01 GiB.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import pytest
from meshwright.cost_models.layouts import MODULES, RECOMPUTE_MODES, SCHEDULES, Layout, Layouts
from meshwright.cost_models.problem import Problem
from meshwright.cost_models.quantities.activations import Activations
from meshwright.cost_models.quantities.device_memory import DeviceMemory
from meshwright.cost_models.quantities.flops import model_flops, recomputed_flops, useful_flops
from meshwright.cost_models.quantities.ledger import Ledger
from meshwright.cost_models.quantities.memory import StateBytes
from meshwright.cost_models.quantities.params import total_parameters
from meshwright.cost_models.specs.model import FeedForward, ModelSpec
from meshwright.cost_models.specs.stack import StackSpec
from meshwright.cost_models.specs.workload import Precision, Workload
from meshwright.planner.search.pricing import price_layouts
from meshwright.planner.space.rules import violations
from meshwright.planner.switches.registry import with_switches
from meshwright.profiles.cluster.load import load_cluster
from meshwright.profiles.model.load import load_model
from meshwright.profiles.stack.load import load_stack
from meshwright.profiles.stack.rates import rates_for

from .even_pipeline import even_step_s

GIB = 2.0**30
SEQ_LEN, VOCAB = 2048, 51200


def catalogue(name: str) -> ModelSpec:
    return load_model(name)[0]


def ledger_of(
    model: ModelSpec, layout: Layout, stack: StackSpec, global_batch: int, precision: Precision = "bf16"
) -> Ledger:
    """The ledger of one layout, by the path that the planner takes. Rates (of A100s) do not enter the ledger."""
    workload = Workload(seq_len=SEQ_LEN, global_batch=global_batch, precision=precision)
    cluster = load_cluster("dgx-a100:1")
    problem = Problem(model, workload, stack, layout.num_gpus, cluster.gpus_per_node)
    return price_layouts(problem, rates_for(cluster, stack, "bf16"), Layouts.of([layout]))[0]


def states_bytes(ledger: Ledger, j: int) -> float:
    held = DeviceMemory(ledger).buffers(j)
    return float((held["weights"] + held["gradients"] + held["optimizer"])[0])


# G1: the models of SC21, table 1, and the parameters that it gives in billions.
@pytest.mark.parametrize(("name", "billions"), [("gpt-1t", 1008.0), ("gpt-530b", 529.6), ("gpt-175b", 174.6)])
def test_g1_parameters(name: str, billions: float) -> None:
    model = catalogue(name)
    final_norm = 2 * model.hidden  # SC21, equation 2, leaves it out
    assert (total_parameters(model) - final_norm) / 1e9 == pytest.approx(billions, abs=0.05)


def test_g2_step_and_days_of_one_trillion_parameters() -> None:
    """SC21: 1T, 3072 A100 at 163 TFLOP/s each, full recomputation: 502 PFLOP/s, 102.6 s a step, 84 days."""
    model, num_gpus, batch, achieved = catalogue("gpt-1t"), 3072, 3072, 163e12
    workload = Workload(seq_len=SEQ_LEN, global_batch=batch)
    problem = Problem(model, workload, load_stack("megatron-core"), num_gpus, 8)
    full = Layout(tp=8, sequence_parallel=0, pp=64, dp=6, shard=6, recompute=RECOMPUTE_MODES.index("full"))
    hardware_flops = model_flops(problem) + recomputed_flops(problem, full)
    layers, h = model.num_layers, model.hidden
    published = 96 * batch * SEQ_LEN * layers * h**2 * (1 + SEQ_LEN / (6 * h) + VOCAB / (16 * layers * h))
    assert published / (num_gpus * achieved) == pytest.approx(102.6, abs=0.05)
    assert published / 102.6 == pytest.approx(502e15, rel=5e-3)
    assert hardware_flops == pytest.approx(published, rel=0.01)  # ours counts the causal half of attention
    assert hardware_flops / (num_gpus * achieved) == pytest.approx(102.6, rel=0.01)
    tokens = 450e9
    steps = tokens / (batch * SEQ_LEN)
    assert steps * hardware_flops / (num_gpus * achieved) / 86400 == pytest.approx(84, rel=0.01)
    assert 8 * tokens * total_parameters(model) / (num_gpus * achieved) / 86400 == pytest.approx(83.9, abs=0.1)


def test_full_recompute_is_a_third_of_the_model_flops_of_the_layers() -> None:
    """FORMULAS 1.3: 72 -> 96; the head is not recomputed. Selective recomputation redoes the core attention only."""
    model = catalogue("gpt-1t")
    problem = Problem(model, Workload(seq_len=SEQ_LEN, global_batch=64), load_stack("generic"), 8, 8)
    head = 6 * 64 * SEQ_LEN * model.hidden * model.vocab
    layers = model_flops(problem) - head
    assert recomputed_flops(problem, Layout(recompute=2)) == pytest.approx(layers / 3, rel=1e-9)
    core = 64 * model.num_layers * 2 * SEQ_LEN**2 * model.hidden  # half of 4 s^2 h
    assert recomputed_flops(problem, Layout(recompute=1, recompute_modules=1)) == pytest.approx(core, rel=1e-9)
    assert recomputed_flops(problem, Layout()) == 0


def test_padding_is_no_useful_work() -> None:
    """72 L h^2 (E[s] + E[s^2] / (12 h)) + 6 E[s] h V a document: causal halves of FORMULAS 1.3, padded to 2,048."""
    model = catalogue("gpt-1t")
    lengths = ((256, 0.8), (1536, 0.2))
    mean, square = sum(n * share for n, share in lengths), sum(n**2 * share for n, share in lengths)
    work = Workload(seq_len=SEQ_LEN, global_batch=64, packed=False, lengths=lengths, mean_len=mean,
                    mean_square_len=square)  # fmt: skip
    h, layers = model.hidden, model.num_layers
    document = 72 * layers * h**2 * (mean + square / (12 * h)) + 6 * mean * h * model.vocab
    padded = Problem(model, work, load_stack("generic"), 8, 8)
    assert useful_flops(padded) == pytest.approx(64 * document, rel=1e-9)
    assert useful_flops(padded) < 0.3 * model_flops(padded)  # 512 tokens of 2,048


# G3: ZeRO (arXiv 1910.02054), figure 1: 7.5 B parameters, 64 ranks, GB per rank. In decimals 120, 31.4, 16.6, 1.9.
@pytest.mark.parametrize(("zero", "gigabytes"), [(0, 120.0), (1, 31.4), (2, 16.6), (3, 1.9)])
def test_g3_zero(zero: int, gigabytes: float) -> None:
    untied = replace(catalogue("gpt-7.5b"), tied_embeddings=False)
    stack = replace(load_stack("deepspeed"), gradient_bytes=2)
    ledger = ledger_of(untied, Layout(dp=64, shard=64, zero=zero), stack, global_batch=64)
    per_parameter = states_bytes(ledger, 0) / total_parameters(untied)
    assert per_parameter == pytest.approx((16, 4 + 12 / 64, 2 + 14 / 64, 16 / 64)[zero], rel=1e-12)
    assert per_parameter * 7.5 == pytest.approx(gigabytes, abs=0.05)


def test_state_bytes_of_mixed_precision_adam() -> None:
    """2 weight + 2 gradient + 12 optimizer, and 4 for gradients kept in fp32; 16 in fp32 training."""
    workload = Workload(seq_len=1, global_batch=1)
    two, four = (replace(load_stack("generic"), gradient_bytes=number) for number in (2, 4))
    mixed, fp32 = StateBytes.of(workload, two), StateBytes.of(replace(workload, precision="fp32"), two)
    assert (mixed.weight, mixed.gradient, mixed.optimizer) == (2, 2, 12)
    assert StateBytes.of(workload, four).gradient == 4
    assert (fp32.weight, fp32.gradient, fp32.optimizer) == (4, 4, 8)


def test_g13_megatron_distributed_optimizer() -> None:
    """Megatron-LM docs, dist_optimizer: bf16 parameters and fp32 gradients take 6 + 12/d bytes; 7.5 at d = 8."""
    untied = replace(catalogue("gpt-7.5b"), tied_embeddings=False)
    stack = load_stack("megatron-core")
    per_parameter = {
        dp: states_bytes(ledger_of(untied, Layout(dp=dp, shard=dp, zero=1), stack, global_batch=8), 0)
        / total_parameters(untied)
        for dp in (2, 4, 8)
    }
    assert per_parameter == pytest.approx({2: 12.0, 4: 9.0, 8: 7.5})


def test_megatron_in_fp16() -> None:
    """The same table: fp16 parameters and gradients take 4 + 16/d bytes, of which 4/d are the fp32 gradient at the
    update; what is reduced has 2 bytes. Fp32 sums, where a run states them, are those of bf16."""
    untied, stack = replace(catalogue("gpt-7.5b"), tied_embeddings=False), load_stack("megatron-core")
    workload = Workload(seq_len=SEQ_LEN, global_batch=8, precision="fp16")
    for dp in (1, 2, 8):
        ledger = ledger_of(untied, Layout(dp=dp, shard=dp, zero=1, precision=1), stack, 8, "fp16")
        assert states_bytes(ledger, 0) / total_parameters(untied) == pytest.approx(4 + 16 / dp)
    states = StateBytes.of(workload, stack)
    # Adam: gradient read (2), copied (4) and read (4); 12 bytes of states read and written, weight written (2).
    assert (states.gradient, states.update_bytes(states.optimizer)) == (2, 2 + 4 + 4 + 24 + 2)
    assert StateBytes.of(workload, with_switches(stack, {"grad_reduce_dtype": "fp32"})).gradient == 4
    assert StateBytes.of(replace(workload, precision="bf16"), stack).gradient == 4


# G4 to G8: p, m, v, F, B (with W), seconds of a message between stages.
@pytest.mark.parametrize(
    ("schedule", "p", "m", "v", "forward", "backward", "weight", "hop", "step"),
    [
        pytest.param("1f1b", 8, 16, 1, 1, 2, 1, 0, 69, id="G4"),
        pytest.param("gpipe", 8, 16, 1, 1, 2, 1, 0, 69, id="G4 gpipe"),
        pytest.param("interleaved", 8, 32, 4, 1, 2, 1, 0, 101.25, id="G5"),
        pytest.param("zb-h1", 8, 24, 1, 1, 2, 1, 0, 79, id="G6"),
        pytest.param("1f1b", 8, 24, 1, 1, 2, 1, 0, 93, id="G6 1f1b"),
        # no bubble between steps (2405.15362), (p-1)F/2 in one that starts empty and ends with its optimizer: simulated
        pytest.param("zb-v", 8, 24, 2, 1, 2, 1, 0, 75.5, id="zb-v fills once"),
        pytest.param("1f1b", 8, 64, 1, 1, 2, 1, 0.2, 237.8, id="G7"),
        pytest.param("interleaved", 8, 64, 4, 1, 2, 1, 0.05, 200.35, id="G8"),
    ],
)
def test_pipeline_closed_forms(
    schedule: str, p: int, m: int, v: int, forward: float, backward: float, weight: float, hop: float, step: float
) -> None:
    assert even_step_s(schedule, p, m, v, forward, backward, weight, hop) == pytest.approx(step, rel=1e-12)


def test_g7_lies_above_coarser_models() -> None:
    """p = 8, m = 64, C = 3, t = 0.2: Pipette counts 2(p-1)t every p micro-batches (235.4), AMP once (215.8)."""
    p, m, c, hop = 8, 64, 3.0, 0.2
    pipette = m / p * (p * c + 2 * (p - 1) * hop) + (p - 1) * c
    amp = (m + p - 1) * c + 2 * (p - 1) * hop
    assert (pipette, amp) == pytest.approx((235.4, 215.8))
    assert even_step_s("1f1b", p, m, 1, 1, 2, 1, hop) > pipette > amp


# G12: training on Frontier (arXiv 2312.12705): micro-batches per replica, and the share of the step that is bubble.
@pytest.mark.parametrize(
    ("model", "tp", "pp", "micro_batches", "share"),
    [("175B", 4, 16, 640, 0.023), ("1T", 8, 64, 1600, 0.038)],
)
def test_g12_bubble_on_frontier(model: str, tp: int, pp: int, micro_batches: int, share: float) -> None:
    step = even_step_s("1f1b", pp, micro_batches, 1, 1, 2, 1)
    assert 1 - 3 * micro_batches / step == pytest.approx(share, abs=0.0005)


def test_g14_folded_experts() -> None:
    """Parallel folding (arXiv 2504.14960): tp2 cp2 dp8 for attention, ep32 etp1 for experts; 32 ranks a stage each."""
    model = catalogue("gpt-oss-20b")
    workload = Workload(seq_len=4096, global_batch=256)
    problem = Problem(model, workload, load_stack("megatron-core"), 128, 8)
    layout = Layout(tp=2, sequence_parallel=1, cp=2, dp=8, pp=4, shard=8, ep=32, etp=1, zero=1)
    assert layout.tp * layout.cp * layout.dp == layout.ep * layout.etp == 32
    assert violations(layout, problem) == []
    batch = ledger_of(model, layout, problem.stack, 256)
    assert (batch.expert_groups.shard[0], batch.expert_groups.replicate[0]) == (1, 1)  # one copy of each expert
    assert (batch.dense_groups.shard[0], batch.dense_groups.replicate[0]) == (16, 1)
    too_wide = replace(layout, dp=4, pp=8, shard=4)
    assert any("does not divide the 16 ranks of a stage" in line for line in violations(too_wide, problem))


@dataclass(frozen=True)
class Published:
    """A row of Korthikanti et al., tables 3 and 4 and figure 7, as listed in Calculon's calculon/llm/validation.py."""

    model: str
    tp: int
    pp: int
    vpp: int
    micro_batch: int
    global_batch: int
    states_gib: float
    full_gib: float  # activations, nothing sharded by sequence, nothing recomputed
    selective_gib: float  # activations with sequence parallelism and selective recomputation
    shares: tuple[float, float, float, float]  # sequence parallel, selective, both, full recomputation; of the baseline


KORTHIKANTI = (
    Published("gpt-22b", 8, 1, 1, 4, 4, 45.56, 59.25, 9.56, (0.6684, 0.4942, 0.1618, 0.0764)),
    Published("gpt-175b", 8, 8, 3, 1, 64, 45.56, 66.84, 12.35, (0.6204, 0.5653, 0.1849, 0.0871)),
    Published("gpt-530b", 8, 35, 3, 1, 280, 31.64, 114.02, 23.08, (0.5831, 0.6204, 0.2027, 0.0942)),
    Published("gpt-1t", 8, 64, 1, 1, 512, 32.96, 131.25, 26.56, (0.5831, 0.6204, 0.2027, 0.0942)),
)
korthikanti = pytest.mark.parametrize("row", KORTHIKANTI, ids=lambda row: row.model)


def without_vectors(model: ModelSpec) -> ModelSpec:
    """The model with its matrices only: the paper counts neither biases nor norms."""
    kinds = []
    for kind in model.kinds:
        block = kind.feed_forward
        assert isinstance(block, FeedForward)
        attention = replace(kind.transformer_blocks[0], qkv_bias=False, output_bias=False)
        kinds.append(replace(kind, attention=attention, feed_forward=replace(block, bias=False), num_norms=0))
    return replace(model, kinds=tuple(kinds))


def stage_0(row: Published, recompute: str = "none", **fields: Any) -> tuple[Ledger, int]:
    """The ledger of the row's layout (unfused attention with dropout, no data parallelism), and stage 0's profile."""
    stack = replace(load_stack("megatron-core"), attention="unfused", gradient_bytes=4)
    selective = 1 << MODULES.index("attn") if recompute == "selective" else 0
    layout = Layout(
        tp=row.tp, pp=row.pp, vpp=row.vpp, schedule=SCHEDULES.index("interleaved" if row.vpp > 1 else "1f1b"),
        micro_batch=row.micro_batch, recompute=RECOMPUTE_MODES.index(recompute), recompute_modules=selective, **fields,
    )  # fmt: skip
    model = without_vectors(catalogue(row.model))
    assert model.dropout
    assert model.vocab == VOCAB
    ledger = ledger_of(model, layout, stack, row.global_batch)
    return ledger, int(np.flatnonzero(ledger.splits.first[0] == 0)[0])


def activations(row: Published, recompute: str, sequence_parallel: bool) -> float:
    """Bytes of stage 0's activations in its layers: without the embedding's dropout mask and the head's final norm."""
    ledger, j = stage_0(row, recompute, sequence_parallel=int(sequence_parallel))
    edges = sum(
        float(saved.num_bytes[0]) * float(ledger.splits.counts[0, j, index])
        for index, ops in list(enumerate(ledger.tables.operations))[ledger.problem.num_kinds :]
        for saved in ops.saved
        if (ops.name, saved.name) in (("embedding", "dropout mask"), ("head", "final norm"))
    )
    in_flight = float(DeviceMemory(ledger).buffers(j)["activations"][0] / Activations(ledger).saved[j][0])
    return float(DeviceMemory(ledger).buffers(j)["activations"][0]) - edges * in_flight


@korthikanti
def test_korthikanti_states(row: Published) -> None:
    """18 bytes for each of 12 h^2 / t parameters of the l/p layers; embedding and head are left out by name."""
    ledger, j = stage_0(row)
    at_edges = sum(
        float(ledger.splits.counts[0, j, index] * dense[0])
        for index, dense in enumerate(ledger.tables.parameters["dense"])
        if index >= ledger.problem.num_kinds
    )
    layers = states_bytes(ledger, j) - 18 * at_edges
    assert layers / GIB == pytest.approx(row.states_gib, abs=0.01)


@korthikanti
def test_korthikanti_activations(row: Published) -> None:
    """s b h l (10 + 24/t + 5as/(ht)) of stage 0, for its micro-batches in flight; with both 34 s b h l / t."""
    assert activations(row, "none", False) / GIB == pytest.approx(row.full_gib, abs=0.01)
    assert activations(row, "selective", True) / GIB == pytest.approx(row.selective_gib, abs=0.01)


@korthikanti
def test_korthikanti_shares(row: Published) -> None:
    """Figure 7 of the paper; its bars are read to about a seventh of a point."""
    baseline = activations(row, "none", False)
    found = [
        activations(row, mode, sequence_parallel) / baseline
        for mode, sequence_parallel in (("none", True), ("selective", False), ("selective", True), ("full", False))
    ]
    assert found == pytest.approx(list(row.shares), abs=0.0015)


def test_ranks_of_tp_send_whole_messages_in_megatron_core() -> None:
    """Megatron Core, pipeline_parallel/schedules.py, get_tensor_shapes: s/tp under sequence parallelism alone. The
    Megatron-LM of SC21, section 4.1, sends 1/tp without it, too, and gathers."""
    for stack, parts in (("megatron-core", 1), ("megatron-lm-2021", 4), ("generic", 1)):
        layout = Layout(tp=4, sequence_parallel=0, pp=2)
        ledger = ledger_of(catalogue("llama-3.1-8b"), layout, load_stack(stack), 8)
        assert ledger.tables.message[0] == 2 * SEQ_LEN * 4096 / parts
        split = ledger_of(catalogue("llama-3.1-8b"), replace(layout, sequence_parallel=1), load_stack(stack), 8)
        assert split.tables.message[0] == 2 * SEQ_LEN * 4096 / 4
