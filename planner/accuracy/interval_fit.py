"""Fits the intervals of step times to published runs, and writes the file that holds them."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from ...cost_models.arrays import Array
from ..evaluation.intervals import CLAIMED, KINDS, kind_of
from .fit import weights
from .outcome import RunOutcome
from .row import Case
from .validate import source_of

LEAST_RUNS = 15  # of a kind, below which percentiles say little
MEMORY_SHARES = 21  # from the least to the greatest ratio in steps of 5 %
NEAR_BEST = 1.3  # times the best: layouts that a choice is between


_HEADER = """\
# Measured step time over predicted, 5th and 95th percentile by kind of run. Each run is predicted by a fit without its
# source and without its model family on its GPU generation. versions: of software that the runs know. known: all runs;
# narrow: those with products in fp8 or fp4; new: runs whose software is known by its family only; assumed: runs whose
# GPU borrows the efficiencies of another generation. ranking: the predicted lead from which the faster of two layouts
# of a sweep is the faster one nine times in ten; indifference: the lead below which it is so less than six times in
# ten. memory: measured peak memory over predicted, the least and then in steps of 5 % of the runs; a source weighs as
# the root of its runs. Written by `python -m meshwright.planner.accuracy.ship`; do not edit.
"""
Table = dict[str, tuple[float, float, int]]  # kind -> (low, high, runs)


def measured_factors(regimes: Sequence[str], log_ratio: Array) -> Table:
    """Quantiles of measured over predicted of every kind. A kind with fewer than LEAST_RUNS runs takes those of all
    dense kinds together, and has none if these are as few."""
    kinds = np.array([kind_of(regime) for regime in regimes])
    table: Table = {}
    for kind in KINDS:
        chosen = kinds == kind
        if chosen.sum() < LEAST_RUNS and kind != "moe":
            chosen = kinds != "moe"
        if chosen.sum() >= LEAST_RUNS:
            low, high = np.exp(np.quantile(log_ratio[chosen], [(1 - CLAIMED) / 2, (1 + CLAIMED) / 2]))
            table[kind] = (float(low), float(high), int((kinds == kind).sum()))
    return table


@dataclass(frozen=True)
class Ranking:
    """The accuracy of the predicted order of two layouts of one model and cluster."""

    # Predicted lead, relative, from which on the order is right in the share CLAIMED of all pairs.
    lead: float
    # Predicted lead, relative, up to which it is right in less than 1.5 - CLAIMED of them.
    indifference: float
    # Number of pairs.
    pairs: int


def measured_ranking(
    cases: Sequence[Case], log_predicted: Array, log_measured: Array
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


def weighted_quantile(values: Array, weight: Array, share: float) -> float:
    """The value below which `share` of the weight lies, linear between the centres of the weights."""
    order = np.argsort(values, kind="stable")
    centres = (np.cumsum(weight[order]) - weight[order] / 2) / weight.sum()
    return float(np.interp(share, centres, values[order]))


def text(tables: Mapping[str, Table], ranking: Ranking, memory: MemoryRatios, versions: Sequence[str]) -> str:
    """The file."""
    lines = [_HEADER, "versions:\n", *(f"- {version}\n" for version in versions)]
    for name, table in tables.items():
        lines.append(f"{name}:\n")
        lines += [f"  {kind}: {{low: {low:.3f}, high: {high:.3f}, runs: {runs}}}\n"
                  for kind, (low, high, runs) in table.items()]  # fmt: skip
    parts = f"lead: {ranking.lead:.4f}, indifference: {ranking.indifference:.4f}, pairs: {ranking.pairs}"
    lines.append(f"ranking: {{{parts}}}\n")
    lines.append("memory:\n")
    lines.append(f"  runs: {{{', '.join(f'{kind}: {number}' for kind, number in memory.runs.items())}}}\n")
    lines.append(f"  ratio: [{', '.join(f'{ratio:.3f}' for ratio in memory.ratio)}]\n")
    return "".join(lines)
