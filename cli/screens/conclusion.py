"""The lines below a plan's layouts: what its numbers rest on, what the search proved, what else could be tried."""

from __future__ import annotations

from typing import TYPE_CHECKING

from .. import text
from ..console import table

if TYPE_CHECKING:
    from .parts import Json, Part


def closing_lines(plan: Json) -> list[Part]:
    """How much of the time rests on measurements, which layouts the model cannot tell apart, what the search proved."""
    best = plan["candidates"][0]
    lines = [sources_line(best), *interval_lines(best), *tie_lines(plan), certificate_line(plan)]
    return [*lines, *outside_lines(plan), *technique_lines(plan), *run_lines(plan, best), ""]


def outside_lines(plan: Json) -> list[str]:
    """A faster layout of other software."""
    outside = plan.get("outside") or {}
    if not outside.get("targets"):
        return []
    gain, who = 1 - outside["step_s"] / plan["candidates"][0]["step_s"], outside["targets"][0]
    return [text.wrapped(f"{outside['layout_id']} on {who} would be {text.percent(gain)} % faster: `--target {who}`.")]


def technique_lines(plan: Json) -> list[Part]:
    """What the sets of allowed techniques give, best first; then those that cannot be, with the reason."""
    rows, reasons = technique_rows(plan)
    if not rows and not reasons:
        return []
    indented = [(f"  {name}", *more) for name, *more in rows]
    found = table("  techniques", "best", "layout", rows=indented, right=("best",))
    return ["", found, *([""] if reasons else []), *(text.wrapped(reason, "  ") for reason in reasons)]


def technique_rows(plan: Json) -> tuple[list[tuple[str, str, str]], list[str]]:
    """(techniques, value, layout) of every set that was left to the search, and a sentence for those that cannot be."""
    in_bytes = plan["resolved"]["workload"].get("objective") == "memory"
    rows: list[tuple[str, str, str]] = []
    refused: dict[str, list[str]] = {}
    for each in plan.get("technique_choices", []):
        name = " + ".join(each["names"]) or "none"
        if each["why"]:
            refused.setdefault(each["why"].splitlines()[0], []).append(name)
        else:
            value = f"{text.gib(each['value'])} GiB" if in_bytes else f"{text.significant(each['value'])} s"
            rows.append((name, value, each["layout_id"]))
    return rows, [f"Not {text.listed(names, 'or')}: {why}" for why, names in refused.items()]


def run_lines(plan: Json, candidate: Json) -> list[str]:
    """Days, GPU-hours and cost of the whole run, where its tokens are given."""
    tokens = plan["resolved"]["workload"].get("total_tokens")
    if not tokens or candidate.get("days") is None:
        return []
    line = f"{text.count(tokens)} tokens take {text.significant(candidate['days'])} days"
    if candidate.get("gpu_hours") is not None:
        line += f", {text.count(candidate['gpu_hours'])} GPU-hours"
    if candidate.get("cost_usd") is not None:
        line += f", {text.count(candidate['cost_usd'])} USD"
    return [f"{line}."]


def sources_line(candidate: Json) -> str:
    shares: dict[str, float] = {}
    for term in candidate["terms"]:
        if term["exposed"]:
            shares[term["source"]] = shares.get(term["source"], 0.0) + term["seconds"] / candidate["step_s"]
    ordered = sorted(shares.items(), key=lambda item: -item[1])
    return text.wrapped("Sources of this time: " + ", ".join(f"{text.share(part)} {name}" for name, part in ordered))


def interval_lines(candidate: Json) -> list[str]:
    """Where nine of ten published runs of this kind lie."""
    low, high = candidate.get("step_s_low"), candidate.get("step_s_high")
    if low is None or high is None:
        return []
    return [f"90 % interval of its step: {text.significant(low)} to {text.significant(high)} s"]


def tie_lines(plan: Json) -> list[str]:
    """Layouts that the model cannot tell apart from the first."""
    best, lead = plan["candidates"][0], plan.get("ranking_lead")
    ties = [c for c in plan["candidates"][1:] if lead and c["step_s"] <= best["step_s"] * (1 + lead)]
    if not ties or plan["request"]["workload"].get("objective") == "memory":
        return []
    numbers = text.listed([str(c["choice"]) for c in (best, *ties)])
    line = f"Layouts {numbers} are nearer to each other than the model tells apart ({text.percent(lead)} %): try them."
    return [text.wrapped(line)]


def certificate_line(plan: Json) -> str:
    certificate = plan["certificate"]
    better = {"memory": "smaller", "cost": "cheaper"}.get(plan["request"]["workload"].get("objective", ""), "faster")
    if certificate.get("stopped"):
        return f"The search was stopped ({certificate['stopped']}): a {better} layout may exist."
    if certificate["proven"]:
        return f"Proven: no other layout of this space is {better} by this model."
    if certificate["gap"] is None:
        return "Not searched: this is the layout that was asked for."
    placed = plan["candidates"][0]["placement"].get("order") is not None
    any_of = "any order of the nodes" if placed else "any split of its layers over the stages"
    any_of = "any way to use the groups of nodes and any split" if plan.get("ways") else any_of
    if layered(plan):
        any_of = "any choice of a strategy for every layer"
    return text.wrapped(
        f"Proven to {text.percent(certificate['gap'])} %: no layout of this space, in {any_of}, is {better} by "
        "more than that by this model."
    )


def layered(plan: Json) -> bool:
    """Whether a layout of the plan gives layers strategies of their own."""
    return any(candidate.get("layerwise") for candidate in plan["candidates"])
