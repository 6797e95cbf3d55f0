"""The report on a plan as one HTML page: words, tables, bars and the pipeline. No script, no network."""

from __future__ import annotations

import html
from collections.abc import Iterable, Sequence
from typing import TYPE_CHECKING

from .. import text
from ..charts.html import page
from ..screens import conclusion, header
from ..screens.facts import Facts
from ..screens.memory import buffer_names, capacity
from ..screens.sensitivity import binding, sensitivity_cells
from ..screens.verdict import outlook_lines, verdict

if TYPE_CHECKING:
    from ...cost_models.layouts import Layout
    from ...planner.document.candidate import Candidate
    from ...planner.document.plan import Plan
    from ...planner.explain.report import Fact, PipelineChart, Report, Window
    from ...planner.studies.pricing import Priced
    from ...planner.studies.sensitivity import Sensitivity

_COLORS = {"F": "var(--forward)", "B": "var(--backward)", "I": "var(--backward)", "W": "var(--weights)"}
_PASSES = (("F", "forward"), ("B", "backward"), ("I", "backward, inputs"), ("W", "backward, weights"))
_ROW, _LABEL_WIDTH, _WIDTH = 20, 62, 1040  # of the picture of a pipeline, in SVG units
_SOURCES = {
    "measured": "from tables measured on this GPU", "fitted": "a formula with fitted constants",
    "formula": "counted, no constant in it", "datasheet": "the maker's number",
    "assumed": "nobody measured it: see below",
}  # fmt: skip


def report_page(plan: Plan, report: Report) -> str:
    """The whole document."""
    candidate = next(candidate for candidate in plan.candidates if candidate.choice == report.choice)
    parts = [
        _decision(plan, report, candidate), _alternatives(plan, candidate), _time(candidate),
        _memory(plan, candidate), _pipeline(report.pipeline), _seats(report, candidate),
        _sensitivity(report.sensitivity), _search(plan), _provenance(plan, report),
    ]  # fmt: skip
    facts = Facts.of(plan)
    title = f"{facts.model} on {header.cluster_text(facts)}"
    return page(title, "\n".join(parts))


def esc(value: object) -> str:
    return html.escape(str(value))


def section(title: str, *parts: str) -> str:
    return f"<section><h2>{esc(title)}</h2>\n" + "\n".join(part for part in parts if part) + "</section>"


def paragraph(line: str) -> str:
    return f"<p>{esc(' '.join(line.split()))}</p>"


def grid(columns: Sequence[str], rows: Iterable[Sequence[str]], right: Sequence[int] = ()) -> str:
    """A table that scrolls sideways by itself where the page is narrow. Cells are HTML."""
    def cells(row: Sequence[str], tag: str) -> str:
        return "".join(f"<{tag}{' class=n' if i in right else ''}>{cell}</{tag}>" for i, cell in enumerate(row))

    head = f"<thead><tr>{cells([esc(name) for name in columns], 'th')}</tr></thead>" if any(columns) else ""
    body = "".join(f"<tr>{cells(row, 'td')}</tr>" for row in rows)
    return f"<div class=scroll tabindex=0><table>{head}<tbody>{body}</tbody></table></div>"


def code(value: object) -> str:
    return f"<code>{esc(value)}</code>"


def _decision(plan: Plan, report: Report, candidate: Candidate) -> str:
    facts = Facts.of(plan)
    head = f"<h1>{esc(facts.model)} on {esc(header.cluster_text(facts))}</h1>"
    work = paragraph(header.header(plan))
    decided = f"<p class=verdict>{esc(' '.join(verdict(plan, candidate).split()))}</p>"
    layout = f"<p class=layout>{code(candidate.layout_id)}</p>{_meaning(candidate.to_layout())}"
    able = [name for name, reason in candidate.targets.items() if reason is None]
    runs = f"Run by {text.listed(sorted(able))}." if able else "No target can run it."
    lines = [conclusion.sources_line(candidate), _rank(plan, candidate), runs, *outlook_lines(plan, candidate)]
    warned = "".join(f"<li>{esc(warning)}</li>" for warning in [*plan.warnings, *report.warnings])
    warnings = f"<ul class=warn>{warned}</ul>" if warned else ""
    tiles = _tiles(plan, report.priced, candidate)
    return f"{head}{decided}{work}{layout}{tiles}{''.join(map(paragraph, lines))}{warnings}"


