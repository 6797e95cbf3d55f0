"""The pipeline of a layout over time, as the event simulator runs it."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Literal

import numpy as np

from ...cost_models.schedules.orders import LETTERS
from ...cost_models.schedules.simulator import Schedule, Timeline
from ..evaluation.staged import Staged
from ..studies.base import Part

Half = Literal["", "upper", "lower"]
_MOST_OPERATIONS = 6000  # drawn; a longer step shows its begin and its end


class Operation(Part):
    """One block of the picture: seconds, and its letter (F forward, B backward, I and W its two halves)."""

    stage: int
    start_s: float
    end_s: float
    letter: str
    chunk: int
    micro_batch: int
    half: Half = ""  # of its row, where it runs together with another operation


class Window(Part):
    """A part of the step that is drawn."""

    start_s: float
    end_s: float
    operations: tuple[Operation, ...]


class PipelineChart(Part):
    """The step as simulated. idle: share of the makespan, per stage."""

    step_s: float
    closed_form_s: float
    makespan_s: float
    num_stages: int
    num_micro_batches: int
    idle: tuple[float, ...]
    windows: tuple[Window, ...]


def pipeline_chart(staged: Staged) -> PipelineChart | None:
    """The simulated step; None where it is not simulated (`Staged.is_simulated`)."""
    if not staged.is_simulated:
        return None
    timeline = staged.timeline
    idle = 1.0 - timeline.busy_s / max(timeline.makespan_s, 1e-300)
    return PipelineChart(
        step_s=staged.step_s, closed_form_s=staged.closed_s, makespan_s=timeline.makespan_s,
        num_stages=staged.layout.pp, num_micro_batches=timeline.schedule.num_micro_batches, idle=tuple(idle.tolist()),
        windows=tuple(_windows(timeline)),
    )  # fmt: skip


def _windows(timeline: Timeline) -> Iterator[Window]:
    """The whole step, or as much of its begin and its end as has few enough operations to be told apart."""
    start_s, end_s = timeline.start_s, timeline.whole_end_s
    total, count = float(end_s.max(initial=0.0)), len(start_s)
    if count <= _MOST_OPERATIONS:
        spans = [(0.0, total)]
    else:
        part = total * _MOST_OPERATIONS / count / 2
        spans = [(0.0, part), (total - part, total)]
    s = timeline.schedule
    halves = _halves(s)
    for low, high in spans:
        inside = np.flatnonzero((end_s > low) & (start_s < high))
        yield Window(start_s=low, end_s=high, operations=tuple(
            Operation(stage=int(s.device_of_op[op]), start_s=max(float(start_s[op]), low),
                      end_s=min(float(end_s[op]), high), letter=LETTERS[int(s.kind[op])], chunk=int(s.chunk[op]),
                      micro_batch=int(s.micro_batch[op]), half=halves.get(op, ""))
            for op in inside.tolist()))  # fmt: skip


def _halves(schedule: Schedule) -> dict[int, Half]:
    """The half of its row of every operation of a fused pair."""
    pairs = np.flatnonzero(schedule.fused).tolist()
    return {**dict.fromkeys(pairs, "upper"), **dict.fromkeys((pair + 1 for pair in pairs), "lower")}
