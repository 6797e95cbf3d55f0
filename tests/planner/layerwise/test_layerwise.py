"""Layer-wise plans: one strategy everywhere is priced as the layout is, the search against every single plan, what is
said of a plan that mixes strategies."""

from __future__ import annotations

import itertools
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from meshwright.cli.screens.layers import layer_lines
from meshwright.cost_models import build_ledger
from meshwright.cost_models.layouts import RECOMPUTE_MODES
from meshwright.cost_models.quantities import tables
from meshwright.cost_models.specs.model import Attention, FeedForward, Layer, ModelSpec
from meshwright.cost_models.step import step
from meshwright.planner import api
from meshwright.planner.document.plan import Plan
from meshwright.planner.document.reading import load_plan
from meshwright.planner.explain.trace import of_candidate
from meshwright.planner.layerwise import bounds
from meshwright.planner.layerwise import search as layerwise_search
from meshwright.planner.layerwise.space import Instance, instances
from meshwright.planner.request.load import load_request, request_from_dict
from meshwright.planner.request.resolve import Resolved, resolve
from meshwright.planner.studies.what_if import what_if
from meshwright.planner.targets.emit import emit
from meshwright.runtime.job import job_of
from meshwright.runtime.parallel.strategies import strategies_of

from meshwright.errors import InputError, UnsupportedError

LLAMA: dict[str, Any] = {
    "model": "llama-2-7b", "cluster": "dgx-a100-80gb:2", "seq_len": 2048, "global_batch": 64, "target": "any",
}  # fmt: skip


def request(**changes: Any) -> Resolved:
    return resolve(load_request(None, {**LLAMA, **changes}))


def small(layers: int, gpus: int, batch: int, *, tied: bool = False, **changes: Any) -> Resolved:
    attention = Attention(heads=8, kv_heads=8, head_dim=64, value_head_dim=64)
    kind = Layer(attention=attention, feed_forward=FeedForward(inner=2048))
    spec = ModelSpec(name="small", family="llama", hidden=512, vocab=8000, max_positions=4096, kinds=(kind,),
                     pattern=(0,) * layers, tied_embeddings=tied)  # fmt: skip
    asked = {"cluster": f"{gpus}xa100-sxm-80gb", "global_batch": batch, "seq_len": 2048, **changes}
    return replace(request(**asked), model=spec)


