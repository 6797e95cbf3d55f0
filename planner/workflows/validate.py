"""Predicts measured steps of post-training, and how far off the predictions are (docs/guides/rl.md)."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict, dataclass
from itertools import combinations
from pathlib import Path

import numpy as np

from ...profiles.stack.post_training import post_training_constants
from ..accuracy.runs import Problems, Progress, read_rows
from ..accuracy.unpriced_forms import STEPS, form_of
from ..serving.row import LeftOut
from .gains import GainCase, RlGain, gains
from .row import RlCase, read_rl_row
from .runs import RlRun


@dataclass(frozen=True, slots=True, kw_only=True)
class RlPrediction:
    """A run and its prediction."""

    id: str
    lag: int
    gpus: int
    trainer_gpus: int
    split_assumed: bool  # that nearest to half and half which the published degrees allow
    step_s: float
    measured_step_s: float


@dataclass(frozen=True, slots=True, kw_only=True)
class RlPair:
    """Two runs that differ in lag or GPUs alone, the ratio of their steps, second over first."""

    first: str
    second: str
    ratio: float
    measured_ratio: float


@dataclass(frozen=True, kw_only=True)
class RlValidation:
    """Predictions of measured steps."""

    rows: tuple[RlPrediction, ...]
    pairs: tuple[RlPair, ...]
    gains: tuple[RlGain, ...]
    left_out: tuple[LeftOut, ...]
    problems: tuple[str, ...]

    @property
    def median(self) -> float:
        """The median size of the relative errors of steps."""
        return float(np.median([abs(row.step_s / row.measured_step_s - 1) for row in self.rows]))

    @property
    def pair_median(self) -> float:
        """The same of ratios."""
        return float(np.median([abs(pair.ratio / pair.measured_ratio - 1) for pair in self.pairs]))

    @property
    def gain_median(self) -> float:
        """The same of gains over one symmetric layout."""
        return float(np.median([abs(it.gain / it.measured_gain - 1) for it in self.gains]))

    def to_dict(self) -> dict[str, object]:
        return asdict(self)


def are_rl(paths: Sequence[Path]) -> bool:
    """Whether the files hold steps of post-training: the first row of each is one."""
    return bool(paths) and all(next(read_rows([path], form_of, Problems([])), None) is STEPS for path in paths)


def validate_rl(
    paths: Sequence[Path], *, keep_going: bool = False, progress: Progress | None = None
) -> RlValidation:  # fmt: skip
    """Predict every step of the files. Raises InputError that names all problems of all rows, unless kept going."""
    problems = Problems([])
    rows = list(read_rows(paths, read_rl_row, problems, progress))
    if problems.count and not (keep_going and rows):
        raise problems.error()
    predicted, left_out = dict[str, tuple[RlCase, RlPrediction]](), [row for row in rows if isinstance(row, LeftOut)]
    for case in (row for row in rows if isinstance(row, RlCase)):
        run = RlRun.of(case)
        if run is None:
            left_out.append(LeftOut(case.id, "its published degrees fit no split of the GPUs"))
        else:
            predicted[case.id] = case, _prediction(run)
    return RlValidation(
        rows=tuple(prediction for _, prediction in predicted.values()), pairs=tuple(_pairs([*predicted.values()])),
        gains=tuple(gains([row for row in rows if isinstance(row, GainCase)])),
        left_out=tuple(left_out), problems=tuple(str(problem) for problem in problems.first),
    )  # fmt: skip


def _prediction(run: RlRun) -> RlPrediction:
    case = run.case
    return RlPrediction(id=case.id, lag=run.lag, gpus=case.gpus, trainer_gpus=run.trainer,
                        step_s=run.step_s(post_training_constants()), measured_step_s=case.step_s,
                        split_assumed=bool(run.lag) and case.trainer_gpus is None)  # fmt: skip


def _pairs(predicted: Sequence[tuple[RlCase, RlPrediction]]) -> list[RlPair]:
    return [
        RlPair(first=a.id, second=b.id, ratio=b.step_s / a.step_s, measured_ratio=b.measured_step_s / a.measured_step_s)
        for (case, a), (other, b) in combinations(predicted, 2) if case.pair == other.pair
    ]  # fmt: skip
