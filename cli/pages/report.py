"""The report on a plan as one HTML page: words, tables and pictures. It asks nothing of the network."""

from __future__ import annotations

from collections.abc import Iterable
from typing import TYPE_CHECKING

from .. import requests, text
from ..screens import conclusion, header
from ..screens.facts import Facts
from ..screens.memory import capacity
from ..screens.plan import candidate_cells
from ..screens.sensitivity import binding, sensitivity_cells
from ..screens.verdict import outlook_lines, verdict
from . import pictures
from .templates import render

if TYPE_CHECKING:
    from ...cost_models.layouts import Layout
    from ...planner.document.candidate import Candidate
    from ...planner.document.plan import Plan
    from ...planner.explain.report import Fact, Report
    from ...planner.studies.pricing import Priced


def report_page(plan: Plan, report: Report) -> str:
    """The whole document."""
    candidate = requests.candidate(plan, report.choice)
    facts = Facts.of(plan)
    technique_rows, technique_reasons = conclusion.technique_rows(plan)
    return render(
        "report.html", plan=plan, report=report, candidate=candidate,
        title=f"{facts.model} on {header.cluster_text(facts)}", verdict=verdict(plan, candidate),
        header=header.header(plan), tiles=_tiles(plan, report.priced, candidate),
        warnings=(*plan.warnings, *report.warnings), meaning=_meaning(candidate.to_layout()),
        lines=_lines(plan, candidate), cells=candidate_cells(plan.candidates, facts.work.objective, capacity(plan)),
        limit=capacity(plan),
        notes=(*conclusion.tie_lines(plan), *conclusion.outside_lines(plan)), technique_rows=technique_rows,
        technique_reasons=technique_reasons, time_bars=pictures.time_bars(candidate), sources=pictures.SOURCES,
        memory_bars=pictures.memory_bars(candidate, capacity(plan)), memory_kinds=pictures.MEMORY_KINDS,
        stage_rows=pictures.stage_rows(report.rank_map), sliders=pictures.sliders(report.price_grid, candidate),
        closed_form_s=candidate.closed_s, binding=binding(report.sensitivity),
        sensitivity=sensitivity_cells(report.sensitivity), certificate=conclusion.certificate_line(plan),
        fates=_fates(plan), facts=grouped(report.facts),
        files=[(profile.name, profile.sha256[:16]) for profile in plan.profiles],
    )  # fmt: skip


def _lines(plan: Plan, candidate: Candidate) -> list[str]:
    """Sentences below the decision."""
    able = [name for name, reason in candidate.targets.items() if reason is None]
    runs = f"Run by {text.listed(sorted(able))}." if able else "No target can run it."
    return [conclusion.sources_line(candidate), _rank(plan, candidate), runs, *outlook_lines(plan, candidate)]


def _tiles(plan: Plan, priced: Priced, candidate: Candidate) -> list[tuple[str, str, str]]:
    """(name, number, note) of what people ask for first."""
    low, high = candidate.step_s_low, candidate.step_s_high
    interval = f"{text.significant(low)} to {text.significant(high)} s" if low and high else "no interval is known"
    per_gpu = f"{text.fixed(candidate.tokens_per_s_per_gpu, 0)} per GPU"
    return [
        ("step", f"{text.significant(candidate.step_s)} s", interval),
        ("tokens per second", text.fixed(priced.tokens_per_s, 0), per_gpu),
        ("MFU", f"{text.percent(candidate.mfu)} %", f"HFU {text.percent(candidate.hfu)} %"),
        ("fullest GPU", f"{text.gib(candidate.device_bytes)} GiB", f"of {text.gib(capacity(plan))}"),
        ("per trillion tokens", *_cost(priced)),
    ]  # fmt: skip


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
    return f"{text.count(usd)} USD", f"{priced.price_source}; and {watts}, GPUs at board power"


_WORDS: tuple[tuple[str, str], ...] = (
    ("tp", "tensor"), ("cp", "context"), ("pp", "pipeline stages"), ("vpp", "chunks per stage"), ("dp", "data"),
    ("ep", "experts"), ("micro_batch", "sequences per micro-batch"),
)  # fmt: skip


def _meaning(layout: Layout) -> str:
    """A layout in words."""
    from ...cost_models.layouts import RECOMPUTE_MODES

    degrees = [(name, word, getattr(layout, name)) for name, word in _WORDS]
    parts = [f"{word} {degree}" for name, word, degree in degrees if degree != 1 or name in ("dp", "micro_batch")]
    mode = RECOMPUTE_MODES[layout.recompute]
    parts += [f"ZeRO-{layout.zero}", f"{'no' if mode == 'none' else mode} recomputation"]
    parts[0] = parts[0].capitalize()
    return ", ".join(parts) + "."


def _fates(plan: Plan) -> list[tuple[str, str]]:
    """(what became of them, number) of the layouts of the space."""
    space = plan.certificate.space
    fates = [*((f"ruled out: {text.words(rule)}", number) for rule, number in space.ruled_out.items()),
             ("dominated", space.dominated), ("out of memory", space.out_of_memory), ("bounded", space.bounded),
             ("priced", space.priced)]  # fmt: skip
    shown = [("in the space", space.total), *((fate, number) for fate, number in fates if number)]
    return [(fate, text.count(number)) for fate, number in shown]


def grouped(facts: Iterable[Fact]) -> dict[str, list[Fact]]:
    """Facts by what they are of, in their order."""
    groups: dict[str, list[Fact]] = {}
    for fact in facts:
        groups.setdefault(fact.of, []).append(fact)
    return groups
