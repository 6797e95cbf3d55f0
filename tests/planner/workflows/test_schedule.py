"""The clock of a step, beside one that goes through the layouts of all models one after another."""

from __future__ import annotations

import random
from collections.abc import Iterator, Mapping
from dataclasses import replace
from itertools import product

import pytest
from meshwright.planner.request.reinforcement import RlRequest
from meshwright.planner.workflows.graph import Call, Role, graph_of
from meshwright.planner.workflows.meshes import Mesh, sub_meshes
from meshwright.planner.workflows.options import Option, with_leaner
from meshwright.planner.workflows.prices import Prices
from meshwright.planner.workflows.problem import RlProblem
from meshwright.planner.workflows.resolve import rl_problem_of
from meshwright.planner.workflows.schedule import schedule
from meshwright.planner.workflows.search import PlacementSearch

MEMORY = 80e9
WORK = {"kind": "rl", "algorithm": "ppo", "output": 300, "prompts": 16}


def rl() -> RlProblem:
    request = {"model": "llama-3.2-1b", "cluster": "dgx-h100:2", "workload": WORK}
    return rl_problem_of(RlRequest.model_validate(request))[0]


class Fronts(Prices):
    """Options drawn at random, each with two that are slower and smaller."""

    def __init__(self, seed: int) -> None:
        super().__init__(rl())
        self.seed = seed

    def of(self, call: Call, gpus: int, lag: int = 0) -> Option | None:
        rng = random.Random(f"{self.seed} {call.name} {gpus}")
        fastest = Option(seconds=rng.uniform(5, 20) / gpus, peak_bytes=rng.uniform(20e9, 80e9),
                         kept_bytes=rng.uniform(10e9, 60e9))  # fmt: skip
        return with_leaner([fastest, *(
            Option(seconds=fastest.seconds * (1 + rng.uniform(0, 0.5) * part), peak_bytes=fastest.peak_bytes / part,
                   kept_bytes=fastest.kept_bytes / part) for part in (2, 4))])  # fmt: skip

    def at_home(self, call: Call, gpus: int) -> Option | None:
        return self.of(Call(f"home {call.name}", "infer", call.role), gpus)

    def weights_bytes(self, role: Role) -> float:
        return 2e9


def test_the_step_has_the_best_layouts_of_all_models() -> None:
    graph, meshes, moved = graph_of(rl().work), sub_meshes(Mesh(0, 8), 8), 0
    for seed in range(12):
        prices, rng = Fronts(seed), random.Random(seed)
        placement = {call.name: rng.choice(meshes[:7]) for call in graph}
        ends = [max(step.values()) for step in every_way(prices, graph, placement)]
        placed = schedule(prices, graph, placement, [1, 2, 4, 8], MEMORY)
        assert placed is not None
        assert max(it.end_s for it in placed) == pytest.approx(min(ends), rel=1e-12)
        moved += min(ends) < ends[0]
    assert moved > 6  # the fastest layouts of all calls are not the best ones


def every_way(
    prices: Prices, graph: tuple[Call, ...], placement: Mapping[str, Mesh]
) -> Iterator[dict[str, float]]:  # fmt: skip
    """Call -> when it ends, by each way to lay out the models; the first takes the fastest of all."""
    trained = {call.role: call.name for call in graph if call.kind == "train"}
    homes: dict[Role, str] = {call.role: trained.get(call.role, call.name) for call in graph if call.kind != "generate"}
    for numbers in product(range(3), repeat=len(homes)):
        way = dict(zip(homes, numbers, strict=True))
        options, at_home = dict[str, Option](), dict[str, bool]()
        for call in graph:
            gpus = placement[call.name].gpus
            at_home[call.name] = call.kind != "generate" and placement[homes[call.role]] == placement[call.name]
            scores_there = call.kind == "infer" and call.role in trained and at_home[call.name]
            option = prices.at_home(call, gpus) if scores_there else prices.of(call, gpus)
            assert option is not None
            options[call.name] = [option, *option.leaner][way[call.role] if at_home[call.name] else 0]
        yield ends_of(prices, graph, placement, homes, options, at_home)