@pytest.mark.parametrize(
    ("model", "target", "changes"),
    [
        ("llama-2-7b", "any", {}),
        ("llama-2-7b", "deepspeed", {}),
        ("gemma-2-9b", "megatron", {"cluster": "dgx-h100:1"}),
        ("llama-3.2-1b", "torchtitan", {"cluster": "dgx-h100:1"}),
        ("llama-3.1-8b", "any", {"cluster": "dgx-h100:1", "precision": "fp8"}),
        ("llama-2-7b", "any", {"lora": "8"}),
    ],
)
def test_one_strategy_everywhere_is_priced_as_the_layout(model: str, target: str, changes: dict[str, Any]) -> None:
    resolved = request(model=model, target=target, **changes)
    seen = 0
    for instance in instances(resolved.space, resolved.rates, resolved.memory_bytes):
        rows = instance.prices.whole.layouts.take(instance.rows)
        keys, key = tables.index_keys(rows)
        batch = build_ledger.build(resolved.problem, tables.build(resolved.problem, keys), rows, key)
        estimate = step.price(batch, resolved.rates)
        step_s, device_bytes = instance.uniform()
        assert step_s == pytest.approx(estimate.step_s, rel=1e-12)
        assert device_bytes == pytest.approx(estimate.device_bytes, rel=1e-12)
        row = int(instance.rows[len(rows) // 2])
        everywhere = (row,) * (resolved.model.num_layers + 2)
        assert instance.step_s(everywhere) == pytest.approx(estimate.step_s[len(rows) // 2], rel=1e-12)
        stages = instance.memory_of(everywhere)
        outside = [held.pop("context") + held.pop("unusable") for held in stages]
        needed = [sum(held.values()) * instance.reserved + c for held, c in zip(stages, outside, strict=True)]
        assert max(needed) == pytest.approx(estimate.device_bytes[len(rows) // 2], rel=1e-12)
        seen += len(rows)
    assert seen > 50


def few_strategies(instance: Instance, number: int, seed: int) -> Instance:
    """The instance with a few strategies, drawn."""
    rng = np.random.default_rng(seed)
    return replace(instance, rows=np.sort(rng.choice(instance.rows, min(number, len(instance.rows)), replace=False)))


def all_plans(instance: Instance, layers: int) -> float:
    """Least seconds of all plans that fit, one by one, by the definition."""
    best = np.inf
    reserve = 1.0 + instance.prices.rates.overheads.reserve_share
    for rows in itertools.product(instance.rows.tolist(), repeat=layers + 2):
        if instance.ties_edges and rows[0] != rows[-1]:
            continue
        held = [dict(stage) for stage in instance.memory_of(rows, together=True)]
        outside = [stage.pop("context") + stage.pop("unusable") for stage in held]
        needed = [sum(stage.values()) * reserve + c for stage, c in zip(held, outside, strict=True)]
        if max(needed) <= instance.memory_bytes:
            best = min(best, instance.step_s(rows))
    return best


def test_the_gradient_of_a_large_embedding_is_counted_by_the_search(monkeypatch: pytest.MonkeyPatch) -> None:
    """It fits for the plans that `memory_of` says, of all: their first stage is fullest when it is made."""
    found, decides = small(3, 4, 16, seq_len=16), 0
    found = replace(found, model=replace(found.model, vocab=256_000))
    for seed, every in enumerate(instances(found.space, found.rates, found.memory_bytes)):
        if every.pp != 2 or len(every.rows) < 2:
            continue
        chosen = few_strategies(every, 2, seed)
        _, device_bytes = chosen.uniform()
        for memory in device_bytes * (1 - 1e-9):
            limited = replace(chosen, memory_bytes=float(memory))
            best, outcome = all_plans(limited, 3), solved(monkeypatch, found, limited)
            assert (outcome.best.step_s if outcome.best else np.inf) == pytest.approx(best, rel=1e-9)
            decides += outcome.best is not None
    assert decides > 3


def solved(monkeypatch: pytest.MonkeyPatch, resolved: Resolved, chosen: Instance) -> layerwise_search.LayerwiseOutcome:
    monkeypatch.setattr(layerwise_search, "instances", lambda *_: iter([chosen]))
    return layerwise_search.search(resolved.space, resolved.rates, chosen.memory_bytes)


def cases() -> list[tuple[Resolved, Instance]]:
    """Small instances of 3 and 4 layers with 3 and 4 strategies, with memory that not every plan fits in."""
    out = []
    shapes = [(3, 4, 4, False), (4, 3, 2, False), (3, 3, 4, True), (2, 4, 4, False)] * 3
    for seed, (layers, number, gpus, tied) in enumerate(shapes):
        found = small(layers, gpus, 16, tied=tied)
        every = list(instances(found.space, found.rates, found.memory_bytes))
        chosen = few_strategies(every[(7 * seed + 3) % len(every)], number, seed)
        _, device_bytes = chosen.uniform()
        memory = device_bytes.min() + (0.25, 0.6, 2.0)[seed % 3] * (np.ptp(device_bytes) + 1.0)
        out.append((found, replace(chosen, memory_bytes=float(memory))))
    return out


def test_the_search_finds_the_best_of_all_plans(monkeypatch: pytest.MonkeyPatch) -> None:
    mixed = 0
    for found, chosen in cases():
        outcome = solved(monkeypatch, found, chosen)
        best = all_plans(chosen, found.model.num_layers)
        assert outcome.best is not None
        assert outcome.best.step_s == pytest.approx(best, rel=1e-9)
        assert outcome.lower_bound_s <= best * (1 + 1e-9)
        mixed += len(set(outcome.best.rows)) > 1
    assert mixed > 4


def test_an_inadmissible_bound_is_seen(monkeypatch: pytest.MonkeyPatch) -> None:
    """The comparison with all plans fails where bounds are 5 % too high."""
    of = bounds.Bounds._step
    monkeypatch.setattr(bounds.Bounds, "_step", lambda self, *state: 1.05 * of(self, *state))
    worse = 0
    for found, chosen in cases():
        outcome = solved(monkeypatch, found, chosen)
        worse += outcome.best is None or outcome.best.step_s > all_plans(chosen, found.model.num_layers) * (1 + 1e-9)
    assert worse


def test_a_time_limit_and_too_few_labels_leave_an_honest_bound() -> None:
    resolved = request(max_memory="16 GiB")
    full = layerwise_search.search(resolved.space, resolved.rates, resolved.memory_bytes)
    assert full.best is not None
    assert full.gap < 1e-8
    stopped = layerwise_search.search(resolved.space, resolved.rates, resolved.memory_bytes, should_stop=lambda: True)
    assert stopped.stopped == "time limit"
    assert stopped.best is not None
    assert stopped.lower_bound_s < full.best.step_s < stopped.best.step_s
    few = layerwise_search.search(resolved.space, resolved.rates, resolved.memory_bytes, limit=1)
    assert few.best is not None
    assert few.lower_bound_s <= full.best.step_s * (1 + 1e-9)
    assert few.best.step_s >= full.best.step_s * (1 - 1e-9)


def test_llama_2_7b_on_two_nodes_of_a100() -> None:
    """Galvatron's setting: no worse than the best with one strategy; in 8 GB, recomputed and plain layers."""
    resolved = request()
    outcome = layerwise_search.search(resolved.space, resolved.rates, resolved.memory_bytes)
    assert outcome.best is not None
    assert outcome.uniform is not None
    assert outcome.best.step_s <= outcome.uniform.step_s
    tight = request(max_memory="8 GB", optimizer="adamw-8bit")
    outcome = layerwise_search.search(tight.space, tight.rates, tight.memory_bytes)
    assert outcome.best is not None
    assert outcome.uniform is not None
    assert outcome.best.step_s < 0.97 * outcome.uniform.step_s
    layouts = outcome.best.instance.prices.whole.layouts
    modes = {RECOMPUTE_MODES[layouts["recompute"][row]] for row in outcome.best.rows[1:-1]}
    assert "full" in modes
    assert len(modes) > 1


@pytest.fixture(scope="module")
def plan() -> Plan:
    return api.plan(**LLAMA, max_memory="16 GiB", fix={"offload": "none"}, layers="own")


def test_a_plan_says_what_every_layer_does(plan: Plan, tmp_path: Path) -> None:
    best = plan.best
    assert best.layerwise is not None
    assert best.layerwise.best_alike is not None
    assert best.step_s < best.layerwise.best_alike.step_s
    assert best.device_bytes <= 16 * 2**30
    assert sum(term.seconds for term in best.terms) == pytest.approx(best.step_s)
    covered = [i for run in best.layerwise.runs for i in range(run.layers[0], run.layers[1] + 1)]
    assert covered == list(range(32))
    assert plan.certificate.proven
    assert [name for name, reason in best.targets.items() if reason is None] == ["meshwright"]
    file = tmp_path / "plan.json"
    file.write_text(plan.to_json())
    assert load_plan(file) == plan
    said = '"embedding": "{}"'.format
    file.write_text(plan.to_json().replace(said(best.layerwise.embedding), said("dp16-mbs4-z1-rnone")))
    with pytest.raises(InputError, match="the id says"):
        load_plan(file)


def test_our_runtime_runs_it(plan: Plan) -> None:
    own = job_of(plan, 1).strategies
    assert own is not None
    assert plan.best.layerwise is not None
    assert own.digest == plan.best.layerwise.digest
    assert len(own.layers) == 32
    assert "meshwright.runtime.worker" in emit(plan, "meshwright").files["launch.sh"]


def test_a_damaged_plan_names_each_field(plan: Plan) -> None:
    own = plan.best.layerwise
    assert own is not None
    first = own.runs[0]
    second = first.model_copy(update={"layers": (2, 31)})
    shorter = first.model_copy(update={"layers": (0, 0), "strategy": "tp16-dp1-mbs32-z0-rnone"})
    edited = own.model_copy(update={"embedding": "cp2r-dp8-mbs8-z3-rnone", "head": "dp8-mbs8-z1-rnone",
                                    "runs": (shorter, second)})  # fmt: skip
    candidate = plan.best.model_copy(update={"layerwise": edited})
    with pytest.raises(InputError) as caught:
        strategies_of(candidate, candidate.to_layout(), request().model, 2048, "plan.json")
    said = str(caught.value)
    assert "candidates.0.layerwise.embedding: cp2r-dp8-mbs8-z3-rnone is neither tensor parallelism nor Ulysses" in said
    assert "head: dp8-mbs8-z1-rnone has another number of GPUs than dp16-mbs4-z3-rfull" in said
    assert "runs.0.strategy: tp16-dp1-mbs32-z0-rnone takes dp 1 x 32 sequences at once, dp16-mbs4-z3-rfull" in said
    assert "runs.1.layers: must start with layer 1" in said
    unread = plan.best.model_copy(update={"layerwise": own.model_copy(update={"head": "nothing"})})
    with pytest.raises(InputError, match="head: `nothing` is not a layout id"):
        strategies_of(unread, unread.to_layout(), request().model, 2048, "plan.json")


def test_nothing_else_does_and_says_so(plan: Plan) -> None:
    attempts: list[Callable[[], object]] = [
        lambda: emit(plan, "megatron"), lambda: emit(plan, "torchtitan"),
        lambda: of_candidate(request_from_dict(plan.request), plan.best), lambda: what_if(plan, set=["gpu.peak=2x"]),
    ]  # fmt: skip
    for attempt in attempts:
        with pytest.raises(UnsupportedError, match="its layers have strategies of their own") as caught:
            attempt()
        assert "whose layers are alike" in caught.value.hint
    screen = " ".join(" ".join(str(part) for part in layer_lines([plan.best], 16 * 2**30)).split())
    assert "% faster than dp16-mbs4-z3-rfull (2.23 s), the best of those with one strategy for all." in screen
    assert "Proven to 0.00 %" in screen
    assert "Of the targets, only meshwright can run it." in screen
    assert "(does not fit)" in screen


def test_plans_of_one_strategy_do_not_mention_layers() -> None:
    plan = api.plan(model="llama-3.2-1b", cluster="dgx-h100:1", global_batch=8, top=1)
    assert "layerwise" not in plan.to_json()


@pytest.mark.parametrize(
    ("changes", "said"),
    [
        ({"model": "mixtral-8x7b"}, "models with experts are not planned yet, and mixtral-8x7b"),
        ({"objective": "memory"}, "the objective is memory"),
        ({"technique": "diloco"}, "not priced with techniques"),
        ({"stages": "own"}, "stages of their own are not planned together yet"),
    ],
)
def test_what_it_cannot_price_is_refused(changes: dict[str, Any], said: str) -> None:
    with pytest.raises(InputError, match=said) as caught:
        api.plan(**{**LLAMA, **changes}, layers="own")
    assert caught.value.hint == "leave out `--layers own`"


def test_ctrl_c_before_any_plan_of_its_kind_is_told(monkeypatch: pytest.MonkeyPatch) -> None:
    """The plan with one strategy stays, and nothing is said of what was not looked at."""

    def interrupt(*_: Any, **__: Any) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr(layerwise_search, "instances", interrupt)
    plan = api.plan(**LLAMA, max_memory="16 GiB", fix={"offload": "none"}, layers="own")
    assert plan.interrupted
    assert plan.warnings[-1] == "interrupted before plans with strategies of their own were compared"
    assert not any("no plan with strategies" in text for text in plan.warnings)
