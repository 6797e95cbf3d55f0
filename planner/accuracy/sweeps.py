"""Ranking of sweeps: the cost of choosing the run with the fastest prediction over the best measured run."""

from __future__ import annotations

import math
import statistics
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from .outcome import ErrorStatistics, RunOutcome, error_statistics


@dataclass(frozen=True, kw_only=True)
class Sweep:
    """Runs of one model and cluster in several layouts. Regret: measured time of the chosen run / best measured - 1."""

    group: str
    runs: int
    regret: float  # of the run that is predicted fastest
    kendall_tau: float | None  # tau-b of predicted and measured times; None where one of them ties throughout
    picked_best: bool
    chosen: str  # id of the run that is predicted fastest
    best: str  # id of the run that is measured fastest
    random_regret: float  # mean of drawing a run at random
    rule_regret: float  # mean of the runs that the rule of thumb takes
    step_time: ErrorStatistics | None


@dataclass(frozen=True, kw_only=True)
class ChoiceStatistics:
    """Means over the sweeps."""

    sweeps: int
    mean_regret: float
    max_regret: float
    mean_kendall_tau: float | None
    picked_best: int  # sweeps whose best run is predicted fastest
    mean_random_regret: float
    mean_rule_regret: float

    @classmethod
    def of(cls, sweeps: Sequence[Sweep]) -> ChoiceStatistics:
        """Means over at least one sweep."""
        taus = [sweep.kendall_tau for sweep in sweeps if sweep.kendall_tau is not None]
        return cls(
            sweeps=len(sweeps), mean_regret=statistics.fmean(sweep.regret for sweep in sweeps),
            max_regret=max(sweep.regret for sweep in sweeps),
            mean_kendall_tau=statistics.fmean(taus) if taus else None,
            picked_best=sum(sweep.picked_best for sweep in sweeps),
            mean_random_regret=statistics.fmean(sweep.random_regret for sweep in sweeps),
            mean_rule_regret=statistics.fmean(sweep.rule_regret for sweep in sweeps),
        )  # fmt: skip


def sweeps_of(outcomes: Sequence[RunOutcome]) -> tuple[Sweep, ...]:
    """Every group of two scored runs or more."""
    groups: dict[str, list[RunOutcome]] = {}
    for outcome in outcomes:
        if outcome.group and outcome.scored and outcome.measured_step_s:
            groups.setdefault(outcome.group, []).append(outcome)
    return tuple(sweep_of(name, runs) for name, runs in sorted(groups.items()) if len(runs) > 1)


def sweep_of(name: str, runs: Sequence[RunOutcome]) -> Sweep:
    """One sweep. A refused run is ranked last.

    Rule of thumb: the least tp x pp and of these the largest micro batch; its regret is the mean where several tie.
    """
    times = [run.measured_step_s or 0.0 for run in runs]
    predicted = [float("inf") if run.step_s is None else run.step_s for run in runs]
    best = min(times)
    chosen = min(range(len(runs)), key=lambda i: (predicted[i], runs[i].layout, runs[i].id))
    rule = min((run.tp_pp, -run.micro_batch) for run in runs)
    by_rule = [time for time, run in zip(times, runs, strict=True) if (run.tp_pp, -run.micro_batch) == rule]
    errors = [error for run in runs if (error := run.step_error) is not None]
    return Sweep(
        group=name, runs=len(runs), regret=times[chosen] / best - 1, kendall_tau=kendall_tau(predicted, times),
        picked_best=times[chosen] == best, chosen=runs[chosen].id, best=runs[times.index(best)].id,
        random_regret=statistics.fmean(times) / best - 1, rule_regret=statistics.fmean(by_rule) / best - 1,
        step_time=error_statistics(errors),
    )  # fmt: skip


def kendall_tau(predicted: Sequence[float], measured: Sequence[float]) -> float | None:
    """tau-b: (concordant - discordant) / sqrt((pairs - ties in one)(pairs - ties in the other)); None if all tie."""
    first, second = np.triu_indices(len(measured), 1)
    finite, times = np.minimum(predicted, 1e300), np.array(measured)
    orders = np.sign(finite[first] - finite[second]), np.sign(times[first] - times[second])
    untied = [int(np.count_nonzero(order)) for order in orders]
    if not all(untied):
        return None
    return float(np.dot(*orders) / math.sqrt(untied[0]) / math.sqrt(untied[1]))
