"""The screen of `explain` for a serving plan: where latencies go, what binds, what the other deployments lack."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from .. import text
from ..console import table
from . import serving_plan
from .serving_plan import BINDS, ROLES, within

if TYPE_CHECKING:
    from ...planner.document.serving_plan import ServingCandidate, ServingPlan
    from ...planner.explain.serving import Rival, ServingExplanation
    from ...planner.explain.serving_why_not import ServingComparison
    from .parts import Part

Cells = tuple[list[str], list[list[str]]]  # columns, rows


def screen(plan: ServingPlan, candidate: ServingCandidate, explanation: ServingExplanation) -> list[Part]:
    """One deployment in full, the others beside it, and the proof."""
    parts: list[Part] = [*serving_plan.header(plan), "", f"Deployment {candidate.choice}: {candidate.deployment_id}"]
    parts += [text.wrapped(line) for line in why_lines(plan, candidate, explanation)]
    for title, (columns, rows) in (
        (parts_title(plan, candidate), part_cells(candidate, explanation)),
        ("With a tenth more of one resource", effect_cells(candidate, explanation)),
        ("Memory of a GPU, GiB", memory_cells(plan, candidate)),
    ):
        parts += ["", title, table(*columns, rows=rows, right=columns[1:])]
    if explanation.rivals:
        parts += ["", "Other deployments of the plan",
                  *(text.wrapped(f"  {line}", hanging="    ") for line in rival_lines(explanation.rivals))]  # fmt: skip
    return [*parts, "", *serving_plan.separation(plan), *serving_plan.closing(plan)]


def why_not_screen(plan: ServingPlan, comparison: ServingComparison) -> list[Part]:
    """Another deployment beside the first one, and what it breaks under the load."""
    best, other = plan.best, comparison.other
    each, asked = unit(other), asked_load(plan)
    promised, latencies = serving_plan.promised_columns((best, other))
    columns = ["deployment", "GPUs", *promised, f"carries{each}"]
    rows = [[it.deployment_id, str(it.gpus), *both, text.significant(it.largest_load)]
            for it, both in zip((best, other), latencies, strict=True)]  # fmt: skip
    rival = _against(comparison.rival, latencies=comparison.enough)
    lines = [f"{other.deployment_id}: {rival}. Beyond that breaks: {BINDS[other.binds]}."]
    if asked and not comparison.enough:
        lines.append(f"Too little for {asked:g}{each}{within(plan)}.")
    return [*serving_plan.header(plan), "", table(*columns, rows=rows, right=columns[1:]), "",
            *(text.wrapped(line) for line in lines)]  # fmt: skip


def unit(candidate: ServingCandidate) -> str:
    """The unit of a load."""
    return "/s" if candidate.stable_load is not None else " requests at once"


def why_lines(plan: ServingPlan, candidate: ServingCandidate, explanation: ServingExplanation) -> list[str]:
    """The load that it carries, the limit that binds, and the reason for its number of instances."""
    each = unit(candidate)
    lines = [f"Carries {text.significant(candidate.largest_load)}{each}{within(plan)}. Beyond that breaks: "
             f"{BINDS[candidate.binds]}."]  # fmt: skip
    asked = asked_load(plan)
    if explanation.one_less is not None and asked:
        number = candidate.pools[0].instances
        enough = "still enough" if explanation.one_less >= asked else "too few"
        lines.append(f"{number - 1} of its {number} instances would carry {text.significant(explanation.one_less)}"
                     f"{each}, {enough} for {asked:g}{each}.")  # fmt: skip
    return lines


def asked_load(plan: ServingPlan) -> float | None:
    """Requests per second, or at once; of a day at its peak; None: as much as can be."""
    work = plan.request["workload"]
    return (work["rate"] or work["concurrency"] or (max(plan.hourly.rates) if plan.hourly else None)
            or plan.lengths.trace_rate)  # fmt: skip


def parts_title(plan: ServingPlan, candidate: ServingCandidate) -> str:
    """`Where the latencies of p90 go, under 4/s`."""
    asked = asked_load(plan)
    load = candidate.largest_load if asked is None else asked
    percentile = plan.request["workload"]["percentile"]
    return f"Where the latencies of p{percentile:g} go, under {text.significant(load)}{unit(candidate)}"


def part_cells(candidate: ServingCandidate, explanation: ServingExplanation) -> Cells:
    """(columns, rows): times and shares."""
    whole = (candidate.ttft_promised_s, candidate.tpot_promised_s)
    rows = [[part.name, *_share(part.ttft_s, whole[0]), *_share(part.tpot_s, whole[1])] for part in explanation.parts]
    (ttft, tpot), ((first, following),) = serving_plan.promised_columns([candidate])
    return ["part", ttft, "%", tpot, "% "], [*rows, ["in all", first, "", following, ""]]


def _share(seconds: float, whole: float) -> tuple[str, str]:
    """The time in the unit and to the digits of the whole, and percent of it; nothing where it is too small to be
    seen."""
    per_second, _ = text.time_unit(max(whole, 1e-3))
    places = text.decimals([per_second * whole])
    if not text.is_visible(per_second * abs(seconds), places):
        return "", ""
    return text.fixed(per_second * seconds, places), text.percent(seconds / whole)


def effect_cells(candidate: ServingCandidate, explanation: ServingExplanation) -> Cells:
    """(columns, rows): the load that more of a resource carries."""
    rows = [[effect.resource, text.significant(effect.largest_load),
             text.percent(max(effect.largest_load / candidate.largest_load - 1, 0.0))]
            for effect in sorted(explanation.effects, key=lambda it: -it.largest_load)]  # fmt: skip
    return ["resource", f"carries{unit(candidate)}", "% more"], rows


def memory_cells(plan: ServingPlan, candidate: ServingCandidate) -> Cells:
    """(columns, rows): a row per pool."""
    rows = [[ROLES[pool.role], text.gib(pool.weights_bytes), text.gib(pool.cache_bytes), f"{pool.cache_sequences:,}",
             f"{pool.max_sequences:,}"] for pool in candidate.pools]  # fmt: skip
    return ["pool", "weights", serving_plan.room_name(plan), "sequences it holds", "at once at most"], rows


def rival_lines(rivals: Sequence[Rival]) -> list[str]:
    """`Deployment 2, 1 x tp8: as many GPUs, carries 9.9 % less, TTFT 12 % more`."""
    return [f"Deployment {it.choice}, {it.deployment_id}: {_against(it, latencies=True)}" for it in rivals]


def _against(rival: Rival, *, latencies: bool) -> str:
    load = f"{_gpus(rival)}, carries {_relative(rival.more_load)}"
    return f"{load}, TTFT {_relative(rival.more_ttft)}, TPOT {_relative(rival.more_tpot)}" if latencies else load


def _gpus(rival: Rival) -> str:
    rent = "" if not rival.more_usd else f" ({rival.more_usd:+.3g} USD/h)"
    if not rival.more_gpus:
        return f"as many GPUs{rent}"
    many = "s" if abs(rival.more_gpus) > 1 else ""
    return f"{abs(rival.more_gpus)} {'more' if rival.more_gpus > 0 else 'fewer'} GPU{many}{rent}"


def _relative(share: float) -> str:
    return "as much" if abs(share) < 5e-4 else f"{text.percent(abs(share))} % {'more' if share > 0 else 'less'}"
