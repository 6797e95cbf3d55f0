"""The screens of `explain`: one layout in full, and why another was not chosen."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING

from .. import text
from ..console import table
from .conclusion import certificate_line
from .header import header
from .heterogeneous import group_parts, most_memory
from .layers import layer_lines
from .memory import capacity
from .parts import headless, shown
from .placement import order_lines, order_table
from .plan import step_text, terms_table
from .stages import chunks_by_stage, stages_table, why_these_stages

if TYPE_CHECKING:
    from rich.table import Table

    from .parts import Json, Part


def explain_screen(plan: Json, candidate: Json, loads: Json | None = None, *, unicode: bool) -> list[Part]:
    """One layout: terms with sources, what hides behind what, its stages (loads: `StageLoads`), memory, targets, what
    was searched and assumed."""
    places = text.decimals([candidate["step_s"]])
    hidden = [t for t in candidate["terms"] if not t["exposed"] and t["seconds"] > 0]
    parts: list[Part] = [
        header(plan),
        f"{candidate['layout_id']}: {step_text(candidate)} per step, MFU {text.percent(candidate['mfu'])} %, "
        f"HFU {text.percent(candidate['hfu'])} %",
        "",
        f"Where the {step_text(candidate)} go",
        terms_table(candidate, unicode=unicode),
    ]
    if hidden:
        rows = [
            (f"  {t['name']}", text.fixed(t["seconds"], places), f"behind {text.listed(t['overlaps'])}", t["source"])
            for t in sorted(hidden, key=lambda t: -t["seconds"])
        ]
        parts += ["", "Hidden, not part of the step", headless(rows, numbers=(1,))]
    beside = [t for t in candidate["terms"] if t["exposed"] and t["overlaps"]]
    if beside:
        parts += ["", "Counted only as far as it is longer than what it runs beside"]
        parts += [text.wrapped(f"  {t['name']}: beside {text.listed(t['overlaps'])}", "    ") for t in beside]
    if len(chunks_by_stage(candidate)) > 1:
        parts += ["", "Stages", stages_table(candidate, loads), *(why_these_stages(candidate, loads) if loads else [])]
    if candidate.get("layerwise"):
        parts += ["", *layer_lines([candidate], capacity(plan))]
    if order := order_lines(candidate):
        parts += ["", *order, "", *order_table(candidate)]
    if groups := group_parts(plan, candidate):
        parts += ["", "Groups of nodes", *groups]
    held, room = most_memory(candidate, capacity(plan))
    parts += ["", f"Memory of the fullest GPU: {text.gib(held)} of {text.gib(room)} GiB"]
    parts += ["", "Targets", *target_lines(candidate["targets"])]
    parts += ["", "Search", _search_table(plan), certificate_line(plan), "", *stack_lines(plan["resolved"]["stack"])]
    return parts


def stack_lines(stack: Json) -> list[str]:
    """What was assumed of the software that will run the plan, each with where it comes from."""
    sources = stack.get("sources", {})
    lines = [f"Assumed of the software ({stack['name']})"]
    for name, value in stack.items():
        if name not in ("name", "sources"):
            source = f": {sources[name]}" if sources.get(name) else ""
            lines.append(text.wrapped(f"  {name} {shown(value)}{source}", "    "))
    return lines


def target_lines(targets: Mapping[str, str | None]) -> list[str]:
    """A line per target: whether it can run this layout, and else why not."""
    width = max(map(len, targets), default=0)
    return [
        text.wrapped(f"  {name:<{width}}  {'yes' if reason is None else f'no: {reason}'}", " " * (width + 4))
        for name, reason in sorted(targets.items())
    ]


def _search_table(plan: Json) -> Table:
    space = plan["certificate"]["space"]
    rows = [("  in the space", space["total"])]
    rows += [(f"  ruled out: {text.words(rule)}", number) for rule, number in space["ruled_out"].items() if number]
    kinds = ("dominated", "out_of_memory", "bounded", "priced", "simulated")
    rows += [(f"  {text.words(kind)}", space[kind]) for kind in kinds if space.get(kind)]
    return headless([(name, text.count(number)) for name, number in rows], numbers=(1,))


def why_not_screen(plan: Json, other: Json) -> list[Part]:
    """Why a layout was not chosen: what forbids it, and the terms in which it differs from the first, largest first."""
    best = plan["candidates"][0]
    behind = other["step_s"] - best["step_s"]
    relation = f"{text.significant(abs(behind))} s {'more' if behind > 0 else 'less'} than layout {best['choice']}:"
    held, room = most_memory(other, capacity(plan))
    peak, limit = text.gib(held), text.gib(room)
    target = plan["resolved"]["target"]
    reason = other["targets"].get(target)
    if held > room:
        verdict = f"does not fit: it needs {peak} GiB per GPU of {limit}. It would take"
    elif reason:
        verdict = f"cannot be run by {target}: {reason}. It fits ({peak} GiB) and would take"
    else:
        verdict = f"is valid and fits ({peak} GiB), but takes" if behind > 0 else f"fits ({peak} GiB) and takes"
    first = f"{other['layout_id']} {verdict} {step_text(other)}, {relation}"
    return [text.wrapped(first), difference_table(best, other)]


def difference_table(best: Json, other: Json) -> Part:
    """The terms in which two layouts differ, largest first; what takes longer in `other` has a plus."""
    behind = other["step_s"] - best["step_s"]
    changes = sorted(_term_changes(best, other).items(), key=lambda item: -abs(item[1]))
    places = text.decimals([abs(behind)] if behind else [best["step_s"]])
    rows = [
        (f"  {'+' if change > 0 else '-'}{text.fixed(abs(change), places)} s", name)
        for name, change in changes
        if float(text.fixed(abs(change), places).replace(",", ""))
    ]
    return headless(rows, numbers=(0,))


def _term_changes(best: Json, other: Json) -> dict[str, float]:
    changes: dict[str, float] = {}
    for candidate, sign in ((best, -1), (other, 1)):
        for term in candidate["terms"]:
            if term["exposed"]:
                changes[term["name"]] = changes.get(term["name"], 0.0) + sign * term["seconds"]
    return changes


def origins_table(origins: Mapping[str, str]) -> Table:
    return table("field", "from", rows=sorted(origins.items()))
