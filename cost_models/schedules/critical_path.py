"""Critical paths of a simulated step: the sequences of dependent operations that determine its length.

A schedule fixes the order of operations, so the step is the longest path through them, and each path's length is linear
in the seconds of the chunks: a path found for one set of costs is a lower bound of the step for every other.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from ..arrays import Array
from .orders import B, F, I, Schedule, W
from .simulator import Timeline


@dataclass(frozen=True, eq=False)
class Path:
    """A path through the operations of a step."""

    forward: Array  # [chunk] number of F on it
    inputs: Array  # [chunk] number of I on it, those of B included
    weights: Array  # [chunk] number of W on it, those of B included
    hops: Array  # [2, chunk] messages that bring a chunk its input, and its gradient
    links: Array  # [2, chunk] messages that only keep the link busy for the next one
    device: int  # of its last operation

    def seconds(
        self, forward_s: Array, input_s: Array, weight_s: Array, hop_s: Array | float, link_s: Array | float = 0.0
    ) -> float:
        """Its length for chunks that take [chunk] seconds per micro-batch, and messages of hop_s ([2, chunk], or all
        alike) that keep their link busy for link_s."""
        compute_s = float(self.forward @ forward_s + self.inputs @ input_s + self.weights @ weight_s)
        return compute_s + self.messages_s(hop_s, link_s)

    def messages_s(self, hop_s: Array | float, link_s: Array | float) -> float:
        """Seconds of the messages on it."""
        return float((self.hops * hop_s + self.links * link_s).sum())


def device_path(schedule: Schedule, device: int) -> Path:
    """The path along all operations of `device`: from the first forward pass to its first operation, and from its last
    one, if others wait for it, back to the first chunk."""
    row = slice(int(schedule.first[device]), int(schedule.first[device + 1]))
    counts, hops = np.zeros((3, schedule.num_chunks)), np.zeros((2, schedule.num_chunks))
    for kind, chunk in zip(schedule.kind[row].tolist(), schedule.chunk[row].tolist(), strict=True):
        counts[:, chunk] += _PARTS[kind]
    ends = [(int(schedule.chunk[row.start]), F), (int(schedule.chunk[row.stop - 1]), int(schedule.kind[row.stop - 1]))]
    for chunk, kind in ends if ends[1][1] != W else ends[:1]:
        while (above := int(schedule.upstream[chunk])) >= 0:
            counts[:, above] += _PARTS[kind]
            into = (0, chunk) if kind == F else (1, above)
            hops[into] += schedule.device[above] != schedule.device[chunk]
            chunk = above
        if kind != F:
            device = int(schedule.device[chunk])
    return Path(counts[0], counts[1], counts[2], hops, np.zeros_like(hops), device)


# Forward, input and weight seconds of each kind of operation, by code: F, B, I, W.
_PARTS = np.array([[1, 0, 0], [0, 1, 1], [0, 1, 0], [0, 0, 1]], dtype=np.float64)


def longest_paths(timeline: Timeline, devices: Sequence[int]) -> list[Path]:
    """The longest path to the end of the last operation of each of `devices`. The timeline must gather no weights."""
    schedule, work = timeline.schedule, timeline.work
    dep, lag, first = work.dep.tolist(), (work.lag + timeline.queued_s).tolist(), schedule.first.tolist()
    waits, queued = timeline.queued_s.tolist(), work.queued.tolist()
    start, end, owner = (timeline.end_s - work.dur).tolist(), timeline.end_s.tolist(), schedule.device_of_op.tolist()
    kind, chunk, paths = schedule.kind.tolist(), schedule.chunk.tolist(), []
    for device in devices:
        op, path, messages = first[device + 1] - 1, [], np.zeros((2, 2, schedule.num_chunks))
        while True:
            path.append(op)
            before = dep[op]
            if before < len(end) and end[before] + lag[op] == start[op]:
                messages[0, int(kind[op] != F), chunk[op]] += owner[before] != owner[op]
                while waits[op] > 0:
                    op = queued[op]
                    messages[1, int(kind[op] != F), chunk[op]] += 1
                op = dep[op]
            elif op > first[owner[op]]:
                op -= 1
            else:
                break
        paths.append(_counted(timeline, np.array(path), messages, device))
    return paths


def _counted(timeline: Timeline, path: NDArray[np.int64], messages: Array, device: int) -> Path:
    """The second half of a fused pair takes the time of both; the first half none."""
    schedule, chunks = timeline.schedule, timeline.schedule.num_chunks
    pairs = path[np.append(False, schedule.fused)[path]] - 1
    path = np.concatenate([path[~schedule.fused[path]], pairs])
    kind, chunk = schedule.kind[path], schedule.chunk[path]

    def count(kinds: tuple[int, ...]) -> Array:
        return np.bincount(chunk[np.isin(kind, kinds)], minlength=chunks).astype(np.float64)

    return Path(count((F,)), count((B, I)), count((B, W)), messages[0], messages[1], device)
