"""The screens of `plan --pareto` and of a range of GPUs."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Sequence
from itertools import pairwise
from typing import TYPE_CHECKING

from ...cost_models.units import DAY_S
from .. import text
from ..console import table
from .facts import Facts
from .header import header, space_line, work_text
from .what_if import price_line

if TYPE_CHECKING:
    from ...planner.studies.gpu_curve import Curve, Tried
    from ...planner.studies.tradeoffs import Frontier, GpuCountsResult, TradeoffChoice
    from .parts import Part

MOST_ROWS = 12
# Axis of a frontier -> field of TradeoffChoice (AXES of planner/studies/tradeoffs.py).
_FIELDS = {"time": "step_s", "memory": "device_bytes", "gpus": "num_gpus", "cost": "usd_per_mtoken"}


def frontier_screen(result: Frontier, most: int = MOST_ROWS) -> list[Part]:
    """The points that differ most, each with what it gains and loses against the line above."""
    points = [result.points[index] for index in sorted(result.overview[:most])]
    columns, cells = _columns(points, several=len(result.counts) > 1)
    changes = ["", *(_bought(result.axes, before, after) for before, after in pairwise(points))]
    num_points = len(result.points)
    line = f"{num_points:,} layout{'s' if num_points > 1 else ''} that none beats in {text.listed(result.axes)}"
    line += f"; the {len(points)} that differ most:" if len(points) < num_points else ":"
    rows = [[*row, change] for row, change in zip(cells, changes, strict=True)]
    return [
        _header(result), space_line(result.space, stopped=bool(result.stopped)), "", text.wrapped(line), "",
        table(*columns, "against the line above", rows=rows, right=columns[:-1]), "", *_price_lines(result),
        _proof(result, "frontier"), "",
    ]  # fmt: skip


def curve_screen(result: Curve, most: int = MOST_ROWS) -> list[Part]:
    """A line per number of GPUs; under a deadline those that meet it, and the largest that is too small."""
    runs = [(point, point.best) for point in result.points if point.best]
    rows_shown = shown_rows([point for point, _ in runs], most, result.chosen, result.indifference)
    shown = [runs[index] for index in rows_shown]
    columns, cells = _columns(
        [best for _, best in shown], several=True, efficiency=[point.efficiency for point, _ in shown]
    )
    rows = [[*row, _mark(point, result)] for row, (point, _) in zip(cells, shown, strict=True)]
    more = (f"{len(runs) - len(shown):,} more are in `--json`; shown are the most efficient of each part of the range, "
            "rounder ones first where the model cannot rank them.")  # fmt: skip
    return [
        _header(result), text.wrapped(_counted(result)), "",
        table(*columns, "", rows=rows, right=columns[:-1]), "",
        *([text.wrapped(more)] if len(shown) < len(runs) else []),
        text.wrapped("Efficiency: tokens per second and GPU, over those of the best number of GPUs found."),
        *_price_lines(result), *_closing(result), "",
    ]  # fmt: skip


def _header(result: GpuCountsResult) -> str:
    """`llama-3.1-70b on 64 to 1,024 h100-sxm-80gb, 1,024 x 8,192 tokens per step, bf16`; of one cluster as `plan`."""
    first, last = result.counts[0], result.counts[-1]
    if first == last:
        return header(result)
    facts = Facts.of(result)
    return text.wrapped(f"{facts.model} on {first:,} to {last:,} {facts.groups[0].gpu}, {work_text(facts.work)}")


def _columns(
    choices: Sequence[TradeoffChoice], *, several: bool, efficiency: Sequence[float | None] | None = None
) -> tuple[list[str], list[list[str]]]:
    """Names of the columns and the cells of every choice; what is not known has no column."""
    first, places = choices[0], text.decimals([choice.step_s for choice in choices])
    columns: dict[str, list[str]] = {}
    if several:
        columns["GPUs"] = [f"{choice.num_gpus:,}" for choice in choices]
    columns["step s"] = [text.fixed(choice.step_s, places) for choice in choices]
    if first.days is not None:
        columns["days"] = [text.significant(choice.days) for choice in choices]
    if first.cost_usd is not None:
        columns["USD"] = [text.count(choice.cost_usd or 0.0) for choice in choices]
    elif first.usd_per_mtoken is not None:
        columns["USD/Mtoken"] = [text.significant(choice.usd_per_mtoken) for choice in choices]
    elif first.gpu_hours is not None and several:
        columns["GPU-hours"] = [text.count(choice.gpu_hours or 0.0) for choice in choices]
    if efficiency is not None:
        columns["efficiency %"] = [text.percent(share) for share in efficiency]
    else:
        columns["mem GiB"] = [text.gib(choice.device_bytes) for choice in choices]
    columns["layout"] = [choice.layout_id for choice in choices]
    return list(columns), [list(row) for row in zip(*columns.values(), strict=True)]


def _bought(axes: Sequence[str], before: TradeoffChoice, after: TradeoffChoice) -> str:
    """`memory -8.5 % for time +3.5 %`."""
    changes = {name: getattr(after, _FIELDS[name]) / getattr(before, _FIELDS[name]) - 1 for name in axes}
    gained = [f"{name} {text.more(change)}" for name, change in changes.items() if change < 0]
    lost = [f"{name} {text.more(change)}" for name, change in changes.items() if change > 0]
    return f"{', '.join(gained)} for {', '.join(lost)}" if gained and lost else ", ".join([*gained, *lost])


def shown_rows(points: Sequence[Tried], most: int, chosen: int | None, lead: float) -> list[int]:
    """Indices of every number of GPUs, or of the ends, the one chosen, and one of each of `most` - 2 parts of the
    range: the most efficient, or a rounder one that is as good within `lead`."""
    if len(points) <= most:
        return list(range(len(points)))
    first, last = points[0].num_gpus, points[-1].num_gpus
    best: dict[int, int] = {}
    for index, point in enumerate(points):
        part = int(math.log(point.num_gpus / first) / math.log(last / first) * (most - 2))
        if part not in best or _is_preferred(point, points[best[part]], lead):
            best[part] = index
    marked = {index for index, point in enumerate(points) if point.num_gpus in (first, last, chosen)}
    return sorted(marked | set(best.values()))


def _is_preferred(point: Tried, other: Tried, lead: float) -> bool:
    """Whether a number of GPUs is shown for another one: it is rounder and as good within what the model tells apart,
    or better."""
    one, two = _efficiency(point), _efficiency(other)
    if max(one, two) <= min(one, two) * (1 + lead) and _roundness(point) != _roundness(other):
        return _roundness(point) > _roundness(other)
    return one > two


def _roundness(point: Tried) -> int:
    """The largest power of two that divides the number of GPUs: such numbers divide among degrees."""
    return point.num_gpus & -point.num_gpus


def _efficiency(point: Tried) -> float:
    return point.efficiency or 0.0


def _mark(point: Tried, result: Curve) -> str:
    if result.deadline_s is None:
        return ""
    if point.status == "too slow":
        return "too slow"
    return "<- cheapest" if point.num_gpus == result.chosen else ""


_STATUSES = {
    "none legal": "without a legal layout", "nothing fits": "on which nothing fits", "too slow": "proven too slow",
    "dearer": "proven no cheaper", "searched": "searched to the end", "not reached": "not reached",
    "cut short": "cut short",
}  # fmt: skip


def _counted(result: Curve) -> str:
    """The numbers of GPUs that were tried, and their results."""
    points, per_node = result.points, result.whole_nodes_of
    statuses = Counter[str](point.status for point in points)
    counted = ", ".join(f"{statuses[name]:,} {words}" for name, words in _STATUSES.items() if statuses[name])
    whole = f"whole nodes of {per_node}"
    whole = whole if points[0].num_gpus >= per_node else f"any within a node, then {whole}"
    return f"{len(points):,} numbers of GPUs ({whole}): {counted}"


def _closing(result: Curve) -> list[str]:
    """The answer under a deadline, and whether it is proven."""
    unproven = [_proof(result, "curve")] if result.stopped else []
    best = next((point.best for point in result.points if point.num_gpus == result.chosen), None)
    if result.deadline_s is None or best is None:
        return unproven
    spent = f"{text.count(best.cost_usd)} USD" if best.cost_usd is not None else ""
    spent = spent or f"{text.count(best.gpu_hours or 0.0)} GPU-hours"
    line = f"{best.num_gpus:,} GPUs train on {text.count(result.total_tokens or 0.0)} tokens in "
    line += f"{text.significant(best.days)} of {text.significant(result.deadline_s / DAY_S)} days, for {spent}."
    proof = "" if result.stopped else " Proven: no other number of GPUs tried does it for less, by this model."
    return [text.wrapped(line + proof), *unproven]


def _price_lines(result: GpuCountsResult) -> list[str]:
    from ...planner.explain.outlook import price_per_hour

    return price_line([price_per_hour(result.resolved["cluster"]["groups"])[1]])


def _proof(result: GpuCountsResult, what: str) -> str:
    if result.stopped:
        return f"The search was stopped ({result.stopped}): the {what} may have better points."
    return text.wrapped(f"Proven: no other layout of this space belongs on the {what}, by this model.")
