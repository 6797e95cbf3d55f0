"""Errors of predictions in groups, and how well sweeps are ranked. Errors are predicted / measured - 1."""

from __future__ import annotations

import statistics
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

REFUSED_ERROR = 1.0  # a run that is refused counts as one predicted 100 % off
KEYS = ("source", "hardware", "regime", "stack", "family")
MEMORY_MISS = 0.05  # predicting that much too little memory promises a run that dies


@dataclass(slots=True, kw_only=True)
class RunOutcome:
    """One run, predicted and measured; seconds and bytes, None where there is none."""

    id: str
    source: str
    hardware: str
    regime: str
    stack: str
    family: str
    group: str | None
    core: bool
    scored: bool
    memory_scored: bool
    step_s: float | None
    measured_step_s: float | None
    peak_memory_bytes: float | None
    measured_peak_memory_bytes: float | None
    memory_kind: str
    refused: str | None
    tp_pp: int
    micro_batch: int
    layout: str
    step_s_low: float | None = None
    step_s_high: float | None = None
    assumptions: tuple[str, ...] = ()

    @property
    def step_error(self) -> float | None:
        """Signed relative error of the step time; None where it is not scored."""
        return _error(self.scored, self.refused, self.step_s, self.measured_step_s)

    @property
    def memory_error(self) -> float | None:
        return _error(self.memory_scored, self.refused, self.peak_memory_bytes, self.measured_peak_memory_bytes)

    @property
    def as_row(self) -> dict[str, Any]:
        """The JSON form."""
        row = {name: getattr(self, name) for name in self.__dataclass_fields__ if name not in ("tp_pp", "micro_batch")}
        return row | {"step_error": self.step_error, "memory_error": self.memory_error,
                      "assumptions": list(self.assumptions)}  # fmt: skip


def _error(scored: bool, refused: str | None, predicted: float | None, measured: float | None) -> float | None:
    if not scored or measured is None:
        return None
    return -REFUSED_ERROR if refused or predicted is None else predicted / measured - 1


def error_statistics(errors: Sequence[float]) -> dict[str, float | int] | None:
    """Mean, median, 90th percentile and maximum of the absolute errors; bias: the mean of the signed ones."""
    if not errors:
        return None
    absolute = sorted(abs(error) for error in errors)
    return {
        "count": len(errors), "mean": statistics.fmean(absolute), "median": statistics.median(absolute),
        "p90": quantile(absolute, 0.9), "max": absolute[-1], "bias": statistics.fmean(errors),
    }  # fmt: skip


def quantile(ordered: Sequence[float], share: float) -> float:
    """Linear between the order statistics, as numpy's default."""
    place = share * (len(ordered) - 1)
    low = int(place)
    high = min(low + 1, len(ordered) - 1)
    return ordered[low] + (place - low) * (ordered[high] - ordered[low])


def summarise(outcomes: Sequence[RunOutcome], *, core: bool = False) -> dict[str, Any]:
    """rows, groups and summary of the JSON form. core: the tables count core rows only, sweeps as they are."""
    shown = [each for each in outcomes if each.core or not core]
    groups = sweeps(outcomes)
    return {
        "rows": [each.as_row for each in outcomes],
        "groups": groups,
        "summary": {
            "counts": _counts(outcomes),
            "headline": "core" if core else "all",
            "step_time": {
                "all": _step_statistics(outcomes),
                "core": _step_statistics([each for each in outcomes if each.core]),
                **{f"by_{key}": _by(shown, key, _step_statistics) for key in KEYS},
            },
            "memory": _by([each for each in shown if each.memory_error is not None], "memory_kind", _memory_statistics),
            "choice": choice_statistics(groups),
            "coverage": _coverage(outcomes),
            "assumptions": dict(Counter(label for each in outcomes for label in each.assumptions).most_common()),
            "refused": {each.id: each.refused for each in outcomes if each.refused},
        },
    }


def _counts(outcomes: Sequence[RunOutcome]) -> dict[str, int]:
    return {
        "rows": len(outcomes),
        "core": sum(each.core for each in outcomes),
        "step_time_scored": sum(each.step_error is not None for each in outcomes),
        "memory_scored": sum(each.memory_error is not None for each in outcomes),
        "refused": sum(each.refused is not None for each in outcomes),
        "without_step_time": sum(each.measured_step_s is None for each in outcomes),
        "quality_c": sum(not each.scored for each in outcomes),
        "memory_with_unknown_recompute": sum(
            each.measured_peak_memory_bytes is not None and each.scored and not each.memory_scored for each in outcomes
        ),
        "with_assumptions": sum(bool(each.assumptions) for each in outcomes),
    }


