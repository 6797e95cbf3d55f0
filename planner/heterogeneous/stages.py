"""The partition problem of a pipeline over islands, and a first partition by speed."""

from __future__ import annotations

import heapq
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

import numpy as np

from ...cost_models.arrays import Array, Ints
from ...cost_models.quantities.stages import Partition, on_devices
from ..stages.coefficients import edge_rows, problem_of, runs_of
from ..stages.problem import MemoryNeeds, PartitionProblem
from .never_hidden import never_hidden_s
from .pipeline import CrossIslandPipeline
from .relaxation import Relaxation

_OF_CHUNKS = ("forward_s", "input_s", "weight_s", "recompute_s", "edge_forward_s", "edge_input_s", "edge_weight_s")
_OF_DEVICES = ("memory_bytes", "update_s", "fixed_update_s")


def problems_alone(pipeline: CrossIslandPipeline) -> dict[int, PartitionProblem]:
    """Number of an island -> the problem as if all stages were on it. All of them need the same bytes."""
    problems: dict[int, PartitionProblem] = {}
    for part, single in zip(pipeline.parts, pipeline.singles, strict=True):
        like = next(iter(problems.values()), None)
        memory_bytes = single.resolved.budget_bytes
        problems[part.number] = problem_of(single, memory_bytes, separate_recompute=False, like=like)
    return problems


def joint_problem(
    pipeline: CrossIslandPipeline, alone: Mapping[int, PartitionProblem] | None = None
) -> PartitionProblem:
    """The problem in which every chunk and device has the seconds and the memory of its own island. alone:
    `problems_alone` of the islands, in any order."""
    alone = alone or problems_alone(pipeline)
    of_parts = [alone[part.number] for part in pipeline.parts]
    part_of_device = [pipeline.on[device] for device in range(pipeline.layout.pp)]
    part_of_chunk = [pipeline.on[device] for device in pipeline.devices]

    def rows(name: str, part_of_row: list[int]) -> Array:
        return np.array([getattr(of_parts[part], name)[row] for row, part in enumerate(part_of_row)])

    changed: dict[str, Any] = {name: rows(name, part_of_chunk) for name in _OF_CHUNKS}
    changed |= {name: rows(name, part_of_device) for name in _OF_DEVICES}
    unhidden_s = never_hidden_s(pipeline.parts, [pipeline.layout])[..., 0]
    changed["unhidden_s"], changed["fixed_unhidden_s"] = _unhidden_s(
        unhidden_s[part_of_device], edge_rows(pipeline), pipeline.devices, pipeline.resolved.problem.pattern
    )
    return replace(of_parts[0], **changed, hop_s=np.array(pipeline.hops_s), link_s=np.array(pipeline.links_s))


def _unhidden_s(
    unhidden_s: Array, edges: Array, devices: Sequence[int], pattern: tuple[int, ...]
) -> tuple[Array, Array]:
    """[device, run] seconds of messages of one layer that nothing hides, and [device] of the edges, out of [device,
    kind] of one layer; edges: [chunk, kind]."""
    of_runs = unhidden_s[:, [kind for kind, _ in runs_of(pattern)]]
    return of_runs, (on_devices(edges, devices) * unhidden_s).sum(axis=1)


def floor_problem(relaxation: Relaxation, pattern: tuple[int, ...], rows: Ints) -> PartitionProblem:
    """The problem whose every number is the least of these layouts: what no partition of it beats, none of theirs does.
    """
    x, runs = relaxation.columns, runs_of(pattern)
    of_rows = zip(*(relaxation.of_row(row) for row in rows.tolist()), strict=True)
    layer_s, edge_s, message_s, resident = (np.min(values, axis=0) for values in of_rows)
    kinds, devices = np.searchsorted(x.kinds, [kind for kind, _ in runs]), len(relaxation.on)
    forward_s, input_s, weight_s = layer_s[..., kinds]
    unhidden_s, fixed_unhidden_s = _unhidden_s(x.never_hidden_s[..., rows].min(axis=-1)[relaxation.on], x.edges,
                                           x.devices.tolist(), pattern)  # fmt: skip
    needs = MemoryNeeds(resident_bytes=resident[..., kinds], dropped_bytes=np.zeros_like(resident[..., kinds]),
                        fixed_bytes=x.fixed_bytes[..., rows].min(axis=-1),
                        recompute_bytes=np.zeros(devices))  # fmt: skip
    return PartitionProblem(
        runs=tuple(length for _, length in runs), devices=tuple(x.devices.tolist()), schedule=relaxation.schedule,
        forward_s=forward_s, input_s=input_s, weight_s=weight_s, recompute_s=np.zeros_like(input_s),
        edge_forward_s=edge_s[0], edge_input_s=edge_s[1], edge_weight_s=edge_s[2], hop_s=message_s[0],
        link_s=message_s[1], needs=needs, memory_bytes=relaxation.memory_bytes,
        update_s=np.zeros_like(unhidden_s), fixed_update_s=np.zeros(devices), unhidden_s=unhidden_s,
        fixed_unhidden_s=fixed_unhidden_s, chooses_recompute=False,
        once_s=float(x.update_s[rows].min()), growth=relaxation.growth,
    )  # fmt: skip


def by_speed(problem: PartitionProblem) -> Partition | None:
    """Give layer by layer to the chunk that then takes least, as far as its memory goes; None if layers are left.

    Each layer is taken as the mean of all. Where runs of unlike layers make that wrong, the moves of `solve` mend it.
    """
    runs = np.array(problem.runs, dtype=np.float64)
    share = runs / runs.sum()
    layer_s = (problem.forward_s + problem.input_s + problem.weight_s) @ share
    edge_s = problem.edge_forward_s + problem.edge_input_s + problem.edge_weight_s
    resident = problem.needs.resident_bytes @ share  # [chunk, moment]
    devices, last = problem.devices, len(problem.devices) - 1
    sizes = list(problem.least_layers)
    used = problem.needs.fixed_bytes + on_devices(resident * np.array(sizes)[:, None], devices)
    room = problem.memory_bytes[:, None] - used  # [device, moment]

    def takes_one_more(chunk: int) -> bool:
        opposite = last - chunk  # in a V
        too_many_back = opposite < problem.num_folded and sizes[opposite] <= sizes[chunk]
        return bool((room[devices[chunk]] >= resident[chunk]).all()) and not too_many_back

    queue = [(float(edge_s[c] + (sizes[c] + 1) * layer_s[c]), c) for c in range(last + 1)]
    heapq.heapify(queue)
    for _ in range(int(runs.sum()) - sum(sizes)):
        while queue and not takes_one_more(queue[0][1]):
            heapq.heappop(queue)
        if not queue:
            return None
        seconds, chunk = heapq.heappop(queue)
        sizes[chunk] += 1
        room[devices[chunk]] -= resident[chunk]
        heapq.heappush(queue, (seconds + float(layer_s[chunk]), chunk))
    return Partition(tuple(sizes)) if (room >= 0).all() else None
