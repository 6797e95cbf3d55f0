"""Rules of targets read no techniques, so that searches under several sets share what they exclude; those of techniques
are made for a workload."""

from __future__ import annotations

from dataclasses import fields, replace
from typing import Any

import numpy as np
import pytest
from meshwright.cost_models.specs.workload import Workload
from meshwright.cost_models.techniques.registry import TECHNIQUES, applied
from meshwright.planner.request.load import load_request
from meshwright.planner.request.resolve import Resolved, resolve
from meshwright.planner.space.rules import legality
from meshwright.planner.targets.registry import TARGETS, who_trains

from .emit_plans import random_layouts

MODELS = ("llama-2-7b", "deepseek-v3")


class Blind(Workload):
    """A workload whose techniques nobody may read."""

    def __getattribute__(self, name: str) -> Any:
        if name == "techniques":
            raise LookupError("a rule read the techniques")
        return super().__getattribute__(name)


def of_target(target: str, model: str) -> Resolved:
    asked = {"model": model, "cluster": "dgx-h100:2", "seq_len": 4096, "global_batch": 64, "target": "any"}
    return resolve(load_request(None, asked)).for_target(target)


@pytest.mark.parametrize("model", MODELS)
@pytest.mark.parametrize("target", TARGETS)
def test_rules_read_no_techniques(target: str, model: str) -> None:
    resolved = of_target(target, model)
    layouts = random_layouts(resolved, np.random.default_rng(0))
    known = vars(resolved.workload)
    blind = replace(resolved.problem, workload=Blind(**{each.name: known[each.name] for each in fields(Workload)}))
    for rule in TARGETS[target].rules:
        seen = rule.allows(layouts, resolved.problem)
        assert np.array_equal(rule.allows(layouts, blind), seen)
    for technique in TECHNIQUES.values():
        if technique.only_traffic:
            for need in technique.needs:
                need.allows(layouts, blind)


@pytest.mark.parametrize(
    ("target", "given", "names"),
    [
        ("meshwright", {}, set()),
        ("meshwright", {"diloco": {"period": 1, "bits": 32, "delay": 0}}, set()),
        ("meshwright", {"diloco": {}}, {"experts of replicas", "states of replicas"}),
        ("meshwright", {"gradient-coding": {"tolerated": 0, "slow": 0.1}}, set()),
        ("meshwright", {"gradient-coding": {"tolerated": 1, "window": 1}},
         {"experts of replicas", "states of replicas", "replicas that drop out"}),
        ("deepspeed", {"1-bit-adam": {}}, set()),
        ("deepspeed", {"zero++": {}}, {"zero++"}),
    ],
)  # fmt: skip
def test_techniques_bring_their_rules(target: str, given: dict[str, dict[str, float]], names: set[str]) -> None:
    resolved = of_target(target, "llama-2-7b")
    workload = replace(resolved.workload, techniques=applied(given))
    more = set(legality(resolved.problem)) | set(TARGETS[target].rules)
    rules = [rule for rule in TARGETS[target].rules_for(workload) if rule not in more]
    assert {rule.name.partition(": ")[2] for rule in rules} == names
    assert resolved.space.rules == (*legality(resolved.problem), *TARGETS[target].rules)
    trained = replace(resolved, workload=workload)
    assert set(rules) <= set(trained.space.rules)


@pytest.mark.parametrize(("techniques", "hint"), [
    ({"gradient-coding": {"window": 1}}, "meshwright has all of it: plan with `--target meshwright`"),
    ({"gradient-coding": {"window": 2}},
     "but for that meshwright would train by gradient-coding; `--target any` still plans it"),
    ({"gradient-coding": {"window": 2}, "t3": {}}, "no target has all of it; `--target any` still plans it"),
    ({"t3": {}}, "no target has all of it; `--target any` still plans it"),
])  # fmt: skip
def test_the_hint_names_a_target_that_lacks_the_knobs_alone(techniques: dict[str, Any], hint: str) -> None:
    problem = of_target("any", "llama-3.2-1b").problem
    wanted = replace(problem.workload, techniques=applied(techniques))
    assert who_trains(replace(problem, workload=wanted)) == hint
