"""The screen of `meshwright validate --plans`."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import TYPE_CHECKING

from .. import text
from ..console import table

if TYPE_CHECKING:
    from rich.console import RenderableType

    from ...planner.accuracy.tuned_plan_outcome import PlanOutcome
    from ...planner.accuracy.tuned_plans import PlanCounts, PlanSummary, PlanValidation, RatioStatistics

_WORST = 10  # rows of each list, unless every row is asked for
_COUNTS = ("rows", "described", "launchable", "in the space", "fit")
# Factor of a ratio -> its words.
_GAINS = {"software": "switches of the software", "ep_overlap": "ep_overlap", "cuda_graphs": "CUDA graphs",
          "layout": "the rest of the layout"}  # fmt: skip
_RATIOS = ("count", "median", "p90", "max")


def screen(validation: PlanValidation, *, rows: bool) -> Iterator[RenderableType]:
    """The summary, then the plans that say most; every plan if `rows`."""
    summary = validation.summary
    yield from _headline(summary)
    yield ""
    yield _counts_table("task", summary.by_task)
    yield ""
    yield _counts_table("model", summary.by_model)
    yield from _ratios(summary)
    yield from _refused(summary)
    if rows:
        yield ""
        yield _plans_table(validation.rows)
    else:
        yield from _worst(validation.rows)
    if summary.assumptions:
        yield ""
        yield table("plans", "assumption", rows=[[f"{count:,}", label] for label, count in summary.assumptions.items()],
                    right=("plans",))  # fmt: skip


def _headline(summary: PlanSummary) -> Iterator[str]:
    counts = summary.counts
    described = f"{counts.described:,} of models that can be described"
    yield f"{counts.rows:,} plans, {described}, {counts.launchable:,} of these can be launched as written"
    in_space, fit = (text.percent(share) for share in (summary.in_space_share, summary.fit_share))
    yield f"in the space: {counts.in_space:,} ({in_space} %), said to fit: {counts.fit:,} ({fit} %)"


def _counts_table(title: str, groups: Mapping[str, PlanCounts]) -> RenderableType:
    rows = [[name, *map(str, (c.rows, c.described, c.launchable, c.in_space, c.fit))] for name, c in groups.items()]
    return table(title, *_COUNTS, rows=rows, right=_COUNTS)


def _ratios(summary: PlanSummary) -> Iterator[RenderableType]:
    """Step of the tuned plan over that of the search's best."""
    groups = {"dense": summary.ratio_dense, "experts": summary.ratio_moe, **summary.ratio_by_model}
    rows = [_ratio_row(name, statistics) for name, statistics in groups.items() if statistics is not None]
    if rows:
        yield ""
        yield "step of the tuned plan over that of the best layout found"
        yield table("plans of", *_RATIOS, rows=rows, right=_RATIOS)
    if summary.gains_moe:
        factors = ", ".join(f"{_GAINS[name]} {text.fixed(value, 2)}" for name, value in summary.gains_moe.items())
        yield text.wrapped(f"Factors of this with experts, each in the median: {factors}.")
    if summary.slow_moe:
        number = sum(number for number, _ in summary.slow_moe.values())
        causes = ", ".join(_cause(name, *counts) for name, counts in summary.slow_moe.items())
        yield text.wrapped(f"{number:,} with experts are slower by more than a quarter, mostly by {causes}.")


def _cause(name: str, number: int, with_kin: int) -> str:
    had = f", {with_kin:,} as another plan for the model has them" if with_kin else ""
    return f"{_GAINS[name]} ({number:,}{had})"


def _ratio_row(name: str, statistics: RatioStatistics) -> list[str]:
    values = (statistics.median, statistics.p90, statistics.max)
    return [name, f"{statistics.count:,}", *(text.fixed(value, 2) for value in values)]


def _refused(summary: PlanSummary) -> Iterator[RenderableType]:
    if summary.refused:
        yield ""
        yield "not in the space"
        rows = [[f"{len(ids):,}", rule, ids[0]] for rule, ids in summary.refused.items()]
        yield table("plans", "rule", "first of them", rows=rows, right=("plans",))


def _worst(plans: Sequence[PlanOutcome]) -> Iterator[RenderableType]:
    """The plans that do not fit by most, and those that are slowest beside the best layout found."""
    large = sorted((plan for plan in plans if plan.fits is False), key=_over, reverse=True)
    slow = sorted((plan for plan in plans if plan.ratio is not None and plan.ratio > 1), key=_ratio, reverse=True)
    for title, members in (("said not to fit", large), ("slower than the best layout found", slow)):
        if members:
            yield ""
            more = f", the {_WORST} worst; `--rows` shows all" if len(members) > _WORST else ""
            yield f"{title}: {len(members):,}{more}"
            yield _plans_table(members[:_WORST])


def _over(plan: PlanOutcome) -> float:
    return (plan.peak_memory_bytes or 0.0) / (plan.memory_limit_bytes or 1.0)


def _ratio(plan: PlanOutcome) -> float:
    return plan.ratio or 0.0


def _plans_table(plans: Sequence[PlanOutcome]) -> RenderableType:
    numbers = ("step s", "GiB", "of GiB", "best s", "ratio")
    return table("plan", *numbers, "mostly by", "best layout", rows=[_row(plan) for plan in plans], right=numbers)


def _row(plan: PlanOutcome) -> list[str]:
    if plan.refused:
        return [plan.id, "-", "-", "-", "-", "-", "", f"refused: {plan.refused}"]
    best = "itself" if plan.best_layout == plan.layout else plan.best_layout or "none fits"
    return [
        plan.id, text.significant(plan.step_s), text.gib(plan.peak_memory_bytes), text.gib(plan.memory_limit_bytes),
        text.significant(plan.best_step_s), text.fixed(plan.ratio, 2),
        "" if plan.gains is None else _GAINS[plan.gains.largest], best,
    ]  # fmt: skip
