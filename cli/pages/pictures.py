"""The pictures of a page as numbers, which templates draw: bars of time, bars of memory, the map of the ranks, sliders.

Widths and places are in percent of the picture.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import groupby
from typing import TYPE_CHECKING

from .. import text
from ..screens.heterogeneous import memory_limits
from ..screens.memory import buffer_names, stage_groups

if TYPE_CHECKING:
    from ...planner.document.candidate import Candidate, StageMemory
    from ...planner.explain.price_grid import PriceGrid
    from ...planner.explain.rank_map import NodeRow, RankMap, Seat

SOURCES = {
    "measured": "from tables measured on this GPU", "fitted": "a formula with fitted constants",
    "formula": "counted, no constant in it", "datasheet": "the maker's number",
    "assumed": "nobody measured it",
}  # fmt: skip
_BUFFERS = {
    "weights_bytes": "weights", "gradients_bytes": "gradients", "optimizer_bytes": "optimizer",
    "activations_bytes": "activations", "context_bytes": "reserve and context",
}  # fmt: skip
_OTHERS = "other buffers"
MEMORY_KINDS = ("weights", "gradients", "optimizer", "activations", _OTHERS, "reserve and context")
_MOST_TIMES = 3.0  # as slow as the fastest: slower layouts are not on a curve
_MOST_NODES = 16  # drawn of all rows together


@dataclass(frozen=True)
class Bar:
    """A term of the step."""

    name: str
    width: float
    seconds: float
    source: str  # a key of SOURCES


def time_bars(candidate: Candidate) -> list[Bar]:
    """The exposed terms, the longest first."""
    terms = sorted((term for term in candidate.terms if term.exposed), key=lambda term: -term.seconds)
    longest = terms[0].seconds
    return [Bar(term.name, 100 * term.seconds / longest, term.seconds, term.source) for term in terms]


@dataclass(frozen=True)
class Segment:
    """A part of a bar of memory."""

    kind: str  # one of MEMORY_KINDS
    width: float
    num_bytes: float


@dataclass(frozen=True)
class MemoryBar:
    """Stages that hold the same."""

    stages: str  # `0`, `1-3`
    segments: list[Segment]
    num_bytes: float
    limit: float  # bytes that each of its GPUs may use
    limit_at: float  # its place on the bar
    host_bytes: float


def memory_bars(candidate: Candidate, capacity: float) -> list[MemoryBar]:
    """A bar per group of equal stages, all on the same scale. capacity: bytes, where stages have no limit of their
    own."""
    groups = stage_groups(candidate.memory, memory_limits(candidate, capacity))
    widest = max(max(group.limit, group.memory.device_bytes) for group in groups)
    return [
        MemoryBar(
            stages=text.ranges(group.stages), num_bytes=group.memory.device_bytes, limit=group.limit,
            limit_at=100 * group.limit / widest, host_bytes=group.memory.host_bytes,
            segments=[Segment(kind, 100 * num_bytes / widest, num_bytes)
                      for kind, num_bytes in _held(group.memory).items() if num_bytes],
        )
        for group in groups
    ]  # fmt: skip


def _held(memory: StageMemory) -> dict[str, float]:
    """Bytes by kind; they sum to those of the device."""
    held = dict.fromkeys(MEMORY_KINDS, 0.0)
    for name in (*buffer_names(memory), "context_bytes"):
        held[_BUFFERS.get(name, _OTHERS)] += getattr(memory, name)
    held["reserve and context"] += memory.reserved_bytes - memory.allocated_bytes
    return held


@dataclass(frozen=True)
class NodeBox:
    """A node, its GPUs in tensor-parallel groups, each with its coordinates."""

    name: str
    groups: list[tuple[str, list[Seat]]]


@dataclass(frozen=True)
class StageRow:
    """Nodes that hold the same stages: some of them, and how many more there are."""

    stages: str
    num_nodes: int
    nodes: list[NodeBox]

    @property
    def more(self) -> int:
        return self.num_nodes - len(self.nodes)


def stage_rows(ranks: RankMap) -> list[StageRow]:
    """The rows of a map, with as many nodes of each as there is room for."""
    shown = max(1, _MOST_NODES // len(ranks.rows))
    return [StageRow(text.ranges(row.stages), row.num_nodes, _boxes(row, shown)) for row in ranks.rows]


def _boxes(row: NodeRow, shown: int) -> list[NodeBox]:
    boxes = []
    for node in row.nodes[:shown]:
        groups = groupby(node.seats, key=lambda seat: (seat.pp, seat.dp, seat.cp))
        boxes.append(NodeBox(node.name, [(_where(row, dp, cp, pp), list(seats)) for (pp, dp, cp), seats in groups]))
    return boxes


def _where(row: NodeRow, dp: int, cp: int, pp: int) -> str:
    """`dp 3 cp 1`: the coordinates that the row lacks; cp only where it is not 0."""
    stage = f"pp {pp} " if len(row.stages) > 1 else ""
    return f"{stage}dp {dp}{f' cp {cp}' if cp else ''}"


def sliders(grid: PriceGrid, candidate: Candidate) -> dict[str, object]:
    """The data of report.js: words of every mark, and seconds of every combination of marks."""
    sources = {term.name: term.source for term in candidate.terms}
    knobs = [
        {"label": knob.label, "marks": [text.value_at(knob.path, knob.now * factor, knob.dimension)
                                        for factor in grid.factors]}
        for knob in grid.knobs
    ]  # fmt: skip
    return {"factors": grid.factors, "knobs": knobs, "terms": grid.terms,
            "sources": [sources.get(name, "formula") for name in grid.terms], "now": grid.factors.index(1.0),
            "seconds": [_short(row) for row in grid.seconds]}  # fmt: skip


def _short(seconds: Sequence[float]) -> list[float]:
    """Five digits: a page shows three."""
    return [float(f"{value:.5g}") for value in seconds]


@dataclass(frozen=True)
class Dot:
    """A layout of a curve; x and y from the upper left."""

    x: float
    y: float
    layout: str
    seconds: float
    num_bytes: float


@dataclass(frozen=True)
class Curve:
    """Memory over time of the layouts that none beats."""

    dots: list[Dot]
    path: str  # of SVG, in a box of 100 by 100
    total: int  # layouts, also those that are not drawn
    most: float  # times as slow as the fastest is the slowest that is drawn
    most_bytes: float  # the upper end

    @property
    def fastest(self) -> float:
        return self.dots[0].seconds

    @property
    def slowest(self) -> float:
        return self.dots[-1].seconds


def frontier(rows: Sequence[tuple[float, float, str]]) -> Curve:
    """The curve of (seconds, bytes, layout), the fastest first; a step is drawn up to _MOST_TIMES as long."""
    shown = [row for row in rows if row[0] <= _MOST_TIMES * rows[0][0]]
    fastest, span = shown[0][0], max(shown[-1][0] - shown[0][0], 1e-300)
    most_bytes = shown[0][1]
    dots = [Dot(100 * (seconds - fastest) / span, 100 * (1 - num_bytes / most_bytes), name, seconds, num_bytes)
            for seconds, num_bytes, name in shown]  # fmt: skip
    steps = "".join(f"H{dot.x:.2f}V{dot.y:.2f}" for dot in dots)
    return Curve(dots, f"M0 {dots[0].y:.2f}{steps}", len(rows), _MOST_TIMES, most_bytes)
