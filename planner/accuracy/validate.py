"""Predicts published runs from their configuration and says how far off the predictions are."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from ...cost_models.quantities.device_memory import BUFFERS, DeviceMemory
from ...cost_models.quantities.ledger import Ledger
from ...cost_models.rates.rates import Rates
from ...cost_models.specs.stack import StackSpec
from ...cost_models.step import reserved_memory, step
from ...errors import InputError
from ...profiles.rates.reference_devices import knows_generation
from ...profiles.stack.load import family_of
from ...profiles.stack.stack_file import load_stacks
from ..evaluation import intervals
from . import host_tensors, mixed_lengths, order
from .batch_pricing import ledger_of, rates_of
from .outcome import RunOutcome
from .row import Case, Unpriced
from .runs import Problems, Progress, read_cases, shipped_files
from .summary import Validation, validation


@dataclass(frozen=True, slots=True, kw_only=True)
class Prediction:
    """The predicted time and memory of a run."""

    step_s: float
    # Of the kind and on the ranks that were measured.
    peak_memory_bytes: float
    # Term of the step -> seconds.
    terms: dict[str, float]


def validate(
    paths: Sequence[Path] = (), *, stack: str | None = None, keep_going: bool = False, core: bool = False,
    progress: Progress | None = None,
) -> Validation:  # fmt: skip
    """Predict every run of the files (none: the shipped ones): rows, groups, summary and, if kept going, problems.

    stack: name or file of the software of all runs, instead of what each states; of a file with several families, each
    run takes its own. Raises InputError with everything that is wrong in the files, unless `keep_going` and some runs
    are right.
    """
    software, problems = load_stacks(stack) if stack else {}, Problems([])
    cases = read_cases(list(paths) or shipped_files(), problems, progress)
    outcomes = [outcome(case, _software(software, case)) for case in cases]
    outcomes += [mixed_lengths.outcome(case) for case in problems.mixed]
    outcomes += [_not_priced(row) for row in problems.unpriced]
    if problems.count and not (keep_going and (outcomes or problems.not_priced)):
        raise problems.error()
    return validation(outcomes, [str(problem) for problem in problems.first], problems.not_priced, core=core)


def _software(software: Mapping[str, StackSpec], case: Case) -> StackSpec | None:
    return next(iter(software.values())) if len(software) == 1 else software.get(case.stack.name)


def outcome(case: Case, software: StackSpec | None = None) -> RunOutcome:
    """The prediction of a run beside its measurement; a run that cannot be priced is refused with the reason.
    software: what it ran on, if not the stack that it states."""
    refused = step_s = memory = None
    try:
        predicted = predict(case, software)
        step_s, memory = predicted.step_s, predicted.peak_memory_bytes
    except InputError as error:
        refused = error.message
    measured, (low, high) = case.measured, factors_of(case, software)
    return RunOutcome(
        id=case.id, source=source_of(case.source), hardware=case.cluster.gpu.name, regime=case.regime,
        stack=case.stack_name, family=case.stack.name, group=case.group, core=case.core, quality=case.quality,
        scored=case.scored,
        memory_scored=case.memory_scored, step_s=step_s, measured_step_s=measured.step_s, peak_memory_bytes=memory,
        measured_peak_memory_bytes=measured.peak_memory_bytes, memory_kind=measured.memory_kind, refused=refused,
        tp_pp=case.layout.tp * case.layout.pp, micro_batch=case.layout.micro_batch, layout=str(case.layout),
        step_s_low=step_s and step_s * low, step_s_high=step_s and step_s * high, assumptions=case.assumptions,
    )  # fmt: skip


def _not_priced(row: Unpriced) -> RunOutcome:
    return RunOutcome(
        id=row.id, source=source_of(row.source), hardware=row.hardware, regime=row.regime, stack=row.stack_name,
        family=family_of(row.stack_name)[0], group=row.group, core=row.core, quality=row.quality,
        scored=row.quality != "C",
        memory_scored=False, step_s=None, measured_step_s=row.measured.step_s, peak_memory_bytes=None,
        measured_peak_memory_bytes=row.measured.peak_memory_bytes, memory_kind=row.measured.memory_kind,
        refused=row.reason, tp_pp=0, micro_batch=0, layout="",
    )  # fmt: skip


def factors_of(case: Case, software: StackSpec | None = None) -> intervals.Factors:
    """The 90 % interval of a run's step time over its prediction."""
    return intervals.factors(
        case.regime, known=software is not None or intervals.is_known(case.stack_name),
        narrow=intervals.is_narrow(case.workload.precision),
        measured=knows_generation(case.cluster.gpu),
    )  # fmt: skip


def source_of(text: str) -> str:
    """`NVIDIA-NeMo/Megatron-Bridge@067f98; docs/performance-summary.md section 26.08` -> repository and file."""
    head, hash_, rest = text.partition("@")
    if not hash_ or ";" in head:
        return text.partition(";")[0].strip()
    file = re.search(r"[\s/]([\w.-]+\.(?:md|json|csv|txt|py|ya?ml|rst|ipynb))\b", rest)
    return f"{head.strip()} {file[1]}" if file else head.strip()


def predict(case: Case, software: StackSpec | None = None) -> Prediction:
    """Price one run. Raises InputError where it cannot be priced (a GPU without the number format)."""
    rates = rates_of(case, software=software)
    ledger = ledger_of([case], rates)
    estimate = step.price(ledger, rates, detail=True)
    terms = {name: float(seconds[0]) for name, seconds in estimate.terms.items()}
    if case.order:
        terms["bubble"] += order.longer_s(case.order, ledger, rates)
    if case.sends_outputs:
        terms["offload"] += float(host_tensors.longer_s(ledger, rates)[0])
    step_s = sum(terms.values())
    if not np.isfinite(step_s) or step_s <= 0:
        raise InputError("no time can be given for this layout")
    return Prediction(
        step_s=step_s,
        peak_memory_bytes=peak_memory(case, ledger, rates),
        terms=terms,
    )


def peak_memory(case: Case, ledger: Ledger, rates: Rates) -> float:
    """Bytes of the kind that was measured, on the rank that was: the fullest, the first or the last stage's."""
    kind, scope = case.measured.memory_kind, case.measured.memory_scope
    profiles = range(ledger.num_profiles)
    memory = DeviceMemory(ledger)
    if kind == "allocated":
        # What only graphs keep is freed, for torch's count, as soon as they are captured.
        by_buffer = [memory.with_separate_graphs(j) for j in profiles]
        totals = [float(sum(buffers[name][0] for name in BUFFERS if name != "graphs")) for buffers in by_buffer]
    else:
        totals = [float(reserved_memory.reserved_bytes(memory, rates, j)[0]) for j in profiles]
    if case.order:
        totals = [total - order.freed_bytes(case.order, ledger, j) for j, total in enumerate(totals)]
    if scope == "last rank":
        most = totals[int(np.argmax(ledger.splits.first[0]))]
    elif scope == "one rank":
        most = totals[int(np.argmin(ledger.splits.first[0]))]
    else:
        most = max(totals)
    return most + float(reserved_memory.fixed_bytes(ledger, rates)[0]) if kind == "nvidia-smi" else most
