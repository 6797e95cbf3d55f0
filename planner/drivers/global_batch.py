"""The nearest global batch, and the largest number of nodes, that admit faster data parallelism, where the batch of a
plan rules it out on all of its nodes."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np

from ...cost_models.arrays import Ints, Mask
from ...cost_models.problem import Problem
from ...errors import InputError
from ...profiles.io.document import FieldPath
from ..evaluation import intervals
from ..request.load import changed_request
from ..request.resolve import Resolved, cluster_of
from ..search.run import search_of
from ..space.rules import BATCH, Columns, Rule
from ..space.tree import Count, Space, select
from .watch import Watch

_MOST_IDLE = 32  # nodes that are left out at most


def batch_warnings(resolved: Resolved, step_s: float, watch: Watch) -> list[str]:
    """A warning where the nearest global batch that admits more data parallelism trains more sequences per second, and
    one where fewer nodes take less time for a step, by more than the model does not tell apart. step_s: closed form of
    the best layout."""
    widest = _widest_without(resolved)
    if widest is None:
        return []
    return [*_other_batch(resolved, widest, step_s, watch), *_fewer_nodes(resolved, step_s, watch)]


def _other_batch(resolved: Resolved, widest: int, step_s: float, watch: Watch) -> list[str]:
    """The warning of the nearest multiple of `widest` sequences."""
    asked = resolved.workload.global_batch
    batch = widest * max(1, int(asked / widest + 0.5))
    other = replace(resolved, workload=replace(resolved.workload, global_batch=batch))
    limit_s = step_s * batch / asked * (1 - intervals.indifference())
    outcome = search_of(other, _ruled_out_by(asked, other.space), top=1, incumbent=limit_s, tally=False,
                        should_stop=watch.late).run()  # fmt: skip
    if outcome.stopped:
        watch.cuts.append((outcome.stopped, "other global batches were compared"))
    if outcome.stopped or not outcome.top.rows:
        return []
    seconds, layout_id, layout = outcome.top.rows[0]
    gain = step_s / asked / (seconds / batch) - 1
    return [f"a global batch of {asked:,} is no multiple of dp {layout.dp}: {batch:,} is one, and {layout_id} then "
            f"trains {gain:.1%} more sequences per second by the closed form".replace("%", " %")]  # fmt: skip


def _fewer_nodes(resolved: Resolved, step_s: float, watch: Watch) -> list[str]:
    """The warning of the largest part of the nodes on which the batch rules out no data parallelism."""
    fewer = _on_fewer_nodes(resolved)
    if fewer is None:
        return []
    limit_s = step_s * (1 - intervals.indifference())
    outcome = search_of(fewer, fewer.space, top=1, incumbent=limit_s, tally=False, should_stop=watch.late).run()
    if outcome.stopped:
        watch.cuts.append((outcome.stopped, "fewer nodes were compared"))
    if outcome.stopped or not outcome.top.rows:
        return []
    seconds, layout_id, _ = outcome.top.rows[0]
    return [f"{fewer.cluster.num_nodes} of the {resolved.cluster.num_nodes} nodes take {1 - seconds / step_s:.1%} less "
            f"time for a step by the closed form, with {layout_id}: the batch is no multiple of the widest data "
            "parallelism over all of them".replace("%", " %")]  # fmt: skip


def _on_fewer_nodes(resolved: Resolved) -> Resolved | None:
    """The request on as many of its nodes, which are all alike, as the batch rules out no data parallelism on."""
    cluster, request = resolved.cluster, resolved.request
    if len(cluster.groups) > 1 or request.exclude:
        return None
    names = cluster.hosts or [str(node) for node in range(cluster.num_nodes)]
    for nodes in range(cluster.num_nodes - 1, max(cluster.num_nodes - _MOST_IDLE, 1) - 1, -1):
        changes: dict[FieldPath, Any] = {("exclude",): [*names[nodes:]]}
        if request.gpus is not None:
            changes = {("gpus",): nodes * cluster.gpus_per_node}
        try:
            sized = changed_request(request, changes)
            fewer = replace(resolved, request=sized, cluster=cluster_of(sized))
        except InputError:  # nodes of a rack or a slice are no nodes of their own
            return None
        if _widest_without(fewer) is None:
            return fewer
    return None


def _widest_without(resolved: Resolved) -> int | None:
    """Sequences of a micro-batch of the widest data parallelism that the rule on the batch alone excludes; None where
    none is wider than what it leaves."""
    space, batch = resolved.space, resolved.workload.global_batch
    legal, every = space.meshes(Count()), space.without(BATCH).meshes(Count())
    every = select(every, every["dp"] * every["micro_batch"] <= batch)
    widest = int(every["dp"].max(initial=1))
    if widest <= legal["dp"].max(initial=1):
        return None
    return widest * int(every["micro_batch"][every["dp"] == widest].min())


def _ruled_out_by(batch: int, space: Space) -> Space:
    """The part of `space` whose data parallelism does not divide this batch."""

    def allows(columns: Columns, problem: Problem) -> Mask:
        dp: Ints = columns["dp"]
        return np.asarray(batch % dp != 0)

    return replace(space, rules=(*space.rules, Rule("another global batch", ("dp",), allows, "")))
