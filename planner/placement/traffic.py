"""Seconds and bytes of a layout's groups of ranks between nodes: the weights of the placement problem."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any

import numpy as np

from ...cost_models.arrays import Array
from ...cost_models.layouts import Layout, Layouts
from ...cost_models.quantities.exchanges import OPS
from ...cost_models.quantities.stages import chunks_per_stage
from ...cost_models.rates.collectives import CollectiveRates, LevelRates, OpRates
from ...cost_models.rates.rates import GROUPS, Rates
from ..evaluation.network import Network
from ..request.resolve import Resolved
from ..search.pricing import price_layouts
from .groups import NodeGroups, node_groups
from .problem import OrderProblem

_INFINITE_BW = 1e18  # bytes/s: a network that takes no time
# Shares of the software that hide or stretch communication: without them, seconds are those of the links.
_RAW = ("tp_overlap", "sequence_parallel_overlap", "dp_overlap", "dp_gather_overlap", "fsdp_overlap", "cp_overlap",
        "ep_overlap", "ep_overlap_beside", "contention", "straggler_share")  # fmt: skip
_WIRE = LevelRates(ops={op: OpRates(base_s=0.0, hop_s=0.0, efficiency=1.0, ramp=0.0) for op in OPS})


@dataclass(frozen=True)
class NodeTraffic:
    """Traffic of a layout's groups between nodes, without overlap: how much overlaps depends on the software, the
    traffic itself does not. Messages of a pipeline take seconds where its first and last micro-batches wait for them;
    `slot_bytes` counts all. All seconds are differences of step prices under different networks (`step.price`)."""

    resolved: Resolved  # the request
    layout: Layout  # the one to be placed

    @cached_property
    def groups(self) -> tuple[NodeGroups, ...]:
        model = self.resolved.model
        tied = model.tied_embeddings or model.mtp_layers > 0 or model.encoder is not None
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
        """Seconds that each kind of group takes longer if its network becomes one time slower."""
        network = Network(self.resolved.cluster)
        slowest = max(float(network.slowness.max()), 2.0)
        best_s = self._step_s(rates, network.group_bandwidths({}))
        steps_s = {g.name: self._step_s(rates, network.group_bandwidths({g.name: slowest})) for g in self.groups}
        return {name: (step_s - best_s) / (slowest - 1.0) for name, step_s in steps_s.items() if step_s > best_s}

    @cached_property
    def weights(self) -> dict[str, float]:
        """V of each kind of group (`placement/problem.py`)."""
        return self._per_slowness(self._bare.rates)

    @cached_property
    def problem(self) -> OrderProblem:
        network, rates = Network(self.resolved.cluster), self._bare.rates
        best_s = self._step_s(rates, network.group_bandwidths({}))
        compute_s = self._step_s(rates, dict.fromkeys(GROUPS, _INFINITE_BW))
        kinds = tuple((self.weights[g.name], g) for g in self.groups if g.name in self.weights)
        # All factors are 1 on the best network, where the problem must give the communication of the step.
        return OrderProblem(network.slowness, kinds, best_s - compute_s - sum(self.weights.values()))

    def factors(self, nodes: tuple[int, ...]) -> dict[str, float]:
        """Kind of group -> x under an order."""
        factors = self.problem.factors(np.array([nodes]))[0]
        return {g.name: float(x) for (_, g), x in zip(self.problem.kinds, factors, strict=True)}

    @cached_property
    def slot_bytes(self) -> Array:
        """[from slot, to slot] bytes of a step: those on the wire of each kind, spread over its edges."""
        cluster = self.resolved.cluster
        wire = replace(self._bare.rates, collectives=CollectiveRates(kinds={}, inner=_WIRE, outer=_WIRE))
        per_second = Network(cluster).fastest * cluster.gpus_per_node
        out = np.zeros((cluster.num_nodes, cluster.num_nodes))
        for name, seconds in self._per_slowness(wire).items():
            groups = next(g for g in self.groups if g.name == name)
            if groups.pattern == "chain":
                out += self._message_bytes(groups)
            else:
                sender, receiver = np.unique(groups.edges, axis=0).T
                edges_of_sender = np.bincount(sender, minlength=cluster.num_nodes)[sender]
                out[sender, receiver] += seconds * per_second / edges_of_sender
        return out

    def _message_bytes(self, groups: NodeGroups) -> Array:
        """[from slot, to slot] bytes of activations to the next stage and of their gradients back, in a step."""
        columns, cluster = Layouts.of([self.layout]), self.resolved.cluster
        ledger, _ = price_layouts(self._bare.problem, self._bare.rates, columns)
        chains = min(self.layout.num_gpus // self.layout.pp, cluster.gpus_per_node)
        message_bytes = float(ledger.tables.message[ledger.key[0]] * ledger.m[0])
        edge_bytes = message_bytes * chunks_per_stage(self.layout) * chains
        edges = np.unique(groups.edges[groups.edges[:, 0] != groups.edges[:, 1]], axis=0)
        out = np.zeros((cluster.num_nodes, cluster.num_nodes))
        out[edges[:, 0], edges[:, 1]] += edge_bytes
        out[edges[:, 1], edges[:, 0]] += edge_bytes
        return out

    def sent_bytes(self, nodes: tuple[int, ...]) -> list[float]:
        """[node] bytes that it sends to others in a step."""
        return [float(self.slot_bytes[slot].sum()) for slot in np.argsort(nodes)]
