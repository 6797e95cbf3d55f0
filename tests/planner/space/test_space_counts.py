"""Counts of the space without forming it, against forming it: every layout is excluded once, or is there.

The enumeration below restates the choices in plain loops and applies the rules one after another in the order that
their fields are bound; nothing of `Space` or `LayoutCounts` is used for it but the rules themselves.
"""

from __future__ import annotations

import json
import random
import subprocess
import sys
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from itertools import product

import numpy as np
import pytest
from hypothesis import Phase, given, settings
from hypothesis import strategies as st
from meshwright.cost_models.cuda_graphs import CUDA_GRAPHS
from meshwright.cost_models.degrees import divisors
from meshwright.cost_models.layouts import (
    CP_ALGORITHMS,
    FIELD_NAMES,
    MODULES,
    OFFLOADS,
    PRECISIONS,
    RECOMPUTE_MODES,
    SCHEDULES,
    encode,
)
from meshwright.cost_models.offload_modules import OFFLOAD_MODULES
from meshwright.cost_models.problem import Problem
from meshwright.cost_models.specs.model import Attention, FeedForward, Layer, MixtureOfExperts, ModelSpec
from meshwright.cost_models.specs.workload import Workload
from meshwright.planner.search.dominance import dominated_recomputes
from meshwright.planner.space.counting import LayoutCounts
from meshwright.planner.space.rules import RULES, Rule, fixed
from meshwright.planner.space.tree import MESH_FIELDS, Columns, Count, Space
from meshwright.planner.targets.registry import TARGETS
from meshwright.profiles.cluster.load import load_cluster
from meshwright.profiles.stack.load import load_stack
from meshwright.profiles.stack.rates import rates_for

from ...snapshots import ROOT, environment

MOST_ROWS = 150_000
PHASES = (Phase.explicit, Phase.generate)  # a smaller seed is no simpler problem
NONE, SELECTIVE, FULL = (RECOMPUTE_MODES.index(name) for name in ("none", "selective", "full"))
# When a field is bound: degrees, then each choice of the mesh, then the levels below; rules that join levels come last.
BOUND = {"tp": 0, "cp": 0, "pp": 0, "dp": 0, "precision": 0, "sequence_parallel": 1, "cp_algorithm": 2, "ep": 3,
         "etp": 4, "ep_overlap": 5, "cuda_graphs": 6, "offload_modules": 7,
         "micro_batch": 8}  # fmt: skip
LEVELS: tuple[set[str], ...] = (
    {"schedule", "vpp"},
    {"recompute", "recompute_modules", "recompute_layers", "offload_layers"},
    {"zero", "shard"},
)
Row = tuple[int, ...]
Switches = Mapping[str, tuple[int, ...]]


def step_of(rule: Rule) -> int:
    """When all fields of a rule are bound."""
    below = set(rule.fields) - set(BOUND)
    if not below:
        return max(BOUND[name] for name in rule.fields)
    return 10 + next((depth for depth, fields in enumerate(LEVELS) if below <= fields), len(LEVELS))


def dividing(n: int) -> list[int]:
    return [d for d in range(1, n + 1) if n % d == 0]


