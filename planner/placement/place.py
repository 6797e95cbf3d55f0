"""The node of every rank, where the links between nodes differ.

A layout is priced with the bandwidth that each kind of its groups has in an order of the nodes: that of the fastest
pair of nodes over x, where x is how many times slower its slowest row of edges is (problem.py has the formulation). The
search before it prices every layout with the least x that any order can give (`optimistic`). That is a lower bound of
all its placed prices, so the certificate of the plan covers both choices.
"""

from __future__ import annotations

from dataclasses import replace

import numpy as np

from ...cost_models.layouts import Layout
from ..document.base import rounded
from ..document.candidate import Candidate
from ..document.placement import GroupLinks, NodeOrder, Placement, SlowNode
from ..evaluation.candidates import candidates
from ..evaluation.network import Network
from ..evaluation.staged import Staged
from ..request.resolve import Resolved
from .search import MANY_NODES, Ordered, best_order
from .traffic import NodeTraffic

FINALISTS = 16  # layouts that are placed, at least
_SLOW = 0.75  # a node whose best link is below this share of most nodes' is called slow
_FIRST_EFFORT = 0.1  # share of the full effort, for layouts of many nodes until the best is known


def placed(
    resolved: Resolved, layouts: list[Layout], bounds: list[float], top: int, seed: int
) -> tuple[Candidate, ...]:
    """The best `top` of `layouts`, each with its nodes in the best order found. bounds: their prices at best, rising:
    a layout whose bound is above the `top`-th price is not placed any more. Of many nodes only the best is placed with
    the full effort."""
    out: list[Candidate] = []
    by_memory = resolved.workload.objective == "memory"
    many = resolved.cluster.num_nodes > MANY_NODES
    for layout, bound in zip(layouts, bounds, strict=True):
        if len(out) == top and (by_memory or bound > out[-1].step_s):
            break
        out.append(place(resolved, layout, seed, _FIRST_EFFORT if many else 1.0))
        if not by_memory:
            out = sorted(out, key=lambda choice: (choice.step_s, choice.layout_id))[:top]
    if many:
        out[0] = min(place(resolved, out[0].to_layout(), seed), out[0], key=lambda choice: choice.step_s)
    return tuple(choice.model_copy(update={"choice": number}) for number, choice in enumerate(out, 1))


def place(resolved: Resolved, layout: Layout, seed: int = 0, effort: float = 1.0) -> Candidate:
    """The candidate of `layout`, priced and placed in the order in which its step is shortest.

    The search of orders minimises seconds on the links. Some of them hide, which it does not see. So three orders are
    priced in full: the best one, the best one backwards, and that of the cluster file.
    """
    network, traffic = Network(resolved.cluster), NodeTraffic(resolved, layout)
    listed = tuple(range(resolved.cluster.num_nodes))
    order = best_order(traffic.problem, seed, effort)
    candidate, usual = (_priced(resolved, layout, traffic, nodes) for nodes in (order.nodes, listed))
    backwards = order.nodes[::-1]  # the same mean over the edges of a pipeline, but another stage waits for a slow link
    if layout.pp > 1 and _as_good(traffic, backwards, order.nodes):
        other = _priced(resolved, layout, traffic, backwards)
        if other.step_s < candidate.step_s:
            candidate, order = other, replace(order, nodes=backwards)
    if usual.step_s <= candidate.step_s:
        candidate, order = usual, replace(order, nodes=listed)
    return candidate.model_copy(update={"placement": Placement(
        hosts=network.hosts, logical_of_rank=rank_map(order.nodes, resolved.cluster.gpus_per_node),
        order=_report(traffic, network, order, usual.step_s),
    )})  # fmt: skip


def _as_good(traffic: NodeTraffic, other: tuple[int, ...], nodes: tuple[int, ...]) -> bool:
    """Whether links take no longer in the order `other`."""
    seconds = traffic.problem.seconds(np.array([other, nodes]))
    return bool(seconds[0] <= seconds[1] * (1.0 + 1e-9))


def rank_map(nodes: tuple[int, ...], gpus_per_node: int) -> tuple[int, ...]:
    """Logical rank of every GPU, those of node 0 first, where nodes[k] sits on slot k."""
    slots = np.argsort(nodes)
    return tuple((slots[:, None] * gpus_per_node + np.arange(gpus_per_node)).ravel().tolist())


def _priced(resolved: Resolved, layout: Layout, traffic: NodeTraffic, nodes: tuple[int, ...]) -> Candidate:
    bandwidths = Network(resolved.cluster).group_bandwidths(traffic.factors(nodes))
    on_nodes = replace(resolved, network=bandwidths, nodes=nodes)
    return candidates(on_nodes, [Staged.of(on_nodes, layout, simulate=True)])[0]


def _report(traffic: NodeTraffic, network: Network, order: Ordered, step_listed_s: float) -> NodeOrder:
    """An order in the plan, beside that of the cluster file."""
    listed = tuple(range(len(order.nodes)))
    now, before = traffic.factors(order.nodes), traffic.factors(listed)
    sent, sent_listed = (traffic.sent_bytes(nodes) for nodes in (order.nodes, listed))
    shares = network.shares()
    slow = [SlowNode(host=network.hosts[node], share=rounded(float(shares[node])), sent_bytes=rounded(sent[node]),
                     sent_listed_bytes=rounded(sent_listed[node]))
            for node in np.argsort(shares, kind="stable").tolist()
            if shares[node] < _SLOW * np.median(shares)]  # fmt: skip
    kinds = [GroupLinks(name=name, per_slowness_s=rounded(weight), slowdown=rounded(now[name]),
                        slowdown_listed=rounded(before[name]))
             for name, weight in traffic.weights.items()]  # fmt: skip
    values = traffic.problem.seconds(np.array([order.nodes, listed]))
    return NodeOrder(
        nodes=order.nodes, network_s=rounded(float(values[0])), network_listed_s=rounded(float(values[1])),
        network_least_s=rounded(min(order.lower_bound_s, float(values[0]))), proven=order.proven,
        step_listed_s=step_listed_s, kinds=tuple(kinds), slow=tuple(slow),
        fastest_bytes_per_s=rounded(network.fastest * traffic.resolved.cluster.gpus_per_node),
        slowest_bytes_per_s=rounded(network.fastest * traffic.resolved.cluster.gpus_per_node / network.slowness.max()),
    )  # fmt: skip
