"""The screens of `plan --pareto` and of a range of GPUs, made from the JSON form of their results."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Sequence
from itertools import pairwise
from typing import TYPE_CHECKING

from .. import text
from ..console import table
from .header import header, space_line

if TYPE_CHECKING:
    from .parts import Json, Part

MOST_ROWS = 12
_FIELDS = {"time": "step_s", "memory": "device_bytes", "gpus": "num_gpus", "cost": "usd_per_mtoken"}
_DAY_S = 86400.0


def frontier_screen(result: Json, most: int = MOST_ROWS) -> list[Part]:
    """The points that differ most, each with what it gains and loses against the line above."""
    points = [result["points"][index] for index in sorted(result["overview"][:most])]
    columns, rows = _columns(points, several=len(result["counts"]) > 1)
    changes = ["", *(_bought(result["axes"], a, b) for a, b in pairwise(points))]
    every = len(result["points"])
    line = f"{every:,} layout{'s' if every > 1 else ''} that none beats in {text.listed(result['axes'])}"
    line += f"; the {len(points)} that differ most:" if len(points) < every else ":"
    rows = [[*row, change] for row, change in zip(rows, changes, strict=True)]
    return [
        _header(result), space_line({"certificate": result}), "", text.wrapped(line), "",
        table(*columns, "against the line above", rows=rows, right=columns[:-1]), "", _proof(result, "frontier"), "",
    ]  # fmt: skip


def curve_screen(result: Json, most: int = MOST_ROWS) -> list[Part]:
    """A line per number of GPUs; under a deadline those that meet it, and the largest that is too small."""
    tried = [point for point in result["points"] if point["best"]]
    shown = _rows_shown(tried, most, result["chosen"])
    columns, rows = _columns([point["best"] for point in shown], several=True, efficiency=shown)
    marks = [_mark(point, result) for point in shown]
    rows = [[*row, mark] for row, mark in zip(rows, marks, strict=True)]
    left_out = len(tried) - len(shown)
    return [
        _header(result), text.wrapped(_counted(result)), "",
        table(*columns, "", rows=rows, right=columns[:-1]), "",
        *([text.wrapped(f"{left_out:,} more are in `--json`; shown are the most efficient of each part of the range.")]
          if left_out else []),
        text.wrapped("Efficiency: tokens per second and GPU, over those of the best number of GPUs found."),
        *_closing(result), "",
    ]  # fmt: skip


def _header(result: Json) -> str:
    """`llama-3.1-70b on 64 to 1,024 h100-sxm-80gb, 1,024 x 8,192 tokens per step, bf16`; of one cluster as `plan`."""
    first, last = result["counts"][0], result["counts"][-1]
    if first == last:
        return header(result)
    resolved = result["resolved"]
    gpu, work = resolved["cluster"]["groups"][0]["gpu"]["name"], resolved["workload"]
    line = f"{resolved['model']['name']} on {first:,} to {last:,} {gpu}, "
    return text.wrapped(f"{line}{work['global_batch']:,} x {work['seq_len']:,} tokens per step, {work['precision']}")


def _columns(
    choices: Sequence[Json], *, several: bool, efficiency: Sequence[Json] | None = None
) -> tuple[list[str], list[list[str]]]:
    """Names of the columns and the cells of every choice; what is not known has no column."""
    places = text.decimals([one["step_s"] for one in choices])
    parts: list[tuple[str, list[str]]] = [("GPUs", [f"{one['num_gpus']:,}" for one in choices])] if several else []
    parts.append(("step s", [text.fixed(one["step_s"], places) for one in choices]))
    if choices[0]["days"] is not None:
        parts.append(("days", [text.significant(one["days"]) for one in choices]))
    if choices[0]["cost_usd"] is not None:
        parts.append(("USD", [text.count(one["cost_usd"]) for one in choices]))
    elif choices[0]["usd_per_mtoken"] is not None:
        parts.append(("USD/Mtoken", [text.significant(one["usd_per_mtoken"]) for one in choices]))
    elif choices[0]["gpu_hours"] is not None and several:
        parts.append(("GPU-hours", [text.count(one["gpu_hours"]) for one in choices]))
    if efficiency is not None:
        parts.append(("efficiency %", [text.percent(point["efficiency"]) for point in efficiency]))
    else:
        parts.append(("mem GiB", [text.gib(one["device_bytes"]) for one in choices]))
    parts.append(("layout", [one["layout_id"] for one in choices]))
    return [name for name, _ in parts], [list(row) for row in zip(*(cells for _, cells in parts), strict=True)]


def _bought(axes: Sequence[str], before: Json, after: Json) -> str:
    """`memory -8.5 % for time +3.5 %`."""
    changes = {name: after[_FIELDS[name]] / before[_FIELDS[name]] - 1 for name in axes}
    gained = [f"{name} {text.more(change)}" for name, change in changes.items() if change < 0]
    lost = [f"{name} {text.more(change)}" for name, change in changes.items() if change > 0]
    return f"{', '.join(gained)} for {', '.join(lost)}" if gained and lost else ", ".join([*gained, *lost])


def _rows_shown(tried: Sequence[Json], most: int, chosen: int | None) -> list[Json]:
    """Every number of GPUs, or the ends, the one chosen, and the most efficient of each of `most` - 2 parts of the
    range."""
    if len(tried) <= most:
        return list(tried)
    first, last = tried[0]["num_gpus"], tried[-1]["num_gpus"]
    best: dict[int, int] = {}
    for index, point in enumerate(tried):
        part = int(math.log(point["num_gpus"] / first) / math.log(last / first) * (most - 2))
        if part not in best or point["efficiency"] > tried[best[part]]["efficiency"]:
            best[part] = index
    marked = {index for index, point in enumerate(tried) if point["num_gpus"] in (first, last, chosen)}
    return [tried[index] for index in sorted(marked | set(best.values()))]


def _mark(point: Json, result: Json) -> str:
    if result["deadline_s"] is None:
        return ""
    if point["status"] == "too slow":
        return "too slow"
    return "<- cheapest" if point["num_gpus"] == result["chosen"] else ""


_STATUSES = {
    "none legal": "without a legal layout", "nothing fits": "on which nothing fits", "too slow": "proven too slow",
    "dearer": "proven no cheaper", "searched": "searched to the end", "not reached": "not reached",
    "cut short": "cut short",
}  # fmt: skip


def _counted(result: Json) -> str:
    """Which numbers of GPUs were tried, and what became of them."""
    points, per_node = result["points"], result["whole_nodes_of"]
    statuses = Counter(point["status"] for point in points)
    counted = ", ".join(f"{statuses[name]:,} {words}" for name, words in _STATUSES.items() if statuses[name])
    whole = f"whole nodes of {per_node}"
    whole = whole if points[0]["num_gpus"] >= per_node else f"any within a node, then {whole}"
    return f"{len(points):,} numbers of GPUs ({whole}): {counted}"


def _closing(result: Json) -> list[str]:
    """The answer under a deadline, and whether it is proven."""
    if result["deadline_s"] is None:
        return [_proof(result, "curve")] if result["stopped"] else []
    best = next(point["best"] for point in result["points"] if point["num_gpus"] == result["chosen"])
    spent = f"{text.count(best['cost_usd'])} USD" if best["cost_usd"] is not None else ""
    spent = spent or f"{text.count(best['gpu_hours'])} GPU-hours"
    line = f"{best['num_gpus']:,} GPUs train on {text.count(result['total_tokens'])} tokens in "
    line += f"{text.significant(best['days'])} of {text.significant(result['deadline_s'] / _DAY_S)} days, for {spent}."
    proof = "" if result["stopped"] else " Proven: no other number of GPUs tried does it for less, by this model."
    return [text.wrapped(line + proof), *([_proof(result, "curve")] if result["stopped"] else [])]


def _proof(result: Json, what: str) -> str:
    if result["stopped"]:
        return f"The search was stopped ({result['stopped']}): the {what} may have better points."
    return text.wrapped(f"Proven: no other layout of this space belongs on the {what}, by this model.")
