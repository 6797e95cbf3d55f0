"""The screens of `what-if`, made from the JSON form of a study's result."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from .. import text
from ..console import table

if TYPE_CHECKING:
    from rich.table import Table

    from .parts import Json, Part



def compare_screen(result: Json, header: str) -> list[Part]:
    """Before and after, term by term."""
    before, after, best = result["before"], result["after"]["held"], result["after"]["replanned"]
    lines: list[Part] = [header, *change_lines(result["changes"]), ""]
    shown = best if best and best["layout_id"] != after["layout_id"] else None
    lines.append(f"held        {after['layout_id']}")
    if shown:
        lines.append(f"re-planned  {shown['layout_id']}")
    if after["step_s"] is None:
        lines += ["", *problem_lines(after)]
        after = None
    lines += ["", _compare_table(before, after, shown)]
    if after is not None and after["problems"]:
        lines += ["", *problem_lines(after)]
    return [*lines, "", *_verdict(before, after, best), *footnotes([before, after, shown]), ""]


def change_lines(changes: Sequence[Json]) -> list[str]:
    """`gpu.memory.bandwidth  3.35 TB/s -> 4.8 TB/s` for each `--set`."""
    width = max((len(each["path"]) for each in changes), default=0)
    return [
        f"  {each['path']:<{width}}  {text.value_at(each['path'], each['before'], each['dimension'])} -> "
        f"{text.value_at(each['path'], each['after'], each['dimension'])}"
        for each in changes
    ]


def problem_lines(priced: Json) -> list[str]:
    """Why the layout held cannot run."""
    reasons = []
    for reason in priced["problems"]:
        if reason == "out of memory":
            need, has = text.gib(priced["device_bytes"]), text.gib(priced["memory_bytes"])
            reason = f"it needs {need} GiB per GPU of {has}"
        reasons.append(reason)
    return [text.wrapped(f"The layout held cannot run here: {'; '.join(reasons)}.")]


def _compare_table(before: Json, after: Json | None, best: Json | None) -> Table:
    columns = [each for each in (before, after, best) if each is not None]
    places = text.decimals([before["step_s"]])
    names = dict.fromkeys(name for each in (before, after, best) if each for name in each["terms"])
    rows = [_row(f"  {name}", before, after, best, lambda each, n=name: each["terms"].get(n, 0.0), places)
            for name in sorted(names, key=lambda n: -max(each["terms"].get(n, 0.0) for each in columns))]  # fmt: skip
    zero = text.fixed(0.0, places)
    rows = [row for row in rows if any(cell not in ("", zero, "-", "=", "new") and "%" not in cell and cell[0] != "x"
                                       for cell in row[1:])]  # fmt: skip
    rows.insert(0, _row("step s", before, after, best, lambda each: each["step_s"], places))
    for label, field, number in _TOTALS:
        if any(each[field] is not None for each in columns):
            rows.append(_row(label, before, after, best, lambda each, f=field: each[f], number))
    headers = ["", "before"] + (["held", "change"] if after else []) + (["re-planned", "change "] if best else [])
    return table(*headers, rows=rows, right=headers[1:])


_TOTALS = (
    ("memory GiB", "device_bytes", text.gib),
    ("tokens/s", "tokens_per_s", lambda value: text.fixed(value, 0)),
    ("USD per trillion tokens", "usd_per_ttoken", lambda value: text.fixed(value, 0)),
    ("GPU MWh per trillion tokens", "mwh_per_ttoken", lambda value: text.significant(value)),
)


def _row(label: str, before: Json, after: Json | None, best: Json | None, read: Any, shown: Any) -> list[str]:
    words = shown if callable(shown) else lambda value: text.fixed(value, shown)
    row = [label, words(read(before))]
    for each in (after, best):
        if each is not None:
            row += [words(read(each)), text.change(read(before), read(each))]
    return row


def _verdict(before: Json, after: Json | None, best: Json | None) -> list[str]:
    if best is None:
        return []
    if after is not None and best["layout_id"] == after["layout_id"]:
        return ["Re-planned: the layout held is still the best."]
    if after is None or after["problems"]:
        return [f"Re-planned: {best['layout_id']} runs in {text.significant(best['step_s'])} s."]
    gain = 1 - best["step_s"] / after["step_s"]
    if gain < 0.0005:
        return ["Re-planned: another layout is best, but gains nothing that shows."]
    return [text.wrapped(f"Re-planning gains another {text.percent(gain)} % over the layout held.")]


def footnotes(prices: Sequence[Json | None]) -> list[str]:
    """What a number that is shown, or missing, rests on."""
    shown = [each for each in prices if each is not None]
    lines = []
    if all(each["usd_per_ttoken"] is None for each in shown):
        lines.append("No price is known: `--set cluster.price='98.32 USD/h'` (of a node) adds dollars.")
    if all(each["mwh_per_ttoken"] is None for each in shown):
        lines.append("No power is known: `--set gpu.tdp='700 W'` adds energy.")
    else:
        lines.append("Energy is the GPUs' board power by data sheet: no host, network or cooling.")
    return lines
