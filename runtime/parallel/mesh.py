"""The groups of ranks along each axis: tp fastest, then cp, dp, pp (docs/concepts/layouts.md)."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from datetime import timedelta
from itertools import pairwise

import numpy as np
import torch.distributed as dist

from ...cost_models.arrays import Ints
from ...cost_models.layouts import Layout
from ...cost_models.quantities.stages import devices_of
from ..status import Status
from .comm import Group


@dataclass(frozen=True)
class RankCoords:
    """The index of a rank along each axis, from 0."""

    stage: int  # among pp stages
    dp: int  # among dp replicas and shards together
    cp: int  # among cp parts of a sequence
    tp: int  # among tp parts of a weight

    @classmethod
    def of(cls, rank: int, layout: Layout) -> RankCoords:
        tp, cp, dp = layout.tp, layout.cp, layout.dp
        return cls(rank // (tp * cp * dp), rank // (tp * cp) % dp, rank // tp % cp, rank % tp)


def rank_lists(layout: Layout, origin: int = 0) -> dict[str, list[list[int]]]:
    """All groups of every axis, each with ascending ranks, because new_group sorts ranks silently. origin: the rank
    that is rank 0 of the layout.

    shard: ranks that share one copy of the states (1 without ZeRO), including cp ranks, whose tokens are more data to
    the weights. replicate: ranks with copies of it.
    etp, ep: ep x etp ranks together hold one copy of the routed experts, among those that share its states, including
    tp ranks. etp consecutive ranks hold parts of the same experts; ep blocks hold different experts.
    expert_shard, expert_replicate: like shard and replicate, for routed experts.
    """
    tp, cp, pp, ep, etp = layout.tp, layout.cp, layout.pp, layout.ep, layout.etp
    shard = layout.shard * cp if layout.zero else 1
    # Data parallelism is a grid of copies of the states by the ranks that share one; of sequences by their cp parts.
    ranks = np.arange(origin, origin + layout.num_gpus)
    by_copy, by_sequence = ranks.reshape(pp, -1, shard, tp), ranks.reshape(pp, -1, cp, tp)
    pipelines, replicas = _along(0, by_copy), _along(1, by_copy)
    # Experts lie on all ranks that share their states; without ZeRO on all of a stage.
    experts = (by_copy.reshape(-1, shard * tp) if layout.zero else by_copy.reshape(pp, -1)).reshape(-1, 1, ep, etp)
    per_set = (shard if layout.zero else layout.dp * cp) * tp // (ep * etp)  # copies of the experts
    expert_copies = _along(1, experts.reshape(-1, per_set, ep * etp))
    return {
        "tp": _along(3, by_copy),
        "cp": _along(2, by_sequence),
        "pp": pipelines,
        "shard": _along(2, by_copy),
        "replicate": replicas,
        "ep": _along(2, experts),
        "etp": _along(3, experts),
        "expert_shard": expert_copies if layout.zero else ranks.reshape(-1, 1).tolist(),
        "expert_replicate": replicas if layout.zero else expert_copies,
        # With one stage the group is a single rank, which sums with no other.
        "tied": [[line[stage] for stage in sorted({0, pp - 1})] for line in pipelines],
        "world": [ranks.tolist()],
    }


def _along(axis: int, grid: Ints) -> list[list[int]]:
    """The groups of ranks along an axis of a grid of them."""
    return np.moveaxis(grid, axis, -1).reshape(-1, grid.shape[axis]).tolist()


class ProcessGroupFactory:
    """Makes process groups, one per set of ranks. All ranks must request the same groups in the same order."""

    def __init__(self, num_ranks: int, rank: int, status: Status, timeout_s: float) -> None:
        self.rank, self.status = rank, status
        # A new group does not inherit the timeout of the world group.
        self.wait = timedelta(seconds=timeout_s)
        # The key is the ranks, not the axis: every communicator takes start-up time and memory, and several axes often
        # have the same ranks. None is the world group, torch's default.
        self._made: dict[tuple[int, ...], dist.ProcessGroup | None] = {tuple(range(num_ranks)): None}

    def group(self, axis: str, all_ranks: Sequence[Sequence[int]]) -> Group | None:
        """This rank's group among those along an axis; None if it is in none of them."""
        group = None
        # Groups without this rank are made, too. new_group is a collective of the whole world, and a rank that skipped
        # one would meet the others in the wrong group. A group of one rank never communicates and needs none.
        for ranks in all_ranks:
            if len(ranks) > 1 and tuple(ranks) not in self._made:
                self._made[tuple(ranks)] = dist.new_group(list(ranks), timeout=self.wait)
            if self.rank in ranks:
                group = Group(axis, ranks, self.rank, self._made.get(tuple(ranks)), self.status)
        return group


