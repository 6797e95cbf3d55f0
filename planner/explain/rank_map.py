"""The rank map of a layout: the GPUs of every node with their coordinates along the axes."""

from __future__ import annotations

from ...cost_models.layouts import Layout
from ...cost_models.specs.cluster import ClusterSpec
from ..document.placement import Placement
from ..studies.base import Part

_MOST_NODES = 8  # of a row; further nodes hold the same stages


class Seat(Part):
    """A GPU: its rank and coordinates along the axes."""

    rank: int
    tp: int
    cp: int
    dp: int
    pp: int


class NodeSeats(Part):
    """The GPUs of a node, in the order of their ranks."""

    name: str  # its host, else its number
    seats: tuple[Seat, ...]


class NodeRow(Part):
    """Nodes that hold the same pipeline stages."""

    stages: tuple[int, ...]
    num_nodes: int
    nodes: tuple[NodeSeats, ...]  # the first of them


class Link(Part):
    """A level of the network."""

    name: str
    kind: str
    num_gpus: int  # that it joins
    bw_bytes_per_s: float  # per GPU, one direction
    latency_s: float


class RankMap(Part):
    """Rows in the order of the stages; links from the inside of a node outwards."""

    rows: tuple[NodeRow, ...]
    links: tuple[Link, ...]


def rank_map(cluster: ClusterSpec, layout: Layout, placement: Placement) -> RankMap:
    """The map of a layout. Ranks run along tp first, then cp, dp and pp, unless the placement orders them otherwise."""
    per_node = min(cluster.gpus_per_node, layout.num_gpus)
    of_stages: dict[tuple[int, ...], list[NodeSeats]] = {}
    for first in range(0, layout.num_gpus, per_node):
        node, ranks = first // per_node, range(first, min(first + per_node, layout.num_gpus))
        seats = tuple(_seat(layout, placement, rank) for rank in ranks)
        name = placement.hosts[node] if placement.hosts else f"node {node}"
        of_stages.setdefault(tuple(sorted({seat.pp for seat in seats})), []).append(NodeSeats(name=name, seats=seats))
    rows = [NodeRow(stages=stages, num_nodes=len(nodes), nodes=tuple(nodes[:_MOST_NODES]))
            for stages, nodes in sorted(of_stages.items())]  # fmt: skip
    links = [Link(name=level.name, kind=level.kind, num_gpus=level.size, bw_bytes_per_s=level.bw_bytes_per_s,
                  latency_s=level.latency_s) for level in cluster.levels]  # fmt: skip
    return RankMap(rows=tuple(rows), links=tuple(links))


def _seat(layout: Layout, placement: Placement, rank: int) -> Seat:
    logical = rank if placement.logical_of_rank is None else placement.logical_of_rank[rank]
    rest, tp = divmod(logical, layout.tp)
    rest, cp = divmod(rest, layout.cp)
    pp, dp = divmod(rest, layout.dp)
    return Seat(rank=rank, tp=tp, cp=cp, dp=dp, pp=pp)
