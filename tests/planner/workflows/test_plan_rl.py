"""Plans of post-training: calls, placements, prices and their proof."""

from __future__ import annotations

import random
from itertools import product
from math import inf
from typing import Any

import pytest
from meshwright.planner.api import plan_rl
from meshwright.planner.document.rl_plan import RlPlan
from meshwright.planner.request.reinforcement import RlRequest
from meshwright.planner.search.exhaustive import Search
from meshwright.planner.workflows.graph import Call, Role, graph_of
from meshwright.planner.workflows.meshes import Mesh, distinct, sub_meshes
from meshwright.planner.workflows.options import Option
from meshwright.planner.workflows.prices import Prices
from meshwright.planner.workflows.resolve import rl_problem_of
from meshwright.planner.workflows.search import PlacementSearch, price

from meshwright.errors import InputError, NoFeasibleLayoutError

SMALL: dict[str, Any] = {"model": "llama-3.2-1b", "cluster": "4xh100-sxm-80gb", "output": 300, "prompts": 16}


def request_of(**work: object) -> RlRequest:
    return RlRequest.model_validate({"model": "llama-3.2-1b", "cluster": "dgx-h100:2",
                                     "workload": {"kind": "rl", "output": 300, **work}})  # fmt: skip


@pytest.fixture(scope="module")
def lagged() -> RlPlan:
    return plan_rl(algorithm="grpo", lag=1, **SMALL)


@pytest.mark.parametrize(
    ("work", "names"),
    [
        ({"algorithm": "grpo"}, ["generate", "train"]),
        ({"algorithm": "grpo", "updates": 4, "kl": True}, ["generate", "reference", "logprobs", "train"]),
        ({"algorithm": "dapo", "reward": "llama-3.2-1b"}, ["generate", "reward", "train"]),
        ({"algorithm": "ppo"}, ["generate", "reward", "reference", "values", "train-critic", "train"]),
        ({"algorithm": "dpo"}, ["reference", "train"]),
    ],
)
def test_calls_of_the_algorithms(work: dict[str, Any], names: list[str]) -> None:
    assert [call.name for call in graph_of(request_of(**work).workload)] == names


def test_colocated_calls_take_turns(lagged: RlPlan) -> None:
    colocated = next(it for it in lagged.candidates if it.placement_id == "colocated")
    phases = sum(call.end_s - call.start_s for call in colocated.calls) + colocated.sync_s + colocated.controller_s
    assert colocated.step_s == pytest.approx(phases)
    assert colocated.idle == pytest.approx(colocated.controller_s / colocated.step_s)


def test_with_lag_the_slower_side_is_the_step(lagged: RlPlan) -> None:
    apart = [it for it in lagged.candidates if it.lag]
    assert {it.rollout_gpus + it.training_gpus for it in apart} == {4}
    for it in apart:
        generate, train = (next(call for call in it.calls if call.name == name) for name in ("generate", "train"))
        assert it.step_s == pytest.approx(max(generate.end_s, train.end_s + it.controller_s) + it.sync_s)


def test_the_plan_is_proven_and_accounts_for_every_placement(lagged: RlPlan) -> None:
    proof, space = lagged.certificate, lagged.certificate.space
    assert proof.proven
    assert proof.gap <= 0.01
    counted = space.dominated + space.out_of_memory + space.bounded + space.priced + space.unvisited
    assert counted == space.total == 7**2 + (1 + 3 + 4)  # of 4 GPUs; of 1, 2 and 3 beside an engine
    assert lagged.best.step_s == min(it.step_s for it in lagged.candidates)


def test_ctrl_c_ends_the_plan(monkeypatch: pytest.MonkeyPatch) -> None:
    """The searches of calls keep what they have; a plan out of these would not be what it states."""

    def interrupt(self: object, *_: object) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr(Search, "_search_whole", interrupt)
    with pytest.raises(KeyboardInterrupt):
        plan_rl(request_of())


def test_more_updates_and_longer_answers_cost_more() -> None:
    base = plan_rl(algorithm="grpo", **SMALL).best.step_s
    assert plan_rl(algorithm="grpo", **SMALL, output_p90=600).best.step_s > base
    assert plan_rl(algorithm="grpo", **SMALL, updates=4).best.step_s > base


