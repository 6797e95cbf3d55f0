"""The edges of the placement problem: pairs of nodes that communicate, for each kind of group of a layout.

Ranks are numbered tp fastest, then cp, dp, pp; slot k is where ranks k*g to (k+1)*g - 1 sit, one node of g GPUs.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

import numpy as np

from ...cost_models.arrays import Ints
from ...cost_models.layouts import CP_ALGORITHMS, SCHEDULES, Layout, Layouts
from ...cost_models.quantities.groups import Groups

GroupPattern = Literal["ring", "pairs", "chain"]


@dataclass(frozen=True)
class NodeGroups:
    """One kind of group that spans nodes, as rows of edges between slots.

    A row is as slow as the mean of its edges, the kind as its slowest row. ring: a row per edge of a ring, as its
    slowest link holds up all. pairs: a row per member and direction, to (from) all others at once. chain: a row per
    pipeline, as messages follow one another.
    """

    name: str  # of rates.GROUPS
    pattern: GroupPattern
    edges: Ints  # [edge, 2] slots
    starts: Ints  # [row] first edge of each row


def node_groups(layout: Layout, gpus_per_node: int, *, moe: bool, tied: bool) -> tuple[NodeGroups, ...]:
    """The kinds of groups of `layout` of which some span nodes. moe: experts have groups of their own; tied: the first
    and the last stage sum the gradient of an embedding."""
    columns = Layouts.of([layout])
    pairwise = "ulysses" in CP_ALGORITHMS[layout.cp_algorithm]
    stride = layout.num_gpus // layout.pp
    named: list[tuple[str, GroupPattern, int, int]] = [
        ("tp", "ring", layout.tp, 1),
        ("cp", "pairs" if pairwise else "ring", layout.cp, layout.tp),
        ("ep", "pairs", layout.ep, layout.etp),
        ("etp", "ring", layout.etp, 1),
        ("pp", "chain", layout.pp, stride),
        ("tied", "ring", 2 if tied and layout.pp > 1 else 1, stride * (layout.pp - 1)),
    ]
    for prefix, groups in (("", Groups.dense(columns)), ("expert_", Groups.experts(columns)))[: 1 + moe]:
        named.append((f"{prefix}shard", "ring", int(groups.shard[0]), int(groups.shard_stride[0])))
        named.append((f"{prefix}replicate", "ring", int(groups.replicate[0]), int(groups.replicate_stride[0])))
    wraps = SCHEDULES[layout.schedule] == "interleaved"
    out = []
    for name, pattern, size, rank_stride in named:
        if size <= 1:
            continue
        slots = _slots(layout, size, rank_stride, gpus_per_node)
        if (slots != slots[:, :1]).any():
            out.append(NodeGroups(name, pattern, *_rows(slots, pattern, wraps)))
    return tuple(out)


def _slots(layout: Layout, size: int, stride: int, gpus_per_node: int) -> Ints:
    """[group, member] slots of all groups of `size` ranks, `stride` apart; groups on the same slots once."""
    if size == 2 and 2 * stride > layout.num_gpus:  # first and last stage: the stages between are in no group
        first = np.arange(layout.num_gpus - stride)
        ranks = np.stack([first, first + stride], axis=1)
    else:
        whole = np.arange(layout.num_gpus).reshape(-1, size, stride)
        ranks = whole.transpose(0, 2, 1).reshape(-1, size)
    return np.unique(ranks // gpus_per_node, axis=0).astype(np.int64)


def _rows(slots: Ints, pattern: GroupPattern, wraps: bool) -> tuple[Ints, Ints]:
    """(edges, starts) of one kind. wraps: a chain goes back to its first stage, for the next chunk."""
    if pattern == "ring":
        edges = np.stack([slots, np.roll(slots, -1, axis=1)], axis=2).reshape(-1, 2)
        edges = np.unique(edges[edges[:, 0] != edges[:, 1]], axis=0)
        return edges, np.arange(len(edges))
    if pattern == "chain":
        following = np.roll(slots, -1, axis=1)
        pairs = np.stack([slots, following], axis=2)[:, : slots.shape[1] if wraps else -1]
        return pairs.reshape(-1, 2), np.arange(len(pairs)) * pairs.shape[1]
    rows = []
    for group in slots:
        members = np.unique(group)
        for member in members:
            others = members[members != member]
            itself = np.full_like(others, member)
            rows += [np.stack([itself, others], axis=1), np.stack([others, itself], axis=1)]
    lengths = [len(row) for row in rows if len(row)]
    return np.concatenate([row for row in rows if len(row)]), np.cumsum([0, *lengths])[:-1]
