"""Sets of techniques that are searched together have the same layouts and counts as in searches of their own."""

from __future__ import annotations

import random
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from meshwright.cost_models import build_ledger
from meshwright.cost_models.layouts import Layouts
from meshwright.cost_models.quantities.tables import build, index_keys
from meshwright.cost_models.step import step
from meshwright.cost_models.techniques.cheapest_exchange import cheapest_of
from meshwright.cost_models.techniques.registry import TECHNIQUES, exclusions
from meshwright.planner.request.load import load_request
from meshwright.planner.request.resolve import Resolved, resolve
from meshwright.planner.search import exhaustive
from meshwright.planner.search.dominance import dominated_recomputes
from meshwright.planner.search.known_tables import MOST_KEYS, KnownTables
from meshwright.planner.search.likely_layouts import limited
from meshwright.planner.search.outcome import SearchOutcome
from meshwright.planner.search.run import search_of
from meshwright.planner.search.shared_search import search_together
from meshwright.planner.space.rules import fixed
from meshwright.planner.targets.registry import TARGETS

EXCHANGES = sorted(name for name, known in TECHNIQUES.items() if known.only_traffic)
KNOBS = {"1-bit-adam": {"warmup": 0.1}, "diloco": {"period": 2, "delay": 0}, "noloco": {"period": 2},
         "econtrol": {"share": 0.3}}  # fmt: skip
BESIDE: tuple[dict[str, dict[str, float]], ...] = (
    {}, {}, {"zero++": {}}, {"three-level": {"weights_over": 1, "gradients_over": 2}}, {"t3": {}},
    {"zero-infinity": {"weights": 0}}, {"cpu-offload": {}}, {"vocabulary-parallel": {}},
)  # fmt: skip
SLOW = {"groups": [{"name": "pair", "gpu": "h100-sxm-80gb", "gpus_per_node": 2, "count": 2}],
        "links": {"inter_node": {"bandwidth": "2 Gb/s", "latency": "20 us"}}}  # fmt: skip


def alike(seed: int) -> list[Resolved]:
    """A small request under every exchange that goes with its other techniques."""
    rng = random.Random(seed)
    asked: dict[str, Any] = {
        "model": "llama-3.2-1b", "cluster": rng.choice([SLOW, SLOW, "4xh100-sxm-80gb"]), "seq_len": 1024,
        "global_batch": rng.choice([8, 24]), "target": "any", "stack": rng.choice(["deepspeed", "megatron-core"]),
        "objective": rng.choice(["step", "step", "memory"]), "max_memory": rng.choice(["6 GB", "12 GB", "40 GB"]),
        "fix": [rng.choice(["micro_batch=1", "cp=1"])],
    }  # fmt: skip
    beside, found = rng.choice(BESIDE), []
    for name in (None, *EXCHANGES):
        techniques = {**beside, **({} if name is None else {name: KNOBS.get(name, {})})}
        if not any(exclusions(techniques)):
            found.append(resolve(load_request(None, {**asked, "technique": techniques})))
    return found


def of_target(target: str, model: str, seed: int) -> list[Resolved]:
    """A small request for a target under every exchange that it trains by."""
    rng = random.Random(seed)
    asked: dict[str, Any] = {
        "model": model, "cluster": SLOW, "seq_len": 1024, "global_batch": 8, "target": target,
        "total_tokens": 1e9, "objective": ["step", "memory"][seed % 2], "max_memory": rng.choice(["6 GB", "12 GB"]),
    }  # fmt: skip
    able = [name for name in EXCHANGES if name in TARGETS[target].techniques]
    sets = [{}, {"diloco": TECHNIQUES["diloco"].neutral} if target == "meshwright" else {},
            *({name: KNOBS.get(name, {})} for name in able)]  # fmt: skip
    return [resolve(load_request(None, {**asked, "technique": each})) for each in sets]


def alone(each: Resolved, options: Mapping[str, Any]) -> SearchOutcome:
    return search_of(each, each.space, **options).run()


def compare(together: Sequence[SearchOutcome], apart: Sequence[SearchOutcome], limit: float = np.inf) -> None:
    for one, other in zip(together, apart, strict=True):
        for outcome in (one, other):  # a search may also list what is no better than its limit
            outcome.top.rows = [row for row in outcome.top.rows if row[0] <= limit]
        assert one.top.rows == other.top.rows
        assert one.lower_bound == other.lower_bound or not one.top.rows
        assert (one.count.total, one.count.ruled_out, one.count.dominated) == (
            other.count.total, other.count.ruled_out, other.count.dominated)  # fmt: skip
        assert one.count.accounted == one.count.total
        assert one.count.unvisited == 0


