"""The screens of `explain`: one layout in full, and why another was not chosen."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING

from .. import text
from ..console import table
from .conclusion import certificate_line
from .facts import Facts
from .header import header
from .heterogeneous import group_parts
from .layers import layer_lines
from .memory import capacity
from .parts import headless, shown
from .placement import order_lines, order_table
from .plan import step_text, terms_table
from .stages import chunks_by_stage, stages_table, why_these_stages

if TYPE_CHECKING:
    from rich.table import Table

    from ...planner.document.candidate import Candidate
    from ...planner.document.certificate import SpaceCount
    from ...planner.document.plan import Plan
    from ...planner.explain.kinds_of_layers import KindLoad
    from ...planner.explain.redistribution import Redistribution
    from ...planner.explain.stage_loads import StageLoads
    from .facts import Software
    from .parts import Part


def explain_screen(
    plan: Plan, candidate: Candidate, kinds: Sequence[KindLoad], loads: StageLoads | None = None,
    redistribution: Redistribution | None = None, *, unicode: bool,
) -> list[Part]:  # fmt: skip
    """One layout: terms with sources, hidden terms, layers, stages, memory, targets, the search and the assumptions."""
    facts = Facts.of(plan)
    parts: list[Part] = [header(plan), *_time_parts(candidate, unicode=unicode)]
    if len(kinds) > 1:
        parts += ["", "Kinds of layers, each of one micro-batch on a GPU", _kinds_table(kinds)]
    has_tower = facts.has_tower
    if len(chunks_by_stage(candidate)) > 1 or has_tower or facts.encoder_layers:
        why = why_these_stages(candidate, loads, redistribution, has_tower=has_tower,
                               placed=plan.places_layers) if loads else []  # fmt: skip
        stages = stages_table(candidate, loads, has_tower=has_tower, encoder_layers=facts.encoder_layers)
        parts += ["", "Stages", stages, *why]
    if candidate.layerwise:
        parts += ["", *layer_lines([candidate], capacity(plan))]
    if order := order_lines(candidate):
        parts += ["", *order, "", *order_table(candidate)]
    if groups := group_parts(plan, candidate):
        parts += ["", "Groups of nodes", *groups]
    needed, limit = candidate.least_room(capacity(plan))
    parts += ["", f"Memory of the fullest GPU: {text.gib(needed)} of {text.gib(limit)} GiB"]
    parts += ["", "Targets", *target_lines(candidate.targets)]
    parts += ["", "Search", _search_table(plan.certificate.space), certificate_line(plan)]
    return [*parts, "", *software_lines(facts.software)]


def _time_parts(candidate: Candidate, *, unicode: bool) -> list[Part]:
    """The step by its exposed terms, then the terms that hide behind others or run beside them."""
    parts: list[Part] = [
        f"{candidate.layout_id}: {step_text(candidate)} per step, MFU {text.percent(candidate.mfu)} %, "
        f"HFU {text.percent(candidate.hfu)} %",
        "",
        f"Where the {step_text(candidate)} go",
        terms_table(candidate, unicode=unicode),
    ]
    places = text.decimals([candidate.step_s])
    hidden = [term for term in candidate.terms if not term.exposed and term.seconds > 0]
    if hidden:
        rows = [
            (f"  {term.name}", text.fixed(term.seconds, places), f"behind {text.listed(term.overlaps)}", term.source)
            for term in sorted(hidden, key=lambda term: -term.seconds)
        ]
        parts += ["", "Hidden, not part of the step", headless(rows, numbers=(1,))]
    beside = [term for term in candidate.terms if term.exposed and term.overlaps]
    if beside:
        parts += ["", "Counted only as far as it is longer than what it runs beside"]
        parts += [text.wrapped(f"  {term.name}: beside {text.listed(term.overlaps)}", "    ") for term in beside]
    return parts


def _kinds_table(kinds: Sequence[KindLoad]) -> Table:
    """A row per kind: how many layers, milliseconds forward and backward, their share of all, MiB kept."""
    rows = [
        (f"  {kind.name}", str(kind.layers), text.significant(1e3 * kind.forward_s),
         text.significant(1e3 * kind.backward_s), f"{text.percent(kind.share)} %", text.mib(kind.saved_bytes))
        for kind in kinds
    ]  # fmt: skip
    names = ("  kind", "layers", "forward ms", "backward ms", "of all layers", "saved MiB")
    return table(*names, rows=rows, right=names[1:])


def software_lines(software: Software) -> list[str]:
    """Assumptions about the software that will run the plan, each with its source."""
    lines = [f"Assumed of the software ({software.name})"]
    for name, value in software.values.items():
        source = f": {software.sources[name]}" if software.sources.get(name) else ""
        lines.append(text.wrapped(f"  {name} {shown(value)}{source}", "    "))
    return lines


def target_lines(targets: Mapping[str, str | None]) -> list[str]:
    """A line per target: whether it can run this layout, and else why not."""
    width = max(map(len, targets), default=0)
    return [
        text.wrapped(f"  {name:<{width}}  {'yes' if reason is None else f'no: {reason}'}", " " * (width + 4))
        for name, reason in sorted(targets.items())
    ]


def _search_table(space: SpaceCount) -> Table:
    rows = [("  in the space", space.total)]
    rows += [(f"  ruled out: {text.words(rule)}", number) for rule, number in space.ruled_out.items() if number]
    fates = (("dominated", space.dominated), ("out of memory", space.out_of_memory), ("bounded", space.bounded),
             ("priced", space.priced), ("simulated", space.simulated))  # fmt: skip
    rows += [(f"  {fate}", number) for fate, number in fates if number]
    return headless([(name, text.count(number)) for name, number in rows], numbers=(1,))


def why_not_screen(plan: Plan, other: Candidate) -> list[Part]:
    """Why a layout was not chosen: the rule against it, and the terms in which it differs from the first."""
    best, facts = plan.best, Facts.of(plan)
    behind = other.step_s - best.step_s
    relation = f"{text.significant(abs(behind))} s {'more' if behind > 0 else 'less'} than layout {best.choice}:"
    needed, limit = other.least_room(capacity(plan))
    peak = text.gib(needed)
    reason = other.targets.get(facts.target)
    headroom, left = text.gib(facts.headroom_of(limit)), text.gib(limit - needed)
    if needed > limit:
        verdict = f"does not fit: it needs {peak} GiB per GPU of {text.gib(limit)}. It would take"
    elif reason:
        verdict = f"cannot be run by {facts.target}: {reason}. It fits ({peak} GiB) and would take"
    elif limit - needed < facts.headroom_of(limit):
        verdict = f"is valid, but leaves {left} GiB of memory, less than the headroom of {headroom}. It would take"
    else:
        verdict = f"is valid and fits ({peak} GiB), but takes" if behind > 0 else f"fits ({peak} GiB) and takes"
    first = f"{other.layout_id} {verdict} {step_text(other)}, {relation}"
    return [text.wrapped(first), difference_table(best, other)]


def difference_table(best: Candidate, other: Candidate) -> Part:
    """The terms in which two layouts differ, largest first; terms that take longer in `other` have a plus."""
    behind = other.step_s - best.step_s
    changes = sorted(_term_changes(best, other).items(), key=lambda item: -abs(item[1]))
    places = text.decimals([abs(behind)] if behind else [best.step_s])
    rows = [
        (f"  {'+' if change > 0 else '-'}{text.fixed(abs(change), places)} s", name)
        for name, change in changes
        if text.is_visible(abs(change), places)
    ]
    return headless(rows, numbers=(0,))


def _term_changes(best: Candidate, other: Candidate) -> dict[str, float]:
    changes: dict[str, float] = {}
    for candidate, sign in ((best, -1), (other, 1)):
        for term in candidate.terms:
            if term.exposed:
                changes[term.name] = changes.get(term.name, 0.0) + sign * term.seconds
    return changes


def origins_table(origins: Mapping[str, str]) -> Table:
    """A row per field of the request."""
    return table("field", "from", rows=sorted(origins.items()))
