"""The sample of layouts that are measured, and statistics of the measurements."""

from __future__ import annotations

import random
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field, replace
from operator import attrgetter
from pathlib import Path

import numpy as np
from meshwright.profiles.profilers.core_speed import calmest

BEST = 6  # layouts that are predicted best
DRAWN = 6  # layouts that are drawn from all others, by seed
MOST = 15  # layouts of a sample, naive choices included
RIVALS = 3  # layouts, the fastest of the rounds, that train again beside the plan's choice
TURN = 2  # steps that a layout trains in a turn
RESAMPLES = 400  # of the turns, for an interval
SLOWEST = 3.0  # what is predicted to take so many times the best is not drawn: its steps would take all the time


@dataclass(frozen=True)
class Step:
    """One measured step."""

    seconds: float
    # Slowness of the most disturbed core (`core_speed`); 1 is undisturbed.
    slowness: float


@dataclass
class Entry:
    """One layout of the sample."""

    layout_id: str
    # The file of the plan, and the number of the layout in it.
    plan: Path
    choice: int
    # Seconds of a step.
    predicted_s: float
    # Why it is in the sample.
    roles: list[str]
    # Names of the hosts that it runs on.
    hosts: tuple[str, ...] = ()
    # The measured steps, by round.
    rounds: list[list[Step]] = field(default_factory=list)
    # The steps beside its rivals, after all rounds.
    finals: list[Step] = field(default_factory=list)
    # Why it was not measured.
    failed: str = ""

    @property
    def counted(self) -> list[list[Step]]:
        """The steps that count, by round."""
        return [calmest(steps, attrgetter("slowness")) for steps in self.rounds]

    @property
    def medians(self) -> list[float]:
        """Seconds of a step, by round."""
        return [float(np.median([step.seconds for step in steps])) for steps in self.counted]

    @property
    def measured_s(self) -> float:
        """The best of the rounds' medians: what disturbs a round only makes it slower."""
        return min(self.medians)

    @property
    def spread(self) -> float:
        """Relative distance of the slowest round from the best."""
        return max(self.medians) / self.measured_s - 1.0

    @property
    def error(self) -> float:
        """Relative error of the prediction."""
        return self.predicted_s / self.measured_s - 1.0


def rivals(sample: Sequence[Entry], most: int = RIVALS) -> list[Entry]:
    """The choice, which comes first in the sample, and the `most` others that were fastest; none where it failed."""
    choice, *others = sample
    fastest = sorted((entry for entry in others if not entry.failed), key=attrgetter("measured_s"))
    return [] if choice.failed else [choice, *fastest[:most]]


def finalists(measured: Sequence[Entry]) -> list[Entry]:
    """The entries with the steps of the finals for their only round; all as they are where no finals were held.

    The least of many noisy times is too low, so that a regret over it is too high, the more layouts there are. Times
    that did not pick the rivals have no such bias.
    """
    return [replace(entry, rounds=[entry.finals]) for entry in measured if entry.finals] or list(measured)


def at_equal_speed(entries: Sequence[Entry]) -> list[float]:
    """Seconds of a step of each, had the cores been as fast during all steps of all of them: an analysis of covariance,
    log seconds = own level + b log slowness with one b for all, taken at the mean slowness. All steps count."""
    steps = [[step for steps in entry.rounds for step in steps] for entry in entries]
    log_s = [np.log([step.seconds for step in steps_of_entry]) for steps_of_entry in steps]
    log_slowness = [np.log([step.slowness for step in steps_of_entry]) for steps_of_entry in steps]
    mean_log_s = np.array([values.mean() for values in log_s])
    mean_log_slowness = np.array([values.mean() for values in log_slowness])
    # b by least squares over deviations from each entry's own means.
    slowness_deviation = np.concatenate([values - values.mean() for values in log_slowness])
    covariance = float(slowness_deviation @ np.concatenate([values - values.mean() for values in log_s]))
    variance = float(slowness_deviation @ slowness_deviation)
    slope = covariance / variance if slowness_deviation.any() else 0.0
    corrected = mean_log_s + slope * (mean_log_slowness.mean() - mean_log_slowness)
    return [float(seconds) for seconds in np.exp(corrected)]


def chosen(
    best: Sequence[Entry], naive: Sequence[Entry], others: Iterable[Entry], *, seed: int, drawn: int = DRAWN,
    most: int = MOST,
) -> list[Entry]:
    """The sample: the predicted best, the naive choices, and `drawn` of the others, each once, `most` in all."""
    sample: dict[str, Entry] = {}
    for entry in (*best, *naive):
        if entry.layout_id in sample:
            sample[entry.layout_id].roles += entry.roles
        else:
            sample[entry.layout_id] = entry
    limit = SLOWEST * min(entry.predicted_s for entry in best)
    rest = {entry.layout_id: entry for entry in others
            if entry.layout_id not in sample and entry.predicted_s <= limit}  # fmt: skip
    number = min(drawn, most - len(sample), len(rest))
    picked = random.Random(seed).sample(sorted(rest), max(number, 0))
    return [*sample.values(), *(rest[name] for name in sorted(picked, key=lambda name: rest[name].predicted_s))]


def kendall_tau(predicted: Sequence[float], measured: Sequence[float]) -> float:
    """Kendall's tau-b: pairs in the same order less pairs in the other, over all pairs that are no ties (M. G.
    Kendall, The treatment of ties in ranking problems, 1945). nan where all are ties."""
    x, y = (np.sign(np.subtract.outer(values, values)) for values in (predicted, measured))
    scale = float(np.sqrt((x**2).sum() * (y**2).sum()))
    return float((x * y).sum() / scale) if scale else float("nan")


def regret(measured: Sequence[float], choice: int) -> float:
    """Time of the choice over that of the best of the sample, less one."""
    return measured[choice] / min(measured) - 1.0


def regret_interval(finals: Sequence[Entry], choice: int, *, seed: int) -> tuple[float, float]:
    """Where the regret of the finals lies in 90 % of resamples of their turns, which layouts take together (the
    bootstrap; B. Efron, Bootstrap Methods: Another Look at the Jackknife, 1979). Entries have one round."""
    rounds = [entry.rounds[0] for entry in finals]
    turns = min(map(len, rounds)) // TURN
    draw, found = random.Random(seed), []
    for _ in range(RESAMPLES):
        picked = [TURN * draw.randrange(turns) + step for _ in range(turns) for step in range(TURN)]
        drawn = [[steps[k] for k in picked] for steps in rounds]
        again = [replace(entry, rounds=[steps]) for entry, steps in zip(finals, drawn, strict=True)]
        found.append(regret([entry.measured_s for entry in again], choice))
    low, high = np.quantile(found, (0.05, 0.95))
    return float(low), float(high)


def median_error(predicted: Sequence[float], measured: Sequence[float]) -> float:
    """Median of the absolute relative errors of predictions."""
    return float(np.median(np.abs(np.divide(predicted, measured) - 1.0)))
