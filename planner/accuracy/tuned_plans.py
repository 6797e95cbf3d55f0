"""Plans that experts tuned by hand, judged: are they in the space, do they fit, and how much faster is the search?"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from ..search.executors import opened
from .outcome import quantile
from .runs import Problems, Progress, read_rows
from .tuned_plan import TunedPlan, read_tuned_plan
from .tuned_plan_gains import Gains
from .tuned_plan_kin import with_kin
from .tuned_plan_outcome import PlanOutcome, outcomes_of, request_key

SLOW = 1.25  # ratios above it are counted by what most of them comes from


@dataclass(frozen=True, kw_only=True)
class RatioStatistics:
    """Step of tuned plans over the step of the search's best, of some plans."""

    count: int
    median: float
    # 90th percentile.
    p90: float
    max: float

    @classmethod
    def of(cls, plans: Sequence[PlanOutcome]) -> RatioStatistics | None:
        """Statistics of the plans that have a ratio; None if none has."""
        ratios = sorted(plan.ratio for plan in plans if plan.ratio is not None)
        if not ratios:
            return None
        return cls(count=len(ratios), median=quantile(ratios, 0.5), p90=quantile(ratios, 0.9), max=ratios[-1])


@dataclass(frozen=True, kw_only=True)
class PlanCounts:
    """Numbers of plans. Each number but the first is of plans that the one above counts."""

    rows: int
    # Of models that can be described.
    described: int
    # That can be launched as written.
    launchable: int
    in_space: int
    # That the memory model says fit.
    fit: int

    @classmethod
    def of(cls, plans: Sequence[PlanOutcome]) -> PlanCounts:
        described = [plan for plan in plans if plan.described]
        launchable = [plan for plan in described if plan.launchable]
        return cls(
            rows=len(plans), described=len(described), launchable=len(launchable),
            in_space=sum(plan.refused is None for plan in launchable), fit=sum(bool(plan.fits) for plan in launchable),
        )  # fmt: skip


@dataclass(frozen=True, kw_only=True)
class PlanSummary:
    """Counts and ratios of all plans."""

    counts: PlanCounts
    by_task: dict[str, PlanCounts]
    # By the names that the file has.
    by_model: dict[str, PlanCounts]
    # in_space and fit over launchable; None where nothing is launchable.
    in_space_share: float | None
    fit_share: float | None
    # Of dense models and of those with experts.
    ratio_dense: RatioStatistics | None
    ratio_moe: RatioStatistics | None
    # By model.
    ratio_by_model: dict[str, RatioStatistics]
    # Name of a factor of the ratio -> its median over plans with experts that have a faster layout.
    gains_moe: dict[str, float]
    # Of plans with experts that are slower than the best layout by more than SLOW: name of the largest factor -> how
    # many, and how many of these have a kin.
    slow_moe: dict[str, tuple[int, int]]
    # Rule -> ids of launchable plans of described models that it keeps out of the space, the most first.
    refused: dict[str, tuple[str, ...]]
    # Ids of plans in the space that do not fit.
    too_large: tuple[str, ...]
    # Assumption -> plans, the most frequent first.
    assumptions: dict[str, int]


@dataclass(frozen=True, kw_only=True)
class PlanValidation:
    """The result of `validate --plans`."""

    rows: tuple[PlanOutcome, ...]
    summary: PlanSummary
    # Faults of rows that were left out; the rest was judged.
    problems: tuple[str, ...]

    def to_dict(self) -> dict[str, Any]:
        """The JSON form."""
        return {"rows": [row.to_dict() for row in self.rows], "summary": asdict(self.summary),
                "problems": list(self.problems)}  # fmt: skip