def _tiles(plan: Plan, priced: Priced, candidate: Candidate) -> str:
    """The numbers of the layout that people ask for first."""
    low, high = candidate.step_s_low, candidate.step_s_high
    interval = f"{text.significant(low)} to {text.significant(high)} s" if low and high else "no interval is known"
    per_gpu = f"{text.fixed(candidate.tokens_per_s_per_gpu, 0)} per GPU"
    tiles = [
        ("step", f"{text.significant(candidate.step_s)} s", interval),
        ("tokens per second", text.fixed(priced.tokens_per_s, 0), per_gpu),
        ("MFU", f"{text.percent(candidate.mfu)} %", f"HFU {text.percent(candidate.hfu)} %"),
        ("fullest GPU", f"{text.gib(candidate.device_bytes)} GiB", f"of {text.gib(capacity(plan))}"),
        ("per trillion tokens", *_cost(priced)),
    ]  # fmt: skip
    boxes = "".join(f"<div class=tile><span>{esc(name)}</span><b>{esc(value)}</b><span>{esc(note)}</span></div>"
                    for name, value, note in tiles)  # fmt: skip
    return f"<div class=tiles>{boxes}</div>"


def _rank(plan: Plan, candidate: Candidate) -> str:
    """The proof of the search for the first layout; for another one, its distance to the first."""
    best = plan.best
    if candidate is best:
        return conclusion.certificate_line(plan)
    behind = candidate.step_s / best.step_s - 1
    return f"Choice {candidate.choice} of the plan: {text.percent(behind)} % slower than {best.layout_id}."


def _cost(priced: Priced) -> tuple[str, str]:
    """(dollars and energy, their basis) of a trillion tokens; unknown ones are named."""
    usd, energy = priced.usd_per_ttoken, priced.mwh_per_ttoken
    watts = "no power is known" if energy is None else f"{text.significant(energy)} MWh"
    if usd is None:
        return watts, "GPUs at board power; no price is known"
    return f"{text.count(usd)} USD", f"and {watts}, GPUs at board power"


_WORDS: tuple[tuple[str, str], ...] = (
    ("tp", "tensor"), ("cp", "context"), ("pp", "pipeline stages"), ("vpp", "chunks per stage"), ("dp", "data"),
    ("ep", "experts"), ("micro_batch", "sequences per micro-batch"),
)  # fmt: skip


def _meaning(layout: Layout) -> str:
    """The layout in words."""
    from ...cost_models.layouts import RECOMPUTE_MODES

    degrees = [(name, word, getattr(layout, name)) for name, word in _WORDS]
    parts = [f"{word} {degree}" for name, word, degree in degrees if degree != 1 or name in ("dp", "micro_batch")]
    mode = RECOMPUTE_MODES[layout.recompute]
    parts += [f"ZeRO-{layout.zero}", f"{'no' if mode == 'none' else mode} recomputation"]
    parts[0] = parts[0].capitalize()
    return paragraph(", ".join(parts) + ".")


def _alternatives(plan: Plan, candidate: Candidate) -> str:
    rows = [
        [str(other.choice), code(other.layout_id), text.significant(other.step_s), text.percent(other.mfu),
         text.gib(other.device_bytes), _behind(other, plan.best) + (" (this one)" if other is candidate else "")]
        for other in plan.candidates
    ]  # fmt: skip
    notes = [*conclusion.tie_lines(plan), *conclusion.outside_lines(plan)]
    choices, reasons = conclusion.technique_rows(plan)
    cells = [[names, value, code(layout)] for names, value, layout in choices]
    techniques = grid(["techniques", "best", "layout"], cells, (1,)) if choices else ""
    return section("Alternatives", grid(["#", "layout", "step s", "MFU %", "mem GiB", ""], rows, (2, 3, 4, 5)),
                   *map(paragraph, notes), techniques, *map(paragraph, reasons))  # fmt: skip


