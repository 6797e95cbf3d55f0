"""The report on a plan as one HTML page: words, tables, bars and the pipeline. No script, no network."""

from __future__ import annotations

import html
from collections.abc import Iterable, Mapping, Sequence
from typing import TYPE_CHECKING

from .. import text
from ..charts.html import page
from ..screens import conclusion, header
from ..screens.memory import capacity, peak_bytes
from ..screens.sweep import binding, sensitivity_cells

if TYPE_CHECKING:
    from ..screens.parts import Json

_COLORS = {"F": "var(--forward)", "B": "var(--backward)", "I": "var(--backward)", "W": "var(--weights)"}
_SOURCES = {
    "measured": "from tables measured on this GPU", "fitted": "a formula with fitted constants",
    "formula": "counted, no constant in it", "datasheet": "the maker's number",
    "assumed": "nobody measured it: see below",
}  # fmt: skip


def report_page(plan: Json, report: Json) -> str:
    """The whole document. plan, report: their JSON forms."""
    candidate = next(each for each in plan["candidates"] if each["choice"] == report["choice"])
    parts = [
        _decision(plan, report, candidate), _alternatives(plan, candidate), _time(candidate),
        _memory(plan, candidate), _pipeline(report["pipeline"]), _seats(report, candidate),
        _sensitivity(report["sensitivity"]), _search(plan), _provenance(plan, report),
    ]  # fmt: skip
    title = f"{plan['resolved']['model']['name']} on {header.cluster_text(plan)}"
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

    head = f"<thead><tr>{cells([esc(each) for each in columns], 'th')}</tr></thead>" if any(columns) else ""
    body = "".join(f"<tr>{cells(row, 'td')}</tr>" for row in rows)
    return f"<div class=scroll><table>{head}<tbody>{body}</tbody></table></div>"


def code(value: object) -> str:
    return f"<code>{esc(value)}</code>"


def _decision(plan: Json, report: Json, candidate: Json) -> str:
    priced, step = report["priced"], text.significant(candidate["step_s"])
    low, high = candidate.get("step_s_low"), candidate.get("step_s_high")
    interval = f"{text.significant(low)} to {text.significant(high)} s" if low and high else "no interval is known"
    per_gpu = f"{text.fixed(candidate['tokens_per_s_per_gpu'], 0)} per GPU"
    tiles = [
        ("step", f"{step} s", interval),
        ("tokens per second", text.fixed(priced["tokens_per_s"], 0), per_gpu),
        ("MFU", f"{text.percent(candidate['mfu'])} %", f"HFU {text.percent(candidate['hfu'])} %"),
        ("fullest GPU", f"{text.gib(peak_bytes(candidate))} GiB", f"of {text.gib(capacity(plan))}"),
        ("per trillion tokens", *_cost(priced)),
    ]  # fmt: skip
    boxes = "".join(f"<div class=tile><span>{esc(name)}</span><b>{esc(value)}</b><span>{esc(note)}</span></div>"
                    for name, value, note in tiles)  # fmt: skip
    head = f"<h1>{esc(plan['resolved']['model']['name'])} on {esc(header.cluster_text(plan))}</h1>"
    work = paragraph(header.header(plan))
    able = [name for name, reason in candidate["targets"].items() if reason is None]
    runs = f"Run by {text.listed(sorted(able))}." if able else "No target can run it."
    lines = [conclusion.sources_line(candidate), _rank(plan, candidate), runs, *conclusion.run_lines(plan, candidate)]
    warned = "".join(f"<li>{esc(each)}</li>" for each in [*plan["warnings"], *report["warnings"]])
    warnings = f"<ul class=warn>{warned}</ul>" if warned else ""
    layout = f"<p class=layout>{code(candidate['layout_id'])}</p>{_meaning(candidate['layout'])}"
    return f"{head}{work}{layout}<div class=tiles>{boxes}</div>{''.join(map(paragraph, lines))}{warnings}"


def _rank(plan: Json, candidate: Json) -> str:
    """What the search proves of the first layout; of another, how far it is behind."""
    best = plan["candidates"][0]
    if candidate is best:
        return conclusion.certificate_line(plan)
    behind = candidate["step_s"] / best["step_s"] - 1
    return f"Choice {candidate['choice']} of the plan: {text.percent(behind)} % slower than {best['layout_id']}."


def _cost(priced: Json) -> tuple[str, str]:
    """(dollars and energy, what they are) of a trillion tokens; what is not known is said."""
    usd, energy = priced["usd_per_ttoken"], priced["mwh_per_ttoken"]
    watts = "no power is known" if energy is None else f"{text.significant(energy)} MWh"
    if usd is None:
        return watts, "GPUs at board power; no price is known"
    return f"{text.count(usd)} USD", f"and {watts}, GPUs at board power"


_WORDS: tuple[tuple[str, str], ...] = (
    ("tp", "tensor"), ("cp", "context"), ("pp", "pipeline stages"), ("vpp", "chunks per stage"), ("dp", "data"),
    ("ep", "experts"), ("micro_batch", "sequences per micro-batch"),
)  # fmt: skip


