"""The screen of `meshwright plan`: the layouts, where the time of the first goes, how sure that is. No arithmetic
beyond sums."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from .. import text
from ..console import bar, table
from .conclusion import closing_lines, layered
from .header import header, space_line
from .heterogeneous import group_parts
from .layers import layer_lines
from .memory import capacity, peak_bytes
from .parts import headless
from .placement import order_lines
from .stages import stages_line

if TYPE_CHECKING:
    from rich.table import Table

    from .parts import Json, Part

_BAR_CELLS = 25
_MOST_TERMS = 10


def plan_screen(plan: Json, *, unicode: bool, saved_as: str | None = None) -> list[Part]:
    """What `meshwright plan` prints: the layouts, where the time of the first goes, how sure that is."""
    best = plan["candidates"][0]
    order = order_lines(best)
    return [
        header(plan),
        space_line(plan),
        "",
        candidates_table(plan["candidates"], plan["request"]["workload"].get("objective", "step")),
        "",
        *([stages_line(best), ""] if "-x" in best["layout_id"] and not best.get("layerwise") else []),
        *(part for part in [*layer_lines(plan["candidates"], capacity(plan)), ""] if layered(plan)),
        *([*groups, ""] if (groups := group_parts(plan, best)) else []),
        f"Where the {step_text(best)} of layout 1 go",
        terms_table(best, unicode=unicode),
        "",
        *([*order, ""] if order else []),
        *closing_lines(plan),
        f"Next: meshwright explain {saved_as}" if saved_as else "Next: add `-o plan.json` to keep this plan",
    ]


def candidates_table(candidates: Sequence[Json], objective: str = "step") -> Table:
    """A row per layout; the last column compares what was minimised with the first row."""
    places = text.decimals([candidate["step_s"] for candidate in candidates])
    aims = [peak_bytes(candidate) if objective == "memory" else candidate["step_s"] for candidate in candidates]
    costs = [candidate["cost_usd_per_mtoken"] for candidate in candidates]
    by_cost = objective == "cost" and None not in costs
    rows = [
        (
            str(candidate["choice"]),
            candidate["layout_id"],
            text.fixed(candidate["step_s"], places),
            text.percent(candidate["mfu"]),
            text.significant(cost) if by_cost else text.fixed(candidate["tokens_per_s_per_gpu"], 0),
            text.gib(peak_bytes(candidate)),
            "best" if candidate is candidates[0] else text.more(aim / aims[0] - 1),
        )
        for candidate, aim, cost in zip(candidates, aims, costs, strict=True)
    ]
    columns = ("#", "layout", "step s", "MFU %", "USD/Mtoken" if by_cost else "tok/s/GPU", "mem GiB")
    return table(*columns, "", rows=rows, right=columns[2:])


def terms_table(candidate: Json, *, unicode: bool) -> Table:
    """The exposed terms, longest first, with bars as shares of the step; short ones drawn together."""
    terms = sorted((t for t in candidate["terms"] if t["exposed"]), key=lambda t: -t["seconds"])
    step_s = candidate["step_s"]
    places = text.decimals([step_s])
    rows = [
        (
            f"  {term['name']}",
            text.fixed(term["seconds"], places),
            bar(term["seconds"] / step_s, _BAR_CELLS, unicode=unicode),
            term["source"],
        )
        for term in terms[:_MOST_TERMS]
        if float(text.fixed(term["seconds"], places).replace(",", ""))
    ]
    rest = terms[len(rows) :]
    seconds = text.fixed(sum(term["seconds"] for term in rest), places)
    if float(seconds.replace(",", "")):
        rows.append((f"  {len(rest)} more", seconds, "", text.listed(sorted({term["source"] for term in rest}))))
    return headless(rows, numbers=(1,))


def step_text(candidate: Json) -> str:
    return f"{text.significant(candidate['step_s'])} s"