def ends_of(
    prices: Prices, graph: tuple[Call, ...], placement: Mapping[str, Mesh], homes: Mapping[Role, str],
    options: Mapping[str, Option], at_home: Mapping[str, bool],
) -> dict[str, float]:  # fmt: skip
    """Call -> when it ends. Of two rounds the second counts: a step begins as the one before it left the models."""
    bytes_per_s = float(prices.rl.resolved.rates.pcie_bw_bytes_per_s) / prices.constants.copies
    away = set[Role]()
    for _ in range(2):
        ends = dict[str, float]()
        for call in graph:
            mesh, copied = placement[call.name], 0.0
            if at_home[call.name] and call.role in away:
                away.remove(call.role)
                copied += options[homes[call.role]].kept_bytes
            there = {role: options[name].kept_bytes for role, name in homes.items() if role not in away
                     and placement[name].overlaps(mesh) and not (at_home[call.name] and role == call.role)}  # fmt: skip
            while there and options[call.name].peak_bytes + sum(there.values()) > MEMORY:
                largest = max(there, key=lambda role: there[role])
                copied += there.pop(largest)
                away.add(largest)
            seconds = options[call.name].seconds + copied / bytes_per_s
            if call.kind == "infer" and not at_home[call.name]:
                both = (mesh, placement[homes[call.role]])
                span = next(size for size in (1, 2, 4, 8) if len({at // size for it in both for at in
                                                                 (it.first, it.end - 1)}) == 1)  # fmt: skip
                seconds += prices.moved_s(2e9, span)
            waits = [end for name, end in ends.items() if name in call.after or placement[name].overlaps(mesh)]
            ends[call.name] = max(waits, default=0.0) + seconds
    return ends


def test_no_symmetric_layout_is_faster() -> None:
    """One layout of all calls on all GPUs, tensor parallelism within nodes and stages over them, is in the space."""
    request = RlRequest.model_validate({
        "model": "llama-2-13b", "cluster": "dgx-h100:2",
        "workload": {**WORK, "prompts": 128, "updates": 4, "input": 128, "output": 895, "output_p90": 896,
                     "output_max": 897, "old_logprobs": False, "critic": "llama-2-7b", "reward": "llama-2-7b"},
    })  # fmt: skip
    free = rl_problem_of(request)[0]
    graph, meshes, budget = graph_of(free.work), sub_meshes(Mesh(0, 16), 8), free.resolved.budget_bytes
    best = PlacementSearch(Prices(free), graph, meshes, budget, tolerance=0.0).run()
    assert best is not None
    for degrees in ({"tp": 8, "pp": 1}, {"tp": 8, "pp": 2}):
        fixed = replace(free, fixed={"train": {**degrees, "cp": 1},
                                     "generate": {**degrees, "ep": 1, "attention_dp": 1}})  # fmt: skip
        symmetric = PlacementSearch(Prices(fixed), graph, meshes[:1], budget).together()
        assert symmetric is not None
        assert best.step_s <= symmetric.step_s


class Limited(Fronts):
    """A GPU's part of host memory."""

    def __init__(self, seed: int, host_bytes: float) -> None:
        super().__init__(seed)
        self.limit = host_bytes

    @property
    def host_bytes(self) -> float:
        return self.limit


def test_models_leave_for_as_much_host_memory_as_there_is() -> None:
    graph, none = graph_of(rl().work), 0
    placement = {call.name: Mesh(0, 8) for call in graph}
    for seed, limit in product(range(4), (1e9, 30e9, 60e9)):
        roomy = schedule(Limited(seed, 1e15), graph, placement, [1, 2, 4, 8], MEMORY)
        tight = schedule(Limited(seed, limit), graph, placement, [1, 2, 4, 8], MEMORY)
        none += tight is None
        if roomy is None or tight is None:
            continue
        assert max(it.end_s for it in tight) >= max(it.end_s for it in roomy)
        kept = {it.call.role: it.option.kept_bytes for it in tight if it.call.kind != "generate"}
        for placed in tight:  # all homes are on all GPUs: models that do not lie there are on the host
            home = placed.call.role if placed.call.kind != "generate" else None
            assert sum(kept[role] for role in kept if role != home and role not in placed.resident) <= limit
    assert 0 < none < 12


def test_states_of_the_optimizer_on_the_host_count() -> None:
    graph = (Call("generate", "generate", "policy"), Call("train", "train", "policy", ("generate",)))
    placement = {call.name: Mesh(0, 8) for call in graph}

    class Offloaded(Limited):
        def of(self, call: Call, gpus: int, lag: int = 0) -> Option | None:
            return Option(seconds=1.0, peak_bytes=70e9, kept_bytes=30e9, host_bytes=20e9)

    # The engine takes the GPU: 30 GB leave it, beside 20 GB that are on the host all the time.
    assert schedule(Offloaded(0, 50e9), graph, placement, [8], MEMORY) is not None
    assert schedule(Offloaded(0, 49e9), graph, placement, [8], MEMORY) is None
