"""`plan --allow-technique`: the search uses what makes the best layout, counts every set, says why others cannot be."""

from __future__ import annotations

from itertools import combinations
from pathlib import Path
from typing import Any

import pytest
from meshwright.cost_models.layouts import parse
from meshwright.cost_models.techniques.registry import TECHNIQUES, applied, exclusions
from meshwright.planner import api
from meshwright.planner.document.plan import Plan
from meshwright.planner.document.reading import read_plan
from meshwright.planner.request.allowed_techniques import technique_sets
from meshwright.planner.request.load import Request, changed_request, load_request
from meshwright.planner.request.resolve import resolve
from meshwright.planner.targets.registry import TARGETS, able_to_train

from meshwright.errors import InputError

from ...snapshots import run_here

SLOW = {"groups": [{"name": "pair", "gpu": "h100-sxm-80gb", "gpus_per_node": 2, "count": 2}],
        "links": {"inter_node": {"bandwidth": "1 Gb/s", "latency": "20 us"}}}  # fmt: skip
ASKED: dict[str, Any] = {"model": "llama-3.2-1b", "cluster": SLOW, "seq_len": 1024, "global_batch": 16,
                         "target": "any", "stack": "deepspeed", "fix": ["pp=1"]}  # fmt: skip
ALLOWED = ("1-bit-adam:warmup=0", "zero++", "three-level:weights_over=1,gradients_over=2")


@pytest.fixture(scope="module")
def chosen() -> Plan:
    return api.plan(None, allow_techniques=ALLOWED, fastest=True, **ASKED)


def test_the_best_set_is_chosen(chosen: Plan) -> None:
    """As if every set of techniques had been planned by hand."""
    by_hand: dict[tuple[str, ...], tuple[float, str, int]] = {}
    for size in range(len(ALLOWED) + 1):
        for texts in combinations(ALLOWED, size):
            try:
                plan = api.plan(None, technique=list(texts), fastest=True, **ASKED)
            except InputError:
                continue
            names = tuple(sorted(text.partition(":")[0] for text in texts))
            by_hand[names] = (plan.best.step_s, plan.best.layout_id, plan.certificate.space.total)
    found = {each.names: (each.value, each.layout_id) for each in chosen.technique_choices if each.why is None}

    assert found == {names: row[:2] for names, row in by_hand.items()}
    best = min(by_hand, key=lambda names: by_hand[names])
    assert best == chosen.technique_choices[0].names != ()
    assert chosen.best.layout_id == by_hand[best][1]
    assert [name for name, _ in chosen.resolved["workload"]["techniques"]] == list(best)
    assert chosen.certificate.proven
    assert chosen.certificate.space.total == sum(row[2] for row in by_hand.values())


@pytest.mark.slow
@pytest.mark.parametrize("model", ["llama-3.2-1b", "torchtitan-qwen3-moe-debug"])
@pytest.mark.parametrize("tolerated", [0, 1])
def test_the_runtime_trains_as_planned_by_hand(model: str, tolerated: int) -> None:
    """Its rules of exchanges are those of each set: replicas that drop out are one rank each. By hand plain training is
    simulated, too."""
    asked = {**ASKED, "model": model, "target": "meshwright", "stack": None, "fix": []}
    coding = f"gradient-coding:tolerated={tolerated},window=1,slow=0.05"
    allowed = ("1-bit-adam:warmup=0", "co2", "diloco", "noloco", coding)
    plan = api.plan(None, allow_techniques=allowed, fastest=True, **asked)
    assert plan.certificate.proven
    for each in plan.technique_choices:
        texts = [text for text in allowed if text.partition(":")[0] in each.names]
        if texts and each.why is None:
            alone = api.plan(None, technique=texts, fastest=True, **asked)
            assert (alone.best.step_s, alone.best.layout_id) == (each.value, each.layout_id)
    layouts = {each.names: parse(each.layout_id) for each in plan.technique_choices if each.layout_id}
    assert len(layouts) == 1 + len(allowed)
    assert layouts["gradient-coding",].dp == 4 or not tolerated


@pytest.mark.parametrize("target", TARGETS)
def test_every_target_searches_all_techniques(target: str, tmp_path: Path) -> None:
    model = "tinyllama-1.1b" if target == "nanotron" else "qwen3-0.6b"
    size = ("--model", model, "--cluster", "2xh100-sxm-80gb", "--global-batch", "8", "--seq-len", "1024")
    made = run_here("plan", *size, "--total-tokens", "1e9", "--target", target, "--allow-technique", "all",
                    "-o", "plan.json", cwd=tmp_path)  # fmt: skip
    assert made.code == 0, made.err
    plan = read_plan((tmp_path / "plan.json").read_text(), "plan.json")
    assert plan.certificate.proven
    trained = {name for each in plan.technique_choices if each.layout_id for name in each.names}
    assert trained & set(TARGETS[target].techniques) == trained or target == "any"


