"""Exchanges of replicas over a graph: known graphs by hand, best rates beside a local search, and what is no graph."""

from __future__ import annotations

from math import cos, pi, sqrt

import numpy as np
import pytest
from meshwright.cost_models.quantities.gossip import SHAPES, Gossip, Link, of_shape, parts
from meshwright.cost_models.quantities.gossip import complete as closed_form
from meshwright.planner.document.plan import Plan
from meshwright.planner.studies.compare import Comparison
from meshwright.planner.studies.gossip import GossipStudy, best_rates

import meshwright as mw
from meshwright.errors import InputError

TREES = [(0, 1), (1, 2), (1, 3), (3, 4), (3, 5), (0, 5)]


def equal(replicas: int, links: list[Link]) -> Gossip:
    return Gossip(replicas, links, np.ones(len(links)))


@pytest.mark.parametrize("n", [3, 8, 20])
def test_known_graphs(n: int) -> None:
    """Algebraic connectivity and resistances of graph theory."""
    complete, ring, line, star = (equal(n, of_shape(shape, n)) for shape in SHAPES)

    assert (complete.chi_1, complete.chi_2) == pytest.approx((1 / n, 1 / n))
    assert (ring.chi_1, ring.chi_2) == pytest.approx((1 / (2 - 2 * cos(2 * pi / n)), (n - 1) / n / 2))
    assert (line.chi_1, line.chi_2) == pytest.approx((1 / (2 - 2 * cos(pi / n)), 1 / 2))
    assert (star.chi_1, star.chi_2) == pytest.approx((1, 1 / 2))
    assert complete.exchanges == pytest.approx(sqrt(2) * (n - 1) / n)
    scaled = Gossip(n, complete.links, complete.per_step)
    assert closed_form(n) == pytest.approx((scaled.chi_1, complete.exchanges))
    assert closed_form(n)[0] == pytest.approx(scaled.chi_2)


@pytest.mark.parametrize("n", [3, 8, 20])
def test_the_busiest_replica(n: int) -> None:
    """The hub of a star has all links, a replica of a ring as many as any other."""
    star, ring = (equal(n, of_shape(shape, n)) for shape in ("star", "ring"))

    assert star.busiest == pytest.approx(star.exchanges * n / 2)
    assert ring.busiest == pytest.approx(ring.exchanges)


def test_exchanges_depend_on_ratios_of_rates_alone() -> None:
    rates = np.array([1.0, 5, 2, 3, 4, 0.5])
    one, other = Gossip(6, TREES, rates), Gossip(6, TREES, 7 * rates)

    assert one.exchanges == pytest.approx(other.exchanges)
    scaled = Gossip(6, TREES, one.per_step)
    assert scaled.chi_1 * scaled.chi_2 == pytest.approx(1 / 2)


@pytest.mark.parametrize("shape", SHAPES)
def test_no_rates_are_better_where_all_links_look_alike(shape: str) -> None:
    """Or on a line, whose ends have the largest resistance and whose middle is the bottleneck."""
    links = of_shape(shape, 7)

    assert best_rates(7, links).exchanges == pytest.approx(equal(7, links).exchanges, rel=2e-3)


def test_no_search_beats_the_best_rates() -> None:
    links = [*of_shape("complete", 4), (3, 4), (4, 5), (5, 6), (4, 6)]
    best, random = best_rates(7, links), np.random.default_rng(0)
    least, rates = best.exchanges, best.rates
    for _ in range(1500):
        tried = rates * np.exp(random.normal(0, 0.05, len(links)))
        if (found := Gossip(7, links, tried).exchanges) < least:
            least, rates = found, tried

    assert best.exchanges < 0.9 * equal(7, links).exchanges
    assert least > 0.995 * best.exchanges


def test_resistances_by_the_pseudo_inverse() -> None:
    rates = np.array([1.0, 5, 2, 3, 4, 0.5])
    gossip, incidence = Gossip(6, TREES, rates), np.zeros((6, 6))
    for link, (i, j) in enumerate(TREES):
        incidence[link, i], incidence[link, j] = 1, -1
    every = incidence @ np.linalg.pinv(incidence.T @ np.diag(rates) @ incidence) @ incidence.T

    assert gossip.resistances == pytest.approx(np.diagonal(every))
    assert gossip.across(2) == pytest.approx(every[2])


def test_parts() -> None:
    assert parts(5, [(0, 3), (1, 2)]) == [[0, 3], [1, 2], [4]]


@pytest.fixture(scope="module")
def plan() -> Plan:
    nodes = {"groups": [{"name": "single", "gpu": "h100-sxm-80gb", "gpus_per_node": 1, "count": 8}],
             "links": {"inter_node": {"bandwidth": "1 Gb/s"}}}  # fmt: skip
    return mw.evaluate(None, "dp8-mbs1-z0-rnone", model="llama-3.2-1b", cluster=nodes, global_batch=8, seq_len=1024,
                       target="any", technique="noloco")  # fmt: skip


def test_a_step_takes_longer_with_more_exchanges(plan: Plan) -> None:
    study = mw.what_if(plan, study="gossip", assume={"graph": "line"})
    assert isinstance(study, GossipStudy)
    line, _, complete = study.rows

    assert line.exchanges == pytest.approx(equal(8, of_shape("line", 8)).exchanges)
    assert line.held.step_s > complete.held.step_s
    assert len(study.links) == 7


def test_the_busiest_replica_paces_a_step(plan: Plan) -> None:
    """The hub of a star of 8 has four times the exchanges of the mean replica, over links that hide nothing."""
    study = mw.what_if(plan, study="gossip", assume={"graph": "star"})
    assert isinstance(study, GossipStudy)
    star = study.rows[0]
    hub, mean = (mw.what_if(plan, set={"workload.techniques": f"dadao:exchanges={number}"})
                 for number in (star.busiest, star.exchanges))  # fmt: skip
    assert isinstance(hub, Comparison)
    assert isinstance(mean, Comparison)

    assert star.held.step_s == pytest.approx(hub.after.held.step_s, rel=1e-6)
    assert star.held.step_s > 3 * mean.after.held.step_s


@pytest.mark.parametrize(
    ("graph", "message"),
    [("0-1,1-2,2-3,4-5,5-6,6-7", "it falls into 2 parts: 0, 1, 2, 3; 4, 5, 6, 7"),
     ("0-1,2-2", "`2-2` joins no two of the 8 replicas"), ("0-1,1-8", "`1-8` joins no two of the 8 replicas"),
     ("0-1,1-0", "`1-0` is there twice"), ("mesh", "`mesh` joins no two"), (",", "8 parts")],
)  # fmt: skip
def test_what_is_no_graph(plan: Plan, graph: str, message: str) -> None:
    with pytest.raises(InputError, match=message):
        mw.what_if(plan, study="gossip", assume={"graph": graph})


def test_one_replica_and_other_assumptions(plan: Plan) -> None:
    alone = mw.evaluate(None, "tp8-dp1-mbs1-z0-rnone", model="llama-3.2-1b", cluster="8xh100-sxm-80gb", global_batch=8)
    with pytest.raises(InputError, match="the plan has one replica"):
        mw.what_if(alone, study="gossip")
    with pytest.raises(InputError, match="unknown assumption `grph`"):
        mw.what_if(plan, study="gossip", assume={"grph": "ring"})
