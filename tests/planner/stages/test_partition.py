"""Stages of one's own: paths through a schedule, the integer program against all splits, and what a plan says."""

from __future__ import annotations

import itertools
import json
import random
from collections.abc import Iterator
from dataclasses import replace
from functools import cache, partial
from pathlib import Path as File
from types import SimpleNamespace
from typing import Any, cast

import numpy as np
import pulp
import pytest
from meshwright.cli.screens.stages import placing_lines, tried_lines, why_these_stages
from meshwright.cost_models import build_ledger
from meshwright.cost_models.layouts import SCHEDULES, Layout, Layouts, parse
from meshwright.cost_models.quantities.device_memory import DeviceMemory
from meshwright.cost_models.quantities.stages import Partition
from meshwright.cost_models.quantities.tables import Tables, build, index_keys
from meshwright.cost_models.rates.collectives import CollectiveRates, LevelRates
from meshwright.cost_models.schedules import simulator
from meshwright.cost_models.schedules.critical_path import Path, device_path, longest_paths
from meshwright.cost_models.schedules.simulator import Costs
from meshwright.cost_models.specs.model import Attention, FeedForward, Layer, MixtureOfExperts, ModelSpec
from meshwright.cost_models.step import lower_bounds
from meshwright.cost_models.step.pipeline_bounds import least_load_s
from meshwright.planner import api
from meshwright.planner.document.partitions import custom_partition, layout_id, stages_by_layout
from meshwright.planner.document.plan import Plan
from meshwright.planner.document.reading import load_plan
from meshwright.planner.evaluation.staged import Staged
from meshwright.planner.explain.stage_loads import stage_loads
from meshwright.planner.heterogeneous.bounds import SharedPipelines
from meshwright.planner.request.load import load_request, request_from_dict
from meshwright.planner.request.resolve import Resolved, resolve
from meshwright.planner.search.branching import Branching
from meshwright.planner.search.exhaustive import Search
from meshwright.planner.space.counting import LayoutCounts
from meshwright.planner.space.tree import Count, Space
from meshwright.planner.stages import finalists, ilp
from meshwright.planner.stages import problem as partition_problem
from meshwright.planner.stages.coefficients import problem_of
from meshwright.planner.stages.problem import GAP
from meshwright.planner.stages.relaxed_search import splittable
from meshwright.planner.stages.solve import Solved, solve

from meshwright.errors import InputError

from ...sample_plan import unsealed