def _meaning(layout: Json) -> str:
    """The layout in words."""
    always = ("dp", "micro_batch")
    parts = [f"{word} {layout[name]}" for name, word in _WORDS if layout.get(name, 1) != 1 or name in always]
    parts.append(f"ZeRO-{layout['zero']}")
    mode = layout.get("recompute", {})
    named = mode.get("mode") if isinstance(mode, Mapping) else mode
    parts.append(f"{'no' if named in (None, 'none') else named} recomputation")
    parts[0] = parts[0].capitalize()
    return paragraph(", ".join(parts) + ".")


def _alternatives(plan: Json, candidate: Json) -> str:
    best = plan["candidates"][0]
    rows = [
        [str(each["choice"]), code(each["layout_id"]), text.significant(each["step_s"]), text.percent(each["mfu"]),
         text.gib(peak_bytes(each)), _behind(each, best) + (" (this one)" if each is candidate else "")]
        for each in plan["candidates"]
    ]  # fmt: skip
    notes = [*conclusion.tie_lines(plan), *conclusion.outside_lines(plan)]
    found, reasons = conclusion.technique_rows(plan)
    techniques = grid(["techniques", "best", "layout"], [[*each[:2], code(each[2])] for each in found], (1,))
    return section("Alternatives", grid(["#", "layout", "step s", "MFU %", "mem GiB", ""], rows, (2, 3, 4, 5)),
                   *map(paragraph, notes), *([techniques] if found else []), *map(paragraph, reasons))  # fmt: skip


def _behind(each: Json, best: Json) -> str:
    return "best" if each is best else text.more(each["step_s"] / best["step_s"] - 1)


def _bars(rows: Sequence[tuple[str, float, str, str]]) -> str:
    """Horizontal bars: name, share of the longest, number, note."""
    return "<div class=bars>" + "".join(
        f"<span>{esc(name)}</span><span class=n>{esc(number)}</span>"
        f"<span class=bar><i style='width:{share * 100:.1f}%'></i></span><span class=soft>{esc(note)}</span>"
        for name, share, number, note in rows
    ) + "</div>"  # fmt: skip


def _time(candidate: Json) -> str:
    terms = sorted((t for t in candidate["terms"] if t["exposed"]), key=lambda t: -t["seconds"])
    longest = terms[0]["seconds"]
    rows = [(t["name"], t["seconds"] / longest, text.duration(t["seconds"]), t["source"]) for t in terms]
    key = "; ".join(f"{name}: {_SOURCES[name]}" for name in dict.fromkeys(t["source"] for t in terms))
    title = f"Where the {text.significant(candidate['step_s'])} s go"
    return section(title, _bars(rows), f"<p class=soft>{esc(key)}</p>")


def _memory(plan: Json, candidate: Json) -> str:
    stage = max(candidate["memory"], key=lambda each: each["device_bytes"])
    whole = ("allocated_bytes", "reserved_bytes", "device_bytes", "host_bytes")
    parts = {name: value for name, value in stage.items() if name.endswith("_bytes") and name not in whole}
    parts["allocator's reserve"] = stage["reserved_bytes"] - stage["allocated_bytes"]
    shown = sorted(((v, k) for k, v in parts.items() if v), reverse=True)
    rows = [(text.words(name), value / shown[0][0], f"{text.gib(value)} GiB", "") for value, name in shown]
    number = f" (stage {stage['stage']} of {len(candidate['memory'])})" if len(candidate["memory"]) > 1 else ""
    used = f"{text.gib(stage['device_bytes'])} of {text.gib(capacity(plan))} GiB on the fullest GPU{number}."
    host = f" {text.gib(stage['host_bytes'])} GiB per GPU in host memory." if stage.get("host_bytes") else ""
    return section("Where the memory goes", paragraph(used + host), _bars(rows))


def _pipeline(pipeline: Json | None) -> str:
    if pipeline is None:
        why = "Not simulated: one stage, too many operations, techniques, or unlike links."
        return section("Pipeline", paragraph(why))
    idle = f"{text.percent(min(pipeline['idle']))} to {text.percent(max(pipeline['idle']))} %"
    line = (f"{pipeline['num_stages']} stages, {pipeline['num_micro_batches']} micro-batches, simulated: "
            f"{text.significant(pipeline['step_s'])} s (closed form {text.significant(pipeline['closed_form_s'])} s), "
            f"stages idle {idle}.")  # fmt: skip
    names = ("Begin", "End") if len(pipeline["windows"]) > 1 else ("The whole step",)
    drawn = [_picture(name, window, pipeline["num_stages"])
             for name, window in zip(names, pipeline["windows"], strict=True)]  # fmt: skip
    letters = {op["letter"] for window in pipeline["windows"] for op in window["operations"]}
    named = [("F", "forward"), ("B", "backward"), ("I", "backward, inputs"), ("W", "backward, weights")]
    key = " ".join(f"<span class=key style='background:{_COLORS[letter]}'></span>{word}"
                   for letter, word in named if letter in letters)  # fmt: skip
    return section("Pipeline", paragraph(line), *drawn, f"<p class=soft>{key}; gaps are idle</p>")