class Drawn(Prices):
    """Options drawn at random: seconds that shrink with GPUs more or less well, and bytes."""

    def __init__(self, seed: int) -> None:
        super().__init__(rl_problem_of(request_of())[0])
        self.seed = seed

    def of(self, call: Call, gpus: int, lag: int = 0) -> Option | None:
        rng = random.Random(f"{self.seed} {call.name} {gpus}")
        if rng.random() < 0.2:
            return None
        return Option(seconds=rng.uniform(5, 20) / gpus ** rng.uniform(0.2, 1.0), peak_bytes=rng.uniform(10e9, 80e9),
                      kept_bytes=rng.uniform(1e9, 40e9))  # fmt: skip

    def at_home(self, call: Call, gpus: int) -> Option | None:
        return self.of(Call(f"home {call.name}", "infer", call.role), gpus)

    def weights_bytes(self, role: Role) -> float:
        return 2e9


GRAPH = (Call("generate", "generate", "policy"), Call("reference", "infer", "reference", ("generate",)),
         Call("logprobs", "infer", "policy", ("generate",)),
         Call("train", "train", "policy", ("generate", "reference", "logprobs")))  # fmt: skip


def searched(seed: int, gpus: int, calls: int, lag: int) -> tuple[float, float]:
    """The best step by the search and by brute force."""
    graph = (GRAPH[0], *GRAPH[1 : calls - 1], GRAPH[3])
    engine, trainer = (Mesh(gpus, 2), gpus) if lag else (None, gpus)
    prices, meshes = Drawn(seed), sub_meshes(Mesh(0, trainer), 8)
    search = PlacementSearch(prices, graph, meshes, 80e9, engine, lag, tolerance=0.0)
    found, names = search.run(), [call.name for call in search.calls]
    beside = {} if engine is None else {"generate": engine}
    every = [price(prices, graph, beside | dict(zip(names, chosen, strict=True)), search.sizes, 80e9, lag)
             for chosen in product(meshes, repeat=len(names))]  # fmt: skip
    tally = search.tally
    assert tally.equal + tally.out_of_memory + tally.bounded + tally.priced + tally.unvisited == tally.total
    assert (found is None) == (tally.priced == 0)
    return inf if found is None else found.step_s, min((it.step_s for it in every if it), default=inf)


@pytest.mark.parametrize("seed", range(12))
def test_search_equals_brute_force(seed: int) -> None:
    found, all_priced = searched(seed, 8 if seed % 2 else 4, 3 if seed % 2 else 4, lag=seed % 3)
    assert found == pytest.approx(all_priced, rel=1e-9)


def test_an_engine_beside_the_trainer_bounds_every_placement() -> None:
    for seed in range(12):
        prices = Drawn(seed)
        search = PlacementSearch(prices, GRAPH, sub_meshes(Mesh(0, 4), 8), 80e9, Mesh(4, 2), lag=1)
        found, engine = search.run(), prices.of(GRAPH[0], 2)
        if engine is None:
            assert found is None
            assert search.tally.out_of_memory == search.tally.total == 7**3
        else:
            assert search.tally.lower_bound_s >= engine.seconds


def test_packed_sequences_hold_the_longest_answer() -> None:
    for work in ({"output": 2000, "output_max": 6000}, {"output_p90": 600}, {"output": 2000, "samples": 1}):
        rl = rl_problem_of(request_of(**work))[0]
        for answers in (1, 16, rl.work.answers):
            packed = rl.on("policy", 8, answers).workload
            assert packed.seq_len >= rl.longest
            assert packed.seq_len * packed.global_batch >= answers * (rl.work.input + rl.lengths.mean)


def test_a_single_answer_is_planned() -> None:
    plan = plan_rl(algorithm="ppo", **{**SMALL, "prompts": 1, "samples": 1, "output": 2000})
    assert plan.best.step_s > 0


