"""Compares a dry run with the planner's count, buffer by buffer. No torch here."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from ..job import Job

TOLERANCE = 0.05


@dataclass(frozen=True)
class Trace:
    """The peak of one rank."""

    stage: int  # from 0
    rank: int  # in the world
    buffers: Mapping[str, float]  # bytes at the peak, by buffer of the ledger
    doing: str  # what the rank did then

    @property
    def allocated_bytes(self) -> float:
        return sum(self.buffers.values())


@dataclass(frozen=True)
class Comparison:
    """A trace and the planner's bytes of the same buffers."""

    trace: Trace  # of the runtime
    planned: Mapping[str, float]  # bytes by the same buffers

    @classmethod
    def of(cls, trace: Trace, stage: Mapping[str, Any]) -> Comparison:
        """`stage`: the item of this stage in a plan's `memory`."""
        separate = ("allocated_bytes", "reserved_bytes", "context_bytes", "device_bytes", "host_bytes")
        planned = {key.removesuffix("_bytes"): float(value) for key, value in stage.items()
                   if key.endswith("_bytes") and key not in separate}  # fmt: skip
        return cls(trace, planned)

    @property
    def planned_bytes(self) -> float:
        return sum(self.planned.values())

    @property
    def difference(self) -> float:
        """(planned - traced) / traced."""
        return self.planned_bytes / self.trace.allocated_bytes - 1.0

    @property
    def agrees(self) -> bool:
        return abs(self.difference) <= TOLERANCE

    @property
    def terms(self) -> list[tuple[str, float, float]]:
        """(buffer, planned bytes, traced bytes), the largest difference first."""
        names = dict.fromkeys([*self.planned, *self.trace.buffers])
        rows = [(name, self.planned.get(name, 0.0), self.trace.buffers.get(name, 0.0)) for name in names]
        return sorted(rows, key=lambda row: -abs(row[1] - row[2]))

    def as_dict(self) -> dict[str, Any]:
        return {
            "stage": self.trace.stage, "rank": self.trace.rank, "planned_bytes": self.planned_bytes,
            "traced_bytes": self.trace.allocated_bytes, "difference": self.difference, "agrees": self.agrees,
            "doing": self.trace.doing,
            "buffers": {name: {"planned_bytes": a, "traced_bytes": b} for name, a, b in self.terms},
        }  # fmt: skip


def distinct_stages(job: Job) -> list[int]:
    """The first of each set of stages with equal layers, which holds the most micro-batches.

    With a split backward pass also the last, in which most micro-batches wait for their W.
    """
    equal_stages: dict[tuple[Any, ...], list[int]] = {}
    for stage in range(job.layout.pp):
        chunks = [chunk for chunk in job.chunks if chunk.stage == stage]
        key = tuple(
            (tuple(job.model.pattern[i] for i in range(chunk.layers[0], chunk.layers[-1] + 1)) if chunk.layers else (),
             chunk.embedding, chunk.head, chunk.recompute_layers, tuple(map(job.strategy, job.parts_of(chunk))))
            for chunk in chunks
        )  # fmt: skip
        equal_stages.setdefault(key, []).append(stage)
    ends = (0, -1) if job.splits_backward else (0,)
    return sorted({stages[end] for stages in equal_stages.values() for end in ends})
