"""The pipeline of a layout over time, as the event simulator runs it."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np

from ...cost_models.schedules.orders import LETTERS
from ...cost_models.schedules.simulator import Timeline
from ..evaluation.staged import Staged
from ..studies.base import Part

_MOST_OPERATIONS = 6000  # drawn; a longer step shows its begin and its end


class Operation(Part):
    """One block of the picture: seconds, and its letter (F forward, B backward, I and W its two halves)."""

    stage: int
    start_s: float
    end_s: float
    letter: str
    chunk: int
    micro_batch: int


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
    total, count = float(timeline.end_s.max(initial=0.0)), len(timeline.start_s)
    if count <= _MOST_OPERATIONS:
        spans = [(0.0, total)]
    else:
        part = total * _MOST_OPERATIONS / count / 2
        spans = [(0.0, part), (total - part, total)]
    s = timeline.schedule
    for low, high in spans:
        inside = np.flatnonzero((timeline.end_s > low) & (timeline.start_s < high))
        yield Window(start_s=low, end_s=high, operations=tuple(
            Operation(stage=int(s.device_of_op[op]), start_s=max(float(timeline.start_s[op]), low),
                      end_s=min(float(timeline.end_s[op]), high), letter=LETTERS[int(s.kind[op])],
                      chunk=int(s.chunk[op]), micro_batch=int(s.micro_batch[op]))
            for op in inside.tolist()))  # fmt: skip
