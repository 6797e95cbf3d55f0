"""Properties that every price must have, on random legal layouts of real models.

A batch of layouts is drawn by a seed (hypothesis draws the case and the seed); what fails is named by its layout id.
"""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import cache, cached_property
from itertools import pairwise
from typing import Any

import numpy as np
import pytest
from hypothesis import Phase, given, settings
from hypothesis import strategies as st
from meshwright.cost_models import build_ledger
from meshwright.cost_models.cuda_graphs import GRAPH_CODE
from meshwright.cost_models.layouts import (
    CP_ALGORITHMS,
    FIELDS,
    MODULES,
    OFFLOADS,
    PRECISIONS,
    RECOMPUTE_MODES,
    SCHEDULES,
    Layout,
    Layouts,
    default_schedule,
    encode,
    module_mask,
    modules_of,
    parse,
)
from meshwright.cost_models.problem import Problem
from meshwright.cost_models.quantities.activations import Activations
from meshwright.cost_models.quantities.device_memory import BUFFERS, DeviceMemory
from meshwright.cost_models.quantities.even_stages import chunk_sizes
from meshwright.cost_models.quantities.ledger import Ledger
from meshwright.cost_models.quantities.memory import REPLICATED
from meshwright.cost_models.quantities.moments import TRANSIENT
from meshwright.cost_models.quantities.params import layer_parameters, total_parameters
from meshwright.cost_models.quantities.resident import in_flight
from meshwright.cost_models.quantities.stages import EMBEDDING, chunk_devices
from meshwright.cost_models.quantities.tables import build, index_keys
from meshwright.cost_models.rates.rates import Rates
from meshwright.cost_models.rates.surfaces import AttentionSurface, UnfusedSurface, at_training_factor
from meshwright.cost_models.schedule_kinds import CODE, FOLDED, KINDS, SPLITS_BACKWARD
from meshwright.cost_models.specs.model import ModelSpec
from meshwright.cost_models.specs.workload import Images, Lora, Workload
from meshwright.cost_models.step import lower_bounds, reserved_memory, step
from meshwright.cost_models.step.pipeline import Fill, Messages, bubble_s, exposed_hop_s
from meshwright.planner.search.branching import ACTIVATIONS_ON_HOST, Branching
from meshwright.planner.search.exhaustive import Search
from meshwright.planner.space.counting import LayoutCounts
from meshwright.planner.space.rules import RULES, violations
from meshwright.planner.space.tree import Columns, Count, Space, allowed, select
from meshwright.planner.targets.registry import TARGETS
from meshwright.profiles.cluster.load import load_cluster
from meshwright.profiles.model.load import load_model
from meshwright.profiles.stack.load import load_stack
from meshwright.profiles.stack.rates import rates_for
from numpy.typing import NDArray

from meshwright.errors import InputError

from .even_pipeline import even_step_s
from .mtp_parameters import mtp_parameters

ROWS = 96  # layouts drawn per example; about two in three are legal
SLACK = 1e-9
FULL, SELECTIVE = RECOMPUTE_MODES.index("full"), RECOMPUTE_MODES.index("selective")
OPT, ACT = OFFLOADS.index("opt"), OFFLOADS.index("act")


def truncated(name: str, layers: int, **fields: Any) -> ModelSpec:
    """The first layers of a catalogue model."""
    model = load_model(name)[0]
    pattern = model.pattern[:layers]
    used = sorted(set(pattern))
    kinds = tuple(model.kinds[kind] for kind in used)
    return replace(model, kinds=kinds, pattern=tuple(used.index(kind) for kind in pattern), **fields)


@dataclass(frozen=True)
class Case:
    """What to train, on what, with which software."""

    model: ModelSpec
    workload: Workload
    cluster: str = "dgx-h100:4"
    stack: str = "generic"
    unfused: bool = False
    target: str = "any"

    @cached_property
    def space(self) -> Space:
        cluster, stack = load_cluster(self.cluster), load_stack(self.stack)
        if self.unfused:
            stack = replace(stack, attention="unfused")
        problem = Problem(self.model, self.workload, stack, cluster.num_gpus, cluster.gpus_per_node)
        graphs = (0, GRAPH_CODE["attn+moe_router"], GRAPH_CODE["full_iteration"])
        switches = {"ep_overlap": (0, 1), "cuda_graphs": graphs, "offload_layers": (0, 1, 3)}
        switches |= {"offload_modules": (0, encode("offload_modules", "core_attn+attn_proj"))}
        return Space(problem, RULES + TARGETS[self.target].rules, switches)

    @cached_property
    def problem(self) -> Problem:
        return self.space.problem

    @cached_property
    def rates(self) -> Rates:
        return rates_for(load_cluster(self.cluster), self.problem.stack, self.workload.precision)

    @cached_property
    def meshes(self) -> Columns:
        return self.space.meshes(Count())