def _step_statistics(outcomes: Sequence[RunOutcome]) -> dict[str, float | int] | None:
    return error_statistics([error for each in outcomes if (error := each.step_error) is not None])


def _memory_statistics(outcomes: Sequence[RunOutcome]) -> dict[str, float | int] | None:
    errors = [error for each in outcomes if (error := each.memory_error) is not None]
    found = error_statistics(errors)
    return found and {**found, "too_little": sum(error < -MEMORY_MISS for error in errors)}


def _by(
    outcomes: Sequence[RunOutcome], key: str, statistic: Callable[[Sequence[RunOutcome]], dict[str, float | int] | None]
) -> dict[str, dict[str, float | int]]:
    parts: dict[str, list[RunOutcome]] = {}
    for each in outcomes:
        parts.setdefault(getattr(each, key), []).append(each)
    return {name: found for name in sorted(parts) if (found := statistic(parts[name])) is not None}


def _coverage(outcomes: Sequence[RunOutcome]) -> dict[str, float | int] | None:
    """How many measured times lie within the 90 % interval."""
    known = [each for each in outcomes if each.step_error is not None and each.step_s_low is not None]
    inside = sum((each.step_s_low or 0) <= (each.measured_step_s or 0) <= (each.step_s_high or 0) for each in known)
    return {"count": len(known), "covered": inside / len(known), "claimed": 0.9} if known else None


def sweeps(outcomes: Sequence[RunOutcome]) -> list[dict[str, Any]]:
    """Every group of two scored runs or more: what choosing by the prediction would have cost."""
    parts: dict[str, list[RunOutcome]] = {}
    for each in outcomes:
        if each.group and each.scored and each.measured_step_s:
            parts.setdefault(each.group, []).append(each)
    return [sweep(name, runs) for name, runs in sorted(parts.items()) if len(runs) > 1]


def sweep(name: str, runs: Sequence[RunOutcome]) -> dict[str, Any]:
    """Regret: measured time of the run ranked first / best measured - 1. A refused run is ranked last.

    Baselines: a run drawn at random (the mean regret); the least tp x pp and of these the largest micro batch (the mean
    where several tie).
    """
    times = [run.measured_step_s or 0.0 for run in runs]
    predicted = [float("inf") if run.step_s is None else run.step_s for run in runs]
    best = min(times)
    chosen = min(range(len(runs)), key=lambda i: (predicted[i], runs[i].layout, runs[i].id))
    rule = min((run.tp_pp, -run.micro_batch) for run in runs)
    simple = [time for time, run in zip(times, runs, strict=True) if (run.tp_pp, -run.micro_batch) == rule]
    errors = [error for run in runs if (error := run.step_error) is not None]
    return {
        "group": name, "runs": len(runs), "regret": times[chosen] / best - 1,
        "kendall_tau": kendall_tau(predicted, times), "picked_best": times[chosen] == best, "chosen": runs[chosen].id,
        "best": runs[times.index(best)].id, "random_regret": statistics.fmean(times) / best - 1,
        "rule_regret": statistics.fmean(simple) / best - 1, "step_time": error_statistics(errors),
    }  # fmt: skip


def kendall_tau(predicted: Sequence[float], measured: Sequence[float]) -> float | None:
    """tau-b: (concordant - discordant) / sqrt((pairs - ties in one)(pairs - ties in the other)); None if all tie."""
    from scipy.stats import kendalltau

    finite = [min(value, 1e300) for value in predicted]
    if len(set(finite)) < 2 or len(set(measured)) < 2:
        return None
    return float(kendalltau(finite, list(measured)).statistic)


def choice_statistics(groups: Sequence[dict[str, Any]]) -> dict[str, Any] | None:
    """Means over the sweeps."""
    if not groups:
        return None
    taus = [group["kendall_tau"] for group in groups if group["kendall_tau"] is not None]
    return {
        "sweeps": len(groups),
        "mean_regret": statistics.fmean(group["regret"] for group in groups),
        "max_regret": max(group["regret"] for group in groups),
        "mean_kendall_tau": statistics.fmean(taus) if taus else None,
        "picked_best": sum(group["picked_best"] for group in groups),
        "mean_random_regret": statistics.fmean(group["random_regret"] for group in groups),
        "mean_rule_regret": statistics.fmean(group["rule_regret"] for group in groups),
    }
