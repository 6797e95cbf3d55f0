"""The search equals brute force over the whole space, dominated layouts included; a planted fault is seen."""

from __future__ import annotations

import random
from dataclasses import dataclass, replace
from functools import cache
from typing import Any

import numpy as np
import pytest
from meshwright.cost_models import build_ledger
from meshwright.cost_models.cuda_graphs import GRAPH_CODE
from meshwright.cost_models.layouts import Layouts, parse
from meshwright.cost_models.offload_modules import OFFLOAD_MODULES
from meshwright.cost_models.problem import Problem
from meshwright.cost_models.quantities.ledger import Ledger
from meshwright.cost_models.quantities.tables import build, index_keys
from meshwright.cost_models.specs.cluster import ClusterSpec
from meshwright.cost_models.specs.encoder import Encoder
from meshwright.cost_models.specs.model import Attention, FeedForward, Layer, MixtureOfExperts, ModelSpec
from meshwright.cost_models.specs.stack import StackSpec
from meshwright.cost_models.specs.vision import VisionTower
from meshwright.cost_models.specs.workload import Images, Lora, Workload
from meshwright.cost_models.step import lower_bounds, step
from meshwright.cost_models.techniques.base import Applied
from meshwright.cost_models.techniques.registry import applied
from meshwright.planner.search import exhaustive, mesh_bounds
from meshwright.planner.search.branching import Branching
from meshwright.planner.search.dominance import dominated_recomputes
from meshwright.planner.search.exhaustive import Search
from meshwright.planner.search.memory_cuts import MemoryCuts
from meshwright.planner.search.outcome import SearchOutcome
from meshwright.planner.search.warm_start import WARM_START_FROM
from meshwright.planner.space.counting import LayoutCounts, num_legal
from meshwright.planner.space.rules import WELL_FORMED, Rule, fixed, legality
from meshwright.planner.space.tree import MESH_FIELDS, Columns, Count, Space, allowed, cross, select
from meshwright.planner.targets.base import Target
from meshwright.planner.targets.registry import TARGETS
from meshwright.profiles.cluster.load import load_cluster
from meshwright.profiles.stack.load import load_stack
from meshwright.profiles.stack.rates import rates_for

NUM_REQUESTS = 200
# The targets that `--target any` searches. Those built on them are drawn in their place (`drawn_target`).
SEARCHED = sorted(name for name, target in TARGETS.items() if not target.built_on)
MANY = 6  # seed of a request with many layouts
EMPTY_EVERY = 16  # one request in so many may have no legal layout
TECHNIQUES: dict[int, dict[str, dict[str, float]]] = {
    0: {"diloco": {"period": 20, "delay": 0}}, 3: {"zero++": {}}, 6: {"1-bit-adam": {}},
    9: {"three-level": {"weights_over": 1, "gradients_over": 2}}, 1: {"zero-infinity": {"weights": 0}},
    4: {"zero-infinity": {}, "zero++": {"secondary": 1}}, 7: {"luwu": {"network_gb_per_s": 400}},
    10: {"fuyou": {"gb_per_s": 100}}, 2: {"vocabulary-parallel": {}}, 11: {"diloco": {"period": 20}, "zero++": {}},
    19: {"cpu-offload": {}}, 13: {"parscale": {"streams": 2, "prefix": 8}},
    22: {"skippipe": {"skipped": 0.3}}, 20: {"gradient-coding": {"slow": 0.1}}, 21: {"cxl": {"optimizer": 0.5}},
}  # fmt: skip
SEES = 8  # one request in so many has images: those train without Muon and without vocabulary parallelism
READS = 16  # one request in so many has an encoder: those train everything, without techniques
COMPARES = 12  # one request in so many has a frozen reference, in no pipeline
MUON = (5, 8)  # requests of twelve that train by it, unless adapters train
CLUSTERS = ("2xh100-sxm-80gb", "4xh100-sxm-80gb", "6xa100-sxm-80gb", "8xh100-sxm-80gb", "aws-p5.48xlarge:2", "3xl40s",
            "gb200-nvl72:3", "dgx-a100:3")  # fmt: skip