def validate_plans(
    paths: Sequence[Path], *, jobs: int = 1, keep_going: bool = False, progress: Progress | None = None
) -> PlanValidation:
    """Price every plan of the files and search a layout for the same request.

    jobs: processes that search. Raises InputError with everything that is wrong in the files, unless `keep_going` and
    some rows are right.
    """
    problems = Problems([])
    plans = list(read_rows(paths, read_tuned_plan, problems, names_rows=True))
    if problems.count and not (keep_going and plans):
        raise problems.error()
    outcomes = with_kin(_outcomes(plans, jobs, progress))
    return PlanValidation(
        rows=tuple(outcomes), summary=summary_of(outcomes), problems=tuple(str(p) for p in problems.first)
    )


def _outcomes(plans: Sequence[TunedPlan], jobs: int, progress: Progress | None) -> list[PlanOutcome]:
    """Outcomes in the order of the plans. Plans for one request share a search."""
    places: dict[str, list[int]] = {}
    for place, plan in enumerate(plans):
        places.setdefault(request_key(plan), []).append(place)
    groups = list(places.values())
    outcomes: dict[int, PlanOutcome] = {}
    with opened(jobs) as executor:
        for index, answers in executor.run(outcomes_of, [[plans[place] for place in group] for group in groups]):
            outcomes |= dict(zip(groups[index], answers, strict=True))
            if progress is not None:
                progress(float(len(outcomes)), float(len(plans)))
    return [outcomes[place] for place in range(len(plans))]


def summary_of(plans: Sequence[PlanOutcome]) -> PlanSummary:
    """Counts, shares and ratios of the outcomes."""
    counts, judged = PlanCounts.of(plans), [plan for plan in plans if plan.described and plan.launchable]
    refused: dict[str, list[str]] = {}
    for plan in judged:
        if plan.rule is not None:
            refused.setdefault(plan.rule, []).append(plan.id)
    ratios = {name: RatioStatistics.of(members) for name, members in _grouped(judged, lambda plan: plan.model).items()}
    return PlanSummary(
        counts=counts,
        by_task={name: PlanCounts.of(members) for name, members in _grouped(plans, lambda plan: plan.task).items()},
        by_model={name: PlanCounts.of(members) for name, members in _grouped(plans, lambda plan: plan.model).items()},
        in_space_share=counts.in_space / counts.launchable if counts.launchable else None,
        fit_share=counts.fit / counts.launchable if counts.launchable else None,
        ratio_dense=RatioStatistics.of([plan for plan in judged if plan.moe is False]),
        ratio_moe=RatioStatistics.of([plan for plan in judged if plan.moe]),
        ratio_by_model={name: statistics for name, statistics in ratios.items() if statistics is not None},
        gains_moe=_median_gains([plan.gains for plan in judged if plan.moe and plan.gains is not None]),
        slow_moe=_causes([plan for plan in judged if plan.moe]),
        refused={rule: tuple(ids) for rule, ids in sorted(refused.items(), key=lambda item: (-len(item[1]), item[0]))},
        too_large=tuple(plan.id for plan in judged if plan.fits is False),
        assumptions=dict(Counter(label for plan in plans for label in plan.assumptions).most_common()),
    )  # fmt: skip


def _median_gains(every: Sequence[Gains]) -> dict[str, float]:
    columns = {name: sorted(getattr(gains, name) for gains in every) for name in Gains.__slots__}
    return {name: quantile(column, 0.5) for name, column in columns.items() if column}


def _causes(plans: Sequence[PlanOutcome]) -> dict[str, tuple[int, int]]:
    found = [(plan.gains.largest, plan.kin) for plan in plans if plan.gains is not None and (plan.ratio or 0) > SLOW]
    with_one = Counter(name for name, kin in found if kin is not None)
    return {name: (number, with_one[name]) for name, number in Counter(name for name, _ in found).most_common()}


def _grouped(plans: Sequence[PlanOutcome], key: Callable[[PlanOutcome], str]) -> dict[str, list[PlanOutcome]]:
    """The plans by a field of theirs, in the order of its values."""
    groups: dict[str, list[PlanOutcome]] = {}
    for plan in sorted(plans, key=key):
        groups.setdefault(key(plan), []).append(plan)
    return groups
