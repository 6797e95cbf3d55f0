"""A new term of a step is counted, or listed as left out, in every place that adds up a step."""

from __future__ import annotations

from typing import Any, get_args

import numpy as np
import pytest
from meshwright.cost_models.arrays import Array, Ints
from meshwright.cost_models.layouts import parse
from meshwright.cost_models.quantities.ledger import Ledger
from meshwright.cost_models.rates.rates import Rates
from meshwright.cost_models.step import lower_bounds, step
from meshwright.planner.document.candidate import Source
from meshwright.planner.evaluation.candidates import source_of
from meshwright.planner.evaluation.staged import SIMULATED_TERMS, Staged
from meshwright.planner.heterogeneous.islands import parts_of
from meshwright.planner.heterogeneous.pipeline import CrossIslandPipeline
from meshwright.planner.heterogeneous.replicas import equal_shares
from meshwright.planner.layerwise.candidate import ABSENT_TERMS, step_terms_of
from meshwright.planner.layerwise.search import Assignment
from meshwright.planner.layerwise.space import instances
from meshwright.planner.request.load import load_request
from meshwright.planner.request.resolve import Resolved, resolve
from meshwright.planner.stages.coefficients import LEFT_OUT_TERMS, PROGRAM_TERMS, problem_of

NEW, NEW_S = "new", 7.0
PIPELINE, REPLICAS = parse("pp4-dp8-mbs1-z1-rnone"), parse("dp32-mbs1-z1-rfull")
TWO_ISLANDS: dict[str, Any] = {"groups": ["dgx-h100:2", "dgx-h100:2"]}


def request(cluster: Any = "dgx-h100:4", **changes: Any) -> Resolved:
    fields = {"model": "llama-3.2-1b", "cluster": cluster, "seq_len": 2048, "global_batch": 64, "target": "any"}
    return resolve(load_request(None, {**fields, **changes}))


def simulated() -> Staged:
    return Staged.of(request(), PIPELINE, simulate=True)


def closed_form() -> Staged:
    return Staged.of(request(), PIPELINE)


def cross_island() -> Staged:
    resolved = request(TWO_ISLANDS)
    return CrossIslandPipeline.over(resolved, parts_of(resolved)[0], PIPELINE)


def replicas() -> Staged:
    resolved = request(TWO_ISLANDS)
    staged = equal_shares(resolved, parts_of(resolved)[0], REPLICAS)
    assert staged is not None
    return staged


def layerwise() -> tuple[float, dict[str, float]]:
    """Seconds and terms of a plan with two strategies on two stages."""
    resolved = request("8xa100-sxm-80gb", global_batch=16)
    instance = next(i for i in instances(resolved.space, resolved.rates, resolved.memory_bytes) if i.pp == 2)
    first, last = int(instance.rows[0]), int(instance.rows[-1])
    rows = (first,) * (resolved.model.num_layers + 1) + (last,)
    step_s = instance.step_s(rows)
    return step_s, step_terms_of(Assignment(instance, rows, step_s))


def program_s() -> float:
    """Seconds of a step as the integer program of the stages has them."""
    staged = simulated()
    problem = problem_of(staged, np.inf, separate_recompute=False)
    layers = np.array(staged.partition.sizes, dtype=np.float64)[:, None]
    return float(problem.step_s(problem.critical_paths(layers, 0 * layers, 1), layers, 0 * layers))


def bound_s() -> float:
    staged = closed_form()
    return float(lower_bounds.bound(staged.ledger, staged.resolved.rates, states_known=True, shards_known=True)[0][0])


def growth_of(staged: Staged) -> float:
    """The factor of stragglers on a step."""
    return staged.step_s / (staged.step_s - staged.terms["stragglers"])


def with_once_term(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(step.TERMS, NEW, ("new", ()))
    monkeypatch.setitem(step.ONCE_TERMS, NEW, lambda ledger, rates: np.full(len(ledger.layouts), NEW_S))


@pytest.mark.parametrize("of", [closed_form, simulated, cross_island, replicas])
def test_a_term_once_per_step_is_counted_in_every_layout(of: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    before_s = of().step_s
    with_once_term(monkeypatch)
    after = of()
    assert after.step_s - before_s == pytest.approx(growth_of(closed_form()) * NEW_S, rel=1e-9)
    assert after.terms[NEW] == pytest.approx(NEW_S, rel=1e-12)
    assert sum(after.terms.values()) == pytest.approx(after.step_s, rel=1e-12)


def test_a_term_once_per_step_is_counted_in_bounds_and_programs(monkeypatch: pytest.MonkeyPatch) -> None:
    before = bound_s(), program_s()
    with_once_term(monkeypatch)
    added = np.array([bound_s(), program_s()]) - before
    assert added == pytest.approx(growth_of(closed_form()) * NEW_S, rel=1e-9)


def test_a_term_once_per_step_is_counted_with_strategies_by_layer(monkeypatch: pytest.MonkeyPatch) -> None:
    before_s, _ = layerwise()
    with_once_term(monkeypatch)
    after_s, terms = layerwise()
    assert after_s - before_s == pytest.approx(NEW_S, rel=1e-9)  # one node: no stragglers
    assert terms[NEW] == NEW_S
    assert sum(terms.values()) == pytest.approx(after_s, rel=1e-12)


def test_a_term_of_another_kind_is_counted_beside_the_simulation(monkeypatch: pytest.MonkeyPatch) -> None:
    """Such as waiting for longer documents: the simulator has no such operation."""
    before_s, usual = simulated().step_s, step.step_terms

    def with_new(ledger: Ledger, rates: Rates, *, detail: bool = False) -> tuple[dict[str, Array], Ints]:
        terms, slowest = usual(ledger, rates, detail=detail)
        return {**terms, NEW: np.full(len(slowest), NEW_S)}, slowest

    monkeypatch.setattr(step, "step_terms", with_new)
    after = simulated()
    assert after.step_s - before_s == pytest.approx(growth_of(after) * NEW_S, rel=1e-9)
    assert after.terms[NEW] == NEW_S


def test_every_term_is_priced_or_left_out() -> None:
    """A term that fails here: price it in the place that the name of the list says, or list it as left out there."""
    _, priced = layerwise()
    assert set(priced) | ABSENT_TERMS == set(step.TERMS)
    assert not set(priced) & ABSENT_TERMS
    assert PROGRAM_TERMS | LEFT_OUT_TERMS | set(step.ONCE_TERMS) == set(step.TERMS)
    assert not PROGRAM_TERMS & LEFT_OUT_TERMS
    assert set(step.TERMS) >= SIMULATED_TERMS


@pytest.mark.parametrize("name", step.TERMS)
def test_every_term_has_a_source(name: str) -> None:
    """A term that fails here: say where its seconds come from in `_term_sources` of profiles/stack/rates.py."""
    assert source_of(request(), PIPELINE, name) in get_args(Source)