@dataclass(frozen=True)
class Mesh:
    """The groups of one rank."""

    rank: int  # in the world, after the plan's rank map
    coords: RankCoords  # its indices along the axes
    groups: dict[str, Group]  # axis (a name of `rank_lists`) -> group
    edges: dict[tuple[str, int, int], Group]  # (direction of the pass, sending stage, receiving stage) -> group
    factory: ProcessGroupFactory  # for the meshes of other layouts on the same ranks
    first: int = 0  # rank of the world that is its rank 0

    def __getitem__(self, axis: str) -> Group:
        return self.groups[axis]

    def of(self, layout: Layout) -> Mesh:
        """The mesh of another layout with the same stages. All ranks must call it."""
        coords = RankCoords.of(self.rank - self.first, layout)
        return replace(self, coords=coords, groups=_groups(rank_lists(layout, self.first), self.factory))

    def across(self, layout: Layout, stages: Sequence[int]) -> Group | None:
        """The ranks of these stages that have this rank's place in their own; None on others. All ranks must call
        it."""
        pipelines = rank_lists(layout, self.first)["pp"]
        return self.factory.group("tied", [[pipeline[stage] for stage in stages] for pipeline in pipelines])

    def replica(self, layout: Layout) -> Group:
        """The ranks that together hold this rank's copy of the model. All ranks must call it."""
        copies = zip(*rank_lists(layout, self.first)["replicate"], strict=True)
        replica = self.factory.group("replica", [sorted(ranks) for ranks in copies])
        if replica is None:
            raise RuntimeError(f"rank {self.rank} is in no replica of {layout}")
        return replica

    def block(self, size: int, pp: int) -> Group:
        """The group of `size` consecutive ranks of a stage. All ranks must call it."""
        world = self.groups["world"].size
        block = self.factory.group("block", [range(first, first + size) for first in range(0, world, size)])
        if block is None or world // pp % size:
            raise RuntimeError(f"blocks of {size} ranks do not fill stages of {world // pp}")
        return block


def _groups(lists: Mapping[str, list[list[int]]], factory: ProcessGroupFactory) -> dict[str, Group]:
    groups = {axis: factory.group(axis, all_ranks) for axis, all_ranks in lists.items()}
    return {axis: group for axis, group in groups.items() if group is not None}


def build_mesh(layout: Layout, rank: int, status: Status, timeout_s: float) -> Mesh:
    """Creates the process groups. All ranks must call it, because all create all groups in one order.

    timeout_s: longest wait in a collective.
    """
    mesh = mesh_from(0, layout, ProcessGroupFactory(layout.num_gpus, rank, status, timeout_s))
    if mesh is None:
        raise RuntimeError(f"rank {rank} is none of the {layout.num_gpus} ranks of {layout}")
    return mesh


def mesh_from(first: int, layout: Layout, factory: ProcessGroupFactory) -> Mesh | None:
    """The mesh of a layout on the ranks from `first` on, which need not be all ranks; None on the others. All ranks
    must call it."""
    lists, rank = rank_lists(layout, first), factory.rank
    groups = _groups(lists, factory)
    edges = dict(_edges(lists["pp"], devices_of(layout), groups.get("pp"), factory))
    if "world" not in groups:
        return None
    return Mesh(rank, RankCoords.of(rank - first, layout), groups, edges, factory, first)


def _edges(
    pipelines: list[list[int]], devices: Sequence[int], whole: Group | None, factory: ProcessGroupFactory
) -> Iterator[tuple[tuple[str, int, int], Group]]:
    """(direction, sending stage, receiving stage) -> group, for stages with adjacent chunks.

    Gloo distinguishes messages by tags and needs one group only.
    """
    # Sorted, so that all ranks create them in one order. The turn of a V stays on its stage and needs no group.
    hops = sorted({hop for hop in pairwise(devices) if hop[0] != hop[1]})
    # NCCL runs the messages of a group in order. A stage that sends forward before it receives a gradient, and a
    # neighbour with the opposite order, would deadlock on a common group.
    separate = bool(hops) and dist.get_backend() == "nccl"
    for pipeline in pipelines:
        for direction in ("forward", "backward"):
            for first, second in hops:
                source, to = (first, second) if direction == "forward" else (second, first)
                pair = sorted((pipeline[source], pipeline[to]))
                # Not from the factory, which would return the same group for both directions of two stages.
                handle = dist.new_group(pair, timeout=factory.wait) if separate else None
                if factory.rank in pair and whole is not None:
                    group = Group("pp", pair, factory.rank, handle, factory.status) if separate else whole
                    yield (direction, source, to), group