def random_model(rng: random.Random) -> ModelSpec:
    kv_heads = rng.choice([1, 2, 4])
    heads = kv_heads * rng.choice([1, 2, 3])
    attention = Attention(heads=heads, kv_heads=kv_heads, head_dim=64, value_head_dim=64)
    if rng.random() < 0.15:
        attention = Attention(heads=heads, kv_heads=heads, head_dim=96, value_head_dim=64, kv_lora_rank=128,
                              rope_head_dim=32, q_lora_rank=rng.choice([None, 96]))  # fmt: skip
    dense = Layer(attention=attention, feed_forward=FeedForward(inner=rng.choice([768, 1024])))
    experts = MixtureOfExperts(experts=rng.choice([2, 4]), top_k=1, expert_inner=256, shared_inner=rng.choice([0, 256]))
    moe = Layer(attention=attention, feed_forward=experts)
    kinds = rng.choice([(dense,), (dense,), (dense, moe), (moe,)])
    pattern = tuple(rng.randrange(len(kinds)) for _ in range(rng.choice([2, 3, 4])))
    used = tuple(sorted(set(pattern)))
    return ModelSpec(
        name="random", family="llama", hidden=heads * 64, vocab=rng.choice([1000, 32000]), max_positions=4096,
        kinds=tuple(kinds[i] for i in used), pattern=tuple(used.index(i) for i in pattern),
        tied_embeddings=rng.random() < 0.5, mtp_layers=int(rng.random() < 0.15), dropout=rng.random() < 0.2,
    )  # fmt: skip


def with_images(rng: random.Random, model: ModelSpec, workload: Workload) -> tuple[ModelSpec, Workload]:
    """With a tower, split by tensor parallelism or not, that may take longer than all layers."""
    merger: Any = rng.choice(["mlp", "mean", "perceptron"])
    tower = VisionTower(
        layers=rng.choice([1, 4]), hidden=96, heads=4, inner=rng.choice([128, 384]), patch=16, channels=3, frames=1,
        merge=2, positions=64, output=model.hidden, merger=merger,
        taps=(0,) if merger == "mlp" and rng.random() < 0.5 else (),
        adapter=128 if merger == "perceptron" else 0, pads_heads=merger == "perceptron",
    )  # fmt: skip
    images = Images(per_sequence=rng.choice([1, 3]), height=128, width=rng.choice([64, 256]))
    frozen = workload.lora is None and workload.trains_layers is None and rng.random() < 0.3
    return replace(model, tower=tower), replace(workload, images=images, freeze_tower=rng.random() < 0.3,
                                                freeze_language=frozen)  # fmt: skip


def with_encoder(rng: random.Random, model: ModelSpec, workload: Workload) -> tuple[ModelSpec, Workload]:
    """With an encoder of text or sound before its dense layers, whose source may be longer than the target."""
    attention = Attention(heads=4, kv_heads=4, head_dim=64, value_head_dim=64, rotary=False)
    block = FeedForward(inner=768)
    encodes = Layer(attention=replace(attention, causal=False), feed_forward=block, encodes=True)
    decodes = Layer(attention=attention, feed_forward=block, cross_attention=attention, num_norms=3)
    kinds = (replace(encodes, starts=True), encodes, replace(decodes, starts=True), decodes)
    layers = rng.choice([1, 2])
    encoder = Encoder(layers=layers, max_positions=4096, mel_bins=rng.choice([0, 80]))
    pattern = (0, *[1] * (layers - 1), 2, *[3] * rng.choice([0, 1]))
    used = tuple(sorted(set(pattern)))
    model = replace(model, hidden=256, kinds=tuple(kinds[i] for i in used), mtp_layers=0, encoder=encoder,
                    pattern=tuple(used.index(i) for i in pattern))  # fmt: skip
    plain = replace(workload, lora=None, trains_layers=None, techniques=(), optimizer="adamw", lengths=(),
                    mean_len=None, mean_square_len=None)  # fmt: skip
    return model, replace(plain, source_len=rng.choice([128, 2048]))