def _behind(candidate: Candidate, best: Candidate) -> str:
    return "best" if candidate is best else text.more(candidate.step_s / best.step_s - 1)


def _bars(rows: Sequence[tuple[str, float, str, str]]) -> str:
    """Horizontal bars: name, share of the longest, number, note."""
    return "<div class=bars>" + "".join(
        f"<span>{esc(name)}</span><span class=n>{esc(number)}</span>"
        f"<span class=bar><i style='width:{share * 100:.1f}%'></i></span><span class=soft>{esc(note)}</span>"
        for name, share, number, note in rows
    ) + "</div>"  # fmt: skip


def _time(candidate: Candidate) -> str:
    terms = sorted((term for term in candidate.terms if term.exposed), key=lambda term: -term.seconds)
    longest = terms[0].seconds
    rows = [(term.name, term.seconds / longest, text.duration(term.seconds), term.source) for term in terms]
    key = "; ".join(f"{source}: {_SOURCES[source]}" for source in dict.fromkeys(term.source for term in terms))
    title = f"Where the {text.significant(candidate.step_s)} s go"
    return section(title, _bars(rows), f"<p class=soft>{esc(key)}</p>")


def _memory(plan: Plan, candidate: Candidate) -> str:
    stage = max(candidate.memory, key=lambda memory: memory.device_bytes)
    parts = {name: getattr(stage, name) for name in (*buffer_names(stage), "context_bytes")}
    parts["allocator's reserve"] = stage.reserved_bytes - stage.allocated_bytes
    shown = sorted(((num_bytes, name) for name, num_bytes in parts.items() if num_bytes), reverse=True)
    rows = [(text.words(name), value / shown[0][0], f"{text.gib(value)} GiB", "") for value, name in shown]
    number = f" (stage {stage.stage} of {len(candidate.memory)})" if len(candidate.memory) > 1 else ""
    used = f"{text.gib(stage.device_bytes)} of {text.gib(capacity(plan))} GiB on the fullest GPU{number}."
    host = f" {text.gib(stage.host_bytes)} GiB per GPU in host memory." if stage.host_bytes else ""
    return section("Where the memory goes", paragraph(used + host), _bars(rows))


def _pipeline(pipeline: PipelineChart | None) -> str:
    if pipeline is None:
        why = "Not simulated: one stage, too many operations, techniques, or unlike links."
        return section("Pipeline", paragraph(why))
    idle = f"{text.percent(min(pipeline.idle))} to {text.percent(max(pipeline.idle))} %"
    line = (f"{pipeline.num_stages} stages, {pipeline.num_micro_batches} micro-batches, simulated: "
            f"{text.significant(pipeline.step_s)} s (closed form {text.significant(pipeline.closed_form_s)} s), "
            f"stages idle {idle}.")  # fmt: skip
    names = ("Begin", "End") if len(pipeline.windows) > 1 else ("The whole step",)
    drawn = [_picture(name, window, pipeline.num_stages)
             for name, window in zip(names, pipeline.windows, strict=True)]  # fmt: skip
    letters = {op.letter for window in pipeline.windows for op in window.operations}
    key = " ".join(f"<span class=key style='background:{_COLORS[letter]}'></span>{word}"
                   for letter, word in _PASSES if letter in letters)  # fmt: skip
    return section("Pipeline", paragraph(line), *drawn, f"<p class=soft>{key}; gaps are idle</p>")


def _picture(name: str, window: Window, stages: int) -> str:
    """One window as SVG, wide enough to be read; narrow pages scroll it."""
    scale = (_WIDTH - _LABEL_WIDTH) / (window.end_s - window.start_s)
    parts = [f"<text x=0 y={stage * _ROW + 14}>stage {stage}</text>" for stage in range(stages)]
    for op in window.operations:
        x = _LABEL_WIDTH + (op.start_s - window.start_s) * scale
        # A gap keeps neighbours apart; the shortest operation stays visible.
        width = max((op.end_s - op.start_s) * scale - 0.4, 0.3)
        parts.append(f"<rect x={x:.1f} y={op.stage * _ROW + 2} width={width:.1f} height={_ROW - 4} "
                     f"fill='{_COLORS[op.letter]}'/>")  # fmt: skip
    label = f"{name}: {text.duration(window.start_s)} to {text.duration(window.end_s)}"
    size = f"viewBox='0 0 {_WIDTH} {stages * _ROW + 4}' style='min-width:760px'"
    svg = (f"<svg role=img aria-label='{esc(label)}' {size}>"
           f"{''.join(parts)}</svg>")  # fmt: skip
    return f"<p class=soft>{esc(label)}</p><div class=scroll tabindex=0>{svg}</div>"


