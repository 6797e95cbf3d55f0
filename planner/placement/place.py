"""Which node holds which ranks, where the links between nodes are not alike.

A layout is priced with the bandwidth that each kind of its groups finds: that of the fastest pair of nodes over x, how
many times slower its slowest row of edges is (`placement/problem.py` has the formulation). The search
before it prices every layout with the least x that any order can give (`optimistic`): a lower bound of all its placed
prices, so that the certificate of the plan covers both choices.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any

import numpy as np

from ...cost_models.arrays import Array
from ...cost_models.layouts import Layout, Layouts
from ...cost_models.quantities.exchanges import OPS
from ...cost_models.rates.collectives import CollectiveRates, LevelRates, OpRates
from ...cost_models.rates.rates import GROUPS, Rates
from ..document.base import rounded
from ..document.candidate import Candidate
from ..document.placement import GroupLinks, NodeOrder, Placement, SlowNode
from ..evaluation.candidates import candidates
from ..evaluation.network import Network
from ..evaluation.staged import Staged
from ..request.resolve import Resolved
from ..search.exhaustive import price_layouts
from .groups import NodeGroups, node_groups
from .problem import OrderProblem
from .search import MANY_NODES, Ordered, best_order

FINALISTS = 16  # layouts that are placed, at least
_SLOW = 0.75  # a node whose best link is below this share of most nodes' is called slow
_FIRST_EFFORT = 0.1
_NOT_THERE = 1e18  # bytes/s: a network that takes no time
_RAW = ("tp_overlap", "dp_overlap", "dp_gather_overlap", "fsdp_overlap", "cp_overlap", "ep_overlap", "contention",
        "straggler_share")  # fmt: skip
_WIRE = LevelRates(ops={op: OpRates(base_s=0.0, hop_s=0.0, efficiency=1.0, ramp=0.0) for op in OPS})


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
            out = sorted(out, key=lambda each: (each.step_s, each.layout_id))[:top]
    if many:
        out[0] = min(place(resolved, out[0].to_layout(), seed), out[0], key=lambda each: each.step_s)
    return tuple(each.model_copy(update={"choice": number}) for number, each in enumerate(out, 1))


def place(resolved: Resolved, layout: Layout, seed: int = 0, effort: float = 1.0) -> Candidate:
    """The candidate of `layout`, priced and placed in the order in which it steps fastest."""
    network, traffic = Network(resolved.cluster), NodeTraffic(resolved, layout)
    listed = tuple(range(resolved.cluster.num_nodes))
    order = best_order(traffic.problem, seed, effort)
    candidate, usual = (_priced(resolved, layout, traffic, nodes) for nodes in (order.nodes, listed))
    turned = order.nodes[::-1]  # takes links as long by the mean of a pipeline, and not by which of them waits
    if layout.pp > 1 and _as_good(traffic, turned, order.nodes):
        other = _priced(resolved, layout, traffic, turned)
        if other.step_s < candidate.step_s:
            candidate, order = other, replace(order, nodes=turned)
    if usual.step_s <= candidate.step_s:  # what the links carry for longer may hide, and what they carry less may not
        candidate, order = usual, replace(order, nodes=listed)
    return candidate.model_copy(update={"placement": Placement(
        hosts=network.hosts, logical_of_rank=rank_map(order.nodes, resolved.cluster.gpus_per_node),
        order=_report(traffic, network, order, usual.step_s),
    )})  # fmt: skip


def _as_good(traffic: NodeTraffic, turned: tuple[int, ...], nodes: tuple[int, ...]) -> bool:
    """Whether links take no longer in the order `turned`."""
    seconds = traffic.problem.seconds(np.array([turned, nodes]))
    return bool(seconds[0] <= seconds[1] * (1.0 + 1e-9))


def rank_map(nodes: tuple[int, ...], gpus_per_node: int) -> tuple[int, ...]:
    """Logical rank of every GPU, those of node 0 first, where nodes[k] sits on slot k."""
    slots = np.argsort(nodes)
    return tuple((slots[:, None] * gpus_per_node + np.arange(gpus_per_node)).ravel().tolist())


def _priced(resolved: Resolved, layout: Layout, traffic: NodeTraffic, nodes: tuple[int, ...]) -> Candidate:
    bw = Network(resolved.cluster).group_bandwidths(traffic.factors(nodes))
    there = replace(resolved, network=bw, nodes=nodes)
    return candidates(there, [Staged.of(there, layout, simulate=True)])[0]


def _report(traffic: NodeTraffic, network: Network, order: Ordered, step_listed_s: float) -> NodeOrder:
    """What the plan says of an order, beside the order of the cluster file."""
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


@dataclass(frozen=True)
class NodeTraffic:
    """What the groups of a layout move between nodes, as if nothing hid it: what hides depends on the software, what
    the links carry does not. All seconds come from pricing steps under other networks (`cost_models/step/step.py`)."""

    resolved: Resolved
    layout: Layout

    @cached_property
    def groups(self) -> tuple[NodeGroups, ...]:
        model = self.resolved.model
        tied = model.tied_embeddings or model.mtp_layers > 0
        return node_groups(self.layout, self.resolved.cluster.gpus_per_node, moe=model.is_moe, tied=tied)

    @cached_property
    def _bare(self) -> Resolved:
        """The request without overlap and stragglers."""
        nothing: dict[str, Any] = dict.fromkeys(_RAW, 0.0)
        return replace(self.resolved, stack=replace(self.resolved.stack, **nothing))

    def _step_s(self, rates: Rates, bw: Mapping[str, float]) -> float:
        columns = Layouts.of([self.layout])
        return float(price_layouts(self._bare.problem, rates.on_network(bw), columns)[1].step_s[0])

    def _per_slowness(self, rates: Rates) -> dict[str, float]:
        """Seconds that each kind of group takes longer per time that its network is slower."""
        network = Network(self.resolved.cluster)
        most = max(float(network.slowness.max()), 2.0)
        best = self._step_s(rates, network.group_bandwidths({}))
        slower = {g.name: self._step_s(rates, network.group_bandwidths({g.name: most})) for g in self.groups}
        return {name: (step_s - best) / (most - 1.0) for name, step_s in slower.items() if step_s > best}

    @cached_property
    def weights(self) -> dict[str, float]:
        """V of each kind of group (`placement/problem.py`)."""
        return self._per_slowness(self._bare.rates)

    @cached_property
    def problem(self) -> OrderProblem:
        network, rates = Network(self.resolved.cluster), self._bare.rates
        best = self._step_s(rates, network.group_bandwidths({}))
        without = self._step_s(rates, dict.fromkeys(GROUPS, _NOT_THERE))
        kinds = tuple((self.weights[g.name], g) for g in self.groups if g.name in self.weights)
        return OrderProblem(network.slowness, kinds, best - without - sum(self.weights.values()))

    def factors(self, nodes: tuple[int, ...]) -> dict[str, float]:
        """Kind of group -> x under an order."""
        found = self.problem.factors(np.array([nodes]))[0]
        return {g.name: float(x) for (_, g), x in zip(self.problem.kinds, found, strict=True)}

    @cached_property
    def slot_bytes(self) -> Array:
        """[from slot, to slot] bytes of a step: those on the wire of each kind, spread over its edges."""
        cluster = self.resolved.cluster
        wire = replace(self._bare.rates, collectives=CollectiveRates(kinds={}, inner=_WIRE, outer=_WIRE))
        per_second = Network(cluster).fastest * cluster.gpus_per_node
        out = np.zeros((cluster.num_nodes, cluster.num_nodes))
        for name, seconds in self._per_slowness(wire).items():
            groups = next(g for g in self.groups if g.name == name)
            if groups.way == "chain":
                self._add_messages(out, groups)
            else:
                sender, receiver = np.unique(groups.edges, axis=0).T
                each = seconds * per_second / np.bincount(sender, minlength=cluster.num_nodes)[sender]
                out[sender, receiver] += each
        return out

    def _add_messages(self, out: Array, groups: NodeGroups) -> None:
        """Activations to the next stage and their gradients back, of every micro-batch and chunk."""
        columns = Layouts.of([self.layout])
        batch, _ = price_layouts(self._bare.problem, self._bare.rates, columns)
        chains = min(self.layout.num_gpus // self.layout.pp, self.resolved.cluster.gpus_per_node)
        chunks = self.layout.vpp if self.layout.pp > 1 else 1
        each = float(batch.tables.message[batch.key[0]] * batch.m[0]) * chunks * chains
        edges = np.unique(groups.edges[groups.edges[:, 0] != groups.edges[:, 1]], axis=0)
        out[edges[:, 0], edges[:, 1]] += each
        out[edges[:, 1], edges[:, 0]] += each

    def sent_bytes(self, nodes: tuple[int, ...]) -> list[float]:
        """[node] bytes that it sends to others in a step."""
        return [float(self.slot_bytes[slot].sum()) for slot in np.argsort(nodes)]
