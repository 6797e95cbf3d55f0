"""The numbers of micro-batches that torch's schedules accept. They reject others when training starts.

Source: torch 2.13, torch/distributed/pipelining/schedules.py, the constructors of the classes that torchtitan names.
"""

from __future__ import annotations

import numpy as np

from ....cost_models.arrays import Mask
from ....cost_models.problem import Problem
from ....cost_models.schedule_kinds import CODE
from ...space.rules import Columns, Rule, micro_batches


def _one_f_one_b(columns: Columns, problem: Problem) -> Mask:
    other = (columns["schedule"] != CODE["1f1b"]) | (columns["pp"] == 1)
    return np.asarray(other | (micro_batches(columns, problem) >= columns["pp"]))


def _interleaved(columns: Columns, problem: Problem) -> Mask:
    number = micro_batches(columns, problem)
    whole = number % np.maximum(number // columns["pp"], 1) == 0
    return np.asarray((columns["schedule"] != CODE["interleaved"]) | whole)


_FIELDS = ("pp", "dp", "micro_batch", "schedule")


def rules(target: str) -> tuple[Rule, ...]:
    """Rules of torch in addition to those of all targets."""
    return (
        Rule(f"{target}: 1f1b micro-batches", _FIELDS, _one_f_one_b,
             "Schedule1F1B needs at least pp {pp} micro-batches, and there are {m:g}"),
        Rule(f"{target}: interleaved micro-batches", _FIELDS, _interleaved,
             "ScheduleInterleaved1F1B needs equal rounds, as many as pp {pp} fits into the {m:g} micro-batches"),
    )  # fmt: skip
