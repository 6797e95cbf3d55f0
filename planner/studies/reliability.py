"""Failures: how often a run stops, how often it should write checkpoints, and what is left of its speed.

For n GPUs of mean time between failures M each, a checkpoint that stops training for d, and failures that take t to
detect and r to recover from (Young 1974, to first order):
    MTBF of the run = M / n;  interval I = sqrt(2 d MTBF);  goodput = 1 - d/I - (I/2 + t + r) / MTBF
"""

from __future__ import annotations

import math

from ...cost_models import build_ledger, units
from ...cost_models.layouts import Layout, Layouts
from ...cost_models.quantities import tables
from ...cost_models.quantities.whole_matrices import saved_bytes
from ...errors import InputError, UnknownNameError
from ..request.resolve import Resolved
from .base import Part, Question, Result
from .pricing import price_held
from .values import number_of

ASSUMED = {
    "gpu_mtbf": ("50,677 h", "419 unexpected stops of 16,384 H100 in 54 days (Llama 3, arXiv 2407.21783, 3.3.4)"),
    "write_bandwidth": ("2 GB/s", "assumed, per node: one NVMe drive, or a share of a file system"),
    "detect": ("2 min", "assumed"),
    "restart": ("8 min", "assumed: reschedule, load the checkpoint, warm up"),
}
_DOUBLINGS = range(-2, 7)


class Assumption(Part):
    """A number that no file of facts holds."""

    name: str  # a key of ASSUMED
    value: float  # in base units of `dimension`
    dimension: str
    source: str  # of the usual value; `given` where the user gave it


class ReliabilityRow(Part):
    """A run on a number of GPUs."""

    num_gpus: int
    mtbf_s: float  # mean time between failures of the run
    checkpoint_s: float  # seconds that a checkpoint stops training
    interval_s: float  # best time between checkpoints
    goodput: float  # share of the time that makes progress, in [0, 1]; 0 where failures come faster than progress


class Reliability(Result):
    """Failures and checkpoints by number of GPUs."""

    checkpoint_bytes: float
    assumptions: tuple[Assumption, ...]
    now: int  # GPUs of the plan
    tokens_per_s: float  # of the layout held, without failures
    rows: tuple[ReliabilityRow, ...]  # rising numbers of GPUs


def run(question: Question) -> Reliability:
    """Raises UnknownNameError for an assumption that there is not, InputError for one without a unit."""
    base, assumed = question.base, _assumptions(question)
    value = {assumption.name: assumption.value for assumption in assumed}
    num_bytes, now = checkpoint_bytes(base), base.cluster.num_gpus
    rows = []
    for count in _counts(question, now):
        nodes = max(count / base.cluster.gpus_per_node, 1.0)
        rows.append(row(count, value["gpu_mtbf"], num_bytes / nodes / value["write_bandwidth"],
                        value["detect"] + value["restart"]))  # fmt: skip
    return Reliability(
        **question.common_fields("reliability"),
        checkpoint_bytes=num_bytes,
        assumptions=assumed,
        now=now,
        tokens_per_s=price_held(question.layout, [base])[0].tokens_per_s,
        rows=tuple(rows),
    )


def row(num_gpus: int, gpu_mtbf_s: float, checkpoint_s: float, recover_s: float) -> ReliabilityRow:
    """One run by the formulas above."""
    mtbf = gpu_mtbf_s / num_gpus
    interval = math.sqrt(2 * checkpoint_s * mtbf)
    goodput = 1 - checkpoint_s / interval - (interval / 2 + recover_s) / mtbf
    return ReliabilityRow(num_gpus=num_gpus, mtbf_s=mtbf, checkpoint_s=checkpoint_s, interval_s=interval,
                          goodput=max(goodput, 0.0))  # fmt: skip


def checkpoint_bytes(resolved: Resolved) -> float:
    """Weights and optimizer states of the whole model, once: what a checkpoint holds."""
    problem = resolved.problem
    parameters = tables.build(problem, Layouts.of([Layout()])).parameters
    totals = build_ledger.build_totals(problem)
    weights = totals @ (parameters["dense_bytes"] + parameters["experts_bytes"])
    trained = totals @ (parameters["trained_dense"] + parameters["trained_experts"])
    return float(weights[0] + trained[0] * problem.state_bytes.optimizer - saved_bytes(problem, totals))


def _assumptions(question: Question) -> tuple[Assumption, ...]:
    for name in question.assume:
        if name not in ASSUMED:
            raise UnknownNameError("assumption", name, ASSUMED)
    out = []
    for name, (usual, source) in ASSUMED.items():
        dimension: units.Dimension = "B/s" if name == "write_bandwidth" else "s"
        text = question.assume.get(name, usual)
        try:
            value = units.parse(text, dimension)
        except InputError as error:
            raise InputError(f"--assume {name}: {error.message}", hint=error.hint) from None
        if value <= 0:
            raise InputError(f"--assume {name}: must be more than 0, is {text}")
        out.append(Assumption(name=name, value=value, dimension=dimension,
                              source="given" if name in question.assume else source))  # fmt: skip
    return tuple(out)


def _counts(question: Question, now: int) -> list[int]:
    if question.axes:
        if [axis.path for axis in question.axes] != ["gpus"]:
            raise InputError("reliability is over `gpus`", hint="`--vary gpus=1024..131072`, or leave it out")
        return sorted(round(number_of(value)) for value in question.axes[0].values)
    return [now * 2**k if k >= 0 else now // 2**-k for k in _DOUBLINGS if k >= 0 or now % 2**-k == 0]
