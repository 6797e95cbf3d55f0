"""The order of nodes over unequal links: optimal where that can be checked, bounded elsewhere, and in the plan."""

from __future__ import annotations

import itertools
import re
from dataclasses import replace
from functools import cache

import numpy as np
import pytest
from meshwright.cli.screens.placement import order_lines
from meshwright.cost_models.arrays import Ints
from meshwright.cost_models.layouts import Layouts, parse
from meshwright.cost_models.rates.rates import GROUPS
from meshwright.planner import api
from meshwright.planner.document.plan import Plan
from meshwright.planner.document.reading import read_plan
from meshwright.planner.evaluation.network import Network
from meshwright.planner.evaluation.staged import Staged
from meshwright.planner.explain.stage_loads import stage_loads
from meshwright.planner.placement.bounds import least_factors
from meshwright.planner.placement.groups import node_groups
from meshwright.planner.placement.place import place, rank_map
from meshwright.planner.placement.problem import OrderProblem
from meshwright.planner.placement.search import best_order, branch_and_bound
from meshwright.planner.placement.traffic import NodeTraffic
from meshwright.planner.request.load import load_request
from meshwright.planner.request.resolve import Resolved, resolve
from meshwright.planner.search.pricing import price_layouts
from meshwright.planner.studies.what_if import what_if
from meshwright.planner.targets.emit import emit

from ...snapshots import ROOT

BAD_NIC = ROOT / "examples" / "bad_nic.yaml"
WEIGHTS = {"pp": 1.0, "shard": 2.0, "replicate": 1.5, "ep": 3.0, "etp": 2.5, "expert_shard": 0.5,
           "expert_replicate": 0.5}  # fmt: skip


