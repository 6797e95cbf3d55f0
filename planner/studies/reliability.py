"""Failures: how often a run stops, how often it should write checkpoints, and what share of its speed remains.

The formulas are those of planner/evaluation/interruptions.py.
"""

from __future__ import annotations

from dataclasses import asdict

from ...errors import InputError
from ..evaluation.interruptions import ASSUMED, DIMENSIONS, checkpoint_bytes, goodput, run_mtbf_s
from .assumed import Assumption, assumptions
from .base import Part, Question, Result
from .pricing import price_held
from .values import number_of

_DOUBLINGS = range(-2, 7)


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

    @property
    def table(self) -> tuple[ReliabilityRow, ...]:
        return self.rows


def run(question: Question) -> Reliability:
    """Raises UnknownNameError for an assumption that there is not, InputError for one without a unit."""
    base, assumed = question.base, assumptions(question, ASSUMED, DIMENSIONS)
    value = {assumption.name: assumption.value for assumption in assumed}
    num_bytes, now = checkpoint_bytes(base), base.cluster.num_gpus
    rows = []
    for count in _counts(question, now):
        nodes = max(count / base.cluster.gpus_per_node, 1.0)
        expected = goodput(run_mtbf_s(base, count, value["gpu_mtbf"]), num_bytes / nodes / value["write_bandwidth"],
                           value["detect"] + value["restart"])  # fmt: skip
        rows.append(ReliabilityRow(num_gpus=count, **asdict(expected)))
    return Reliability(
        **question.common_fields("reliability"),
        checkpoint_bytes=num_bytes,
        assumptions=assumed,
        now=now,
        tokens_per_s=price_held(question.layout, [base])[0].tokens_per_s,
        rows=tuple(rows),
    )


def _counts(question: Question, now: int) -> list[int]:
    if question.axes:
        if [axis.path for axis in question.axes] != ["gpus"]:
            raise InputError("reliability is over `gpus`", hint="`--vary gpus=1024..131072`, or leave it out")
        return sorted(round(number_of(value)) for value in question.axes[0].values)
    return [now * 2**k if k >= 0 else now // 2**-k for k in _DOUBLINGS if k >= 0 or now % 2**-k == 0]
