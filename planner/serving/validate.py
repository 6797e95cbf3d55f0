"""Predicts measured runs of inference engines, and how far off the predictions are (docs/guides/serving.md)."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from itertools import combinations
from pathlib import Path

import numpy as np

from ...cost_models.arrays import Array, Mask
from ...profiles.stack.engines import shipped_engines
from ..accuracy.runs import Problems, Progress, read_rows
from ..accuracy.unpriced_forms import REQUESTS, form_of
from .fit import Runs, fit, predicted
from .folds import FOLDS, held_out
from .row import LeftOut, ServingCase, read_serving_row

_LOW_CONCURRENCY = 16  # up to which TTFT is judged by itself: prompts hardly wait
_TIE = 0.03  # of the logarithm of a measurement: nearer layouts are in no order
_TTFT, _TPOT, _THROUGHPUT = range(3)


@dataclass(frozen=True, slots=True, kw_only=True)
class Prediction:
    """A run and its prediction, in the units of published rows; None: not measured or not scored."""

    id: str
    ttft_ms: float
    tpot_ms: float
    output_tok_s_per_gpu: float
    measured_ttft_ms: float | None
    measured_tpot_ms: float | None
    measured_output_tok_s_per_gpu: float | None


@dataclass(frozen=True, slots=True, kw_only=True)
class Errors:
    """Relative errors of some runs, shares."""

    runs: int
    median: float  # of the size
    p90: float  # of the size
    bias: float  # median with its sign


@dataclass(frozen=True, slots=True, kw_only=True)
class Table:
    """Errors by quantity, and how many pairs of layouts of one model, GPU, engine and load are ordered as measured."""

    errors: Mapping[str, Errors]
    ordered: int
    pairs: int


@dataclass(frozen=True, kw_only=True)
class ServingValidation:
    """Predictions of runs of engines."""

    rows: tuple[Prediction, ...]
    left_out: tuple[LeftOut, ...]
    constants: Mapping[str, float]
    hosts: Mapping[str, Mapping[str, float]]  # engine -> release -> seconds
    tables: Mapping[str, Table]  # "shipped", and by what fits to the other runs did not see
    problems: tuple[str, ...]

    def to_dict(self) -> dict[str, object]:
        return asdict(self)


def are_serving(paths: Sequence[Path]) -> bool:
    """Whether the files hold runs of inference engines: the first row of each is one."""
    return bool(paths) and all(next(read_rows([path], form_of, Problems([])), None) is REQUESTS for path in paths)


def validate_serving(
    paths: Sequence[Path], *, folds: bool = False, keep_going: bool = False, progress: Progress | None = None
) -> ServingValidation:
    """Predict every run of the files by the constants that ship; `folds`: also by fits to other runs.

    Raises InputError that names all problems of all rows, unless kept going.
    """
    problems, engines = Problems([]), shipped_engines()
    rows = list(read_rows(paths, read_serving_row, problems, progress))
    cases = [row for row in rows if isinstance(row, ServingCase)]
    if problems.count and not (keep_going and cases):
        raise problems.error()
    tables: dict[str, Table] = {}
    predictions: tuple[Prediction, ...] = ()
    if cases:
        runs = Runs.of(cases, engines)
        hosts = np.array([engines.host_s(case.engine, case.version) for case in cases])
        shipped = predicted(runs.service(engines.constants, hosts))
        predictions = tuple(map(_prediction, cases, shipped.T))
        tables = {"shipped": _table(runs, shipped), **(_fold_tables(runs, progress) if folds else {})}
    return ServingValidation(
        rows=predictions, left_out=tuple(row for row in rows if isinstance(row, LeftOut)),
        constants=asdict(engines.constants), hosts=engines.hosts, tables=tables,
        problems=tuple(str(problem) for problem in problems.first),
    )  # fmt: skip


def _fold_tables(runs: Runs, progress: Progress | None) -> dict[str, Table]:
    whole = fit(runs)
    return {f"unseen {kind}": _table(runs, held_out(runs, whole, kind, progress)) for kind in FOLDS}


def _prediction(case: ServingCase, values: Array) -> Prediction:
    return Prediction(
        id=case.id, ttft_ms=float(values[_TTFT]) * 1e3, tpot_ms=float(values[_TPOT]) * 1e3,
        output_tok_s_per_gpu=float(values[_THROUGHPUT]),
        measured_ttft_ms=_ms(case.ttft_s), measured_tpot_ms=_ms(case.tpot_s),
        measured_output_tok_s_per_gpu=case.output_tokens_per_s_per_gpu,
    )  # fmt: skip


def _ms(seconds: float | None) -> float | None:
    return None if seconds is None else seconds * 1e3


def _table(runs: Runs, values: Array) -> Table:
    measured, low = runs.measured(), np.array([case.concurrency <= _LOW_CONCURRENCY for case in runs.cases])
    every = np.ones_like(low)
    parts = {
        "TPOT": (_TPOT, every), f"TTFT, concurrency up to {_LOW_CONCURRENCY}": (_TTFT, low),
        "TTFT, above": (_TTFT, ~low), "offline throughput": (_THROUGHPUT, every),
    }  # fmt: skip
    errors = {name: _errors(values[i], measured[i], chosen) for name, (i, chosen) in parts.items()}
    ordered, pairs = _order(runs.cases, values, measured)
    return Table(errors={name: item for name, item in errors.items() if item is not None}, ordered=ordered, pairs=pairs)


def _errors(values: Array, measured: Array, chosen: Mask) -> Errors | None:
    """Errors where there is a measurement; None: nowhere."""
    kept = chosen & np.isfinite(measured) & np.isfinite(values)
    if not kept.any():
        return None
    off = values[kept] / measured[kept] - 1.0
    return Errors(runs=int(kept.sum()), median=float(np.median(np.abs(off))), p90=float(np.quantile(np.abs(off), 0.9)),
                  bias=float(np.median(off)))  # fmt: skip


def _order(cases: Sequence[ServingCase], values: Array, measured: Array) -> tuple[int, int]:
    """(pairs ordered as measured, pairs) of runs that differ in the layout alone, by TPOT or offline throughput."""
    alike: dict[str, list[int]] = defaultdict(list)
    for i, case in enumerate(cases):
        alike[case.compared].append(i)
    ordered = pairs = 0
    for of_load in alike.values():
        for i, j in combinations(of_load, 2):
            if (cases[i].prefill, cases[i].decode) == (cases[j].prefill, cases[j].decode):
                continue
            for k in (_TPOT, _THROUGHPUT):
                ratio = np.log(measured[k, i] / measured[k, j])
                if abs(ratio) > _TIE:  # false where either was not measured
                    pairs += 1
                    ordered += int(bool(ratio > 0) == bool(values[k, i] > values[k, j]))
    return ordered, pairs
