"""The placement of the ranks of a plan: hosts, the order of the nodes, and its reasons."""

from __future__ import annotations

from typing import Any

from pydantic import SerializerFunctionWrapHandler, model_serializer

from .base import DocumentPart, without_none


class GroupLinks(DocumentPart):
    """The cost of unequal links to one kind of process group."""

    name: str  # kind of group: tp, cp, dp, pp, ...
    per_slowness_s: float  # seconds of a step for each time that its slowest link is slower than the fastest
    slowdown: float  # times that its slowest links are slower than the fastest, in the plan's order of the nodes
    slowdown_listed: float  # the same in the order in which the cluster lists them


class SlowNode(DocumentPart):
    """A node with no fast link, and the traffic that the order of the nodes leaves on it."""

    host: str
    share: float  # its best link over the fastest link of the cluster, in [0, 1]
    sent_bytes: float  # bytes that it sends to other nodes in a step, in the plan's order
    sent_listed_bytes: float  # the same in the order in which the cluster lists the nodes


class NodeOrder(DocumentPart):
    """Why the nodes stand in this order. Seconds are those of a step that links between nodes take if nothing hides
    them."""

    nodes: tuple[int, ...]  # nodes[k] holds the k-th run of logical ranks
    network_s: float  # seconds in this order
    network_listed_s: float  # seconds in the order in which the cluster lists the nodes
    network_least_s: float  # no order takes less
    proven: bool  # whether this order takes the least
    step_listed_s: float  # whole step in the listed order, seconds
    fastest_bytes_per_s: float  # fastest link between two nodes
    slowest_bytes_per_s: float  # slowest link between two nodes
    kinds: tuple[GroupLinks, ...]
    slow: tuple[SlowNode, ...]


class Placement(DocumentPart):
    """The host and the logical rank of every rank."""

    hosts: tuple[str, ...] = ()  # as the cluster lists them
    # rank -> logical rank; None: the launcher's own order, tp fastest, then cp, dp, pp
    logical_of_rank: tuple[int, ...] | None = None
    order: NodeOrder | None = None  # only where links between nodes differ

    @model_serializer(mode="wrap")
    def _without_order(self, handler: SerializerFunctionWrapHandler) -> dict[str, Any]:
        return without_none(handler(self), "order")

    def problem(self, num_ranks: int, num_nodes: int) -> tuple[str, str] | None:
        """(field, what is wrong with it): hosts or ranks that are missing, or there twice."""
        hosts, logical = self.hosts, self.logical_of_rank
        if hosts and (len(hosts) != num_nodes or len(set(hosts)) < num_nodes):
            repeated = sorted({host for host in hosts if hosts.count(host) > 1})
            more = f", {', '.join(repeated)} twice" if repeated else ""
            return "hosts", f"names {len(set(hosts))} hosts{more}, the cluster has {num_nodes} nodes"
        if logical is None or sorted(logical) == list(range(num_ranks)):
            return None
        per_node = max(num_ranks // num_nodes, 1)
        absent = [hosts[node] if hosts else f"node {node}" for node in range(-(-len(logical) // per_node), num_nodes)]
        if absent:
            return "logical_of_rank", f"maps {len(logical)} of {num_ranks} ranks: none of {', '.join(absent)}"
        missing = sorted(set(range(num_ranks)) - set(logical))
        verb = "is" if len(missing) == 1 else "are"
        lacks = f": {', '.join(map(str, missing))} {verb} nowhere" if missing else ""
        return "logical_of_rank", f"is not an order of the {num_ranks} ranks{lacks}"