@pytest.mark.parametrize("seed", range(8))
def test_as_searches_of_their_own(seed: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """Alone each is compared with brute force in test_search_exact.py."""
    requests = alike(seed)
    options = {"objective": "memory" if requests[0].workload.objective == "memory" else "step"}
    apart = [alone(each, options) for each in requests]
    if seed % 2:
        monkeypatch.setattr(exhaustive, "WARM_START_FROM", 0)
    known = KnownTables(MOST_KEYS)
    compare(search_together(requests, known=known, **options), apart)

    likely = {"likely": [row[2] for outcome in apart for row in outcome.top.rows]}
    compare(search_together(requests, known=known, **options, **likely), apart)
    compare([alone(each, {**options, **likely}) for each in requests], apart)

    values = sorted(outcome.top.rows[0][0] for outcome in apart if outcome.top.rows)
    limit = values[len(values) // 2] * (1 + 1e-6) if values else 1e-6
    limited = {**options, "incumbent": limit}
    compare(search_together(requests, known=known, **limited), [alone(each, limited) for each in requests], limit)


@pytest.mark.parametrize("seed", range(2))
@pytest.mark.parametrize("model", ["llama-3.2-1b", "torchtitan-qwen3-moe-debug"])
@pytest.mark.parametrize("target", ["meshwright", "deepspeed"])
def test_targets_have_rules_of_techniques(target: str, model: str, seed: int) -> None:
    """Each set has the layouts of its own rules: plain replicas also those that no exchange has."""
    requests = of_target(target, model, seed)
    options = {"objective": requests[0].workload.objective, "top": 2}
    apart = [alone(each, options) for each in requests]
    compare(search_together(requests, known=KnownTables(MOST_KEYS), **options), apart)
    assert len({tuple(outcome.top.rows) for outcome in apart}) > 1


@pytest.mark.parametrize("seed", range(6))
def test_nothing_beats_the_cheapest_exchange(seed: int) -> None:
    requests = alike(seed)
    for some in (requests, [each for each in requests if changes_traffic(each)]):
        applied = cheapest_of((each.workload.techniques for each in some), TECHNIQUES)
        cheapest = replace(requests[0], workload=replace(requests[0].workload, techniques=applied))
        for each in some:
            rows = search_of(each, each.space, top=2000, memory_bytes=np.inf).run().top.rows
            layouts = Layouts.of([layout for _, _, layout in rows])
            least, priced = estimate(cheapest, layouts), estimate(each, layouts)
            for name in ("step_s", "device_bytes", "host_bytes"):
                assert (getattr(least, name) <= getattr(priced, name) * (1 + 1e-12)).all(), (name, each)


def changes_traffic(each: Resolved) -> bool:
    return any(TECHNIQUES[name].only_traffic for name, _ in each.workload.techniques)


def estimate(resolved: Resolved, layouts: Layouts) -> step.Estimate:
    keys, key = index_keys(layouts.columns)
    ledger = build_ledger.build(resolved.problem, build(resolved.problem, keys), layouts, key)
    return step.price(ledger, resolved.rates)


def test_known_dominance_is_of_the_rules() -> None:
    known, found = KnownTables(MOST_KEYS), set[int]()
    for each in alike(0)[:3]:
        for modules in (None, 1, 8):
            more = () if modules is None else (fixed("recompute_modules", modules, "modules"),)
            space = replace(each.space, rules=(*each.space.rules, *more))
            dominated = known.dominated(space, known.rates(each.rates))
            assert dominated == dominated_recomputes(space, each.rates)
            found.add(len(dominated))
    assert len(found) > 1


def test_the_best_of_likely_layouts_limits_a_search() -> None:
    """Of those that the search allows and that fit: not by layouts of other rules, switches or memory."""
    asked: dict[str, Any] = {"model": "llama-3.2-1b", "cluster": SLOW, "seq_len": 1024, "global_batch": 8}
    technique = {"three-level": {"weights_over": 1, "gradients_over": 2}}
    requests = [resolve(load_request(None, {**asked, "target": "any", **more}))
                for more in ({}, {"technique": technique}, {"fix": ["tp=1"]})]  # fmt: skip
    plain, levels, fixed_tp = (search_of(each, each.space) for each in requests)
    best = search_of(requests[0], requests[0].space).run().top.rows[0]

    assert limited(plain, []) == np.inf
    assert limited(plain, [best[2]]) == pytest.approx(best[0], rel=1e-7)
    assert limited(plain, [best[2]]) >= best[0]
    assert best[2].tp > 1
    assert limited(fixed_tp, [best[2]]) == np.inf
    assert limited(plain, [replace(best[2], cuda_graphs=1)]) == np.inf
    assert limited(levels, [replace(best[2], zero=0)]) == np.inf
    plain.memory_bytes = 1.0
    assert limited(plain, [best[2]]) == np.inf


def test_stopped_searches_prove_nothing() -> None:
    for outcome in search_together(alike(0), should_stop=lambda: True):
        assert outcome.stopped == "time limit"
        assert outcome.lower_bound < min((row[0] for row in outcome.top.rows), default=np.inf)
