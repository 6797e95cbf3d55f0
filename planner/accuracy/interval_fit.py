"""Fits the intervals of step times to published runs, and writes the file that holds them."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import numpy as np
from numpy.typing import NDArray

from ..evaluation.intervals import CLAIMED, KINDS, kind_of
from .row import Case

NEAR_BEST = 1.3  # times the best: layouts that a choice is between


_HEADER = """\
# Measured step time over predicted, 5th and 95th percentile by kind of run, each run predicted by a fit without it.
# versions: of software that the runs know. known: without the run's model and cluster; new: without its source. The
# wider of the percentiles of all runs and of those in which a source weighs as the root of its runs. ranking: the
# predicted lead from which the faster of two layouts of a sweep is the faster one nine times in ten. Written by
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


def measured_lead(
    cases: Sequence[Case], log_predicted: NDArray[np.float64], log_measured: NDArray[np.float64]
) -> tuple[float, int]:
    """(lead, pairs) from the sweeps, among layouts predicted near the best of theirs.

    Of two layouts of a sweep, d = log(predicted ratio) misses the measured one by e, whose signs come in pairs; the
    order is right where e < d, so nine times in ten from the 80th percentile of |e| on. Each sweep weighs the same.
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
    every = np.concatenate(errors)
    return float(np.expm1(weighted_quantile(every, np.concatenate(weight), 2 * CLAIMED - 1))), len(every)


def weighted_quantile(values: NDArray[np.float64], weight: NDArray[np.float64], share: float) -> float:
    """The value below which `share` of the weight lies, linear between the centres of the weights."""
    order = np.argsort(values, kind="stable")
    centres = (np.cumsum(weight[order]) - weight[order] / 2) / weight.sum()
    return float(np.interp(share, centres, values[order]))


def text(
    known: Mapping[str, tuple[float, float, int]], new: Mapping[str, tuple[float, float, int]], lead: tuple[float, int],
    versions: Sequence[str],
) -> str:  # fmt: skip
    """The file."""
    lines = [_HEADER, "versions:\n", *(f"- {version}\n" for version in versions)]
    for name, table in (("known", known), ("new", new)):
        lines.append(f"{name}:\n")
        lines += [f"  {kind}: {{low: {low:.3f}, high: {high:.3f}, runs: {runs}}}\n"
                  for kind, (low, high, runs) in table.items()]  # fmt: skip
    lines.append(f"ranking: {{lead: {lead[0]:.4f}, pairs: {lead[1]}}}\n")
    return "".join(lines)
