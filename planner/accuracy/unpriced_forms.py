"""Rows of other forms than a training run at one sequence length: read and checked, and priced by no cost model yet.

A step of reinforcement learning and a measurement of an inference engine have fields of their own, and so has a tuned
plan, which has no measurement at all. `validate` counts them by file and names why it gives no prediction
(docs/concepts/trust.md). Measurements of engines in files of their own are priced (planner/serving/validate.py).
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass, field

from ...errors import UnknownNameError
from ...profiles.io import registry
from .row import RowReader

_SECONDS = {"s": 1.0, "ms": 1e-3, "us": 1e-6, "min": 60.0}
_STATISTIC = r"(?:_mean|_p\d+)?"
Names = tuple[str, ...]  # of a field, the outermost first


@dataclass(frozen=True)
class NotPriced:
    """A checked row of a form that no cost model prices."""

    file: str
    # What its rows are.
    kind: str
    # Why none is predicted.
    reason: str


@dataclass(frozen=True, kw_only=True)
class Form:
    """The fields of a kind of rows that no cost model prices."""

    kind: str
    reason: str
    # A field that only rows of this form have.
    mark: Names
    texts: tuple[Names, ...]
    gpu: Names = ("gpu",)
    wholes: tuple[Names, ...] = (("num_gpus",),)
    # Mappings of degrees: whole numbers of 1 or more, or null.
    degrees: tuple[Names, ...] = ()
    # Positive numbers where a row has them.
    numbers: tuple[Names, ...] = ()
    # Stem of a duration in `measured` -> its unit.
    durations: Mapping[str, str] = field(default_factory=dict)
    has_measurement: bool = True


REQUESTS = Form(
    kind="requests to inference engines", reason="among other rows; `validate` prices a file that has no others",
    mark=("engine",), texts=(("id",), ("source",), ("engine",), ("model",), ("kind",), ("load", "mode")),
    degrees=(("parallel",), ("parallel", "prefill"), ("parallel", "decode")),
    numbers=(("isl",), ("osl",), ("load", "concurrency"), ("load", "rate_req_s"), ("load", "num_prompts")),
    durations={"ttft": "ms", "tpot": "ms", "e2e": "ms"},
)  # fmt: skip
STEPS = Form(
    kind="steps of reinforcement learning", reason="among other rows; `validate` prices a file that has no others",
    mark=("workflow",), texts=(("id",), ("source",), ("workflow",), ("model",)),
    degrees=(("generation",), ("training",)),
    numbers=(("train_max_seq",), ("generated_avg_len",), ("rollouts_per_step",), ("train_global_batch",),
             ("max_response",), ("rollout_n",), ("train_batch_size",), ("ppo_mini_batch_size",)),
    durations={"step": "s", "gen": "s", "old_log_prob": "s", "update_actor": "s", "ref": "s"},
)  # fmt: skip
_FORMS = (
    STEPS,
    REQUESTS,
    Form(
        kind="tuned plans", reason="nothing is measured; `validate --plans FILE` judges them",
        mark=("task",), texts=(("id",), ("model",), ("task",), ("precision",)),
        wholes=(("num_gpus",), ("tp",), ("pp",), ("dp",), ("global_batch",)), has_measurement=False,
    ),
)  # fmt: skip


def form_of(row: RowReader) -> Form | None:
    """The form of a row that is no training run at one sequence length; None of one that is."""
    if not isinstance(row.document.data, Mapping):
        return None
    for form in _FORMS:
        if row.get(*form.mark) is not None:
            return form
    return None


def read_unpriced(row: RowReader, form: Form) -> NotPriced:
    """Check the row; what is wrong goes to `row.problems`."""
    for path in (*form.texts, form.gpu):
        row.text(*path)
    for path in form.wholes:
        row.whole(*path)
    for path in form.numbers:
        row.number(*path)
    for path in form.degrees:
        for name, degree in row.part(*path).items():
            if not isinstance(degree, Mapping):
                row.whole(*path, name, default=1)
    _check_gpu(row, form.gpu)
    if form.has_measurement:
        _check_measured(row, form.durations)
    return NotPriced(row.document.name, form.kind, form.reason)


def _check_gpu(row: RowReader, path: Names) -> None:
    """A known GPU; where the row has it from follows in parentheses."""
    name = str(row.get(*path) or "").partition(" (")[0]
    try:
        if name:
            registry.gpu_entry(name)
    except UnknownNameError as error:
        row.fail(path, error.message, error.hint)


def _check_measured(row: RowReader, durations: Mapping[str, str]) -> None:
    """Positive numbers, at least one; a duration in the unit of its form."""
    measured = row.part("measured", required=True)
    values = {str(name): row.number("measured", str(name)) for name, value in measured.items()
              if not isinstance(value, str)}  # fmt: skip
    for name, value in values.items():
        stem, unit = _stem_and_unit(name)
        if value is not None and unit in _SECONDS and unit != durations.get(stem, unit):
            wanted = name.replace(f"{stem}_{unit}", f"{stem}_{durations[stem]}")
            size = value * _SECONDS[unit] / _SECONDS[durations[stem]]
            also = f", and `{wanted}` is {values[wanted]:g}: one quantity, one unit" if values.get(wanted) else ""
            row.fail(("measured", name), f"{value:g} is {size:g} as `{wanted}`{also}", f"give `{wanted}` alone")
    if measured and not row.problems and not any(values.values()):
        row.fail(("measured",), "has no number", "give what was measured: `measured: {step_s: 2.5}`")


def _stem_and_unit(name: str) -> tuple[str, str]:
    """`ttft_ms_p99` -> (`ttft`, `ms`)."""
    match = re.fullmatch(rf"(\w+?)_({'|'.join(_SECONDS)}){_STATISTIC}", name)
    return (match[1], match[2]) if match else (name, "")