def _seats(report: Report, candidate: Candidate) -> str:
    layout = candidate.to_layout()
    shown = [axis for axis in ("tp", "cp", "dp", "pp") if getattr(layout, axis) > 1]
    coords = ["".join(f"<span>{axis} {getattr(seat, axis)}</span>" for axis in shown) for seat in report.seats]
    cards = "".join(f"<div class=seat><b>GPU {rank}</b>{spans}</div>" for rank, spans in enumerate(coords))
    rows = [[str(stage.stage), _span(*stage.ranks), _span(*stage.nodes)] for stage in report.stages]
    order = paragraph("Ranks run along tp first, then cp, dp and pp. The first node:")
    stages = grid(["stage", "ranks", "nodes"], rows, (0, 1, 2)) if len(rows) > 1 else ""
    return section("Placement", order, f"<div class=seats>{cards}</div>", stages)


def _span(first: int, last: int) -> str:
    return str(first) if first == last else f"{first:,} to {last:,}"


def _sensitivity(result: Sensitivity) -> str:
    cells = sensitivity_cells(result)
    escaped = [[esc(cell) for cell in row] for row in cells.rows]
    without = ""
    if cells.without_effect:
        without = paragraph(f"Without effect on this layout: {', '.join(cells.without_effect)}.")
    key = ("Elasticity -0.5: 1 % more of it makes a step 0.5 % shorter. 2x: half, where less is better. Enough at: "
           f"beyond it, twice as much buys under {text.share(result.worth)}.")  # fmt: skip
    return section("What binds, and what would help next", paragraph(binding(result)),
                   grid(cells.columns, escaped, (1, 2, 3, 4)), without, f"<p class=soft>{esc(key)}</p>")  # fmt: skip


def _search(plan: Plan) -> str:
    space = plan.certificate.space
    rows = [["in the space", text.count(space.total)]]
    rows += [[f"ruled out: {esc(text.words(rule))}", text.count(n)] for rule, n in space.ruled_out.items() if n]
    fates = (("dominated", space.dominated), ("out of memory", space.out_of_memory), ("bounded", space.bounded),
             ("priced", space.priced))  # fmt: skip
    rows += [[fate, text.count(number)] for fate, number in fates if number]
    table = grid(["layouts", ""], rows, (1,))
    return section("What was searched", paragraph(conclusion.certificate_line(plan)),
                   _folded("Every layout, by what became of it", table))  # fmt: skip


def _provenance(plan: Plan, report: Report) -> str:
    groups: dict[str, list[Fact]] = {}
    for fact in report.facts:
        groups.setdefault(fact.of, []).append(fact)
    parts = [_folded(f"{name} ({len(facts)})", grid(["what", "value", "source"], map(_fact, facts)))
             for name, facts in groups.items()]  # fmt: skip
    rows = [[esc(profile.name), code(profile.sha256[:16])] for profile in plan.profiles]
    files = grid(["file", "sha256"], rows)
    tool = f"{plan.tool['name']} {plan.tool['version']}, request {plan.request_sha256[:16]}"
    return section("Where every number comes from", *parts, _folded(f"Files ({len(plan.profiles)})", files),
                   f"<p class=soft>{esc(tool)}</p>")  # fmt: skip


def _fact(fact: Fact) -> list[str]:
    doubt = "" if fact.confirmed else " <b>(no source confirms it)</b>"
    return [esc(text.words(fact.name)), esc(fact.value), esc(fact.source) + doubt]


def _folded(title: str, inside: str) -> str:
    return f"<details><summary>{esc(title)}</summary>{inside}</details>"
