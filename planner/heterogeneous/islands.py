"""The islands of a heterogeneous cluster as requests of their own, and messages over the bridges between them."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import cached_property

import numpy as np

from ...cost_models.build_ledger import build_totals
from ...cost_models.problem import Problem
from ...cost_models.quantities.exchanges import Op
from ...cost_models.rates import collectives
from ...cost_models.rates.collectives import Curve
from ...cost_models.rates.rates import Rates
from ...cost_models.specs.cluster import Bridge, ClusterSpec, NetworkLevel
from ...cost_models.step.optimizer_seconds import reductions_s
from ...errors import InputError
from ...profiles.stack.rates import rates_for
from ..evaluation.staged import Staged
from ..request.resolve import Resolved

MOST_ISLANDS = 4  # that a plan compares


def applies(resolved: Resolved) -> bool:
    """Whether a request is planned island by island: a cluster of several islands, to be trained on fast, by usual
    training."""
    cluster, workload = resolved.cluster, resolved.workload
    usual = workload.objective != "memory" and not workload.techniques and cluster.links is None
    return usual and 0 < len(cluster.islands) <= MOST_ISLANDS


@dataclass(frozen=True, eq=False)
class IslandPart:
    """One island."""

    number: int  # its index in the cluster
    name: str  # as in the cluster file
    alone: Resolved  # the request on this island alone

    @property
    def num_gpus(self) -> int:
        return self.alone.cluster.num_gpus

    @cached_property
    def likeness(self) -> str:
        """A key that two islands share if they differ in nothing but their names and their bridges."""
        return repr((self.alone.cluster.groups, self.alone.cluster.levels))

    @cached_property
    def rates(self) -> Rates:
        return self.alone.rates

    def in_job(self, num_gpus: int) -> Resolved:
        """The request for a job of `num_gpus`, as a GPU of this island sees it."""
        return replace(self.alone, job_gpus=num_gpus)


def sums_over_all(parts: Sequence[IslandPart], singles: Sequence[Staged]) -> list[float]:
    """[part] seconds of sums of single numbers over all ranks, less those of ranks that are all on this part. A number
    goes from rank to rank (gloo sends no empty segments, allreduce.cc, ring), so each rank adds the seconds of its own
    island."""
    own = np.array([float(reductions_s(single.ledger, single.resolved.rates)[0]) for single in singles])
    together = float(np.average(own, weights=[part.num_gpus for part in parts]))
    return [float(together - seconds) for seconds in own]


@dataclass(frozen=True)
class OnIslands(Staged):
    """A layout on several islands."""

    parts: tuple[IslandPart, ...] = ()  # those that the layout uses
    singles: tuple[Staged, ...] = ()  # [part] what each of them runs, by its own rates

    @property
    def peak_flops_per_s(self) -> float:
        return sum(part.rates.peak_flops_per_s * part.num_gpus for part in self.parts)

    @property
    def fits(self) -> bool:
        """Every island's share in the memory of its own GPUs and hosts."""
        return all(
            single.device_bytes <= single.resolved.budget_bytes and single.host_bytes <= single.resolved.host_bytes
            for single in self.singles
        )

    @property
    def device_bytes(self) -> float:
        return max(single.device_bytes for single in self.singles)

    @property
    def host_bytes(self) -> float:
        return max(single.host_bytes for single in self.singles)


def parts_of(resolved: Resolved) -> tuple[tuple[IslandPart, ...], tuple[str, ...]]:
    """The islands that can compute in the dtype of the workload, and a sentence for each that cannot."""
    usable, unusable = [], []
    for number, island in enumerate(resolved.cluster.islands):
        group = replace(resolved.cluster.groups[island.group], num_nodes=island.num_nodes)
        cluster = ClusterSpec(name=island.name, groups=(group,), levels=island.levels,
                              collectives=resolved.cluster.collectives)  # fmt: skip
        alone = replace(resolved, cluster=cluster)
        try:
            rates_for(alone.cluster, resolved.stack, resolved.workload.precision)
        except InputError as error:
            unusable.append(f"{island.name} is left out: {error.message}")
        else:
            usable.append(IslandPart(number, island.name, alone))
    return tuple(usable), tuple(unusable)


def gradient_bytes(problem: Problem) -> float:
    """Bytes of the gradients of the whole model: an island sends them to the others in a step, at least."""
    trained = [kind.trained_sharded + kind.trained_replicated + kind.trained_experts for kind in problem.parameters]
    return float(build_totals(problem) @ np.array(trained)) * problem.state_bytes.gradient


def joined(resolved: Resolved, parts: Sequence[IslandPart]) -> Resolved:
    """The request on some of its islands: their GPUs, and the weakest of their links."""
    cluster = resolved.cluster
    if len(parts) == 1:
        return parts[0].alone
    groups = tuple(part.alone.cluster.groups[0] for part in parts)
    return replace(resolved, cluster=replace(cluster, groups=groups, hosts=(), islands=(), bridges=()))


def bridge_between(cluster: ClusterSpec, first: IslandPart, second: IslandPart) -> Bridge:
    ends = {first.number, second.number}
    return next(bridge for bridge in cluster.bridges if set(bridge.ends) == ends)


def bridged(bridge: Bridge, senders: int) -> NetworkLevel:
    """The share of each of `senders` GPUs that use the bridge at once, in the port of the node and in the trunk."""
    node_share = bridge.node_bytes_per_s / min(senders, bridge.gpus_per_node)
    bandwidth = min(bridge.link.bw_bytes_per_s, node_share, bridge.trunk_bytes_per_s / senders)
    return replace(bridge.link, bw_bytes_per_s=bandwidth)


def crossing(rates: Rates, bridge: Bridge, senders: int, op: Op) -> Curve:
    """[1] the curve of a message, or of a collective of two ranks, over the bridge, in `senders` pairs of GPUs at once.
    """
    link = bridged(bridge, senders)
    return collectives.curve(rates.collectives, (replace(link, size=1), link), op, np.array([2]), np.array([1]))


def crossing_s(rates: Rates, bridge: Bridge, senders: int, op: Op, num_bytes: float) -> float:
    """Seconds of a message, or of a collective, of `num_bytes` over the bridge."""
    return float(collectives.seconds(crossing(rates, bridge, senders, op), num_bytes)[0])


def sending_s(rates: Rates, bridge: Bridge, senders: int, num_bytes: float) -> float:
    """Seconds that the bridge is busy with a message: those of its bytes, without latency."""
    return float(crossing(rates, bridge, senders, "p2p").s_per_byte[0]) * num_bytes