def mesh_rows(problem: Problem, switches: Switches) -> Iterator[dict[str, int]]:
    """Every factorisation of the GPUs with every choice of the mesh, and of the switches in every mesh."""
    names = ("ep_overlap", "cuda_graphs", "offload_modules")
    overlaps, graphs, sends = (switches.get(name, (0,)) for name in names)
    blocks = [kind.feed_forward for kind in problem.model.kinds if isinstance(kind.feed_forward, MixtureOfExperts)]
    eps = dividing(blocks[0].experts) if blocks else [1]
    etps = dividing(blocks[0].expert_inner) if blocks else [1]
    batches = dividing(problem.workload.global_batch)
    n, precision = problem.num_gpus, PRECISIONS.index(problem.workload.precision)
    for tp in dividing(n):
        for cp in dividing(n // tp):
            for pp in dividing(n // tp // cp):
                for sequence_parallel in (0, 1) if tp > 1 else (0,):
                    for algorithm in range(len(CP_ALGORITHMS)) if cp > 1 else (0,):
                        for ep in eps:
                            for etp in etps:
                                for overlap, graph, sent, micro_batch in product(overlaps, graphs, sends, batches):
                                    yield dict(
                                        tp=tp, sequence_parallel=sequence_parallel, cp=cp, cp_algorithm=algorithm,
                                        pp=pp, dp=n // tp // cp // pp, ep=ep, etp=etp, ep_overlap=overlap,
                                        cuda_graphs=graph, offload_modules=sent, micro_batch=micro_batch,
                                        precision=precision,
                                    )  # fmt: skip


def rows_below(problem: Problem, switches: Switches, pp: int, dp: int, cp: int) -> list[Row]:
    """(schedule, vpp, recompute, modules, layers, offloaded layers, zero, offload, shard) of everything that grows from
    a mesh."""
    layers = problem.model.num_layers
    schedules = [(SCHEDULES.index("1f1b"), 1)]
    if pp > 1:
        schedules += [(SCHEDULES.index("gpipe"), 1), (SCHEDULES.index("zb-h1"), 1)]
        schedules += [(SCHEDULES.index("zb-v"), 2), (SCHEDULES.index("dualpipe-v"), 2)]
        schedules += [(SCHEDULES.index("interleaved"), v) for v in range(2, layers + 3) if v * pp <= layers + 2]
    present = ["attn", "norm", "act"] + ["moe"] * problem.model.is_moe
    present += ["mla"] * any(kind.transformer_blocks[0].is_mla for kind in problem.model.kinds)
    blocks = [kind.feed_forward for kind in problem.model.kinds]
    present += ["mlp"] * any(not isinstance(block, MixtureOfExperts) for block in blocks)
    present += ["shared"] * any(isinstance(block, MixtureOfExperts) and block.shared_inner > 0 for block in blocks)
    masks = range(1, 1 << len(MODULES))
    possible = sum(1 << MODULES.index(name) for name in present)
    recomputes = [(NONE, 0, 0, 0), (FULL, 0, 0, 0)]
    recomputes += [(SELECTIVE, mask, 0, 0) for mask in masks if mask & possible == mask]
    recomputes += [(FULL, 0, some, 0) for some in range(1, layers) if (some - 1) * pp < layers - pp]
    recomputes += [(NONE, 0, 0, n) for n in switches.get("offload_layers", ()) if pp == 1 and 0 < n < layers]
    states = [
        (zero, offload, shard)
        for zero in (range(4) if dp * cp > 1 else switches.get("zero", (0,)))
        for offload in range(len(OFFLOADS))
        for shard in ([dp] if zero == 0 or dp * cp == 1 else [d for d in dividing(dp) if d * cp > 1])
    ]
    return [(*schedule, *recompute, *state) for schedule in schedules for recompute in recomputes for state in states]


BELOW = ("schedule", "vpp", "recompute", "recompute_modules", "recompute_layers", "offload_layers", "zero", "offload",
         "shard")  # fmt: skip


@dataclass
class Below:
    """`rows_below` of each mesh, [rows, BELOW]; those of meshes with the same degrees are formed once."""

    problem: Problem
    switches: Switches
    formed: dict[tuple[int, int, int], np.ndarray] = field(default_factory=dict)

    def of(self, mesh: Mapping[str, int]) -> np.ndarray:
        degrees = mesh["pp"], mesh["dp"], mesh["cp"]
        if degrees not in self.formed:
            self.formed[degrees] = np.array(rows_below(self.problem, self.switches, *degrees), dtype=np.int64)
        return self.formed[degrees]


@dataclass
class Enumeration:
    """Every layout of a problem, formed; `rules` applied in the order that they are bound."""

    problem: Problem
    rules: Sequence[Rule]
    switches: Switches

    def __post_init__(self) -> None:
        meshes, formed = list(mesh_rows(self.problem, self.switches)), Below(self.problem, self.switches)
        below = [formed.of(mesh) for mesh in meshes]
        sizes = [len(rows) for rows in below]
        columns: Columns = {
            name: np.repeat(np.array([mesh[name] for mesh in meshes], dtype=np.int64), sizes) for name in MESH_FIELDS
        }
        flat = np.concatenate(below)
        columns.update({name: flat[:, i] for i, name in enumerate(BELOW)})
        columns["mesh"] = np.repeat(np.arange(len(meshes)), sizes)
        self.total, self.meshes = len(flat), [tuple(mesh[name] for name in MESH_FIELDS) for mesh in meshes]
        self.distinct = {name: len(np.unique(column)) for name, column in columns.items()}
        self.distinct["recompute"] = len({row[2:6] for row in rows_below(self.problem, self.switches, 1, 1, 1)})
        self.ruled_out: dict[str, int] = {}
        for rule in sorted(self.rules, key=step_of):
            ok = rule.allows(columns, self.problem)
            if not ok.all():
                self.ruled_out[rule.name] = self.ruled_out.get(rule.name, 0) + int((~ok).sum())
                columns = {name: column[ok] for name, column in columns.items()}
        self.columns = columns

    def per_mesh(self, kept: np.ndarray | slice = slice(None)) -> Counter[Row]:
        """How many layouts that pass grow from each mesh (columns in the order of MESH_FIELDS)."""
        counts = np.bincount(self.columns["mesh"][kept], minlength=len(self.meshes)).tolist()
        return +Counter(dict(zip(self.meshes, counts, strict=True)))

    def is_dominated(self, dominated: frozenset[tuple[int, int]]) -> np.ndarray:
        out = np.zeros(len(self.columns["tp"]), dtype=bool)
        for mode, modules in dominated:
            out |= (self.columns["recompute"] == mode) & (self.columns["recompute_modules"] == modules)
        return out


def random_model(rng: random.Random) -> ModelSpec:
    kv_heads = rng.choice([1, 2, 4])
    attention = Attention(heads=kv_heads * rng.choice([1, 2, 3]), kv_heads=kv_heads, head_dim=64, value_head_dim=64)
    if rng.random() < 0.2:
        attention = replace(attention, kv_lora_rank=64, rope_head_dim=32, q_lora_rank=rng.choice([None, 96]))
    dense = Layer(attention=attention, feed_forward=FeedForward(inner=rng.choice([768, 1024])))
    shared = rng.choice([0, 256])
    block = MixtureOfExperts(experts=rng.choice([2, 4, 6]), top_k=1, expert_inner=256, shared_inner=shared)
    kinds = (Layer(attention=attention, feed_forward=block), dense) if rng.random() < 0.5 else (dense,)
    pattern = (0, *(rng.randrange(len(kinds)) for _ in range(rng.choice([0, 1, 2, 3, 5]))))
    used = tuple(sorted(set(pattern)))
    return ModelSpec(
        name="random", family="llama", hidden=attention.heads * 64, vocab=1000, max_positions=4096,
        kinds=tuple(kinds[kind] for kind in used), pattern=tuple(used.index(kind) for kind in pattern),
    )  # fmt: skip


def random_fixes(rng: random.Random) -> tuple[Rule, ...]:
    """Up to two choices of the user, at any level."""
    choices = [("tp", "2"), ("cp", "2"), ("cp_algorithm", "ulysses"), ("schedule", "interleaved"), ("vpp", "2"),
               ("recompute", "full"), ("recompute_layers", "1"), ("zero", "1"), ("offload", "opt"), ("shard", "2"),
               ("micro_batch", "1"), ("sequence_parallel", "yes"), ("ep", "2")]  # fmt: skip
    picked = rng.sample(choices, rng.choice([0, 0, 0, 1, 2]))
    return tuple(fixed(field, encode(field, value), f"{field}={value}") for field, value in picked)


def random_switches(rng: random.Random) -> Switches:
    """Sometimes the switches are compared, those of graphs perhaps without the plain one."""
    if rng.random() < 0.5:
        return {}
    graphs = tuple(sorted(rng.sample(range(len(CUDA_GRAPHS)), 2)))
    sends = tuple(sorted(rng.sample(range(len(OFFLOAD_MODULES)), 2)))
    return rng.choice([
        {"ep_overlap": (0, 1), "cuda_graphs": graphs},
        {"offload_modules": sends, "offload_layers": (0, 1, 2, 3)},
        {"cuda_graphs": graphs, "offload_modules": sends, "offload_layers": (2,)},
        {"zero": (0, 1, 2, 3)},
    ])  # fmt: skip


def random_space(seed: int) -> Space:
    """A small problem under the rules of legality, of a random target, and of the user."""
    rng = random.Random(seed)
    while True:
        cluster = load_cluster(rng.choice(["1xh100-sxm-80gb", "2xh100-sxm-80gb", "3xl40s", "4xh100-sxm-80gb",
                                           "6xa100-sxm-80gb", "8xh100-sxm-80gb"]))  # fmt: skip
        target = TARGETS[rng.choice(sorted(TARGETS))]
        workload = Workload(seq_len=rng.choice([96, 256, 1024]), global_batch=rng.choice([1, 2, 4, 6, 8]))
        model = random_model(rng)
        problem = Problem(model, workload, load_stack(target.stack), cluster.num_gpus, cluster.gpus_per_node)
        space = Space(problem, (*RULES, *target.rules, *random_fixes(rng)), random_switches(rng))
        below = Below(problem, space.switches)
        if sum(len(below.of(mesh)) for mesh in mesh_rows(problem, space.switches)) <= MOST_ROWS:
            return space


def dominated_of(space: Space) -> frozenset[tuple[int, int]]:
    rates = rates_for(load_cluster("2xh100-sxm-80gb"), space.problem.stack, "bf16")
    return dominated_recomputes(space, rates)


@given(st.integers(0, 2**31), st.booleans())
@settings(max_examples=60, derandomize=True, deadline=None, database=None, phases=PHASES)
@pytest.mark.slow
def test_layout_counts_equal_enumeration(seed: int, prunes: bool) -> None:
    """Total, layouts excluded by each rule, dominated ones, the legal meshes, and how much grows from each."""
    space = random_space(seed)
    formed = Enumeration(space.problem, space.rules, space.switches)
    dominated = dominated_of(space) if prunes else frozenset({(SELECTIVE, 1), (SELECTIVE, 6)})
    count = Count()
    meshes = space.meshes(count)
    assert count.total == formed.total
    weights: Counter[Row] = Counter()
    if len(meshes["tp"]):
        census = LayoutCounts(space, meshes, dominated)
        census.tally(count)
        rows = list(zip(*(meshes[name].tolist() for name in MESH_FIELDS), strict=True))
        assert len(set(rows)) == len(rows)
        weights = +Counter(dict(zip(rows, census.weight.tolist(), strict=True)))
        assert set(formed.per_mesh()) <= set(rows)
    dropped = formed.is_dominated(dominated)
    assert count.ruled_out == formed.ruled_out
    assert count.dominated == int(dropped.sum())
    assert weights == formed.per_mesh(~dropped)
    assert count.accounted + sum(weights.values()) == count.total


@given(st.integers(0, 2**31))
@settings(max_examples=40, derandomize=True, deadline=None, database=None, phases=PHASES)
@pytest.mark.slow
def test_what_grows_from_a_mesh(seed: int) -> None:
    """`num_below` of every mesh, before any rule; without rules every mesh is legal and nothing is excluded."""
    bare = replace(random_space(seed), rules=())
    count = Count()
    meshes = bare.meshes(count)
    expected = list(mesh_rows(bare.problem, bare.switches))
    below = Below(bare.problem, bare.switches)
    assert len(meshes["tp"]) == len(expected)
    rows = zip(*(meshes[name].tolist() for name in MESH_FIELDS), strict=True)
    found = dict(zip(rows, bare.num_below(meshes).tolist(), strict=True))
    for mesh in expected:
        row = tuple(mesh[name] for name in MESH_FIELDS)
        assert found.pop(row) == len(below.of(mesh))
    assert not found
    assert count.ruled_out == {}
    assert LayoutCounts(bare, meshes).weight.sum() == count.total


@pytest.mark.slow
@given(st.integers(0, 2**31))
@settings(max_examples=20, derandomize=True, deadline=None, database=None, phases=PHASES)
def test_axis_sizes(seed: int) -> None:
    """How many values each axis takes in the formed space, before any rule."""
    space = random_space(seed)
    formed, sizes = Enumeration(space.problem, (), space.switches), space.axis_sizes()
    assert set(sizes) <= set(FIELD_NAMES)
    if space.problem.num_gpus == 1:  # leaves most axes at one value
        return
    chunks = {"schedule", "vpp"}  # stated for pp 2 and two chunks per stage: two layers, and the ends alone
    if space.problem.num_gpus % 2 == 0 and space.problem.model.num_layers >= 2:
        chunks = set()
    assert {k: v for k, v in sizes.items() if k not in chunks} == {k: formed.distinct[k] for k in set(sizes) - chunks}


def test_divisors() -> None:
    assert [divisors(n) for n in range(1, 200)] == [tuple(dividing(n)) for n in range(1, 200)]
    assert divisors(16384) == tuple(2**k for k in range(15))


HUGE = """
import json
from meshwright.cost_models.specs.workload import Workload
from meshwright.cost_models.problem import Problem
from meshwright.planner.space.counting import LayoutCounts
from meshwright.planner.space.rules import RULES
from meshwright.planner.targets.registry import TARGETS
from meshwright.planner.space.tree import Count, Space
from meshwright.profiles.cluster.load import load_cluster
from meshwright.profiles.model.load import load_model
from meshwright.profiles.stack.load import load_stack

cluster = load_cluster({cluster!r})
workload = Workload(seq_len=8192, global_batch={batch})
problem = Problem(load_model({model!r})[0], workload, load_stack("generic"), cluster.num_gpus, cluster.gpus_per_node)
space, count = Space(problem, RULES + TARGETS["any"].rules), Count()
census = LayoutCounts(space, space.meshes(count))
census.tally(count)
# Of this program alone: what getrusage tells is at least what the one that started it has held.
kibibytes = int(next(line for line in open("/proc/self/status") if line.startswith("VmHWM")).split()[1])
print(json.dumps(dict(gpus=cluster.num_gpus, total=count.total, excluded=count.accounted,
                      legal=int(census.weight.sum()), gib=kibibytes / 2**20, meshes=len(census.meshes["tp"]))))
"""


@pytest.mark.parametrize(
    ("model", "cluster", "gpus", "batch", "at_least"),
    [("llama-3.1-405b", "dgx-h100:2048", 16384, 2048, 1e8), ("deepseek-v3", "dgx-h100:256", 2048, 15360, 1e10)],
)
def test_huge_spaces_are_counted_in_little_memory(
    model: str, cluster: str, gpus: int, batch: int, at_least: float
) -> None:
    """Hundreds of millions of layouts, every one accounted for, without holding them."""
    script = HUGE.format(model=model, cluster=cluster, batch=batch)
    command = [sys.executable, "-c", script]
    done = subprocess.run(command, cwd=ROOT, env=environment(), capture_output=True, text=True, timeout=300, check=True)
    found = json.loads(done.stdout)
    assert found["gpus"] == gpus
    assert found["legal"] > at_least
    assert found["excluded"] + found["legal"] == found["total"]
    assert found["gib"] < 2
