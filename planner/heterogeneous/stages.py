"""The stages of a pipeline over islands: what `partition_ilp` needs to know of it, and a first split by speed."""

from __future__ import annotations

import heapq
from collections.abc import Mapping
from dataclasses import replace
from typing import Any

import numpy as np

from ...cost_models.arrays import Array
from ...cost_models.quantities.stages import Partition, on_devices
from ..stages.coefficients import stages_of
from ..stages.ilp import Stages
from .pipeline import CrossIslandPipeline


def alone_stages(one: CrossIslandPipeline) -> dict[int, Stages]:
    """Number of an island -> the stages as if all of them were on it."""
    found: dict[int, Stages] = {}
    for part, single in zip(one.parts, one.singles, strict=True):
        like = next(iter(found.values()), None)
        found[part.number] = stages_of(single, single.resolved.memory_bytes, recompute_apart=False, like=like)
    return found


def shared_stages(one: CrossIslandPipeline, every: Mapping[int, Stages] | None = None) -> Stages:
    """Of every chunk and device the row of its own island. every: `alone_stages` of the islands in any order."""
    every = every or alone_stages(one)
    alone = [every[part.number] for part in one.parts]
    devices = [one.on[device] for device in range(one.layout.pp)]
    chunks = [one.on[device] for device in one.devices]

    def rows(name: str, places: list[int]) -> Array:
        return np.array([getattr(alone[part], name)[row] for row, part in enumerate(places)])

    by_chunk = ("forward_s", "input_s", "weight_s", "redo_s", "edge_forward_s", "edge_input_s", "edge_weight_s",
                "held_bytes", "dropped_bytes")  # fmt: skip
    by_device = ("fixed_bytes", "redo_bytes", "memory_bytes", "update_s", "fixed_update_s")
    own: dict[str, Any] = {name: rows(name, chunks) for name in by_chunk}
    own |= {name: rows(name, devices) for name in by_device}
    return replace(alone[0], **own, hop_s=np.array(one.hops_s), link_s=np.array(one.links_s))


def by_speed(stages: Stages) -> Partition | None:
    """Layer by layer to the chunk that then takes least, as far as memory goes; None where it does not go far enough.

    Layers are taken as the mean of all; what a run of unlike ones does to it, the moves of `partition_search` mend.
    """
    runs = np.array(stages.runs, dtype=np.float64)
    part = runs / runs.sum()
    layer_s = (stages.forward_s + stages.input_s + stages.weight_s) @ part
    edge_s = stages.edge_forward_s + stages.edge_input_s + stages.edge_weight_s
    held = stages.held_bytes @ part
    devices, last = stages.devices, len(stages.devices) - 1
    sizes = [0 if chunk in (0, last) else 1 for chunk in range(last + 1)]
    # [device, moment]
    room = stages.memory_bytes[:, None] - stages.fixed_bytes - on_devices(held * np.array(sizes)[:, None], devices)

    def takes_one_more(chunk: int) -> bool:
        there = last - chunk  # in a V
        too_many_back = there < stages.num_folded and sizes[there] <= sizes[chunk]
        return bool((room[devices[chunk]] >= held[chunk]).all()) and not too_many_back

    queue = [(float(edge_s[c] + (sizes[c] + 1) * layer_s[c]), c) for c in range(last + 1)]
    heapq.heapify(queue)
    for _ in range(int(runs.sum()) - sum(sizes)):
        while queue and not takes_one_more(queue[0][1]):
            heapq.heappop(queue)
        if not queue:
            return None
        seconds, chunk = heapq.heappop(queue)
        sizes[chunk] += 1
        room[devices[chunk]] -= held[chunk]
        heapq.heappush(queue, (seconds + float(layer_s[chunk]), chunk))
    return Partition(tuple(sizes)) if (room >= 0).all() else None
