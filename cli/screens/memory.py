"""The screen of `meshwright memory`, and how much memory a layout takes of how much."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from .. import text
from ..console import table
from .header import header
from .heterogeneous import rooms

if TYPE_CHECKING:
    from rich.table import Table

    from .parts import Json, Part

_MOST_STAGES = 5
_TOTALS = ("allocated_bytes", "reserved_bytes", "device_bytes")


def memory_screen(plan: Json, candidate: Json) -> list[Part]:
    """Buffers by name, a column per group of equal stages."""
    groups = _stage_groups(candidate["memory"], rooms(candidate, capacity(plan)))
    return [
        header(plan),
        f"{candidate['layout_id']}: GiB per GPU, by pipeline stage",
        "",
        memory_table(groups),
        *([f"{len(groups)} different stages; the fullest are shown, `--json` has all"]
          if len(groups) > _MOST_STAGES else []),
    ]  # fmt: skip


def memory_table(groups: list[tuple[list[int], Json]]) -> Table:
    """Rows are buffers, columns are groups of stages that hold the same bytes."""
    if len(groups) > _MOST_STAGES:
        fullest = sorted(groups, key=lambda group: -group[1]["device_bytes"])[:_MOST_STAGES]
        groups = [group for group in groups if group in fullest]
    apart = (*_TOTALS, "context_bytes", "host_bytes")
    names = [name for name in groups[0][1] if name.endswith("_bytes") and name not in apart]
    shown = [name for name in names if any(stage[name] for _, stage in groups)]
    rows = [[text.words(name), *(text.gib(stage[name]) for _, stage in groups)] for name in shown]
    for name in ("allocated_bytes", "reserved_bytes", "context_bytes", "device_bytes"):
        rows.append([text.words(name), *(text.gib(stage[name]) for _, stage in groups)])
    rows.append(["may use", *(text.gib(stage["room"]) for _, stage in groups)])
    if any(stage.get("host_bytes") for _, stage in groups):
        rows.append(["host memory", *(text.gib(stage["host_bytes"]) for _, stage in groups)])
    columns = [f"stage {text.ranges(numbers)}" for numbers, _ in groups]
    return table("buffer", *columns, rows=rows, right=columns)


def _stage_groups(stages: Sequence[Json], rooms: Sequence[float]) -> list[tuple[list[int], Json]]:
    """Stages that hold the same bytes and may use as many (`room`)."""
    groups: dict[tuple[Any, ...], tuple[list[int], Json]] = {}
    for stage, room in zip(stages, rooms, strict=True):
        key = (room, *(value for name, value in stage.items() if name != "stage"))
        groups.setdefault(key, ([], {**stage, "room": room}))[0].append(stage["stage"])
    return list(groups.values())


def peak_bytes(candidate: Json) -> float:
    """What the fullest GPU holds."""
    return max(float(stage["device_bytes"]) for stage in candidate["memory"])


def capacity(plan: Json) -> float:
    """What a layout that takes all GPUs for alike may use of each."""
    return float(plan["resolved"]["memory_bytes"])
