"""What the screens say of a plan over groups of nodes that are not alike: what each group does, and why."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from .. import text
from ..console import table

if TYPE_CHECKING:
    from rich.table import Table

    from .parts import Json, Part

_MOST_WAYS = 6


def group_parts(plan: Json, candidate: Json) -> list[Part]:
    """A row per group of nodes, sentences why, and the other ways to use the groups; nothing where all are alike."""
    spread = candidate.get("spread")
    if not spread:
        return []
    lines = [*_why(spread, candidate), *_crossing_lines(spread), *_unused_lines(plan, spread)]
    parts: list[Part] = [_groups_table(spread, candidate), *(text.wrapped(line) for line in lines)]
    ways = plan.get("ways") or []
    if len(ways) > 1:
        parts += ["", "Ways to use the groups", _ways_table(ways)]
    return parts


def _groups_table(spread: Json, candidate: Json) -> Table:
    """What every group of nodes holds and how busy it is."""
    by_replicas = spread["manner"] == "replicas"
    rows = []
    for use in spread["islands"]:
        stages = text.ranges(list(range(use["stages"][0], use["stages"][1] + 1)))
        share = (str(use["replicas"]), str(use["micro_batches"])) if by_replicas else (stages, str(use["layers"]))
        rows.append((
            f"  {use['name']}", f"{use['num_gpus']} x {use['gpu']}", *share, text.significant(1e3 * use["layer_s"]),
            text.significant(1e3 * use["busy_s"]),
            f"{text.gib(use['device_bytes'])} of {text.gib(use['memory_bytes'])}",
        ))  # fmt: skip
    held = ("replicas", "micro-batches") if by_replicas else ("stages", "layers")
    names = ("  group", "GPUs", *held, "ms/layer", "ms/stage", "GiB")
    return table(*names, rows=rows, right=names[2:])


def _why(spread: Json, candidate: Json) -> list[str]:
    """Why layers or micro-batches are shared so, and what equal parts would take."""
    uses = spread["islands"]
    if spread["manner"] == "together" or len(uses) == 1:
        return [f"All of it runs on {uses[0]['name']}."]
    slow, fast = max(uses, key=_layer_s), min(uses, key=_layer_s)
    much = slow["layer_s"] / fast["layer_s"]
    if much > 1.01:
        first = f"A layer takes {text.significant(much, 2)} times as long on {slow['name']} as on {fast['name']}, so "
        if spread["manner"] == "across":
            first += "its stages hold fewer: ms/stage is what a micro-batch keeps the slowest stage of a group busy."
        else:
            first += "its replicas run fewer micro-batches: all end together. Gradients are weighted by tokens."
    elif spread["manner"] == "across":
        first = "The groups are equally fast; the pipeline is cut at the border between them."
    else:
        first = "The groups are equally fast, and so are their replicas."
    lines = [first]
    if spread.get("even_step_s"):
        what = "stages" if spread["manner"] == "across" else "shares"
        more = text.more(spread["even_step_s"] / candidate["step_s"] - 1)
        fits = "" if spread["even_fits"] else ", and do not fit"
        lines.append(f"Even {what} of the same layout take {text.significant(spread['even_step_s'])} s ({more}){fits}.")
    return lines


def _layer_s(use: Json) -> float:
    return float(use["layer_s"])


def _crossing_lines(spread: Json) -> list[str]:
    """What moves between the groups, and what it costs."""
    names = [use["name"] for use in spread["islands"]]
    lines = []
    for crossing in spread["crossings"]:
        one, other = (names[end] for end in crossing["ends"])
        sent = f"{text.significant(crossing['step_bytes'] / 1e9)} GB a step"
        each = text.quantity(crossing["bw_bytes_per_s"], "B/s", bits=True)
        if crossing["what"] == "messages":
            lines.append(f"Between {one} and {other} go only messages of the pipeline: {sent} each way, "
                         f"{text.duration(crossing['seconds'])} a message at {each} per GPU; all other groups of ranks "
                         "stay inside.")  # fmt: skip
        else:
            lines.append(f"Between {one} and {other} go only sums of gradients: {sent} at {each} per GPU.")
    return lines


def _unused_lines(plan: Json, spread: Json) -> list[str]:
    """Which groups are left out, and what using them would take."""
    if not spread["unused"]:
        return []
    names = text.listed(list(spread["unused"]))
    with_them = [way for way in plan.get("ways") or [] if set(spread["unused"]) & set(way["islands"])
                 and len(way["islands"]) > len(spread["islands"]) and way["manner"] != "even"]  # fmt: skip
    if not with_them:
        return [f"{names} stays unused: no way to use it with the others fits or is faster by the bounds."]
    best = min(with_them, key=lambda way: float(way["step_s"]))
    return [f"{names} stays unused: with it the step takes {text.significant(best['step_s'])} s at best found."]


def _ways_table(ways: Sequence[Json]) -> Table:
    rows = []
    shown = [*ways[:_MOST_WAYS], *(way for way in ways[_MOST_WAYS:] if way["manner"] == "even")]
    for way in shown:
        more = "best" if way is ways[0] else text.more(way["step_s"] / ways[0]["step_s"] - 1)
        rows.append((f"  {_way(way)}", text.significant(way["step_s"]), more, way["layout_id"]))
    return table("  way", "step s", " ", "layout", rows=rows, right=("step s",))


def _way(way: Json) -> str:
    names = way["islands"]
    if way["manner"] == "across" and len(names) > 1:
        return f"pipeline: {', then '.join(names)}"
    if way["manner"] == "replicas":
        return f"replicas: {' and '.join(names)}"
    return "even: all GPUs alike" if way["manner"] == "even" else f"{names[0]} alone"


def rooms(candidate: Json, otherwise: float) -> list[float]:
    """What the GPUs of each stage may use: of the groups of nodes that hold it, the least."""
    uses = (candidate.get("spread") or {}).get("islands")
    if not uses:
        return [otherwise] * len(candidate["memory"])
    return [min(float(use["memory_bytes"]) for use in uses if use["stages"][0] <= stage["stage"] <= use["stages"][1])
            for stage in candidate["memory"]]  # fmt: skip


def most_memory(candidate: Json, otherwise: float) -> tuple[float, float]:
    """(bytes, capacity) of the GPU that is fullest of all, by its own capacity."""
    uses = (candidate.get("spread") or {}).get("islands")
    if not uses:
        return max(float(stage["device_bytes"]) for stage in candidate["memory"]), otherwise
    fullest = max(uses, key=lambda use: float(use["device_bytes"]) / float(use["memory_bytes"]))
    return float(fullest["device_bytes"]), float(fullest["memory_bytes"])