@cache
def random_request(seed: int) -> dict[str, Any]:
    """A request whose whole space is small enough to price, and whose memory limit mostly binds."""
    rng = random.Random(seed)
    while True:
        cluster = load_cluster(rng.choice(CLUSTERS))
        target = drawn_target(rng, seed)
        stack = load_stack(target.stack if rng.random() < 0.7 else "generic")
        if rng.random() < 0.3:
            stack = replace(stack, attention="unfused")
        model = random_model(rng)
        lengths = ((128, 0.7), (256, 0.3)) if rng.random() < 0.15 else ()
        workload = Workload(
            seq_len=rng.choice([256, 512, 1024]), global_batch=rng.choice([2, 4, 6, 8]), **trained(rng, model),
            lengths=lengths, mean_len=166.4 if lengths else None, mean_square_len=31129.6 if lengths else None,
            precision=rng.choice(["bf16", "bf16", "fp32"]), objective=rng.choice(["step", "step", "step", "memory"]),
            techniques=techniques(seed),
        )  # fmt: skip
        if seed % 12 in MUON and workload.lora is None:
            workload = replace(workload, optimizer="muon")
            stack = replace(stack, layer_wise_layout=seed % 2 == 0)
        if seed % SEES == 3:
            model, workload = with_images(rng, model, workload)
        if seed % READS == 15:
            model, workload = with_encoder(rng, model, workload)
        if seed % COMPARES == 4:
            workload = replace(workload, reference=True)
        problem = Problem(model, workload, stack, cluster.num_gpus, cluster.gpus_per_node,
                          stages=given_stages(seed, model.num_layers))  # fmt: skip
        space = Space(problem, legality(problem) + target.rules + random_fixes(rng), random_switches(rng))
        count = Count()
        meshes = space.meshes(count)
        if int(space.num_below(meshes).sum()) <= 60_000 and (seed % EMPTY_EVERY == 0 or num_legal(space)):
            host_bytes = rng.choice([float("inf"), float("inf"), 1e7, 1e8])
            return {
                "space": space, "cluster": cluster, "quantile": rng.choice([0.02, 0.2, 0.6, 1.0]), "host": host_bytes,
            }  # fmt: skip