def mixed_lengths(seq_len: int, global_batch: int) -> Workload:
    """Seven documents of an eighth of the sequence to three whole ones."""
    mean, square = seq_len * (0.7 / 8 + 0.3), seq_len**2 * (0.7 / 64 + 0.3)
    histogram = ((seq_len // 8, 0.7), (seq_len, 0.3))
    return Workload(
        seq_len=seq_len, global_batch=global_batch, lengths=histogram, mean_len=mean, mean_square_len=square
    )


QLORA = Lora(rank=16, targets=("q", "k", "v", "o", "gate", "up", "down"), base_dtype="nf4")
CASES: dict[str, Callable[[], Case]] = {
    "llama": lambda: Case(truncated("llama-3.1-8b", 32), Workload(seq_len=8192, global_batch=64)),
    "llama, 31 layers": lambda: Case(
        truncated("llama-3.1-8b", 31), Workload(seq_len=4096, global_batch=48), "dgx-a100:2", "torch-fsdp"
    ),
    "llama, long, mixed lengths": lambda: Case(
        truncated("llama-3.1-8b", 32), mixed_lengths(65536, global_batch=32), "dgx-h100:4", "megatron-core",
        target="megatron",
    ),
    "tied, last 5 layers": lambda: Case(
        truncated("llama-3.2-1b", 16), Workload(seq_len=2048, global_batch=32, trains_layers=5), "8xl40s", "torch-fsdp"
    ),
    "tied, all layers": lambda: Case(truncated("llama-3.2-1b", 16), Workload(seq_len=2048, global_batch=32), "8xl40s"),
    "windows, qlora, 13 layers": lambda: Case(
        truncated("gemma-2-9b", 13), Workload(seq_len=8192, global_batch=48, lora=QLORA), "gb200-nvl72:3"
    ),
    "mixtral": lambda: Case(
        truncated("mixtral-8x7b", 32), Workload(seq_len=4096, global_batch=96), "dgx-h100:4", "megatron-core"
    ),
    "gpt-oss, mixed lengths": lambda: Case(truncated("gpt-oss-20b", 24), mixed_lengths(8192, global_batch=64)),
    "deepseek, 7 layers, mtp": lambda: Case(
        truncated("deepseek-v3", 7, mtp_layers=1), Workload(seq_len=4096, global_batch=96, precision="fp8")
    ),
    "deepseek, 9 layers, two mtp": lambda: Case(
        truncated("deepseek-v3", 9, mtp_layers=2), Workload(seq_len=4096, global_batch=24), "gb200-nvl72:3"
    ),
    "hybrid, 12 layers, two mtp that share weights": lambda: Case(
        truncated("nemotron-3.5-lightning-30b-a3b", 12), Workload(seq_len=4096, global_batch=48), "dgx-h100:2",
        "megatron-core",
    ),
    "gpt": lambda: Case(
        truncated("gpt3-175b", 96), Workload(seq_len=2048, global_batch=64), "dgx-a100:4", "megatron-core", True
    ),
    "gpt, last 10 layers, 8 sequences": lambda: Case(
        truncated("gpt3-175b", 96), Workload(seq_len=2048, global_batch=8, trains_layers=10), "dgx-h100:8"
    ),
    "llama for megatron": lambda: Case(
        truncated("llama-3.1-8b", 32), Workload(seq_len=4096, global_batch=48), "dgx-a100:3", "megatron-core",
        target="megatron",
    ),
    "images, 36 layers": lambda: Case(
        truncated("qwen3-vl-8b", 36),
        Workload(seq_len=4096, global_batch=64, images=Images(per_sequence=2, height=1024, width=768)),
    ),
    "images of a frozen tower, experts, 9 layers": lambda: Case(
        truncated("qwen3-vl-30b-a3b", 9),
        Workload(seq_len=8192, global_batch=48, freeze_tower=True,
                 images=Images(per_sequence=4, height=512, width=512)),
        "dgx-h100:2", "megatron-core",
    ),
    "images of a frozen language model": lambda: Case(
        truncated("qwen3-vl-8b", 36),
        Workload(seq_len=4096, global_batch=64, freeze_tower=True, freeze_language=True,
                 images=Images(per_sequence=2, height=1024, width=768)),
        "dgx-h100:2", "megatron-core",
    ),
    "gpt, 5 layers, fp16": lambda: Case(
        truncated("gpt-22b", 5), Workload(seq_len=2048, global_batch=256, precision="fp16", optimizer="sgd"),
        "dgx-a100:4", "deepspeed", True,
    ),
}  # fmt: skip
# Their states depend on one another: an optimizer in host memory keeps weights beside their quantised copies, and a
# shard stays beside whole weights. So the bounds hold for them, and not all that holds for each state by itself.
LINKED: dict[str, Callable[[], Case]] = {
    "llama, fp8 weights that are gathered": lambda: Case(
        truncated("llama-3.1-8b", 32), Workload(seq_len=4096, global_batch=256, precision="fp8"), "dgx-h100:8",
        "megatron-bridge", target="megatron",
    ),
    "llama, fp4 weights that are gathered": lambda: Case(
        truncated("llama-3.1-8b", 32), Workload(seq_len=4096, global_batch=64, precision="fp4"), "gb200-nvl72:8",
        "megatron-bridge", target="megatron-bridge",
    ),
    "llama, fsdp2 without master weights": lambda: Case(
        truncated("llama-3.1-8b", 32), Workload(seq_len=4096, global_batch=64), "dgx-h100:2", "torch-fsdp2-2025"
    ),
}  # fmt: skip


@cache
def case_named(name: str) -> Case:
    return (CASES | LINKED)[name]()


cases = st.sampled_from(sorted(CASES))
seeds = st.integers(0, 2**31)
factors = st.floats(0.02, 0.999)


def thorough(examples: int, *, shrinks: bool = False) -> settings:
    """A batch of a smaller seed is no simpler: what fails is named as it was drawn."""
    phases = tuple(Phase) if shrinks else (Phase.explicit, Phase.generate)
    return settings(max_examples=examples, derandomize=True, deadline=None, database=None, phases=phases)


def draw(case: Case, seed: int, rows: int = ROWS, *, pipelined: bool = False) -> Columns:
    """Random legal layouts: meshes evenly (or by their number of stages), then each choice evenly."""
    rng = np.random.default_rng(seed)
    drawn = rows if case.target == "any" else 6 * rows  # few of a target's draws pass all of its rules
    while True:
        columns = _draw_any(case, rng, drawn, pipelined)
        legal = np.flatnonzero(allowed(case.space.rules, columns, case.problem))
        if len(legal):
            return select(columns, legal[:rows])


def _draw_any(case: Case, rng: np.random.Generator, rows: int, pipelined: bool) -> Columns:
    space = case.space
    share = case.meshes["pp"].astype(float) if pipelined else np.ones(len(case.meshes["pp"]))
    columns = select(case.meshes, rng.choice(len(share), size=rows, p=share / share.sum()))
    chosen: dict[str, list[int]] = {}
    for pp, dp, cp in zip(*(columns[name].tolist() for name in ("pp", "dp", "cp")), strict=True):
        for options in (space.schedules(pp), space.recomputes(pp), space.states(dp * cp)):
            row = rng.integers(len(next(iter(options.values()))))
            for name, column in options.items():
                chosen.setdefault(name, []).append(int(column[row]))
        shards = space.shards(dp, cp, chosen["zero"][-1])
        chosen.setdefault("shard", []).append(int(rng.choice(shards)))
    columns.update({name: np.array(values, dtype=np.int64) for name, values in chosen.items()})
    return columns


def ledger_of(case: Case, columns: Columns, rates: Rates | None = None) -> Ledger:
    layouts = Layouts(columns)
    keys, index = index_keys(layouts)
    return build_ledger.build(case.problem, build(case.problem, keys), layouts, index)


def price(case: Case, columns: Columns, rates: Rates | None = None, *, detail: bool = False) -> step.Estimate:
    return step.price(ledger_of(case, columns, rates), rates or case.rates, detail=detail)


def with_column(columns: Columns, **values: NDArray[np.int64] | int) -> Columns:
    n = len(columns["tp"])
    return {**columns, **{name: np.broadcast_to(np.asarray(value), (n,)) for name, value in values.items()}}


def check(ok: NDArray[np.bool_], columns: Columns, *values: NDArray[np.float64]) -> None:
    """All rows must be ok; else the first few are named, with `values`."""
    wrong = np.flatnonzero(~np.asarray(ok))
    layouts = Layouts(columns)
    assert not len(wrong), [(str(layouts.layout(row)), *(float(v[row]) for v in values)) for row in wrong[:3].tolist()]


@given(cases, seeds)
@thorough(60)
def test_terms_add_up(name: str, seed: int) -> None:
    """Exposed terms sum to the step, with and without the split of compute; all are finite and none is negative."""
    case = case_named(name)
    columns = draw(case, seed)
    short, detailed = price(case, columns), price(case, columns, detail=True)
    for estimate in (short, detailed):
        terms = np.array(list(estimate.terms.values()))
        check((np.isfinite(terms) & (terms >= 0)).all(axis=0), columns, terms.min(axis=0))
        summed = terms.sum(axis=0)
        check(np.isclose(summed, estimate.step_s, rtol=1e-12, atol=0), columns, summed, estimate.step_s)
    check(np.isclose(short.step_s, detailed.step_s, rtol=1e-12, atol=0), columns, short.step_s, detailed.step_s)
    assert set(detailed.terms) <= set(step.TERMS)
    assert np.array_equal(short.device_bytes, detailed.device_bytes)
    check((short.step_s > 0) & (short.device_bytes > 0) & np.isfinite(short.device_bytes), columns)


@given(cases, seeds)
@thorough(20)
def test_price_does_not_depend_on_the_batch(name: str, seed: int) -> None:
    """A layout costs the same alone as among others (tables, keys and padded stage profiles differ)."""
    case = case_named(name)
    columns = draw(case, seed)
    together = price(case, columns)
    for row in range(min(6, len(columns["tp"]))):
        alone = price(case, select(columns, np.array([row])))
        assert alone.step_s[0] == pytest.approx(together.step_s[row], rel=1e-12)
        assert alone.device_bytes[0] == pytest.approx(together.device_bytes[row], rel=1e-12)


@pytest.mark.parametrize(
    ("text", "reduces"), [("tp4-dp1-ep2-mbs1-z0-rnone", True), ("tp4-dp1-ep4-mbs1-z0-rnone", False)]
)
def test_copies_of_experts_are_reduced_without_data_parallelism(text: str, reduces: bool) -> None:
    """tp4 folded into ep2 leaves two copies of each expert: their gradients are summed even where dp x cp is 1."""
    case = Case(truncated("mixtral-8x7b", 4), Workload(seq_len=4096, global_batch=1), "4xh100-sxm-80gb")
    dp = float(price(case, dict(Layouts.of([parse(text)]))).terms["dp"][0])
    assert (dp > 0) == reduces


# --- bounds -----------------------------------------------------------------------------------------------------------


@st.composite
def warped(draw_: st.DrawFn, case: Case) -> Rates:
    """Rates with links, memory and host made slower or faster, and any overlap: bounds must hold for all."""
    rates = case.rates
    scale = st.sampled_from([1.0, 1.0, 0.01, 0.1, 0.3, 3.0])
    share = st.sampled_from([None, None, 0.0, 0.3, 0.8, 1.0])
    names = ("tp_overlap", "dp_overlap", "fsdp_overlap", "cp_overlap", "ep_overlap", "offload_overlap")
    shares: dict[str, Any] = {name: value for name in names if (value := draw_(share)) is not None}
    return replace(
        rates, stack=replace(rates.stack, **shares),
        levels=tuple(replace(level, bw_bytes_per_s=level.bw_bytes_per_s * draw_(scale)) for level in rates.levels),
        memory_bw_bytes_per_s=rates.memory_bw_bytes_per_s * draw_(scale),
        pcie_bw_bytes_per_s=rates.pcie_bw_bytes_per_s * draw_(scale),
        host_memory_bw_bytes_per_s=rates.host_memory_bw_bytes_per_s * draw_(scale),
    )  # fmt: skip


def bounds(case: Case, columns: Columns, rates: Rates) -> list[tuple[str, NDArray[np.float64], NDArray[np.float64]]]:
    """Seconds and bytes that the search believes nothing below the node of each row beats, level by level."""
    search = Search(case.space, rates, memory_bytes=np.inf)
    search.branching = Branching(LayoutCounts(case.space, case.meshes))
    names = sorted(case.meshes)
    row_of = {mesh: row for row, mesh in enumerate(zip(*(case.meshes[name].tolist() for name in names), strict=True))}
    at = [row_of[mesh] for mesh in zip(*(columns[name].tolist() for name in names), strict=True)]
    signature = search.branching.counts.signature[at]
    seconds, needed = search._mesh_bounds(case.meshes)
    found = [("mesh", seconds[at], needed[at])]
    for level, label in enumerate(("schedule", "recompute", "states")):
        choices = search.branching.relaxed({**columns, "_signature": signature}, level)
        relaxed = ledger_of(case, choices, rates)
        found.append((label, *lower_bounds.bound(relaxed, rates, states_known=level == 2, memory=level > 0)))
        found.append(("cycles", lower_bounds.least_cycles_s(relaxed, rates, states_known=level == 2), found[-1][2]))
        if level == 1:
            place = choices["offload"] & ~ACTIVATIONS_ON_HOST | columns["offload"] & ACTIVATIONS_ON_HOST
            placed = ledger_of(case, {**choices, "offload": place}, rates)
            found.append(("activations", *lower_bounds.bound(placed, rates, states_known=False, moves=True)))
            least_s = lower_bounds.least_cycles_s(placed, rates, states_known=False, moves=True)
            found.append(("cycles", least_s, found[-1][2]))
    return found


@pytest.mark.slow
@given(st.data(), st.sampled_from(sorted(CASES | LINKED)), seeds, st.booleans())
@thorough(110)
def test_no_layout_beats_its_bounds(data: st.DataObject, name: str, seed: int, pipelined: bool) -> None:
    """Admissibility, on which the proof of every search rests: some 6000 layouts, at every level of the tree."""
    case = case_named(name)
    rates = data.draw(warped(case))
    columns = draw(case, seed, pipelined=pipelined)
    estimate = price(case, columns, rates)
    for _level, seconds, needed in bounds(case, columns, rates):
        check(seconds <= estimate.step_s * (1 + SLACK), columns, seconds, estimate.step_s)
        check(needed <= estimate.device_bytes * (1 + SLACK), columns, needed, estimate.device_bytes)


@pytest.mark.parametrize(
    ("text", "cluster"),
    [
        ("cp2r-pp6-dp1-mbs24-z3-rfull2-oopt+act", "gb200-nvl72:3"),
        ("tp2-nosp-cp2r-pp8-dp1-mbs16-z3-rsel-oact", "dgx-h100:4"),
        ("pp8-gpipe-dp2-mbs1-z3-rfull1-oact", "dgx-a100:2"),
    ],
)
def test_bounds_hold_where_gathers_change_the_slowest_stage(text: str, cluster: str) -> None:
    """Once the fill repeated the slowest stage's offload; which stage that is depends on choices not made yet."""
    case = Case(truncated("gemma-2-9b", 13), Workload(seq_len=8192, global_batch=48), cluster)
    columns = dict(Layouts.of([parse(text)]))
    estimate = price(case, columns)
    search = Search(case.space, case.rates, memory_bytes=np.inf)
    search.branching = Branching(LayoutCounts(case.space, columns))
    for level in (0, 1, 2):
        nodes = {**columns, "_signature": search.branching.counts.signature}
        relaxed = ledger_of(case, search.branching.relaxed(nodes, level))
        seconds, _ = lower_bounds.bound(relaxed, case.rates, states_known=level == 2, moves=level == 1)
        assert seconds[0] <= estimate.step_s[0] * (1 + SLACK)


def test_flat_copies_of_sharded_states_bound_no_whole_ones() -> None:
    """With few bytes of optimizer and two ranks DeepSpeed's copies are more than sharding saves."""
    workload = Workload(seq_len=512, global_batch=8, optimizer="sgd")
    case = Case(truncated("llama-3.2-1b", 4), workload, "2xh100-sxm-80gb", "deepspeed", target="meshwright")
    columns = dict(Layouts.of([parse("dp2-mbs1-z0-rfull")]))
    whole = price(case, columns).device_bytes[0]
    assert price(case, dict(Layouts.of([parse("dp2-mbs1-z1-rfull")]))).device_bytes[0] > whole
    assert all(needed[0] <= whole * (1 + SLACK) for _, _, needed in bounds(case, columns, case.rates))


@pytest.mark.parametrize(
    ("name", "text"),
    [
        # With the optimizer in host memory there are more weights on the GPU.
        ("llama, fp8 weights that are gathered", "pp2-dp32-mbs1-z1-rfull-fp8"),
        ("llama, fp8 weights that are gathered", "pp2-dp32-mbs1-z1-rfull-oopt-fp8"),
        ("llama, fp4 weights that are gathered", "pp2-dp16-mbs1-z1-rfull-fp4"),
        ("llama, fsdp2 without master weights", "tp4-cp2r-pp2-dp1-mbs1-z1-rfull-oopt+act"),  # ZeRO-3 adds a shard
    ],
)
def test_bytes_that_another_state_saves_bound_nothing(name: str, text: str) -> None:
    case, columns = case_named(name), dict(Layouts.of([parse(text)]))
    assert not violations(parse(text), case.problem)
    priced = price(case, columns).device_bytes[0]
    assert all(needed[0] <= priced * (1 + SLACK) for _, _, needed in bounds(case, columns, case.rates))


@pytest.mark.slow
@given(seeds, st.sampled_from(["2xh100-sxm-80gb", "4xl40s"]), st.floats(0.02, 0.9), st.floats(1.0, 1.5))
@thorough(12)
def test_more_memory_removes_no_layout(seed: int, cluster: str, share: float, more: float) -> None:
    """What is found in M1 is found in M2 > M1, and the best of M2 is no worse."""
    batch = (2, 4)[seed % 2]
    case = Case(truncated("llama-3.2-1b", 2), Workload(seq_len=512, global_batch=batch), cluster)
    sizes = price(case, draw(case, seed)).device_bytes
    low = float(np.quantile(sizes, share))
    space = case.space
    few, many = (Search(space, case.rates, memory_bytes=limit, top=10**9).run() for limit in (low, low * more))
    names = [{name for _, name, _ in outcome.top.rows} for outcome in (few, many)]
    assert names[0] <= names[1]
    best = [Search(space, case.rates, memory_bytes=limit).run().top.rows for limit in (low, low * more)]
    assert [rows[0][1] for rows in best if rows] == [out.top.rows[0][1] for out in (few, many) if out.top.rows]
    assert len(best[1]) >= len(best[0])
    assert not best[0] or best[1][0][0] <= best[0][0][0]


# --- quantities -------------------------------------------------------------------------------------------------------


def copies(model: ModelSpec, columns: Columns) -> NDArray[np.float64]:
    """Parameters of the second embedding: for a tied head or MTP modules, on a last stage that is not the first one."""
    apart = (columns["pp"] > 1) & ~FOLDED[columns["schedule"]]
    wanted = model.tied_embeddings or model.mtp_layers > 0
    return np.where(apart & wanted, model.vocab * (model.embedding_dim or model.hidden), 0)


@given(cases, seeds)
@thorough(40)
def test_sharding_conserves_parameters(name: str, seed: int) -> None:
    """Over the ranks of a pipeline every parameter is held once: shards over tp and experts add up, replicas once."""
    case = case_named(name)
    problem, columns = case.problem, draw(case, seed)
    batch = ledger_of(case, columns)
    tables, tp, folded = batch.tables.parameters, columns["tp"], columns["ep"] * columns["etp"]
    model = problem.model
    replicated = [
        float(sum(layer_parameters(model, model.kinds[v.kind]).get(name, 0) for name in REPLICATED)) * (not v.repeats)
        for v in problem.variants
    ]
    replicated += [row.replicated for row in problem.parameters[problem.num_kinds :]]
    total = np.zeros(len(tp))
    for kind, layers in batch.totals.items():
        dense = tables["dense"][kind][batch.key]
        total += layers * (tp * (dense - replicated[kind]) + replicated[kind])
        total += layers * folded * tables["experts"][kind][batch.key]
    expected = total_parameters(model) + mtp_parameters(model) + copies(model, columns)
    check(np.isclose(total, expected, rtol=1e-12), columns, total, expected)


@given(cases, seeds)
@thorough(25)
def test_a_collective_of_one_rank_carries_nothing(name: str, seed: int) -> None:
    """Nor does it take a buffer, whatever the rest of the batch exchanges."""
    case = case_named(name)
    batch = ledger_of(case, draw(case, seed))
    for ops in batch.tables.operations:
        for exchange in ops.exchanges:
            alone = np.broadcast_to(exchange.size, exchange.num_bytes.shape) == 1
            assert not exchange.num_bytes[alone].any(), (ops.name, exchange.axis, exchange.op)
    keys = batch.tables.keys
    assert not batch.tables.head_exchange[keys["tp"] == 1].any()


@given(cases, seeds)
@thorough(25)
def test_stages_hold_all_layers_once(name: str, seed: int) -> None:
    """Profiles with their number of devices are the stages: they add up to the model, whatever the schedule."""
    case = case_named(name)
    columns = draw(case, seed, pipelined=True)
    batch = ledger_of(case, columns)
    model = case.model
    assert batch.splits.devices[batch.split].sum(axis=1).tolist() == columns["pp"].tolist()
    layers = batch.over_profiles(np.array(batch.layers))
    check(layers == model.num_layers + model.mtp_layers * max(len(model.mtp_pattern), 1), columns, layers)
    for kind in batch.kinds:
        over = batch.over_profiles(np.array([batch.counts[j][kind] for j in range(batch.num_profiles)]))
        check(over == batch.totals[kind], columns, over)
    check(np.max(batch.layers, axis=0) >= model.num_layers / columns["pp"], columns)


@given(cases, seeds)
@thorough(40)
def test_zero_is_monotone_in_memory(name: str, seed: int) -> None:
    """Each stage shards one state more; only the part that is whole meanwhile is new. The ranks together lose none."""
    case = case_named(name)
    columns = draw(case, seed)
    columns = select(columns, columns["dp"] * columns["cp"] > 1)
    if not len(columns["tp"]):
        return
    stages = [with_column(columns, zero=zero, shard=columns["dp"]) for zero in range(4)]
    ledgers = [ledger_of(case, stage) for stage in stages]
    j = seed % ledgers[0].num_profiles
    memories = [DeviceMemory(one) for one in ledgers]
    held = [one.buffers(j) for one in memories]
    for before, after, state in zip(held, held[1:], ("optimizer", "gradients", "weights"), strict=False):
        for buffer in ("optimizer", "gradients", "weights"):
            check(after[buffer] <= before[buffer] * (1 + SLACK), columns, before[buffer], after[buffer])
            if buffer != state:
                check(np.isclose(after[buffer], before[buffer], rtol=1e-12), columns)
    # What is whole meanwhile may shift the peak to another moment; without it, the moment is the same.
    for before, after in pairwise([one.buffers(j, gathered=False) for one in memories]):
        for buffer in ("activations", "logits", "exchange", "workspace"):
            check(after[buffer] == before[buffer], columns)
    totals = [reserved_memory.fullest_stage(one, case.rates, gathered=False)[0] for one in memories]
    for larger, smaller in pairwise(totals):
        check(smaller <= larger * (1 + SLACK), columns, larger, smaller)
    assert not any(before["gathered"].any() for before in held[:2])
    if not case.model.is_moe:
        ranks = columns["dp"] * columns["cp"]
        check(np.isclose(ranks * held[1]["optimizer"], held[0]["optimizer"], rtol=1e-12), columns)
        if case.workload.lora is None:  # adapters' weights are not sharded
            whole = (columns["pp"] > 1) & (held[3]["weights"] == held[0]["weights"])  # FSDP2 in a pipeline
            check(whole | np.isclose(ranks * held[3]["weights"], held[0]["weights"], rtol=1e-12), columns)


@given(cases, seeds)
@thorough(40)
def test_offload_moves_its_buffer(name: str, seed: int) -> None:
    """What leaves the device is on the host (states with the buffers of their copies), and no other buffer changes: but
    where the backward pass is split, some layers recompute and the others, on the host, have nothing to let go of, or
    the embedding is differentiated beside other micro-batches, or a vision tower is, or the head's gradient of a tied
    table waits for the embedding's: then another moment may be the fullest."""
    case = case_named(name)
    columns = with_column(draw(case, seed), offload_layers=0, offload_modules=0)  # they move a part of the buffer
    apart = SPLITS_BACKWARD[columns["schedule"]]
    there = ledger_of(case, with_column(columns, offload=0))
    for offload, buffers in ((OPT, {"optimizer"}), (ACT, {"activations"}), (3, {"optimizer", "activations"})):
        moved = ledger_of(case, with_column(columns, offload=offload))
        memory_there, memory_moved = DeviceMemory(there), DeviceMemory(moved)
        for j in range(there.num_profiles):
            before, after = memory_there.buffers(j), memory_moved.buffers(j)
            model = case.problem.model
            piped = (columns["pp"] > 1) | model.tied_embeddings | (model.tower is not None)
            moves = there.counts[j][there.splits.counts.shape[2] + EMBEDDING] * piped > 0
            moves = apart | (moves & ("activations" in buffers))
            # An optimizer on the host has no flat copies on the GPU either.
            copies = {"workspace"} if case.problem.stack.flat_buffers != "none" and "optimizer" in buffers else set()
            # DeepSpeed sums up gradients beside an optimizer on the host.
            summed = {"gradients"} if case.problem.stack.sums_on_host and "optimizer" in buffers else set()
            for buffer in BUFFERS:
                may_fall = buffer in buffers | copies | summed
                less = after[buffer] <= before[buffer] if may_fall else after[buffer] == before[buffer]
                other = moves | ("activations" in buffers) & (columns["recompute_layers"] > 0) & (buffer in TRANSIENT)
                check(less | other, columns, before[buffer], after[buffer])
            gone = np.sum([before[buffer] - after[buffer] for buffer in buffers], axis=0)
            on_host = memory_moved.host_bytes(j)
            check((on_host >= gone * (1 - SLACK)) | moves, columns, on_host, gone)
            if "optimizer" not in buffers:
                check(np.isclose(on_host, gone, rtol=1e-9) | moves, columns, on_host, gone)
        small, large = (reserved_memory.fullest_stage(one, case.rates)[0] for one in (memory_moved, memory_there))
        check(small <= large, columns, small, large)
        if "optimizer" in buffers:
            assert not any(memory_moved.buffers(j)["optimizer"].any() for j in range(moved.num_profiles))


@given(cases, seeds)
@thorough(40)
def test_recompute_is_monotone(name: str, seed: int) -> None:
    """One module, or one layer, more: no byte more is saved, and the step takes no less time.

    Activations stay on the GPU here: what is recomputed need not be moved to the host, and a step may get shorter.
    Where the backward pass is split and states are sharded, the same longer pass hides more messages of data
    parallelism and leaves more weight gradients to fill the bubble: the step may fall by what is shown less of these.
    """
    case = case_named(name)
    columns = draw(case, seed)
    twice = SPLITS_BACKWARD[columns["schedule"]] & (columns["zero"] >= 2)
    offload = np.where(columns["offload"] == OFFLOADS.index("opt+act"), OPT, columns["offload"])
    offload = np.where(offload == ACT, 0, offload)
    columns = with_column(columns, recompute_modules=0, recompute_layers=0, offload=offload)
    columns = with_column(columns, offload_layers=0, offload_modules=0)
    n, rng = len(columns["tp"]), np.random.default_rng(seed)
    some = rng.integers(1, 1 << len(MODULES), size=n)
    more = some | 1 << rng.integers(len(MODULES), size=n)
    per_stage = -(-case.model.num_layers // columns["pp"])
    part = rng.integers(1, np.maximum(per_stage, 2))
    ladders = (
        [
            with_column(columns, recompute=0),
            with_column(columns, recompute=SELECTIVE, recompute_modules=some),
            with_column(columns, recompute=SELECTIVE, recompute_modules=more),
            with_column(columns, recompute=SELECTIVE, recompute_modules=(1 << len(MODULES)) - 1),
        ],
        [
            with_column(columns, recompute=0),
            with_column(columns, recompute=FULL, recompute_layers=part),
            with_column(columns, recompute=FULL, recompute_layers=part + 1),
            with_column(columns, recompute=FULL),
        ],
    )
    for ladder in ladders:
        ledgers = [ledger_of(case, rung) for rung in ladder]
        estimates = [step.price(one, case.rates) for one in ledgers]
        for lower, upper in pairwise(estimates):
            before, after = lower.step_s, upper.step_s
            less_shown = np.where(twice, np.maximum(lower.terms["dp"] - upper.terms["dp"], 0.0), 0.0)
            check(after >= before * (1 - SLACK) - less_shown, columns, before, after)
            for j in range(lower.ledger.num_profiles):
                small, large = Activations(upper.ledger).saved[j], Activations(lower.ledger).saved[j]
                check(small <= large * (1 + SLACK), columns, large, small)


# --- rates ------------------------------------------------------------------------------------------------------------


@given(cases, seeds, factors)
@thorough(40)
def test_slower_links_never_shorten_a_step(name: str, seed: int, factor: float) -> None:
    case = case_named(name)
    columns, rates = draw(case, seed), case.rates
    levels = tuple(replace(level, bw_bytes_per_s=level.bw_bytes_per_s * factor) for level in rates.levels)
    before, after = price(case, columns).step_s, price(case, columns, replace(rates, levels=levels)).step_s
    check(after >= before * (1 - SLACK), columns, before, after)
    outer = (*rates.levels[:-1], levels[-1])  # the fabric alone
    after = price(case, columns, replace(rates, levels=outer)).step_s
    check(after >= before * (1 - SLACK), columns, before, after)


def _factor_of(surface: AttentionSurface | UnfusedSurface) -> float:
    return surface.products.training_factor if isinstance(surface, UnfusedSurface) else surface.training_factor


@given(cases, seeds, factors, st.sampled_from(["memory", "gemm", "attention", "pcie", "host"]))
@thorough(80)
def test_a_slower_gpu_never_shortens_a_step(name: str, seed: int, factor: float, what: str) -> None:
    """Memory bandwidth, efficiency of products or attention, the link to the host and its memory: less is no faster."""
    case = case_named(name)
    columns, rates = draw(case, seed), case.rates
    gemm, attention = rates.gemm, rates.attention
    slower = {
        "memory": replace(rates, memory_bw_bytes_per_s=rates.memory_bw_bytes_per_s * factor),
        "gemm": replace(rates, gemm=replace(gemm, efficiency=gemm.efficiency * factor)),
        "attention": replace(rates, attention=at_training_factor(attention, _factor_of(attention) * factor)),
        "pcie": replace(rates, pcie_bw_bytes_per_s=rates.pcie_bw_bytes_per_s * factor),
        "host": replace(rates, host_memory_bw_bytes_per_s=rates.host_memory_bw_bytes_per_s * factor),
    }[what]
    before, after = price(case, columns), price(case, columns, slower)
    check(after.step_s >= before.step_s * (1 - SLACK), columns, before.step_s, after.step_s)
    assert np.array_equal(before.device_bytes, after.device_bytes)  # no rate enters a quantity


# --- pipeline ---------------------------------------------------------------------------------------------------------


@given(
    st.sampled_from(SCHEDULES), st.integers(1, 64), st.integers(1, 512), st.integers(1, 8),
    st.floats(1e-3, 10), st.floats(1e-3, 10), st.floats(1e-3, 10), st.floats(0, 1),
)  # fmt: skip
@thorough(300, shrinks=True)
def test_pipeline_forms(
    schedule: str, p: int, m: int, v: int, forward: float, backward: float, weight: float, hop: float
) -> None:
    """One stage has no bubble and sends nothing; no step is below m x C; no schedule has a longer bubble than 1f1b."""
    whole = backward + weight
    c = forward + whole
    got = even_step_s(schedule, p, m, v, forward, whole, weight, hop)
    assert got >= m * c * (1 - SLACK)
    assert even_step_s(schedule, 1, m, v, forward, whole, weight, hop) == pytest.approx(m * c, rel=1e-12)
    if schedule != "dualpipe-v":  # overlapped pairs of its bubble count B twice
        plain = even_step_s("1f1b", p, m, 1, forward, whole, weight)
        assert even_step_s(schedule, p, m, v, forward, whole, weight) <= plain * (1 + SLACK)
    code, one = np.array([SCHEDULES.index(schedule)]), np.ones(1)
    each = (hop * one, hop * one)
    alone = Messages(one, v * one, m * one, *each, c * one, c * one, forward * one, whole * one, weight * one)
    assert exposed_hop_s(code, alone)[0] == 0
    assert exposed_hop_s(code, replace(alone, pp=p * one, sum_c=p * c * one))[0] >= 0
    assert bubble_s(code, Fill(p * one, v * one, m * one, *[0 * one] * 6))[0] == 0


@given(st.sampled_from(SCHEDULES), st.integers(2, 16), st.integers(1, 40), seeds)
@thorough(300)
def test_a_slower_stage_never_shortens_a_step(schedule: str, p: int, m: int, seed: int) -> None:
    """m x the slowest stage, the bubble and the messages together: the bounds of the search rest on it."""
    rng, n = np.random.default_rng(seed), 200
    stages = rng.uniform(0.1, 5, (p, n)) ** rng.uniform(0.1, 2, n)
    slower, row = stages.copy(), np.arange(n)
    slower[np.where(row % 2, stages.argmax(axis=0), rng.integers(p, size=n)), row] += rng.uniform(0, 3, n)
    part = stages.sum(axis=0) * (1 - 1 / p) / 3  # F, I and W of the others stay; what slows the stage comes on top
    code = np.full(n, SCHEDULES.index(schedule))
    pp, mm, hop = np.full(n, float(p)), np.full(n, float(m)), rng.uniform(0, 5, n)
    vpp = np.full(n, 3.0 if schedule == "interleaved" else 2.0 if KINDS[CODE[schedule]].folded else 1.0)
    link, of_mean = hop * rng.uniform(0, 1, n), (part / (p - 1), 2 * part / (p - 1), part / (p - 1))
    before, after = (
        m * c.max(axis=0)
        + bubble_s(
            code, Fill(pp, vpp, mm, c.mean(axis=0), 0 * part, c.sum(axis=0) - c.max(axis=0), part, 2 * part, part)
        )
        + exposed_hop_s(code, Messages(pp, vpp, mm, hop, link, c.sum(axis=0), c.max(axis=0), *of_mean))
        for c in (stages, slower)
    )
    assert (after >= before * (1 - SLACK)).all()


@given(st.sampled_from(SCHEDULES), st.integers(1, 64), st.integers(1, 512), st.integers(1, 8))
@thorough(300, shrinks=True)
def test_micro_batches_in_flight(schedule: str, p: int, m: int, v: int) -> None:
    """At least one, never more than there are, and later devices hold no more than earlier ones."""
    devices = np.arange(p, dtype=float)
    code = np.full(p, SCHEDULES.index(schedule))
    held = in_flight(code, np.full(p, float(p)), np.full(p, float(v)), np.full(p, float(m)), devices)
    assert (held <= m).all()
    assert (held >= 1 / v).all()
    assert (np.diff(held) <= 0).all()
    if schedule == "1f1b" and m >= p:
        assert held[0] == p
    if schedule == "interleaved" and m >= 2 * p and m % p == 0:
        assert held[0] == pytest.approx(p * (1 + (p - 1) / (p * v)))


@given(st.integers(1, 130), st.integers(1, 32), st.integers(1, 4), st.sampled_from(SCHEDULES))
@thorough(200, shrinks=True)
def test_chunks_are_even(layers: int, pp: int, vpp: int, schedule: str) -> None:
    devices = chunk_devices(pp, vpp, KINDS[CODE[schedule]].folded)
    sizes = chunk_sizes(layers, len(devices))
    assert sum(sizes) == layers
    assert max(sizes) - min(sizes) <= 1
    assert set(devices) == set(range(pp))
    assert devices[0] == 0
    assert devices[-1] == (0 if KINDS[CODE[schedule]].folded else pp - 1)


@given(cases, seeds)
@thorough(25)
def test_one_stage_costs_no_bubble(name: str, seed: int) -> None:
    case = case_named(name)
    columns = draw(case, seed)
    terms = price(case, columns).terms
    alone = columns["pp"] == 1
    check(~alone | ((terms["bubble"] == 0) & (terms["pp"] == 0)), columns, terms["bubble"], terms["pp"])
    check(alone | (terms["pp"] > 0), columns)


# --- layouts ----------------------------------------------------------------------------------------------------------

degrees = st.just(1) | st.integers(1, 5000)


@st.composite
def canonical(draw_: st.DrawFn) -> Layout:
    """Any layout with what its id leaves out at its default: no algorithm without ranks, no mask without selection."""
    tp, cp, pp, vpp, dp = (draw_(degrees) for _ in range(5))
    mode = draw_(st.integers(0, 2))
    return Layout(
        tp=tp, cp=cp, pp=pp, vpp=vpp, dp=dp, ep=draw_(degrees), etp=draw_(degrees), shard=draw_(degrees),
        micro_batch=draw_(degrees), sequence_parallel=draw_(st.integers(0, 1)) if tp > 1 else 0,
        cp_algorithm=draw_(st.integers(0, len(CP_ALGORITHMS) - 1)) if cp > 1 else 0,
        schedule=draw_(st.sampled_from([default_schedule(pp, vpp), *range(len(SCHEDULES))])),
        zero=draw_(st.integers(0, 3)), recompute=mode,
        recompute_modules=draw_(st.integers(1, (1 << len(MODULES)) - 1)) if mode == SELECTIVE else 0,
        recompute_layers=draw_(st.integers(0, 200)) if mode == FULL else 0,
        offload=draw_(st.integers(0, len(OFFLOADS) - 1)), precision=draw_(st.integers(0, len(PRECISIONS) - 1)),
    )  # fmt: skip


@given(canonical())
@thorough(1500, shrinks=True)
def test_ids_round_trip(layout: Layout) -> None:
    text = str(layout)
    assert parse(text) == layout
    assert parse(f" {text}\n") == layout


@given(canonical())
@thorough(500, shrinks=True)
def test_dictionaries_round_trip(layout: Layout) -> None:
    """Through JSON, and with what is absent at its default."""
    data = json.loads(json.dumps(layout.as_dict()))
    assert Layout.from_dict(data) == layout
    assert Layouts.of([layout]).layout(0) == layout
    del data["schedule"], data["shard"], data["sequence_parallel"]
    bare = replace(layout, schedule=default_schedule(layout.pp, layout.vpp), shard=layout.dp,
                   sequence_parallel=int(layout.tp > 1))  # fmt: skip
    assert Layout.from_dict(data) == bare


@given(cases, seeds)
@thorough(25)
def test_ids_of_legal_layouts_are_distinct(name: str, seed: int) -> None:
    case = case_named(name)
    layouts = Layouts(draw(case, seed))
    drawn = [layouts.layout(row) for row in range(len(layouts))]
    assert len({str(layout) for layout in drawn}) == len(set(drawn))
    assert [parse(str(layout)) for layout in drawn] == drawn
    assert [violations(layout, case.problem) for layout in drawn] == [[]] * len(drawn)


def test_choices_are_encoded_by_name() -> None:
    for field in FIELDS:
        for code, choice in enumerate(field.choices):
            assert encode(field.name, choice) == code
    assert [encode("sequence_parallel", value) for value in (True, "no", "yes", False)] == [1, 0, 1, 0]
    assert encode("recompute_modules", "attn+moe") == module_mask(["moe", "attn", "moe"]) == 0b01001
    assert modules_of(0b01001) == ("attn", "moe")
    assert encode("tp", "8") == 8


@pytest.mark.parametrize(
    ("field", "value", "message"),
    [
        ("width", 1, "unknown layout field `width`"),
        ("schedule", "2f2b", "`2f2b` is none of 1f1b"),
        ("offload", "disk", "`disk` is none of none"),
        ("tp", "eight", "`eight` is not a whole number"),
        ("tp", None, "`None` is not a whole number"),
        ("dp", 0, "0 is out of range"),
        ("zero", 4, "4 is out of range"),
        ("zero", -1, "-1 is out of range"),
        ("recompute_modules", "attn+ffn", "unknown recompute module `ffn`"),
    ],
)
def test_wrong_values_are_named(field: str, value: object, message: str) -> None:
    with pytest.raises(InputError, match=message) as caught:
        encode(field, value)
    assert caught.value.hint


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("", "is not a layout id"),
        ("tp8", "is not a layout id"),
        ("dp8-tp8-mbs1-z1-rnone", "is not a layout id"),
        ("tp8-dp8-mbs1-z4-rnone", "is not a layout id"),
        ("dp8-mbs1-z1-rsel(ffn)", "unknown recompute module `ffn`"),
        ("tp0-dp8-mbs1-z1-rnone", "a degree of 0"),
        ("dp8-sh0-mbs1-z1-rnone", "a degree of 0"),
        ("tp8-dp8-mbs1-z1-rnone-x0a1b2c", "uneven stages, per-layer strategies or a rank map"),
    ],
)
def test_wrong_ids_are_named(text: str, message: str) -> None:
    with pytest.raises(InputError, match=message) as caught:
        parse(text)
    assert caught.value.hint