def model(layers: int, *, kinds: int = 1, vocab: int = 32000) -> ModelSpec:
    attention = Attention(heads=16, kv_heads=4, head_dim=64, value_head_dim=64)
    wide = [Layer(attention=attention, feed_forward=FeedForward(inner=inner)) for inner in (2816, 8192)]
    pattern = tuple(0 if i < layers // 3 else kinds - 1 for i in range(layers))
    return ModelSpec(name="small", family="llama", hidden=1024, vocab=vocab, max_positions=4096,
                     kinds=tuple(wide[:kinds]), pattern=pattern, tied_embeddings=False)  # fmt: skip


EXPERTS = MixtureOfExperts(experts=8, top_k=2, expert_inner=1024)


def request(spec: ModelSpec, gpus: int, batch: int, **changes: Any) -> Resolved:
    asked = {"model": "llama-3.1-8b", "cluster": f"{gpus}xh100-sxm-80gb", "global_batch": batch, "seq_len": 2048}
    return replace(resolve(load_request(None, {**asked, "target": "any", **changes})), model=spec)


def all_splits(layers: int, chunks: int) -> Iterator[tuple[int, ...]]:
    """Layers of each chunk; only the first and the last may have none."""
    for cuts in itertools.combinations_with_replacement(range(layers + 1), chunks - 1):
        sizes = tuple(b - a for a, b in itertools.pairwise((0, *cuts, layers)))
        if all(sizes[1:-1]):
            yield sizes


def all_partitions(resolved: Resolved, layout: Layout, separate_recompute: bool) -> Iterator[Partition]:
    folded = {"zb-v": layout.pp - 1, "dualpipe-v": layout.pp}.get(SCHEDULES[layout.schedule], 0)
    for sizes in all_splits(resolved.model.num_layers, len(Staged.of(resolved, layout, simulate=True).devices)):
        if any(back > there for there, back in zip(sizes[:folded], sizes[::-1], strict=False)):
            continue  # no more layers come back to a device of a V than went there
        if not separate_recompute:
            yield Partition(sizes)
        else:
            yield from (Partition(sizes, redone) for redone in itertools.product(*(range(n + 1) for n in sizes)))


def compare(resolved: Resolved, layout: Layout, memory_bytes: float, separate_recompute: bool) -> tuple[Solved, float]:
    """What the program finds, and the least step of all splits that fit."""
    base = Staged.of(resolved, layout, simulate=True)

    problem = problem_of(base, memory_bytes, separate_recompute=separate_recompute)
    least = min(
        scored(base, partition, memory_bytes) for partition in all_partitions(resolved, layout, separate_recompute)
    )
    return solve(problem, lambda partition: scored(base, partition, memory_bytes), rounds=200), least


CASES = (
    ("pp4-dp1-mbs1-z0-rnone", 8, 1, 8), ("pp4-dp1-mbs1-z0-rfull", 8, 2, 12), ("pp3-dp1-mbs1-z0-rnone", 7, 2, 6),
    ("pp2-vpp3-dp1-mbs1-z0-rnone", 8, 1, 6), ("pp2-vpp2-dp1-mbs1-z0-rsel", 8, 2, 8), ("pp4-dp1-mbs1-z0-rnone", 6, 1, 3),
    ("pp4-gpipe-dp1-mbs1-z0-rnone", 7, 2, 5), ("pp3-zbh1-dp1-mbs1-z0-rnone", 8, 1, 7),
    ("pp2-zbv-vpp2-dp1-mbs1-z0-rnone", 7, 1, 6), ("pp2-dpv-vpp2-dp1-mbs1-z0-rnone", 8, 2, 8),
)  # fmt: skip


@pytest.mark.parametrize(("layout_text", "layers", "kinds", "batch"), CASES)
@pytest.mark.parametrize("limited", [False, True])
def test_equals_all_splits(layout_text: str, layers: int, kinds: int, batch: int, limited: bool) -> None:
    """All splits into stages, simulated; with a memory limit that the fastest of them breaks."""
    layout = parse(layout_text)
    spec = model(layers, kinds=kinds, vocab=random.Random(layout_text).choice([32000, 128000]))
    resolved = request(spec, layout.pp, batch)
    base = Staged.of(resolved, layout, simulate=True)
    every = [base.split(partition) for partition in all_partitions(resolved, layout, False)]
    fastest = min(every, key=lambda one: one.step_s)
    memory_bytes = fastest.device_bytes * 0.9999 if limited else float("inf")
    least = min((one.step_s for one in every if one.device_bytes <= memory_bytes), default=float("inf"))
    problem = problem_of(base, memory_bytes, separate_recompute=False)
    solved = solve(problem, lambda partition: scored(base, partition, memory_bytes), rounds=200)
    assert solved.step_s == pytest.approx(least, rel=GAP)
    assert solved.bound_s <= least * (1 + 1e-9)
    if not limited or layout_text.endswith("rnone"):  # what recomputation needs for a while is counted at its least
        assert solved.bound_s >= least * (1 - 3 * GAP)
    least_s, least_bytes = bound_of_any_split(base)
    assert least_s <= fastest.step_s * (1 + 1e-9)
    assert least_bytes <= min(one.device_bytes for one in every) * (1 + 1e-9)


def scored(base: Staged, partition: Partition, memory_bytes: float) -> float:
    one = base.split(partition)
    return one.step_s if one.device_bytes <= memory_bytes else float("inf")


def bound_of_any_split(base: Staged) -> tuple[float, float]:
    """Seconds and bytes of the proof's tree."""
    columns = base.ledger.layouts
    keys, index = index_keys(columns)
    priced = build(base.resolved.problem, keys)
    mean = build_ledger.build(base.resolved.problem, priced, columns, index, mean=True)
    seconds, num_bytes = lower_bounds.bound(mean, base.resolved.rates, states_known=True, any_split=True)
    return float(seconds[0]), float(num_bytes[0])


SCATTERED = (
    ("pp4-gpipe-dp4-mbs1-z3-rnone", 7, 1, "megatron-core", True),
    ("tp2-pp4-dp4-mbs1-z3-rnone", 8, 1, "generic", True),
    ("pp4-dp2-mbs1-z3-rsel(norm+act)", 8, 1, "megatron-core", False),
    ("tp2-pp4-dp2-mbs1-z3-rsel", 6, 1, "deepspeed", False),
    ("pp3-dp2-mbs1-z2-rnone", 6, 7, "generic", True),
    ("pp2-zbv-vpp2-dp2-mbs1-z3-rnone", 6, 4, "generic", True),
)


@pytest.mark.parametrize(("layout_text", "layers", "micro_batches", "stack", "routed"), SCATTERED)
@pytest.mark.parametrize("ramp", [1.0, -0.5])
def test_no_split_beats_the_bound_of_sharded_states(
    layout_text: str, layers: int, micro_batches: int, stack: str, routed: bool, ramp: float
) -> None:
    """What shows of their traffic is neither linear in the layers of a stage nor convex: fewer stages gather less often
    what nothing hides, and the start of a call is dearer where it has fewer bytes."""
    layout = parse(layout_text)
    spec = model(layers, kinds=2, vocab=1000)
    if routed:
        spec = replace(spec, kinds=(spec.kinds[0], replace(spec.kinds[1], feed_forward=EXPERTS)))
    resolved = request(spec, layout.num_gpus, layout.dp * micro_batches, stack=stack)
    # Found once, then kept (cached_property).
    vars(resolved)["rates"] = replace(resolved.rates, collectives=with_ramp(resolved.rates.collectives, ramp))
    base = Staged.of(resolved, layout, simulate=True)
    least = min(base.split(partition).step_s for partition in all_partitions(resolved, layout, False))
    assert bound_of_any_split(base)[0] <= least * (1 + 1e-9)


# Layout, layers, micro-batches, stack; routed experts, MTP module, tied embedding.
UNLIKE = (
    ("pp3-zbv-vpp2-dp2-mbs1-z1-rnone", 8, 7, "generic", False, False, False),
    ("pp2-zbv-vpp2-dp1-mbs1-z0-rsel", 7, 4, "megatron-core", False, True, False),
    ("tp2-pp2-dpv-vpp2-dp1-mbs1-z0-rfull", 7, 5, "megatron-core", True, False, True),
    ("pp3-zbh1-dp2-mbs1-z1-rfull", 7, 7, "generic", True, True, False),
    ("pp4-zbh1-dp2-mbs1-z2-rnone", 7, 3, "meshwright", False, False, True),
    ("pp2-vpp2-dp2-mbs1-z3-rsel", 8, 6, "generic", True, False, True),
    ("pp3-gpipe-dp2-mbs1-z2-rnone", 7, 4, "deepspeed", True, True, True),
)


@pytest.mark.parametrize(("layout_text", "layers", "micro_batches", "stack", "routed", "predicts", "tied"), UNLIKE)
@pytest.mark.parametrize("vocab", [1000, 128000])
@pytest.mark.parametrize("share", [0.1, 0.5])
def test_the_program_keeps_every_split_that_fits(
    layout_text: str, layers: int, micro_batches: int, stack: str, routed: bool, predicts: bool, tied: bool, vocab: int,
    share: float,
) -> None:  # fmt: skip
    """With a memory limit under which this share of all splits fits. What a device holds is that of one moment, not
    the most of every chunk, and in a V the stage with both ends may have no layer."""
    layout = parse(layout_text)
    spec = replace(model(layers, kinds=2, vocab=vocab), mtp_layers=int(predicts), tied_embeddings=tied)
    if routed:
        spec = replace(spec, kinds=(spec.kinds[0], replace(spec.kinds[1], feed_forward=EXPERTS)))
    resolved = request(spec, layout.num_gpus, layout.dp * micro_batches, stack=stack)
    base = Staged.of(resolved, layout, simulate=True)
    every = [base.split(partition) for partition in all_partitions(resolved, layout, False)]
    memory_bytes = float(np.quantile([one.device_bytes for one in every], share)) * (1 + 1e-9)  # summed in any order
    least = min(one.step_s for one in every if one.device_bytes <= memory_bytes)
    problem = problem_of(base, memory_bytes, separate_recompute=False)
    solved = solve(problem, partial(scored, base, memory_bytes=memory_bytes), rounds=60)
    assert solved.bound_s <= least * (1 + 1e-9)
    least_s, least_bytes = bound_of_any_split(base)
    assert least_s <= min(one.step_s for one in every) * (1 + 1e-9)
    assert least_bytes <= min(one.device_bytes for one in every) * (1 + 1e-9)
    sizes = np.array([one.partition.sizes for one in every], dtype=np.float64)
    n, _ = problem.layers_by_run(sizes)
    fitting = np.array([one.device_bytes <= memory_bytes for one in every])
    assert problem.fits(n, np.zeros_like(n))[fitting].all()


@pytest.mark.parametrize("layout_text", ["pp3-dp1-mbs1-z0-rfull", "pp2-vpp2-dp1-mbs1-z0-rfull",
                                         "pp3-zbh1-dp1-mbs1-z0-rfull"])  # fmt: skip
def test_the_program_counts_the_gradient_of_a_large_embedding(layout_text: str) -> None:
    """The first stage is fullest when it is made; what then fits is what the program says."""
    layout = parse(layout_text)
    resolved = request(model(8, vocab=256_000), layout.num_gpus, 8, stack="meshwright", seq_len=128)
    base = Staged.of(resolved, layout, simulate=True)
    every = [base.split(partition) for partition in all_partitions(resolved, layout, False)]
    # Where a layer is on every chunk, and the head is not what decides.
    every = [one for one in every if all(one.partition.sizes) and stage_bytes(one).argmax() == 0]
    n, _ = problem_of(base, 1.0, separate_recompute=False).layers_by_run(
        np.array([one.partition.sizes for one in every])
    )
    for at, one in enumerate(every):
        for factor, fits in ((1 - 1e-9, False), (1 + 1e-9, True)):
            problem = problem_of(base, factor * one.device_bytes, separate_recompute=False)
            assert problem.fits(n[at], np.zeros_like(n[at])) == fits
    assert len(every) > 4


@pytest.mark.parametrize("layout_text", ["pp2-dp1-mbs1-z0-rfull", "pp3-dp1-mbs1-z0-rfull", "pp3-dp1-mbs1-z0-rsel"])
def test_a_stage_of_layers_that_need_little_while_they_run_is_kept(layout_text: str) -> None:
    """Experts have more weights than wide layers, and smaller products: where they are alone, nothing else counts."""
    layout = parse(layout_text)
    experts = MixtureOfExperts(experts=12, top_k=1, expert_inner=1024)
    spec = model(2 * layout.pp - 2, kinds=2, vocab=1000)
    first, wide = replace(spec.kinds[0], feed_forward=experts), spec.kinds[1]
    half = spec.num_layers // 2
    spec = replace(spec, kinds=(first, wide), pattern=(0,) * half + (1,) * half)
    resolved = request(spec, layout.num_gpus, 2, seq_len=16384)
    base = Staged.of(resolved, layout, simulate=True)
    every = [base.split(partition) for partition in all_partitions(resolved, layout, False)]
    assert bound_of_any_split(base)[1] <= min(one.device_bytes for one in every) * (1 + 1e-9)
    for one in every:
        problem = problem_of(base, one.device_bytes * (1 + 1e-9), separate_recompute=False)
        n, _ = problem.layers_by_run(np.array(one.partition.sizes, dtype=np.float64))
        assert problem.fits(n, np.zeros_like(n)), one.partition


def test_a_mesh_is_bounded_by_the_layer_that_needs_least(monkeypatch: pytest.MonkeyPatch) -> None:
    """The fullest stage may have no other."""
    resolved = request(model(4, kinds=2), 2, 4)
    monkeypatch.setattr(Tables, "workspace", property(lambda self: np.outer([0.0, 1e15], np.ones(self.num_keys))))
    search, meshes = Search(resolved.space, resolved.rates, memory_bytes=np.inf), resolved.space.meshes(Count())
    search.branching = Branching(LayoutCounts(resolved.space, meshes))
    assert (search._mesh_bounds(meshes)[1] < 1e15).all()


def stage_bytes(one: Staged) -> Any:
    """[stage] bytes of tensors."""
    memory = DeviceMemory(one.ledger)
    return np.array([sum(float(held[0]) for held in memory.buffers(j).values()) for j in range(one.layout.pp)])


@pytest.mark.parametrize("layout_text", ["pp2-zbv-vpp2-dp1-mbs1-z0-rfull", "pp3-zbh1-dp1-mbs1-z0-rfull",
                                         "pp2-dpv-vpp2-dp1-mbs1-z0-rfull", "pp2-vpp2-dp1-mbs1-z0-rfull"])  # fmt: skip
def test_recompute_of_each_stage_keeps_every_split_that_fits(layout_text: str) -> None:
    """Of schedules with several moments, too, at which a stage may be fullest."""
    layout = parse(layout_text)
    resolved = request(model(4, kinds=2), layout.num_gpus, 6, stack="meshwright")
    base = Staged.of(resolved, layout, simulate=True)
    every = [base.split(partition) for partition in all_partitions(resolved, layout, True)]
    for share in (0.1, 0.5):
        memory_bytes = float(np.quantile([one.device_bytes for one in every], share)) * (1 + 1e-9)
        problem = problem_of(base, memory_bytes, separate_recompute=True)
        for one in every:
            partition = one.partition
            sizes, recomputed = (np.array(n, dtype=np.float64) for n in (partition.sizes, partition.recomputed))
            assert problem.fits(*problem.layers_by_run(sizes, recomputed)) or one.device_bytes > memory_bytes
        solved = solve(problem, partial(scored, base, memory_bytes=memory_bytes), rounds=60)
        assert solved.bound_s <= min(one.step_s for one in every if one.device_bytes <= memory_bytes) * (1 + 1e-9)


def with_ramp(rates: CollectiveRates, ramp: float) -> CollectiveRates:
    """All collectives with this part between their start and their bytes (collectives.Curve)."""

    def of(level: LevelRates) -> LevelRates:
        return replace(level, ops={op: replace(one, ramp=ramp) for op, one in level.ops.items()})

    kinds = {kind: of(level) for kind, level in rates.kinds.items()}
    return replace(rates, kinds=kinds, inner=of(rates.inner), outer=of(rates.outer))


@pytest.mark.parametrize(("family", "alike"), [("zero", False), ("fsdp2", True), ("fsdp2-no-sync", True)])
def test_zero_stages_that_are_alike_are_split_once(family: Any, alike: bool) -> None:
    """In a pipeline FSDP2 keeps weights and gradients whole in every ZeRO stage (Ledger.whole_in_pipeline)."""
    resolved = request(model(4), 4, 4)
    problem = replace(resolved.problem, stack=replace(resolved.stack, sharded_states=family))
    rule = splittable(Space(problem, ())).rules[-1]
    zero = np.arange(4)
    assert (rule.allows({"zero": zero}, problem) == ((zero <= 1) | (not alike))).all()


def test_recompute_of_each_stage_equals_all_choices() -> None:
    """Early stages hold more micro-batches: they recompute, later ones need not."""
    layout = parse("pp3-dp1-mbs1-z0-rfull")
    resolved = request(model(5), 3, 9)
    base = Staged.of(resolved, layout, simulate=True)
    held = [base.split(partition).device_bytes for partition in all_partitions(resolved, layout, True)]
    solved, least = compare(resolved, layout, float(np.quantile(held, 0.2)), True)
    assert solved.step_s == pytest.approx(least, rel=GAP)
    assert solved.partition is not None
    assert solved.partition.recomputed is not None
    assert solved.partition.recomputed[0] > solved.partition.recomputed[-1]


def test_paths_that_are_too_long_are_seen(monkeypatch: pytest.MonkeyPatch) -> None:
    """Bounds that some splits beat end the loop too early, and the comparison above says so."""
    honest = longest_paths

    def longer(*args: Any) -> Any:
        return [replace(path, forward=path.forward * 1.5) for path in honest(*args)]

    monkeypatch.setattr(partition_problem, "longest_paths", longer)
    wrong = 0
    for text, layers, kinds, batch in CASES[:4]:
        layout = parse(text)
        solved, least = compare(request(model(layers, kinds=kinds), layout.pp, batch), layout, float("inf"), False)
        wrong += solved.step_s > least * (1 + GAP)
    assert wrong


def test_a_large_vocabulary_gets_a_stage_of_its_own() -> None:
    found, layout = request(model(6, vocab=256_000), 4, 16), parse("pp4-dp1-mbs1-z0-rnone")
    solved, _ = compare(found, layout, float("inf"), False)
    assert solved.partition is not None
    assert solved.partition.sizes[-1] == 0


def test_nothing_fits() -> None:
    found, layout = request(model(6), 2, 4), parse("pp2-dp1-mbs1-z0-rnone")
    problem = problem_of(Staged.of(found, layout), 2e9, separate_recompute=False)
    solved = solve(problem, lambda partition: float("inf"))
    assert solved.partition is None
    assert solved.bound_s == float("inf")


def random_costs(rng: random.Random, chunks: int, hop_s: float, link_s: float) -> Costs:
    forward, inputs, weights = (tuple(rng.uniform(0.2, 2.0) for _ in range(chunks)) for _ in range(3))
    hops, links = (hop_s,) * chunks, (link_s,) * chunks
    return Costs(forward_s=forward, input_s=inputs, weight_s=weights, forward_hop_s=hops, backward_hop_s=hops,
                 forward_link_s=links, backward_link_s=links)  # fmt: skip


def seconds(path: Path, costs: Costs) -> float:
    hop_s, link_s = costs.forward_hop_s[0], costs.forward_link_s[0]
    return path.seconds(np.array(costs.forward_s), np.array(costs.input_s), np.array(costs.weight_s), hop_s, link_s)


@pytest.mark.parametrize("name", [*SCHEDULES, "zb-h2", "dualpipe"])
@pytest.mark.parametrize(("hop_s", "link_s"), [(0.1, 0.1), (3.0, 3.0), (3.0, 1.5)])
def test_paths_are_as_long_as_the_simulation(name: str, hop_s: float, link_s: float) -> None:
    """Each device's longest path ends when it does, and no path is longer than a step with other costs."""
    rng = random.Random(name)
    for p, m in ((2, 4), (4, 8), (4, 12)):
        order = simulator.make(name, p, m, 3 if name == "interleaved" else 1)
        given = [random_costs(rng, order.num_chunks, hop_s, link_s) for _ in range(4)]
        runs = [simulator.simulate(order, one) for one in given]
        paths = longest_paths(runs[0], range(p))
        for device, path in enumerate(paths):
            assert seconds(path, given[0]) == pytest.approx(runs[0].compute_end_s[device], rel=1e-9)
        paths += [device_path(order, device) for device in range(p)]
        for one, run in zip(given, runs, strict=True):
            assert max(seconds(path, one) for path in paths) <= run.compute_end_s.max() * (1 + 1e-9)


def test_the_fullest_stage_of_whole_layers() -> None:
    """Against all ways to share the layers out."""
    rng = random.Random(5)
    for _ in range(200):
        pp, layers = rng.choice([2, 3, 4]), rng.randint(1, 9)
        layer, first, last = rng.uniform(0.5, 2.0), rng.uniform(0.0, 3.0), rng.uniform(0.0, 6.0)
        least = min(
            max(n * layer + (i == 0) * first + (i == pp - 1) * last for i, n in enumerate(sizes))
            for sizes in itertools.product(range(layers + 1), repeat=pp)
            if sum(sizes) == layers
        )
        columns = (np.array([float(x)]) for x in (pp, layers, layer, first, last))
        assert float(least_load_s(*columns)[0]) == pytest.approx(least)


def test_another_solver_takes_over(monkeypatch: pytest.MonkeyPatch) -> None:
    def broken(*args: Any, **kwargs: Any) -> Any:
        raise RuntimeError("no licence")

    found, layout = request(model(6), 2, 4), parse("pp2-dp1-mbs1-z0-rnone")
    expected, least = compare(found, layout, float("inf"), False)
    monkeypatch.setattr(pulp.HiGHS, "actualSolve", broken)
    solved, _ = compare(found, layout, float("inf"), False)
    assert (solved.solver, solved.step_s) == ("CBC", expected.step_s)
    assert solved.note == "HiGHS failed (RuntimeError: no licence); CBC solved the stages instead"
    monkeypatch.setattr(pulp.PULP_CBC_CMD, "actualSolve", broken)
    problem = problem_of(Staged.of(found, layout, simulate=True), float("inf"), separate_recompute=False)
    even = Partition(stages_by_layout(layout, 6)[0])
    kept = solve(problem, lambda partition: Staged.of(found, layout, partition, simulate=True).step_s, incumbent=even)
    assert kept.partition is not None
    assert kept.step_s == pytest.approx(least)
    assert kept.bound_s == 0.0
    assert "CBC failed" in kept.note


def test_a_limit_of_nodes_is_no_failure(monkeypatch: pytest.MonkeyPatch) -> None:
    """PuLP does not know what HiGHS says of it; what was found and proven until then counts."""
    solved_in = ilp.Program.solve
    monkeypatch.setattr(ilp.Program, "solve", lambda self, left_s, nodes: solved_in(self, left_s, 0))
    layout = parse("pp4-vpp8-dp4-mbs1-z1-rnone")
    resolved = resolve(load_request(None, {"model": "llama-3.1-8b", "cluster": "dgx-h100:2"}))
    base = Staged.of(resolved, layout, simulate=True)
    problem = problem_of(base, resolved.memory_bytes, separate_recompute=False)
    score = partial(scored, base, memory_bytes=resolved.memory_bytes)
    solved = solve(problem, score, incumbent=Partition(stages_by_layout(layout, 32)[0]), rounds=1)
    assert (solved.solver, solved.note, solved.rounds) == ("HiGHS", "", 1)
    assert 0 < solved.bound_s <= solved.step_s


ASKED: dict[str, Any] = {"model": "llama-3.1-8b", "cluster": "dgx-h100:2", "global_batch": 128, "seq_len": 4096,
                         "fix": {"pp": 4, "recompute": "none"}}  # fmt: skip


@cache
def uneven_plan() -> Plan:
    return api.plan(**ASKED, stages="own")


def test_the_plan_has_stages_of_its_own() -> None:
    best = uneven_plan().best
    own = best.partition
    assert own is not None
    assert best.layout_id == layout_id(best.to_layout(), own)
    assert best.layout_id[-8:-6] == "-x"
    assert sum(own.sizes) == 32
    assert best.step_s < api.evaluate(None, str(best.to_layout()), **ASKED).best.step_s * 0.999
    assert sum(term.seconds for term in best.terms) == pytest.approx(best.step_s, rel=1e-6)
    assert max(stage.device_bytes for stage in best.memory) <= uneven_plan().resolved["memory_bytes"]


@pytest.fixture(scope="module")
def seven_plan() -> Plan:
    """Even stages, simulated: 32 layers over 7 GPUs."""
    return api.plan(None, model="llama-3.1-8b", gpu="h100-sxm-80gb", gpus=7, global_batch=250, seq_len=5000)


def test_even_stages_are_advised_to_be_placed_unless_they_were(seven_plan: Plan) -> None:
    loads = stage_loads(request_from_dict(seven_plan.request), seven_plan.best)
    assert seven_plan.best.closed_form_s is not None  # a simulated layout was not placed for that
    advice = "`plan --stages own` places the layers"
    for stages, advised in ((None, True), ("even", True), ("own", False)):
        plan = seven_plan.model_copy(update={"request": {**seven_plan.request, "stages": stages}})
        said = " ".join(why_these_stages(plan.best, loads, placed=plan.places_layers)).replace("\n  ", " ")
        assert "longer than the mean one" in said
        assert (advice in said) == advised
    small = {**seven_plan.request, "workload": {**seven_plan.request["workload"], "objective": "memory"}}
    assert not stage_loads(request_from_dict(small), seven_plan.best).can_split


@pytest.mark.parametrize(("changes", "advised"), [
    ({}, True),
    ({"stages": "even"}, False),  # they were asked for
    ({"stages": "own"}, False),
    ({"target": "deepspeed"}, False),  # it divides layers itself
    ({"objective": "memory"}, False),
    ({"techniques": [["co2", []]]}, False),  # no simulation knows them
])  # fmt: skip
def test_a_plan_advises_to_place_layers_that_do_not_divide(
    seven_plan: Plan, changes: dict[str, Any], advised: bool
) -> None:  # fmt: skip
    request = {**seven_plan.request, **{name: value for name, value in changes.items() if name == "stages"}}
    target = changes.get("target", seven_plan.resolved["target"])
    work = {**seven_plan.resolved["workload"], **changes}
    plan = seven_plan.model_copy(update={
        "request": request, "resolved": {**seven_plan.resolved, "workload": work, "target": target}})  # fmt: skip
    said = " ".join(placing_lines(plan)).replace("\n  ", " ")
    assert said == ("The 7 stages of layout 1 hold 4 to 5 layers: `--stages own` places them by time and memory."
                    if advised else "")  # fmt: skip


def test_the_list_of_placed_stages_says_what_it_covers(seven_plan: Plan) -> None:
    assert not tried_lines(seven_plan)
    own = seven_plan.model_copy(update={"request": {**seven_plan.request, "stages": "own"}})
    assert "Layouts from 2 on are the best of those whose layers were placed." in " ".join(tried_lines(own))


def test_why_these_stages() -> None:
    """The head is worth its share of parameters, about: hidden x vocabulary beside those of a layer."""
    plan = uneven_plan()
    loads = stage_loads(request_from_dict(plan.request), plan.best)
    base = Staged.of(resolve(request_from_dict(plan.request)), plan.best.to_layout(), simulate=True)
    head, layer = 4096 * 128_256, 2 * 4096 * (4096 + 1024) + 3 * 4096 * 14336
    assert loads.head_layers == pytest.approx(head / layer, rel=0.3)
    assert loads.step_s == pytest.approx(plan.best.step_s, rel=1e-8)
    assert loads.even_step_s == pytest.approx(base.step_s, rel=1e-8)
    assert sum(loads.stage_s) == pytest.approx(sum(loads.even_stage_s), rel=1e-3)  # the same work, placed elsewhere
    assert max(loads.stage_s) < max(loads.even_stage_s)
    said = " ".join(why_these_stages(plan.best, loads)).replace("\n  ", " ")
    assert "Even stages (8, 8, 8 and 8 layers): stage 0 takes" in said  # of a V, the head is where the embedding is
    assert "the head is worth 2." in said


def test_the_plan_is_read_back(tmp_path: File) -> None:
    path = tmp_path / "plan.json"
    path.write_text(uneven_plan().to_json(), encoding="utf-8")
    assert load_plan(path).best.partition == uneven_plan().best.partition
    data = json.loads(path.read_text(encoding="utf-8"))
    chunks = [chunk for chunk in data["candidates"][0]["stages"] if chunk["layers"]]
    chunks[0]["layers"][1] += 1
    chunks[1]["layers"][0] += 1
    path.write_text(json.dumps(unsealed(data)), encoding="utf-8")
    with pytest.raises(InputError, match=r"candidates\.0\.stages"):
        load_plan(path)


def test_a_time_limit_keeps_the_best_so_far() -> None:
    plan = api.plan(**ASKED, stages="own", time_limit_s=1e-6)
    assert plan.certificate.stopped == "time limit"
    assert not plan.certificate.proven
    with pytest.raises(InputError, match="leaves no time"):
        api.plan(**ASKED, time_limit_s=0)


def test_even_stages_on_request() -> None:
    plan = api.plan(**ASKED, stages="even")
    assert all(candidate.partition is None for candidate in plan.candidates)
    assert uneven_plan().best.step_s < plan.best.step_s


def test_too_few_finalists_are_seen(monkeypatch: pytest.MonkeyPatch) -> None:
    best_s = uneven_plan().best.step_s
    monkeypatch.setattr(finalists, "SPLIT", 0)
    monkeypatch.setattr(finalists, "RECOMPUTED", 0)
    monkeypatch.setattr(finalists, "REAL_CHUNKS", 0)
    plan = api.plan(**ASKED, stages="own")
    assert plan.best.step_s > best_s
    assert plan.certificate.gap is not None
    assert plan.certificate.gap >= 1 - best_s / plan.best.step_s  # and the certificate covers it


def test_stages_have_one_name() -> None:
    layout = parse("pp4-dp1-mbs1-z0-rfull")
    sizes, redone = stages_by_layout(layout, 10)
    assert sizes == redone == (2, 3, 3, 2)
    assert custom_partition(layout, Partition(sizes)) is None
    assert custom_partition(layout, Partition(sizes, redone)) is None
    assert custom_partition(layout, Partition((3, 3, 2, 2), (3, 3, 2, 2))) == Partition((3, 3, 2, 2))
    assert custom_partition(layout, Partition(sizes, (2, 3, 1, 0))) == Partition(sizes, (2, 3, 1, 0))


@pytest.mark.parametrize("seq_len", [1024, 16384])
@pytest.mark.parametrize(
    ("text", "kinds", "vocab"),
    [
        ("pp2-dp1-mbs1-z0-rnone", 1, 256_000),  # the gradient of the embedding beside fewer micro-batches
        ("pp2-vpp2-dp1-mbs1-z0-rnone", 1, 256_000),
        ("pp4-dp1-mbs1-z0-rnone", 2, 1000),  # working buffers of the lesser kind
        ("pp3-dp1-mbs1-z0-rfull", 2, 1000),
    ],
)
def test_pipelines_over_unlike_groups_that_fit_are_searched(text: str, kinds: int, vocab: int, seq_len: int) -> None:
    """With as much memory as the split that needs least, the bound of SharedPipelines lets the layout through."""
    layout, spec = parse(text), model(6, kinds=kinds, vocab=vocab)
    resolved = request(spec, layout.num_gpus, 8, seq_len=seq_len)
    base = Staged.of(resolved, layout)
    least = min(base.split(each).device_bytes for each in all_partitions(resolved, layout, False))
    columns = Layouts.of([layout])
    keys, index = index_keys(columns)
    mean = build_ledger.build(
        resolved.problem, build(resolved.problem, keys), columns, index, mean=True
    )
    search = SharedPipelines.__new__(SharedPipelines)
    search.problem, search.rates, search.shares = resolved.problem, resolved.rates, [0.5, 0.5]
    for memory_bytes, fits in ((least * (1 + 1e-9), True), (least / 2, False)):
        part = SimpleNamespace(alone=SimpleNamespace(budget_bytes=memory_bytes))
        search.parts = cast(Any, (part, part))
        assert bool(search._fits(mean)[0]) is fits


def test_a_target_that_cannot_be_told_gets_even_stages() -> None:
    plan = api.plan(**{**ASKED, "target": "deepspeed"}, stages="own")
    assert all(candidate.partition is None for candidate in plan.candidates)
    reasons = uneven_plan().best.targets
    assert reasons["deepspeed"] is not None


def test_deepseek_v3_by_hand_and_by_program() -> None:
    """61 layers and an MTP module on 16 stages of 2 chunks. The nodes of the first two programs leave 9 % to prove; the
    third, the last of a plan (finalists.ROUNDS), has ten times as many and proves it."""
    asked = {"model": "deepseek-v3", "cluster": "dgx-h100:256", "seq_len": 4096, "global_batch": 15360,
             "precision": "fp8", "target": "any"}  # fmt: skip
    resolved = resolve(load_request(None, asked))
    layout = parse("tp2-pp16-vpp2-dp64-ep64-mbs1-z1-rsel(norm+act+mla)")
    base = Staged.of(resolved, layout, simulate=True)
    problem = problem_of(base, resolved.memory_bytes, separate_recompute=False)

    even = Partition(stages_by_layout(layout, 61)[0])
    score = partial(scored, base, memory_bytes=resolved.memory_bytes)
    solved = solve(problem, score, incumbent=even, rounds=finalists.ROUNDS, good_enough=0.01)
    assert solved.gap <= 0.01
    assert score(even) == float("inf")  # the first stage is too full
    assert solved.step_s < base.step_s * 0.99