def test_what_cannot_be_has_its_reason(chosen: Plan) -> None:
    refused = {each.names: each.why for each in chosen.technique_choices if each.why is not None}

    assert refused == {
        ("1-bit-adam", "zero++"): "1-bit-adam needs no ZeRO, zero++ ZeRO-3",
        ("1-bit-adam", "three-level"): "1-bit-adam needs no ZeRO, three-level ZeRO-3",
        ("three-level", "zero++"): "both choose the ranks that share weights and gradients",
    }


def test_a_technique_makes_room() -> None:
    """A share of the weights of 405B alone is more than a GPU of 40 GB has; on drives they fit, and the search finds
    that out."""
    asked = {**ASKED, "model": "llama-3.1-405b", "cluster": "dgx-a100-40gb:1", "fix": ["tp=1"]}
    plan = api.plan(None, allow_techniques=["zero-infinity:tb=4"], **asked)

    assert [each.names for each in plan.technique_choices] == [("zero-infinity",), ()]
    assert plan.technique_choices[1].why == "no layout fits"


@pytest.mark.parametrize(
    ("allowed", "more", "message"),
    [
        (["zero+"], {}, "--allow-technique: unknown technique `zero\\+`"),
        (["zero++:weight_bits=3"], {}, "weight_bits is 3, must be a whole number in 4 to 16"),
        (["diloco"], {"technique": "diloco"}, "diloco is both requested and allowed"),
        (["diloco"], {"stages": "own"}, "no simulation knows techniques"),
    ],
)
def test_bad_wishes(allowed: list[str], more: dict[str, Any], message: str) -> None:
    with pytest.raises(InputError, match=message):
        api.plan(None, allow_techniques=allowed, **ASKED, **more)


def test_the_screen_and_the_file(tmp_path: Path) -> None:
    size = ("--model", "llama-3.2-1b", "--cluster", "dgx-h100:1", "--global-batch", "16", "--seq-len", "1024")
    allowed = ("--target", "any", "--allow-technique", "diloco", "--allow-technique", "1-bit-adam")
    made = run_here("plan", *size, *allowed, "-o", "plan.json", cwd=tmp_path)

    assert made.code == 0, made.err
    assert "techniques" in made.out
    assert "Not 1-bit-adam + diloco: both choose how replicas" in made.out
    read = read_plan((tmp_path / "plan.json").read_text(), "plan.json")
    assert len(read.technique_choices) == 4
    assert run_here("report", "plan.json", cwd=tmp_path).code == 0
    assert "Not 1-bit-adam + diloco: " in (tmp_path / "report.html").read_text(encoding="utf-8")
    plain = run_here("plan", *size, "--json", cwd=tmp_path)
    assert "technique_choices" not in plain.out


def test_every_pair_works_or_is_refused_with_a_reason() -> None:
    for one, other in combinations(TECHNIQUES, 2):
        reason = TECHNIQUES[one].exclusion(TECHNIQUES[other])
        if reason is None:
            assert len(applied({one: {}, other: {}})) == 2
            assert applied({one: {}, other: {}}) == applied({other: {}, one: {}})
            continue
        with pytest.raises(InputError, match="exclude one another") as refusal:
            applied({one: {}, other: {}})
        assert reason in str(refusal.value)


def test_sets_that_contain_an_ended_one_are_left_out() -> None:
    names, ends = "abcdefg", ({"a", "c"}, {"b"}, {"d", "e", "f"})
    ended = set[tuple[str, ...]]()
    made = list[tuple[str, ...]]()
    for chosen in technique_sets(names, ended):
        made.append(chosen)
        if any(part <= set(chosen) for part in ends):
            ended.add(chosen)
    every = [chosen for size in range(len(names) + 1) for chosen in combinations(names, size)]
    assert made == [chosen for chosen in every if not any(part < set(chosen) for part in ends)]


def test_a_target_that_lacks_a_technique_trains_by_no_set_with_it() -> None:
    """So that sets with it need no search."""
    request = load_request(None, {**{name: ASKED[name] for name in ("model", "seq_len", "global_batch")},
                                  "cluster": "dgx-h100:2"})  # fmt: skip
    alone = {name: who_trains_by(request, name) for name in TECHNIQUES}
    pairs = [pair for pair in combinations(TECHNIQUES, 2) if not any(exclusions(pair))]
    for pair in pairs:
        assert who_trains_by(request, *pair) == alone[pair[0]] & alone[pair[1]]
    assert len({frozenset(targets) for targets in alone.values()}) >= 3


def who_trains_by(request: Request, *names: str) -> set[str]:
    try:
        asked = changed_request(request, {("workload", "techniques"): {name: {} for name in names}})
        return set(able_to_train(resolve(asked).problem))
    except InputError:  # no layout of the model has what it needs
        return set()
