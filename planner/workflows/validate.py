"""Predicts measured steps of post-training, and how far off the predictions are (docs/guides/rl.md)."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict, dataclass, replace
from itertools import combinations
from pathlib import Path

import numpy as np

from ..accuracy.runs import Problems, Progress, read_rows
from ..accuracy.unpriced_forms import STEPS, form_of
from ..serving.row import LeftOut
from .graph import graph_of
from .meshes import Mesh, sub_meshes
from .prices import Prices, Question
from .resolve import question_of
from .row import RlCase, read_rl_row
from .search import Found, price


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
    left_out: tuple[LeftOut, ...]
    problems: tuple[str, ...]

    @property
    def median(self) -> float:
        """Of the sizes of the relative errors of steps."""
        return float(np.median([abs(row.step_s / row.measured_step_s - 1) for row in self.rows]))

    @property
    def pair_median(self) -> float:
        """The same of ratios."""
        return float(np.median([abs(pair.ratio / pair.measured_ratio - 1) for pair in self.pairs]))

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
        prediction = _predicted(case)
        if prediction is None:
            left_out.append(LeftOut(case.id, "its published degrees fit no split of the GPUs"))
        else:
            predicted[case.id] = case, prediction
    return RlValidation(
        rows=tuple(prediction for _, prediction in predicted.values()), pairs=tuple(_pairs([*predicted.values()])),
        left_out=tuple(left_out), problems=tuple(str(problem) for problem in problems.first),
    )  # fmt: skip


def _predicted(case: RlCase) -> RlPrediction | None:
    question = replace(question_of(case.request)[0], fixed=case.fixed)
    prices, lag = Prices(question), question.work.lag
    for trainer in _splits(case, question):
        found = _priced(prices, question, trainer)
        if found is not None:
            return RlPrediction(id=case.id, lag=lag, gpus=case.gpus, trainer_gpus=trainer, step_s=found.step_s,
                                split_assumed=bool(lag) and case.trainer_gpus is None,
                                measured_step_s=case.step_s)  # fmt: skip
    return None


def _splits(case: RlCase, question: Question) -> list[int]:
    """GPUs that train: those of the row, else whole nodes, the nearest to half first."""
    if case.trainer_gpus is not None or not question.work.lag:
        return [case.trainer_gpus or case.gpus]
    nodes = range(question.cluster.gpus_per_node, case.gpus, question.cluster.gpus_per_node)
    return sorted(nodes, key=lambda gpus: (abs(2 * gpus - case.gpus), -gpus))


def _priced(prices: Prices, question: Question, trainer: int) -> Found | None:
    """The step with all calls but generation on the GPUs that train."""
    gpus, graph, lag = question.cluster.num_gpus, graph_of(question.work), question.work.lag
    engine = Mesh(trainer, gpus - trainer) if lag else Mesh(0, gpus)
    placement = {call.name: engine if call.kind == "generate" else Mesh(0, trainer) for call in graph}
    sizes = sorted({mesh.gpus for mesh in sub_meshes(Mesh(0, trainer), question.cluster.gpus_per_node)})
    return price(prices, graph, placement, sizes, question.resolved.budget_bytes, lag)


def _pairs(predicted: Sequence[tuple[RlCase, RlPrediction]]) -> list[RlPair]:
    return [
        RlPair(first=a.id, second=b.id, ratio=b.step_s / a.step_s, measured_ratio=b.measured_step_s / a.measured_step_s)
        for (case, a), (other, b) in combinations(predicted, 2) if case.pair == other.pair
    ]  # fmt: skip
