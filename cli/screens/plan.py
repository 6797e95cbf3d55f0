"""The screen of `meshwright plan`. No arithmetic beyond sums."""

from __future__ import annotations

from collections.abc import Sequence
from math import inf
from typing import TYPE_CHECKING

from .. import text
from ..console import table
from ..progress import bar
from .conclusion import closing_lines, layered
from .facts import Facts
from .header import header
from .heterogeneous import group_parts
from .layers import layer_lines
from .legend import legend
from .memory import capacity
from .parts import headless
from .placement import order_lines
from .stages import placing_lines, stages_line, tried_lines
from .verdict import outlook_lines, verdict

if TYPE_CHECKING:
    from rich.table import Table

    from ...planner.document.candidate import Candidate
    from ...planner.document.plan import Plan
    from .parts import Part

_BAR_CELLS, _NARROW_BAR = 25, 15
_MOST_TERMS = 10
_MERITS = {"fastest": "the fastest", "roomiest": "least memory", "simplest": "the simplest",
           "published": "nearest to published"}  # fmt: skip


def plan_screen(plan: Plan, *, unicode: bool, saved_as: str | None = None) -> list[Part]:
    """The layouts, the time of the first by terms, and how sure that is."""
    best = plan.best
    order = order_lines(best)
    return [
        header(plan),
        "",
        verdict(plan, best),
        "",
        *outlook_lines(plan, best),
        "",
        *candidates_parts(plan.candidates, Facts.of(plan).work.objective),
        *tried_lines(plan),
        *placing_lines(plan),
        legend(candidate.layout_id for candidate in plan.candidates),
        "",
        *target_parts(plan),
        *([stages_line(best), ""] if "-x" in best.layout_id and not best.layerwise else []),
        *([*layer_lines(plan.candidates, capacity(plan)), ""] if layered(plan) else []),
        *([*groups, ""] if (groups := group_parts(plan, best)) else []),
        f"Where the {step_text(best)} of layout 1 go",
        terms_table(best, unicode=unicode),
        "",
        *([*order, ""] if order else []),
        *([*turned, ""] if (turned := switch_lines(plan)) else []),
        *closing_lines(plan),
        f"Next: meshwright explain {saved_as}" if saved_as else "Next: add `-o plan.json` to keep this plan",
    ]


def switch_lines(plan: Plan) -> list[str]:
    """The switches of the first layout that are not at the defaults of the framework."""
    from ...planner.targets.setup import Setup
    from ...planner.targets.switch_options import turned

    target = str(plan.resolved["target"])
    groups = plan.resolved["cluster"]["groups"]
    if not plan.resolved.get("switches") or plan.best.layerwise is not None or len(groups) > 1:
        return []
    switches = turned(Setup.of(plan, 1), target)
    listed = ", ".join(f"{name} {value}" for name, value in switches.items())
    return [text.wrapped(f"Switches of {target} that it turns: {listed}")] if listed else []


def candidates_parts(candidates: Sequence[Candidate], objective: str = "step") -> list[Part]:
    """A row per layout, or two lines where there is little room; then why each is listed."""
    reasons = [f"{candidate.choice} {text.listed([_MERITS[merit] for merit in candidate.merits])}"
               for candidate in candidates if candidate.merits]  # fmt: skip
    listed = [text.wrapped(f"Listed as: {'; '.join(reasons)}.", "  ")] if reasons else []
    columns, rows = candidate_cells(candidates, objective)
    if not text.is_narrow():
        return [table(*columns, rows=rows, right=columns[2:-1]), *listed]
    lines = [f"{row[0]}  {row[1]}\n   {_in_words(columns[2:-1], row[2:-1])}, {row[-1]}" for row in rows]
    return [*lines, *listed]


def _in_words(names: Sequence[str], cells: Sequence[str]) -> str:
    """`34.6 s, 43.0 % MFU, 948 tok/s/GPU, 67.1 GiB`."""
    units = {"step s": "s", "MFU %": "% MFU", "mem GiB": "GiB"}
    return ", ".join(f"{cell} {units.get(name, name)}" for name, cell in zip(names, cells, strict=True))