@pytest.mark.slow
@pytest.mark.parametrize("seed", range(2))
def test_search_equals_brute_force_of_four_calls_on_a_node(seed: int) -> None:
    found, all_priced = searched(seed, 8, 4, lag=0)
    assert found == pytest.approx(all_priced, rel=1e-9)


@pytest.mark.slow
def test_ppo_of_70b_on_128_gpus_is_planned() -> None:
    plan = plan_rl(algorithm="ppo", model="llama-3.1-70b", cluster="dgx-h100:16", prompts=512, input=1024, output=1024)
    assert len({(call.first_gpu, call.gpus) for call in plan.best.calls}) > 1  # not all calls on all GPUs


def test_meshes_that_a_swap_makes_equal_are_tried_once() -> None:
    meshes = sub_meshes(Mesh(0, 8), 8)
    assert len(meshes) == 15
    sizes = (1, 2, 4, 8)
    assert [mesh.gpus for mesh in distinct(meshes, sizes, ())] == [8, 4, 2, 1]
    beside = distinct(meshes, sizes, (Mesh(0, 2),))
    assert [mesh for mesh in beside if mesh.gpus == 2] == [Mesh(0, 2), Mesh(2, 2), Mesh(4, 2)]


@pytest.mark.parametrize(
    ("fields", "message", "hint"),
    [
        ({"updates": 3}, "prompts 16 x samples 16 = 256 answers are no multiple of updates 3", "255 answers"),
        ({"prompts": 1, "samples": 2, "updates": 5}, "2 answers are no multiple of updates 5", "at most 2 updates"),
        ({"model": "gpt2", "input": 400, "output_p90": 640}, "400 + output_p90 640 are more than the 1024 positions of",
         "shorter"),
        ({"algorithm": "dpo", "lag": 1}, "lag 1: dpo trains on pairs", "leave out lag"),
        ({"output_max": 300}, "output_max 300: answers of 300 tokens in the mean", "the engine stops"),
        ({"output_p90": 200}, "output_p90 200 is not between the mean 300", "90 %"),
        ({"output_p90": 900}, "output_p90 900 is more than 2.27 x 300", "a larger mean"),
        ({"critic": "gpt2"}, "critic gpt2: grpo has none", "leave out critic"),
    ],
)
def test_bad_input(fields: dict[str, Any], message: str, hint: str) -> None:
    with pytest.raises(InputError) as raised:
        plan_rl(**{**SMALL, **fields})
    assert message in raised.value.message
    assert hint in (raised.value.hint or "")


def test_lag_where_answers_must_be_fresh() -> None:
    with pytest.raises(InputError) as raised:
        plan_rl(request_of(on_policy=True, lag=2, updates=4))
    assert "2 x 4 + 3 = 11 updates old" in raised.value.message


def test_a_framework_has_not_the_limits_of_files_of_training() -> None:
    """verl builds the model of Megatron-Core by itself; a plan without a framework is one of Megatron-LM."""
    asked: dict[str, Any] = {"model": "gemma-2-9b", "cluster": "dgx-h100:1", "workload": {
        "kind": "rl", "algorithm": "grpo", "prompts": 16, "output": 300}}  # fmt: skip
    texts = [rl_problem_of(RlRequest.model_validate({**asked, **more}))[1] for more in ({}, {"target": "verl"})]
    assert [any("cannot train gemma-2-9b, `emit` refuses" in text for text in each) for each in texts] == [True, False]


def test_a_reward_model_without_a_place() -> None:
    with pytest.raises(NoFeasibleLayoutError) as raised:
        plan_rl(**{**SMALL, "cluster": "1xh100-sxm-80gb"}, reward="llama-3.1-70b")
    # 2 x (70,553,706,496 - 128,255 x 8,192) bytes: one row of a head in place of one per token.
    assert "the reward model has no place: 129.5 GiB of weights over 1 GPUs" in raised.value.message


def test_memory_that_leaves_no_cache() -> None:
    with pytest.raises(NoFeasibleLayoutError) as raised:
        plan_rl(**{**SMALL, "model": "llama-3.1-70b", "cluster": "1xh100-sxm-80gb"})
    assert "the KV cache holds no answer: 131.4 GiB of weights" in raised.value.message
