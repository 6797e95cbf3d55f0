"""Fits the intervals of step times to published runs, and writes the file that holds them."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from ..evaluation.intervals import CLAIMED, KINDS, kind_of
from .fit import weights
from .outcome import RunOutcome
from .row import Case
from .validate import source_of

MEMORY_SHARES = 21  # from the least to the greatest ratio in steps of 5 %
NEAR_BEST = 1.3  # times the best: layouts that a choice is between


_HEADER = """\
# Measured step time over predicted, 5th and 95th percentile by kind of run, each run predicted by a fit without it.
# versions: of software that the runs know. known: without the run's model and cluster; new: without its source. The
# wider of the percentiles of all runs and of those in which a source weighs as the root of its runs. ranking: the
# predicted lead from which the faster of two layouts of a sweep is the faster one nine times in ten; indifference: the
# lead below which it is so less than six times in ten. memory: measured peak memory over predicted, the least and then
# in steps of 5 % of the runs; a source weighs as the root of its runs. Written by
# `python -m meshwright.planner.accuracy.calibrate`; do not edit.
"""


def measured_factors(
    cases: Sequence[Case], log_ratio: NDArray[np.float64], weight: NDArray[np.float64]
) -> dict[str, tuple[float, float, int]]:
    """(low, high, runs) of every kind: quantiles of measured over predicted, the wider of those in which every run
    weighs the same (a large sweep must be covered) and those with `weight` (and must not stand for all others)."""
    kinds, factors = np.array([kind_of(case.regime) for case in cases]), {}
    for kind in KINDS:
        chosen = kinds == kind
        if chosen.any():
            ways = (np.ones(int(chosen.sum())), weight[chosen])
            low, high = ([weighted_quantile(log_ratio[chosen], way, share) for way in ways]
                         for share in ((1 - CLAIMED) / 2, (1 + CLAIMED) / 2))  # fmt: skip
            factors[kind] = (float(np.exp(min(low))), float(np.exp(max(high))), int(chosen.sum()))
    return factors


@dataclass(frozen=True)
class Ranking:
    """How well the model orders two layouts of one model and cluster."""

    # Predicted lead, relative, from which on the order is right in the share CLAIMED of all pairs.
    lead: float
    # Predicted lead, relative, up to which it is right in less than 1.5 - CLAIMED of them.
    indifference: float
    # Number of pairs.
    pairs: int


def measured_ranking(
    cases: Sequence[Case], log_predicted: NDArray[np.float64], log_measured: NDArray[np.float64]
) -> Ranking:
    """The ranking from the sweeps, among layouts predicted near the best of theirs.

    Of two layouts of a sweep, d = log(predicted ratio) misses the measured one by e, whose signs come in pairs. The
    order is right where e < d: in a share of (1 + q) / 2 of the pairs where d is the quantile q of |e|. So it is right
    nine times in ten from the 80th percentile on, and less than six times in ten below the 20th, which mirrors it.
    Each sweep weighs the same.
    """
    sweeps: dict[str, list[int]] = {}
    for i, case in enumerate(cases):
        if case.group:
            sweeps.setdefault(case.group, []).append(i)
    errors, weight = [], []
    for runs in sweeps.values():
        near = [i for i in runs if log_predicted[i] <= min(log_predicted[runs]) + np.log(NEAR_BEST)]
        residual = (log_predicted - log_measured)[near]
        first, second = np.triu_indices(len(near), 1)
        errors.append(np.abs(residual[first] - residual[second]))
        weight.append(np.full(len(first), 1.0 / max(len(first), 1)))
    every, weights_of_all = np.concatenate(errors), np.concatenate(weight)
    sure = 2 * CLAIMED - 1
    lead, indifference = (float(np.expm1(weighted_quantile(every, weights_of_all, q))) for q in (sure, 1 - sure))
    return Ranking(lead, indifference, len(every))


@dataclass(frozen=True)
class MemoryRatios:
    """Measured over predicted peak memory of runs."""

    # At shares of the runs from 0 to 1, equally far apart; rising.
    ratio: tuple[float, ...]
    # Number of runs of each kind of reading.
    runs: Mapping[str, int]


def measured_memory(outcomes: Sequence[RunOutcome]) -> MemoryRatios:
    """The ratios of runs whose peak memory is scored and predicted. A source weighs as the root of its runs."""
    rows = [(run, run.memory_error) for run in outcomes if run.refused is None and run.memory_error is not None]
    weight = weights([source_of(run.source) for run, _ in rows])
    ratios = np.array([1 / (1 + error) for _, error in rows])
    shares = np.linspace(0, 1, MEMORY_SHARES)
    quantiles = tuple(weighted_quantile(ratios, weight, float(share)) for share in shares)
    return MemoryRatios(quantiles, dict(sorted(Counter(run.memory_kind for run, _ in rows).items())))


def weighted_quantile(values: NDArray[np.float64], weight: NDArray[np.float64], share: float) -> float:
    """The value below which `share` of the weight lies, linear between the centres of the weights."""
    order = np.argsort(values, kind="stable")
    centres = (np.cumsum(weight[order]) - weight[order] / 2) / weight.sum()
    return float(np.interp(share, centres, values[order]))


def text(
    known: Mapping[str, tuple[float, float, int]], new: Mapping[str, tuple[float, float, int]], ranking: Ranking,
    memory: MemoryRatios, versions: Sequence[str],
) -> str:  # fmt: skip
    """The file."""
    lines = [_HEADER, "versions:\n", *(f"- {version}\n" for version in versions)]
    for name, table in (("known", known), ("new", new)):
        lines.append(f"{name}:\n")
        lines += [f"  {kind}: {{low: {low:.3f}, high: {high:.3f}, runs: {runs}}}\n"
                  for kind, (low, high, runs) in table.items()]  # fmt: skip
    parts = f"lead: {ranking.lead:.4f}, indifference: {ranking.indifference:.4f}, pairs: {ranking.pairs}"
    lines.append(f"ranking: {{{parts}}}\n")
    lines.append("memory:\n")
    lines.append(f"  runs: {{{', '.join(f'{kind}: {number}' for kind, number in memory.runs.items())}}}\n")
    lines.append(f"  ratio: [{', '.join(f'{ratio:.3f}' for ratio in memory.ratio)}]\n")
    return "".join(lines)
