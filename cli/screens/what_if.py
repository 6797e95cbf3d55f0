"""The screen of `what-if --set`, and the lines that the screens of all studies share."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Sequence
from typing import TYPE_CHECKING

from .. import text
from ..console import table

if TYPE_CHECKING:
    from rich.table import Table

    from ...planner.studies.base import Change
    from ...planner.studies.compare import Comparison
    from ...planner.studies.pricing import Priced
    from .parts import Part

_SAVES_NOTHING = 0.0005  # share of a step that the screen would show as 0.0 %


def compare_screen(result: Comparison, header: str) -> list[Part]:
    """Before and after, term by term."""
    before, after = result.before, result.after.held
    best = result.after.replanned
    replanned = best if best and best.layout_id != after.layout_id else None
    lines: list[Part] = [header, *change_lines(result.changes), "", f"held        {after.layout_id}"]
    if replanned:
        lines.append(f"re-planned  {replanned.layout_id}")
    # A layout that is not legal on the changed request has no seconds to compare.
    legal = None if math.isnan(after.step_s) else after
    if legal is None:
        lines += ["", *problem_lines(after)]
    lines += ["", _compare_table(before, legal, replanned)]
    if legal is not None and legal.problems:
        lines += ["", *problem_lines(legal)]
    if best is not None and not best.eligible:
        left = text.gib(best.memory_bytes - best.device_bytes)
        lines += ["", f"No layout leaves the headroom: the best leaves {left} GiB."]
    elif legal is not None and legal.runs and not legal.eligible:
        lines += ["", _headroom_line(legal)]
    return [*lines, "", *_verdict(legal, best), *footnotes([before, legal, replanned]), ""]


def change_lines(changes: Sequence[Change]) -> list[str]:
    """`gpu.memory.bandwidth  3.35 TB/s -> 4.8 TB/s` for each `--set`."""
    width = max((len(change.path) for change in changes), default=0)
    return [
        line
        for change in changes
        for line in (f"  {change.path:<{width}}  {_ends(change, change.before, change.fastest_before)} -> "
                     f"{_ends(change, change.after, change.fastest_after)}", *_basis(change))
    ]  # fmt: skip


def _ends(change: Change, value: object, fastest: float | None) -> str:
    """A value; where pairs of nodes differ, that of the slowest and that of the fastest."""
    ends = [value] if fastest is None else [value, fastest]
    return " to ".join(text.value_at(change.path, end, change.dimension) for end in ends)


def _basis(change: Change) -> list[str]:
    """The unit of the numbers, where pairs of nodes differ."""
    owner = {"gpu": "GPU", "nic": "NIC"}.get(change.per, change.per)
    return [f"    per {owner}, of the slowest to the fastest pair of nodes"] if change.per else []


def problem_lines(priced: Priced) -> list[str]:
    """Why the layout held cannot run."""
    reasons = []
    for problem in priced.problems:
        if problem == "out of memory":
            needed, limit = text.gib(priced.device_bytes), text.gib(priced.memory_bytes)
            reasons.append(f"it needs {needed} GiB per GPU of {limit}")
        else:
            reasons.append(problem)
    return [text.wrapped(f"The layout held cannot run here: {'; '.join(reasons)}.")]


def _headroom_line(priced: Priced) -> str:
    """The reason why no search takes a layout that runs."""
    needed, limit, budget = (text.gib(b) for b in (priced.device_bytes, priced.memory_bytes, priced.budget_bytes))
    return text.wrapped(f"The layout held needs {needed} GiB per GPU of {limit} and leaves less than the headroom: "
                        f"a search takes only layouts of up to {budget} GiB.")  # fmt: skip


def _compare_table(before: Priced, after: Priced | None, best: Priced | None) -> Table:
    """A row per term and total; a column per layout with, after the first, its change."""
    columns = [priced for priced in (before, after, best) if priced is not None]
    places = text.decimals([before.step_s])
    headers = ["", "before"] + (["held", "change"] if after else []) + (["re-planned", "change "] if best else [])
    rows = [_row("step s", [priced.step_s for priced in columns], lambda seconds: text.fixed(seconds, places))]
    rows += _term_rows(columns, places)
    for label, read, write in _TOTALS:
        values = [read(priced) for priced in columns]
        if any(value is not None for value in values):
            rows.append(_row(label, values, write))
    return table(*headers, rows=rows, right=headers[1:])


def _term_rows(columns: Sequence[Priced], places: int) -> list[list[str]]:
    """The terms, longest first, of which something shows in a column."""
    seconds = {name: [priced.terms.get(name, 0.0) for priced in columns] for priced in columns for name in priced.terms}
    names = sorted(seconds, key=lambda name: -max(seconds[name]))
    rows = [_row(f"  {name}", seconds[name], lambda value: text.fixed(value, places)) for name in names]
    nothing = ("", text.fixed(0.0, places), "-", "=", "new")
    return [row for row in rows if any(cell not in nothing and not _is_change(cell) for cell in row[1:])]


def _is_change(cell: str) -> bool:
    return "%" in cell or cell.startswith("x")


_TOTALS: tuple[tuple[str, Callable[[Priced], float | None], Callable[[float | None], str]], ...] = (
    ("memory GiB", lambda priced: priced.device_bytes, text.gib),
    ("tokens/s", lambda priced: priced.tokens_per_s, lambda value: text.fixed(value, 0)),
    ("USD per trillion tokens", lambda priced: priced.usd_per_ttoken, text.significant),
    ("GPU MWh per trillion tokens", lambda priced: priced.mwh_per_ttoken, text.significant),
)


def _row(label: str, values: Sequence[float | None], write: Callable[[float | None], str]) -> list[str]:
    before, *others = values
    return [label, write(before), *(cell for value in others for cell in (write(value), text.change(before, value)))]


def _verdict(after: Priced | None, best: Priced | None) -> list[str]:
    if best is None:
        return []
    if after is not None and best.layout_id == after.layout_id:
        return ["Re-planned: the layout held is still the best."]
    if after is None or not after.eligible:
        kept = " and leaves the headroom" if after is not None and after.runs and best.eligible else ""
        return [text.wrapped(f"Re-planned: {best.layout_id} runs in {text.significant(best.step_s)} s{kept}.")]
    gain = 1 - best.step_s / after.step_s
    if gain < _SAVES_NOTHING:
        return ["Re-planned: another layout is best, but gains nothing that shows."]
    return [text.wrapped(f"Re-planning gains another {text.percent(gain)} % over the layout held.")]


def kilo_dollars(priced: Priced | None) -> str:
    """Thousand dollars per trillion tokens, as the columns `kUSD` have them."""
    return "-" if priced is None or priced.usd_per_ttoken is None else text.significant(priced.usd_per_ttoken / 1e3)


def price_line(sources: Iterable[str]) -> list[str]:
    """The sources of prices, each once; no line without a known price."""
    known = [source if source.startswith("assumed") else f"by the {source}"
             for source in dict.fromkeys(sources) if source]  # fmt: skip
    return [text.wrapped(f"Dollars are {'; or '.join(known)}.")] if known else []


def footnotes(prices: Sequence[Priced | None]) -> list[str]:
    """The basis of costs and energy, or the option that adds them."""
    shown = [priced for priced in prices if priced is not None]
    lines = []
    if any(priced.usd_per_ttoken is None for priced in shown):
        none = all(priced.usd_per_ttoken is None for priced in shown)
        whose = "No price is known" if none else "One side has no price"
        lines.append(f"{whose}: `--set cluster.price='98.32 USD/h'` (of a node) adds dollars.")
    lines += price_line(priced.price_source for priced in shown)
    if all(priced.mwh_per_ttoken is None for priced in shown):
        lines.append("No power is known: `--set gpu.tdp='700 W'` adds energy.")
    else:
        lines.append("Energy is the GPUs' board power by data sheet: no host, network or cooling.")
    return lines
