"""Models with what they train on, and random legal layouts of them, for tests of properties.

A batch of layouts is drawn by a seed (hypothesis draws the case and the seed); what fails is named by its layout id.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import cache, cached_property
from typing import Any

import numpy as np
from hypothesis import Phase, settings
from hypothesis import strategies as st
from meshwright.cost_models import build_ledger
from meshwright.cost_models.cuda_graphs import GRAPH_CODE
from meshwright.cost_models.layouts import OFFLOADS, RECOMPUTE_MODES, Layouts, encode
from meshwright.cost_models.problem import Problem
from meshwright.cost_models.quantities.ledger import Ledger
from meshwright.cost_models.quantities.tables import build, index_keys
from meshwright.cost_models.rates.rates import Rates
from meshwright.cost_models.specs.model import ModelSpec
from meshwright.cost_models.specs.workload import Images, Lora, Workload
from meshwright.cost_models.step import step
from meshwright.planner.space.rules import RULES
from meshwright.planner.space.tree import Columns, Count, Space, allowed, select
from meshwright.planner.targets.registry import TARGETS
from meshwright.profiles.cluster.load import load_cluster
from meshwright.profiles.model.load import load_model
from meshwright.profiles.stack.load import load_stack
from meshwright.profiles.stack.rates import rates_for
from numpy.typing import NDArray

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