def candidate_cells(
    candidates: Sequence[Candidate], objective: str = "step", limit: float = inf
) -> tuple[tuple[str, ...], list[tuple[str, ...]]]:
    """Names of the columns, and a row per layout. The last column compares the objective with the first row.

    limit: bytes of a GPU, for layouts that may not fit.
    """
    places = text.decimals([candidate.step_s for candidate in candidates])
    by_cost = objective == "cost" and all(candidate.cost_usd_per_mtoken is not None for candidate in candidates)

    def aim(candidate: Candidate) -> float:
        return candidate.device_bytes if objective == "memory" else candidate.step_s

    best = candidates[0]
    first = "best" if aim(best) == min(map(aim, candidates)) else "choice"

    def behind(candidate: Candidate) -> str:
        if candidate.device_bytes > limit:
            return "does not fit"
        return first if candidate is best else text.more(aim(candidate) / aim(best) - 1)

    rows: list[tuple[str, ...]] = [
        (
            str(candidate.choice),
            candidate.layout_id,
            text.fixed(candidate.step_s, places),
            text.percent(candidate.mfu),
            text.significant(candidate.cost_usd_per_mtoken) if by_cost
            else text.fixed(candidate.tokens_per_s_per_gpu, 0),
            text.gib(candidate.device_bytes),
            behind(candidate),
        )
        for candidate in candidates
    ]  # fmt: skip
    return ("#", "layout", "step s", "MFU %", "USD/Mtoken" if by_cost else "tok/s/GPU", "mem GiB", ""), rows


def target_parts(plan: Plan) -> list[Part]:
    """The fastest layout of each target, that of the plan first; then the targets without one, with the reason."""
    if plan.by_target is None:
        return []
    own, *others = plan.by_target.best
    places = text.decimals([best.step_s for best in plan.by_target.best])
    cells = {best.target: text.more(best.step_s / own.step_s - 1) for best in others}
    rows = [
        (best.target, best.layout_id, text.fixed(best.step_s, places), text.gib(best.device_bytes),
         cells.get(best.target, "this target"))
        for best in plan.by_target.best
    ]  # fmt: skip
    columns = ("--target", "its fastest layout", "step s", "mem GiB", "")
    refused = {target: why.partition("; ")[0] for target, why in plan.by_target.without.items()}
    reasons = [text.wrapped(f"Not {target}: {why}") for target, why in refused.items()]
    if text.is_narrow():
        lines = [f"{row[0]}: {_in_words(columns[2:-1], row[2:-1])}, {row[-1]}\n   {row[1]}" for row in rows]
        return ["Fastest layout of each target", *lines, *reasons, ""]
    return [table(*columns, rows=rows, right=columns[2:4]), *reasons, ""]


def terms_table(candidate: Candidate, *, unicode: bool) -> Table:
    """The exposed terms, longest first, with bars as shares of the step; short ones drawn together."""
    terms = sorted((term for term in candidate.terms if term.exposed), key=lambda term: -term.seconds)
    places = text.decimals([candidate.step_s])
    rows: list[tuple[str, ...]] = [
        (
            f"  {term.name}",
            text.fixed(term.seconds, places),
            bar(term.seconds / candidate.step_s, _NARROW_BAR if text.is_narrow() else _BAR_CELLS, unicode=unicode),
            term.source,
        )
        for term in terms[:_MOST_TERMS]
        if text.is_visible(term.seconds, places)
    ]
    rest = terms[len(rows) :]
    seconds = sum(term.seconds for term in rest)
    if text.is_visible(seconds, places):
        kinds = sorted({term.source for term in rest})
        sources = f"{len(kinds)} kinds" if text.is_narrow() and len(kinds) > 1 else text.listed(kinds)
        rows.append((f"  {len(rest)} more", text.fixed(seconds, places), "", sources))
    return headless(rows, numbers=(1,))


def step_text(candidate: Candidate) -> str:
    """`33.4 s`."""
    return f"{text.significant(candidate.step_s)} s"