def _picture(name: str, window: Json, stages: int) -> str:
    """One window as SVG, wide enough to be read; narrow pages scroll it."""
    row, left, width = 20, 62, 1040
    scale = (width - left) / (window["end_s"] - window["start_s"])
    parts = [f"<text x=0 y={stage * row + 14}>stage {stage}</text>" for stage in range(stages)]
    for op in window["operations"]:
        x, wide = left + (op["start_s"] - window["start_s"]) * scale, (op["end_s"] - op["start_s"]) * scale
        parts.append(f"<rect x={x:.1f} y={op['stage'] * row + 2} width={max(wide - 0.4, 0.3):.1f} height={row - 4} "
                     f"fill='{_COLORS[op['letter']]}'/>")  # fmt: skip
    label = f"{name}: {text.duration(window['start_s'])} to {text.duration(window['end_s'])}"
    svg = (f"<svg role=img aria-label='{esc(label)}' viewBox='0 0 {width} {stages * row + 4}' style='min-width:760px'>"
           f"{''.join(parts)}</svg>")  # fmt: skip
    return f"<p class=soft>{esc(label)}</p><div class=scroll>{svg}</div>"


def _seats(report: Json, candidate: Json) -> str:
    layout = candidate["layout"]
    shown = [axis for axis in ("tp", "cp", "dp", "pp") if layout[axis] > 1]
    places = ["".join(f"<span>{axis} {seat[axis]}</span>" for axis in shown) for seat in report["seats"]]
    cards = "".join(f"<div class=seat><b>GPU {rank}</b>{place}</div>" for rank, place in enumerate(places))
    rows = [[str(each["stage"]), _span(each["ranks"]), _span(each["nodes"])] for each in report["stages"]]
    order = paragraph("Ranks run along tp first, then cp, dp and pp. The first node:")
    stages = grid(["stage", "ranks", "nodes"], rows, (0, 1, 2)) if len(rows) > 1 else ""
    return section("Placement", order, f"<div class=seats>{cards}</div>", stages)


def _span(ends: Sequence[int]) -> str:
    return str(ends[0]) if ends[0] == ends[1] else f"{ends[0]:,} to {ends[1]:,}"


def _sensitivity(result: Json) -> str:
    columns, rows, rest = sensitivity_cells(result)
    escaped = [[esc(cell) for cell in row] for row in rows]
    without = paragraph(f"Without effect on this layout: {', '.join(rest)}.") if rest else ""
    key = ("Elasticity -0.5: 1 % more of it makes a step 0.5 % shorter. 2x: half, where less is better. Enough at: "
           f"beyond it, twice as much buys under {text.share(result['worth'])}.")  # fmt: skip
    return section("What binds, and what would help next", paragraph(binding(result)),
                   grid(columns, escaped, (1, 2, 3, 4)), without, f"<p class=soft>{esc(key)}</p>")  # fmt: skip


def _search(plan: Json) -> str:
    space = plan["certificate"]["space"]
    rows = [["in the space", text.count(space["total"])]]
    rows += [[f"ruled out: {esc(text.words(rule))}", text.count(n)] for rule, n in space["ruled_out"].items() if n]
    kinds = ("dominated", "out_of_memory", "bounded", "priced")
    rows += [[esc(text.words(kind)), text.count(space[kind])] for kind in kinds if space[kind]]
    table = grid(["layouts", ""], rows, (1,))
    return section("What was searched", paragraph(conclusion.certificate_line(plan)),
                   _folded("Every layout, by what became of it", table))  # fmt: skip


def _provenance(plan: Json, report: Json) -> str:
    groups: dict[str, list[Json]] = {}
    for fact in report["facts"]:
        groups.setdefault(fact["of"], []).append(fact)
    parts = [_folded(f"{name} ({len(facts)})", grid(["what", "value", "source"], map(_fact, facts)))
             for name, facts in groups.items()]  # fmt: skip
    files = grid(["file", "sha256"], [[esc(each["name"]), code(each["sha256"][:16])] for each in plan["profiles"]])
    tool = f"{plan['tool']['name']} {plan['tool']['version']}, request {plan['request_sha256'][:16]}"
    return section("Where every number comes from", *parts, _folded(f"Files ({len(plan['profiles'])})", files),
                   f"<p class=soft>{esc(tool)}</p>")  # fmt: skip


def _fact(fact: Json) -> list[str]:
    doubt = "" if fact["confirmed"] else " <b>(no source confirms it)</b>"
    return [esc(text.words(fact["name"])), esc(fact["value"]), esc(fact["source"]) + doubt]


def _folded(title: str, inside: str) -> str:
    return f"<details><summary>{esc(title)}</summary>{inside}</details>"
