"""The screen of `meshwright memory`, and how much memory a layout takes of how much."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from .. import text
from ..console import table
from .facts import Facts
from .header import header
from .heterogeneous import memory_limits

if TYPE_CHECKING:
    from rich.table import Table

    from ...planner.document.candidate import Candidate, StageMemory
    from ...planner.document.plan import Plan
    from ...planner.evaluation.conversion import Moved
    from .parts import Part

_MOST_STAGES = 5
_TOTALS = ("allocated_bytes", "reserved_bytes", "context_bytes", "device_bytes")


@dataclass(frozen=True)
class StageGroup:
    """Stages that hold the same bytes and may use as many."""

    memory: StageMemory  # of each of them
    limit: float  # bytes
    stages: list[int] = field(default_factory=list)


def memory_screen(plan: Plan, candidate: Candidate) -> list[Part]:
    """Buffers by name, a column per group of equal stages."""
    groups = stage_groups(candidate.memory, memory_limits(candidate, capacity(plan)))
    return [
        header(plan),
        f"{candidate.layout_id}: GiB per GPU, by pipeline stage",
        "",
        memory_table(groups),
        *([f"{len(groups)} different stages; the fullest are shown, `--json` has all"]
          if len(groups) > _MOST_STAGES else []),
    ]  # fmt: skip


def moved_lines(states: tuple[str, Moved] | None) -> list[Part]:
    """Seconds of the states of a layout to the one that is shown."""
    if states is None:
        return []
    layout_id, moved = states
    seconds = text.duration(moved.by_kernels.total_s)
    copies = f", or in {text.duration(moved.by_copies.total_s)} by {moved.runs:,.0f} copies" if moved.runs else ""
    way = f"gathered by a kernel per tensor{copies}"
    return ["", text.wrapped(f"The states of {layout_id} move here in {seconds}, {way}.")]


def memory_table(groups: Sequence[StageGroup]) -> Table:
    """Rows are buffers, columns are groups of stages that hold the same bytes."""
    if len(groups) > _MOST_STAGES:
        fullest = sorted(groups, key=lambda group: -group.memory.device_bytes)[:_MOST_STAGES]
        groups = [group for group in groups if group in fullest]

    def row(name: str) -> list[str]:
        return [text.words(name), *(text.gib(getattr(group.memory, name)) for group in groups)]

    buffers = buffer_names(groups[0].memory)
    rows = [row(name) for name in buffers if any(getattr(group.memory, name) for group in groups)]
    rows += [row(name) for name in _TOTALS]
    rows.append(["may use", *(text.gib(group.limit) for group in groups)])
    if any(group.memory.host_bytes for group in groups):
        rows.append(["host memory", *row("host_bytes")[1:]])
    columns = [f"stage {text.ranges(group.stages)}" for group in groups]
    return table("buffer", *columns, rows=rows, right=columns)


def buffer_names(memory: StageMemory) -> list[str]:
    """Fields of the buffers that a GPU holds: their sum is what is allocated."""
    no_buffers = ("stage", "host_bytes", *_TOTALS)
    return [name for name in type(memory).model_fields if name not in no_buffers]


def stage_groups(stages: Sequence[StageMemory], limits: Sequence[float]) -> list[StageGroup]:
    """Stages by what they hold and may use, in their order."""
    groups: dict[tuple[float, StageMemory], StageGroup] = {}
    for memory, limit in zip(stages, limits, strict=True):
        key = (limit, memory.model_copy(update={"stage": 0}))
        groups.setdefault(key, StageGroup(memory, limit)).stages.append(memory.stage)
    return list(groups.values())


def capacity(plan: Plan) -> float:
    """Bytes that a layout which takes all GPUs for alike may use of each."""
    return Facts.of(plan).memory_bytes