def problem(layout_id: str, seed: int, *, moe: bool = False) -> OrderProblem:
    """Links of a share drawn from 1, .85, .6 and .35, each direction by itself, under the groups of a layout."""
    layout = parse(layout_id)
    shares = np.random.default_rng(seed).choice([1.0, 0.85, 0.6, 0.35], (layout.num_gpus // 8,) * 2)
    slowness = shares.max() / shares
    np.fill_diagonal(slowness, 1.0)
    groups = node_groups(layout, 8, moe=moe, tied=False)
    return OrderProblem(slowness, tuple((WEIGHTS[g.name], g) for g in groups))


def every_order(n: int) -> Ints:
    return np.array(list(itertools.permutations(range(n))))


def by_hand(asked: OrderProblem, order: tuple[int, ...]) -> float:
    """The objective in plain loops, from the words of its docstring."""
    total, f = asked.fixed, asked.slowness
    for weight, groups in asked.kinds:
        rows: dict[int, list[float]] = {}
        for index, (s, t) in enumerate(groups.edges.tolist()):
            i, j = order[s], order[t]
            there, back = float(f[i, j]), float(f[j, i])
            value = {"ring": max(there, back), "chain": (there + back) / 2, "pairs": there}[groups.pattern]
            row = max(r for r, start in enumerate(groups.starts.tolist()) if start <= index)
            rows.setdefault(row, []).append(value)
        total += weight * max(sum(row) / len(row) for row in rows.values())
    return total


CASES = (("tp8-pp4-dp2-mbs1-z1-rfull", False), ("tp8-pp2-dp4-mbs1-z3-rfull", False),
         ("tp4-pp2-dp8-ep8-mbs1-z1-rfull", True), ("pp2-dp32-ep2-etp16-mbs1-z1-rfull", True))  # fmt: skip


@pytest.mark.parametrize(("layout_id", "moe"), CASES)
@pytest.mark.parametrize("seed", [0, 1])
def test_eight_nodes_get_the_exact_optimum(layout_id: str, moe: bool, seed: int) -> None:
    asked = problem(layout_id, seed, moe=moe)
    found, orders = best_order(asked), every_order(8)
    values = asked.seconds(orders)
    assert found.proven
    assert found.seconds == pytest.approx(values.min(), rel=1e-9)
    assert found.lower_bound_s <= values.min() * (1 + 1e-9)
    assert by_hand(asked, found.nodes) == pytest.approx(found.seconds)
    assert by_hand(asked, tuple(orders[1234])) == pytest.approx(values[1234])
    # No kind by itself gets below its bound, whatever the order.
    assert (least_factors(asked) <= asked.factors(orders).min(axis=0) + 1e-9).all()


@pytest.mark.parametrize(("layout_id", "moe"), CASES)
def test_branch_and_bound_finds_the_optimum_by_itself(layout_id: str, moe: bool) -> None:
    asked = problem(layout_id, 2, moe=moe)
    values = asked.seconds(every_order(8))
    listed = np.arange(8)
    order, value, proven = branch_and_bound(asked, least_factors(asked), listed, float(values.min()) * (1 + 1e-6))
    assert proven
    assert value == pytest.approx(values.min())
    assert asked.seconds(order[None])[0] == pytest.approx(values.min())


def test_the_rank_map_says_what_each_gpu_of_the_cluster_acts_as() -> None:
    """Node 1 stands first, then 2, then 0: the GPUs of node 0 act as the last ranks."""
    assert rank_map((1, 2, 0), 2) == (4, 5, 0, 1, 2, 3)


def test_sixteen_nodes_beat_random_orders_as_published() -> None:
    """Pipette's check: 1.4 times less than the mean random order or better."""
    rng = np.random.default_rng(1)
    orders = np.array([rng.permutation(16) for _ in range(500)])
    for seed in range(2):
        asked = problem("tp8-pp4-dp4-mbs1-z1-rfull", seed)
        found = best_order(asked)
        assert asked.seconds(orders).mean() / found.seconds > 1.5
        assert asked.seconds(orders).min() > found.seconds >= found.lower_bound_s
        assert found == best_order(asked)


def test_many_nodes_are_ordered_by_exchanges() -> None:
    asked = problem("tp8-pp8-dp12-mbs1-z1-rfull", 0)
    found = best_order(asked)
    assert sorted(found.nodes) == list(range(96))
    rng = np.random.default_rng(0)
    mean = asked.seconds(np.array([rng.permutation(96) for _ in range(100)])).mean()
    assert mean / found.seconds > 1.5
    assert found.lower_bound_s <= found.seconds


def test_nodes_that_are_alike_stay_where_they_are() -> None:
    slowness = np.ones((8, 8))
    slowness[3], slowness[:, 3], slowness[3, 3] = 4.0, 4.0, 1.0
    groups = node_groups(parse("tp8-pp8-dp1-mbs1-z0-rfull"), 8, moe=False, tied=False)
    found = best_order(OrderProblem(slowness, tuple((1.0, g) for g in groups)))
    assert sum(node != slot for slot, node in enumerate(found.nodes)) == 2
    assert found.nodes.index(3) in (0, 7)  # at an end of the pipeline: one slow link instead of two


@pytest.mark.parametrize(
    ("layout_id", "named"),
    [
        ("tp8-pp4-dp2-mbs1-z1-rfull", {"pp": 6, "shard": 8}),  # two pipelines of three hops; four pairs, both ways
        ("tp8-dp8-mbs1-z1-rfull", {"shard": 8}),
        ("tp8-dp8-sh2-mbs1-z1-rfull", {"shard": 8, "replicate": 8}),
        ("tp4-pp8-dp2-mbs1-z1-rfull", {"pp": 7}),  # dp stays inside the nodes
        ("pp2-dp32-mbs1-z1-rfull", {"pp": 4, "shard": 8}),  # two rings of four nodes
    ],
)
def test_groups_of_a_layout_on_eight_nodes(layout_id: str, named: dict[str, int]) -> None:
    found = {g.name: len(g.edges) for g in node_groups(parse(layout_id), 8, moe=False, tied=False)}
    assert found == named


@pytest.mark.parametrize("layout_id", ["tp2-pp2-dp8-ep8-mbs1-z1-rsel", "pp2-dp16-ep2-etp8-mbs1-z1-rsel",
                                       "dp32-etp32-mbs1-z0-rsel", "cp8u-dp4-ep16-mbs1-z1-rsel",
                                       "cp8r-dp4-ep8-mbs1-z1-rsel"])  # fmt: skip
def test_every_group_of_a_price_is_placed(layout_id: str) -> None:
    """A step whose placed groups all have links of half the bandwidth takes as long as one where all groups have."""
    asked = {"model": "qwen3-30b-a3b", "cluster": str(BAD_NIC)}
    traffic = NodeTraffic(resolve(load_request(None, asked)), parse(layout_id))
    network, rates = Network(traffic.resolved.cluster), traffic.resolved.rates
    placed, every, none = (traffic._step_s(rates, network.group_bandwidths(dict.fromkeys(names, 2.0)))
                           for names in ([g.name for g in traffic.groups], GROUPS, []))  # fmt: skip
    assert placed == every > none


@cache
def request() -> Resolved:
    # Where chunks go round, every stage sends in both directions: only the ends of a plain pipeline send less.
    asked = {"model": "llama-3-70b", "cluster": str(BAD_NIC), "top": 3, "fix": {"schedule": "1f1b"}}
    return resolve(load_request(None, asked))


@cache
def bad_nic_plan() -> Plan:
    return api.plan(request().request)


def test_the_plan_puts_the_slow_node_where_it_sends_least() -> None:
    best = bad_nic_plan().best
    order = best.placement.order
    assert order is not None
    assert best.placement.hosts[3] == "gpu-03"
    assert order.nodes.index(3) in (0, 7)
    assert best.placement.logical_of_rank is not None
    assert best.placement.logical_of_rank[3 * 4] == 4 * order.nodes.index(3)
    assert [node.host for node in order.slow] == ["gpu-03"]
    assert order.slow[0].sent_bytes == pytest.approx(order.slow[0].sent_listed_bytes / 2)
    assert order.network_s < order.network_listed_s
    assert best.step_s < order.step_listed_s
    assert order.proven
    assert read_plan(bad_nic_plan().to_json(), "plan") == bad_nic_plan()


def test_the_screen_names_the_messages_that_count() -> None:
    """All messages of the slow node alone take longer than the wait: 25 Gb/s carry half of its bytes per direction."""
    best = bad_nic_plan().best
    order = best.placement.order
    assert order is not None
    assert order.network_s < order.slow[0].sent_bytes / order.slowest_bytes_per_s
    said = " ".join(" ".join(order_lines(best)).split())
    assert "Without overlap, a step would wait" in said
    assert "messages of the pipeline count where its first and last micro-batches wait for them" in said
    flat = best.model_copy(update={"layout": {**best.layout, "pp": 1, "dp": 4 * best.to_layout().dp}})
    assert flat.to_layout().pp == 1
    assert "messages of the pipeline" not in " ".join(" ".join(order_lines(flat)).split())


def test_the_certificate_bounds_every_layout_in_every_order() -> None:
    """What the search priced is below what any order of the nodes gives."""
    found, rng = request(), np.random.default_rng(0)
    least = replace(found, network=Network(found.cluster).least)
    listed = {candidate.to_layout(): candidate.step_s for candidate in bad_nic_plan().candidates}
    for layout in (*listed, parse("tp4-dp8-mbs1-z1-rfull"), parse("tp4-pp2-dp4-sh2-mbs1-z1-rfull")):
        traffic = NodeTraffic(found, layout)
        bound = float(price_layouts(least.problem, least.rates, Layouts.of([layout]))[1].step_s[0])
        for _ in range(5):
            nodes = tuple(int(node) for node in rng.permutation(8))
            bandwidths = Network(found.cluster).group_bandwidths(traffic.factors(nodes))
            placed = replace(found, network=bandwidths, nodes=nodes)
            price = float(price_layouts(placed.problem, placed.rates, Layouts.of([layout]))[1].step_s[0])
            simulated = Staged.of(placed, layout, simulate=True).step_s
            assert bound <= min(price, simulated) * (1 + 1e-9)
            assert listed.get(layout, 0.0) <= simulated * (1 + 1e-8)


def test_a_slow_link_is_where_its_node_stands() -> None:
    """A pipeline whose node of a slow link stands first sends over one slow link, and over two where it is inside."""
    found, layout = request(), parse("tp4-pp8-dp1-mbs1-z1-rfull")
    slow = int(np.argmax(Network(found.cluster).slowness.sum(axis=1)))
    others = [node for node in range(8) if node != slow]
    way = {at: (*others[:at], slow, *others[at:]) for at in (0, 4)}
    hops = {}
    for at, nodes in way.items():
        placed = replace(found, network=Network(found.cluster).group_bandwidths({}), nodes=nodes)
        costs = Staged.of(placed, layout, simulate=True).costs
        hops[at] = [costs.forward_hop_s[1:], costs.backward_hop_s[:-1]]
        usual = min(costs.forward_hop_s)
        assert all(np.flatnonzero(np.array(each) > 1.01 * usual).tolist() == ([0] if at == 0 else [3, 4])
                   for each in hops[at])  # fmt: skip
    proof = bad_nic_plan().certificate
    assert proof.lower_bound_s is not None
    assert proof.lower_bound_s <= bad_nic_plan().best.step_s


def test_a_plan_is_as_its_evaluation() -> None:
    best = bad_nic_plan().best
    assert api.evaluate(request().request, best.layout_id).best == best
    assert place(request(), best.to_layout()).step_s == best.step_s


def test_bytes_that_a_node_sends_are_those_of_the_formulas() -> None:
    """dp 8 over 8 nodes: reduce-scatter of gradients and all-gather of weights, (n-1)/n of each from every node."""
    resolved = request()
    traffic = NodeTraffic(resolved, parse("tp4-dp8-mbs1-z1-rfull"))
    batch, _ = price_layouts(resolved.problem, resolved.rates, Layouts.of([traffic.layout]))
    dense = float(batch.trained[0][0][0])
    states = resolved.problem.state_bytes
    expected = 4 * dense * (states.gradient + states.weight) * 7 / 8
    assert traffic.sent_bytes(tuple(range(8))) == pytest.approx([expected] * 8, rel=1e-6)


@pytest.mark.parametrize(("launcher", "name"), [("hostfile", "hostfile"), ("slurm", "hosts"), ("torchrun", "hosts")])
def test_launch_files_have_the_hosts_in_the_order_of_the_ranks(launcher: str, name: str) -> None:
    plan = bad_nic_plan()
    order = plan.best.placement.order
    assert order is not None
    placed = [plan.best.placement.hosts[node] for node in order.nodes]
    assert placed != list(plan.best.placement.hosts)
    listed = [line.split()[0] for line in emit(plan, "megatron", launcher).files[name].splitlines()]
    assert listed == placed
    # Our own runtime renumbers ranks itself: its hosts stay as the cluster lists them.
    own = [line.split()[0] for line in emit(plan, "meshwright", launcher).files[name].splitlines()]
    assert own == list(plan.best.placement.hosts)


def test_an_explanation_prices_on_the_links_of_the_plan() -> None:
    best = bad_nic_plan().best
    found = stage_loads(request().request, best)
    assert found.step_s == pytest.approx(best.step_s, rel=0.03)  # 494 s if every link were the slowest
    assert not found.can_split


def test_a_study_says_that_it_does_not_place() -> None:
    """The note compares two closed forms, also where the simulator is far from that of the plan."""
    plan = bad_nic_plan()
    best, placed_s = plan.best, plan.best.closed_form_s
    far = best.model_copy(update={"step_s": 2 * best.step_s})
    found = what_if(plan.model_copy(update={"candidates": (far, *plan.candidates[1:])}),
                    set=["workload.global_batch=256"])  # fmt: skip
    note = next(note for note in found.notes if "Every link counts as the slowest" in note)
    gives = re.search(r"gives ([\d.]+) s by the closed form where the plan, .* has ([\d.]+) s", note)
    assert placed_s is not None
    assert gives is not None
    assert float(gives[2]) == pytest.approx(placed_s, rel=1e-3)
    assert placed_s < float(gives[1]) < 1.2 * placed_s
    assert not any("plan again" in warning for warning in found.warnings)


def test_hosts_without_names_are_told() -> None:
    plan = bad_nic_plan()
    bare = {**plan.resolved, "cluster": {k: v for k, v in plan.resolved["cluster"].items() if k != "hosts"}}
    warnings = emit(plan.model_copy(update={"resolved": bare}), "megatron").warnings
    assert any("names no hosts" in warning for warning in warnings)