def drawn_target(rng: random.Random, seed: int) -> Target:
    """A searched target, or at odd seeds one that is built on it: a new one leaves the other requests as they are."""
    name = rng.choice(SEARCHED)
    built = sorted(other for other, target in TARGETS.items() if target.built_on == name)
    return TARGETS[built[seed // 2 % len(built)] if built and seed % 2 else name]


def trained(rng: random.Random, model: ModelSpec) -> dict[str, Any]:
    """What is trained: mostly everything, else adapters or the last layers."""
    draw = rng.random()
    if draw < 0.1:
        return {"lora": Lora(rank=8, targets=("q", "v"), base_dtype=rng.choice(["bf16", "nf4"]))}
    return {"trains_layers": rng.randint(1, model.num_layers)} if draw < 0.2 else {}


def given_stages(seed: int, layers: int) -> tuple[int, ...] | None:
    """One request in eight gives its stages: any division of the layers over 2 to 8 chunks, empty ones among them."""
    rng = random.Random(seed)
    if seed % 8 != 5:
        return None
    edges = sorted(rng.randint(0, layers) for _ in range(rng.choice([2, 4, 6, 8]) - 1))
    return tuple(np.diff([0, *edges, layers]).tolist())


def techniques(seed: int) -> Applied:
    """Five requests in six train by one or two."""
    return applied(TECHNIQUES.get(seed % 24, TECHNIQUES.get(seed % 12, {})))


def random_fixes(rng: random.Random) -> tuple[Rule, ...]:
    """Sometimes a fixed field, of any level."""
    if rng.random() < 0.75:
        return ()
    field, value = rng.choice([("micro_batch", 1), ("zero", 1), ("recompute", 1), ("recompute_modules", 8), ("pp", 2)])
    return (fixed(field, value, f"{field}={value}"),)


def random_switches(rng: random.Random) -> dict[str, tuple[int, ...]]:
    """Every other request compares the switches of frameworks, or what is offloaded; half of these have ZeRO stages of
    single ranks as well."""
    drawn = rng.random()
    if drawn < 0.5:
        return {}
    other = random.Random(drawn)
    if other.random() < 0.5:
        sends = (0, *sorted(other.sample(range(1, len(OFFLOAD_MODULES)), 2)))
        compared = {"offload_layers": tuple(range(4)), "offload_modules": sends}
    else:
        graphs = (0, GRAPH_CODE["attn+moe_router+moe_preprocess"], GRAPH_CODE["full_iteration"])
        compared = {"ep_overlap": (0, 1), "cuda_graphs": graphs}
    return compared | ({"zero": tuple(range(4))} if other.random() < 0.5 else {})


def everything(space: Space) -> Layouts | None:
    """Every legal layout, by forming the whole product."""
    problem, parts = space.problem, []
    meshes = space.meshes(Count())
    for row in range(len(meshes["tp"])):
        mesh = select(meshes, np.array([row]))
        pp, dp, cp = (int(mesh[name][0]) for name in ("pp", "dp", "cp"))
        columns = cross(cross(cross(mesh, space.schedules(pp)), space.recomputes(pp)), space.states(dp * cp))
        for zero in sorted(set(columns["zero"].tolist())):
            shards = {"shard": np.array(space.shards(dp, cp, zero), dtype=np.int64)}
            part = cross(select(columns, columns["zero"] == zero), shards)
            parts.append(Layouts(select(part, allowed(space.rules, part, problem))))
    return Layouts.concatenate(parts) if parts else None


def price_all(space: Space, rates: Any, layouts: Layouts) -> step.Estimate:
    keys, index = index_keys(layouts)
    batch = build_ledger.build(space.problem, build(space.problem, keys), layouts, index)
    return step.price(batch, rates)


def search(request: dict[str, Any], memory_bytes: float, **kwargs: Any) -> SearchOutcome:
    space: Space = request["space"]
    cluster: ClusterSpec = request["cluster"]
    stack: StackSpec = space.problem.stack
    rates = rates_for(cluster, stack, space.problem.workload.precision)
    objective = space.problem.workload.objective
    limits = {"memory_bytes": memory_bytes, "host_bytes": request["host"]}
    return Search(space, rates, **limits, top=3, objective=objective, **kwargs).run()


@dataclass(frozen=True)
class Drawn:
    """A random request with all its layouts, priced. fits: [n] those within `memory_bytes` and the host's."""

    request: dict[str, Any]
    space: Space
    rates: Any
    layouts: Layouts
    estimate: step.Estimate
    memory_bytes: float
    fits: Any


def drawn(seed: int) -> Drawn | None:
    """None where the space is empty or too large to list."""
    request = random_request(seed)
    space: Space = request["space"]
    rates = rates_for(request["cluster"], space.problem.stack, space.problem.workload.precision)
    layouts = everything(space)
    if layouts is None or not len(layouts):
        return None
    estimate = price_all(space, rates, layouts)
    memory_bytes = float(np.quantile(estimate.device_bytes, request["quantile"]))
    fits = (estimate.device_bytes <= memory_bytes) & (estimate.host_bytes <= request["host"])
    return Drawn(request, space, rates, layouts, estimate, memory_bytes, fits)


def mismatch(seed: int) -> str | None:
    """What differs between the search and brute force on one random request, if anything."""
    case = drawn(seed)
    if case is None:
        return None
    request, space, rates, layouts, estimate = case.request, case.space, case.rates, case.layouts, case.estimate
    columns: Any = layouts
    if bad := [rule.name for rule in WELL_FORMED if not rule.allows(columns, space.problem).all()]:
        return f"seed {seed}: the space forms layouts that break {bad}"
    memory_bytes, fits = case.memory_bytes, np.flatnonzero(case.fits)
    value = estimate.device_bytes if space.problem.workload.objective == "memory" else estimate.step_s
    enough = np.sort(value[fits])[: 64 + 1][-1] * (1 + 1e-8) if len(fits) else 0.0  # with all that tie with the 64th
    rows = fits[value[fits] <= enough]
    expected = sorted((float(f"{value[row]:.9g}"), str(layouts.layout(row))) for row in rows)
    outcome = search(request, memory_bytes)
    got = [(value, name) for value, name, _ in outcome.top.rows]
    if outcome.count.unvisited:
        return f"seed {seed}: counts {outcome.count}"
    if got[:1] != expected[:1]:
        return f"seed {seed}: best {got[:1]} {expected[:1]}"
    dominated = dominated_recomputes(space, rates)
    listed = [row for row in expected if (parse(row[1]).recompute, parse(row[1]).recompute_modules) not in dominated]
    legal = outcome.count.total - sum(outcome.count.ruled_out.values())
    if legal != len(layouts):
        return f"seed {seed}: {legal} legal layouts counted, {len(layouts)} formed"
    return None if got == listed[:3] else f"seed {seed}: {got} {listed[:3]}"


def test_nine_requests_in_ten_have_layouts() -> None:
    """An empty space proves little."""
    legal = [num_legal(random_request(seed)["space"]) for seed in range(NUM_REQUESTS)]
    assert np.mean(np.array(legal) > 0) >= 0.9


@pytest.mark.parametrize("block", range(8))
def test_equals_brute_force(block: int) -> None:
    share = range(block * NUM_REQUESTS // 8, (block + 1) * NUM_REQUESTS // 8)
    assert [found for seed in share if (found := mismatch(seed))] == []


def test_a_warm_start_changes_no_answer(monkeypatch: pytest.MonkeyPatch) -> None:
    """The plain part searched first; a limit below what it found loses the best layout of some request."""
    monkeypatch.setattr(exhaustive, "WARM_START_FROM", 0)
    assert [found for seed in range(0, NUM_REQUESTS, 8) if (found := mismatch(seed))] == []
    honest = Search._warm_start

    def too_low(one: Search) -> None:
        honest(one)
        one.incumbent *= 0.97

    monkeypatch.setattr(Search, "_warm_start", too_low)
    assert any(mismatch(seed) for seed in range(0, NUM_REQUESTS, 8))


def test_inadmissible_bound_is_seen(monkeypatch: pytest.MonkeyPatch) -> None:
    """A bound 3 % too high prunes the best layout of some request, and the check above says so."""
    honest = lower_bounds.bound

    def too_high(*args: Any, **kwargs: Any) -> Any:
        seconds, needed = honest(*args, **kwargs)
        return seconds * 1.03, needed

    monkeypatch.setattr(lower_bounds, "bound", too_high)
    assert any(mismatch(seed) for seed in range(NUM_REQUESTS))


@pytest.mark.parametrize("cut", ["may_fit", "states_fit"])
def test_a_cut_by_memory_that_is_too_high_is_seen(cut: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """One that takes a GPU for 3 % smaller than it is loses the best layout of some request."""
    honest = getattr(MemoryCuts, cut)

    def too_high(cuts: MemoryCuts, *columns: Any) -> Any:
        return honest(replace(cuts, memory_bytes=cuts.memory_bytes / 1.03), *columns)

    monkeypatch.setattr(MemoryCuts, cut, too_high)
    assert any(mismatch(seed) for seed in range(NUM_REQUESTS))


def least_share_of_bounds() -> float:
    """Of all layouts of some requests with vocabulary parallelism, the step time over the bound of their mesh."""
    least, seeds = np.inf, [seed for seed in range(2, NUM_REQUESTS, 12)]
    for case in filter(None, map(drawn, seeds)):
        one, meshes = Search(case.space, case.rates, memory_bytes=np.inf), case.space.meshes(Count())
        one.branching = Branching(LayoutCounts(case.space, meshes, dominated_recomputes(case.space, case.rates)))
        bounds, _ = one._mesh_bounds(meshes)
        rows = zip(*(meshes[name].tolist() for name in MESH_FIELDS), strict=True)
        of_mesh = dict(zip(rows, bounds.tolist(), strict=True))
        mine = zip(*(case.layouts[name].tolist() for name in MESH_FIELDS), strict=True)
        least = min(least, float((case.estimate.step_s / [of_mesh[row] for row in mine]).min()))
    return least


def test_only_layers_fill_a_pipeline_whose_vocabulary_is_spread(monkeypatch: pytest.MonkeyPatch) -> None:
    """The bound of a mesh is below all its layouts; with embedding and head in the fill it is not."""
    assert least_share_of_bounds() >= 1.0
    monkeypatch.setattr(mesh_bounds, "fill_by_layers", lambda chosen: False)
    assert least_share_of_bounds() < 1.0


@pytest.mark.parametrize("warm_from", [0, WARM_START_FROM])
def test_stopped_search_says_so(warm_from: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """A search that is cut keeps its best, a bound below it, and counts what it left."""
    monkeypatch.setattr(exhaustive, "WARM_START_FROM", warm_from)
    request = random_request(MANY)
    stopped = search(request, float("inf"), should_stop=lambda: True)
    whole = search(request, float("inf"))

    assert stopped.stopped == "time limit"
    assert stopped.count.accounted == stopped.count.total == whole.count.total
    assert stopped.lower_bound <= whole.top.rows[0][0] <= stopped.top.rows[0][0]


def test_time_limit_ends_a_batch_of_meshes(monkeypatch: pytest.MonkeyPatch) -> None:
    """A batch of meshes may take many seconds, so the search stops inside the only one, once it has a layout."""
    monkeypatch.setattr(exhaustive, "ROWS", 16)
    monkeypatch.setattr(Search, "first_rows", (4, 4, 4))
    stopped = search(random_request(MANY), float("inf"), should_stop=lambda: True)

    assert stopped.stopped == "time limit"
    assert stopped.top.rows
    assert stopped.count.unvisited > 0
    assert stopped.count.accounted == stopped.count.total


def test_interrupt_keeps_the_best() -> None:
    calls = []

    def interrupt(count: Count, best: float) -> None:
        calls.append(best)
        raise KeyboardInterrupt

    stopped = search(random_request(MANY), float("inf"), progress=interrupt)

    assert stopped.stopped == "interrupted"
    assert stopped.top.rows[0][0] == calls[0]


def deep_request(seed: int) -> dict[str, Any]:
    """A model with so many layers that what is offloaded decides what fits: most bytes are activations."""
    rng = random.Random(seed)
    attention = Attention(heads=2, kv_heads=2, head_dim=64, value_head_dim=64)
    experts = MixtureOfExperts(experts=2, top_k=1, expert_inner=256)
    layer = Layer(attention=attention, feed_forward=experts if seed % 2 else FeedForward(inner=256))
    layers = rng.choice([48, 64])
    model = ModelSpec(name="deep", family="llama", hidden=128, vocab=1000, max_positions=4096, kinds=(layer,),
                      pattern=(0,) * layers)  # fmt: skip
    target, cluster = TARGETS[rng.choice(["megatron", "any"])], load_cluster("2xh100-sxm-80gb")
    workload = Workload(seq_len=2048, global_batch=8, objective=rng.choice(["step", "memory"]))
    problem = Problem(model, workload, load_stack(target.stack), cluster.num_gpus, cluster.gpus_per_node)
    sends = (0, *rng.sample(range(1, len(OFFLOAD_MODULES)), 2), len(OFFLOAD_MODULES) - 1)
    switches = {"offload_layers": tuple(range(layers)), "offload_modules": sends}
    fixes = tuple(fixed(name, value, f"{name}={value}") for name, value in (("pp", 1), ("cp", 1), ("micro_batch", 4)))
    space = Space(problem, legality(problem) + target.rules + fixes, switches)
    return {"space": space, "cluster": cluster, "quantile": rng.choice([0.0, 0.0005, 0.01]), "host": float("inf")}


def deep_mismatches(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    monkeypatch.setitem(globals(), "random_request", deep_request)
    return [found for seed in range(12) if (found := mismatch(seed))]


def test_what_is_offloaded_equals_brute_force(monkeypatch: pytest.MonkeyPatch) -> None:
    assert deep_mismatches(monkeypatch) == []


def test_copies_to_the_host_are_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    """Some of the best layouts move their activations; a bound of these alone that is 3 % too high loses one."""
    honest = lower_bounds.bound

    def too_high(ledger: Ledger, *args: Any, **kwargs: Any) -> Any:
        seconds, needed = honest(ledger, *args, **kwargs)
        moved = ledger.states.offloads_activations & kwargs.get("moves", False) & (not kwargs["states_known"])
        return np.where(moved, 1.03 * seconds, seconds), needed

    monkeypatch.setattr(Search, "first_rows", (1, 1, 1))
    assert deep_mismatches(monkeypatch) == []
    monkeypatch.setattr(lower_bounds, "bound", too_high)
    assert deep_mismatches(monkeypatch)


HONEST_MAY_FIT = MemoryCuts.may_fit


def layers_that_stay(cuts: MemoryCuts, nodes: Columns) -> Any:
    """`may_fit` as it would be if no layer left the GPU."""
    switches = {name: codes for name, codes in cuts.branching.counts.space.switches.items() if name != "offload_layers"}
    counts = replace(cuts.branching.counts, space=replace(cuts.branching.counts.space, switches=switches))
    return HONEST_MAY_FIT(replace(cuts, branching=Branching(counts)), nodes)


def test_a_bound_that_forgets_what_is_offloaded_is_seen(monkeypatch: pytest.MonkeyPatch) -> None:
    with monkeypatch.context() as patch:
        patch.setattr(MemoryCuts, "may_fit", layers_that_stay)
        assert deep_mismatches(patch)
