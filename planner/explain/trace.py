"""The passes of a candidate over time, as a trace for Perfetto or Chrome, or drawn as text."""

from __future__ import annotations

import json
from collections.abc import Iterator, Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from ...cost_models.arrays import Array
from ...cost_models.schedules.orders import LETTERS, B, F, I, W
from ...cost_models.schedules.simulator import Timeline
from ...errors import InputError
from ..document.base import rounded
from ..document.candidate import Candidate
from ..evaluation.staged import Staged
from ..heterogeneous.candidates import staged_as
from ..request.load import Request
from ..request.resolve import resolve


def check_drawn(request: Request, allowed: Sequence[str] = ()) -> None:
    """Raises InputError where the step is not simulated: under a technique, or one that the search may choose."""
    if names := [*request.workload.techniques, *allowed]:
        raise InputError(f"no step under {', '.join(names)} is drawn: the simulator knows plain training only",
                         hint="draw the plan without techniques; `explain` has their terms")  # fmt: skip


def of_candidate(request: Request, candidate: Candidate) -> Staged:
    """The step of a candidate of the plan for `request`, with its stages. Raises InputError (`check_drawn`)."""
    check_drawn(request)
    return staged_as(resolve(request), candidate)


_NAMES = {F: "forward", B: "backward", I: "backward, inputs", W: "backward, weights"}
_COLORS = {F: "good", B: "thread_state_running", I: "thread_state_runnable", W: "yellow"}


def chrome_trace(staged: Staged) -> str:
    """The step as a JSON document for ui.perfetto.dev or chrome://tracing: a process per stage, microseconds."""
    timeline = staged.timeline
    events = [*_names(timeline), *_operations(timeline), *_messages(timeline), *_memory(timeline)]
    other = {"layout": staged.id, "step_s": rounded(staged.step_s), "closed_form_s": rounded(staged.closed_s)}
    return json.dumps({"displayTimeUnit": "ms", "otherData": other, "traceEvents": events}) + "\n"


def _us(seconds: float) -> float:
    return round(seconds * 1e6, 3)


def _names(timeline: Timeline) -> Iterator[dict[str, Any]]:
    for d in range(timeline.schedule.num_devices):
        yield {"ph": "M", "pid": d, "tid": 0, "name": "process_name", "args": {"name": f"stage {d}"}}
        for tid, text in enumerate(("compute", "gradients", "optimizer")):
            yield {"ph": "M", "pid": d, "tid": tid, "name": "thread_name", "args": {"name": text}}


def _operations(timeline: Timeline) -> Iterator[dict[str, Any]]:
    s, start, end = timeline.schedule, timeline.start_s.tolist(), timeline.whole_end_s.tolist()
    kinds, chunks, owner = s.kind.tolist(), s.chunk.tolist(), s.device_of_op.tolist()
    for op, micro_batch in enumerate(s.micro_batch.tolist()):
        yield {
            "ph": "X", "pid": owner[op], "tid": 0, "ts": _us(start[op]), "dur": _us(end[op] - start[op]),
            "name": f"{LETTERS[kinds[op]]}{micro_batch}", "cat": _NAMES[kinds[op]], "cname": _COLORS[kinds[op]],
            "args": {"chunk": chunks[op], "micro_batch": micro_batch},
        }  # fmt: skip
    for chunk, begin in enumerate(timeline.reduce_start_s.tolist()):
        if (took := float(timeline.reduce_end_s[chunk]) - begin) > 0 and any(timeline.costs.reduce_s):
            yield {"ph": "X", "pid": int(s.device[chunk]), "tid": 1, "ts": _us(begin), "dur": _us(took),
                   "name": f"reduce gradients of chunk {chunk}", "cat": "data parallel"}  # fmt: skip
    for d, took in enumerate(timeline.costs.optimizer_s):
        if took > 0:
            yield {"ph": "X", "pid": d, "tid": 2, "ts": _us(float(timeline.device_end_s[d]) - took), "dur": _us(took),
                   "name": "optimizer", "cat": "optimizer"}  # fmt: skip


def _messages(timeline: Timeline) -> Iterator[dict[str, Any]]:
    """An arrow per message, from the end of the sender's operation to the reader's start."""
    s, work = timeline.schedule, timeline.work
    for op in np.flatnonzero(work.lag > 0).tolist():
        sender = int(work.dep[op])
        took_s = float(work.lag[op] + timeline.queued_s[op])
        both = {"cat": "message", "name": f"{_us(took_s)} us", "id": op, "tid": 0}
        yield {"ph": "s", "pid": int(s.device_of_op[sender]), "ts": _us(float(timeline.whole_end_s[sender])), **both}
        yield {"ph": "f", "bp": "e", "pid": int(s.device_of_op[op]), "ts": _us(float(timeline.start_s[op])), **both}


def _memory(timeline: Timeline) -> Iterator[dict[str, Any]]:
    for d in range(timeline.schedule.num_devices):
        times, held = timeline.memory(d)
        changed = np.flatnonzero(np.diff(held, prepend=-1.0))
        for at in changed.tolist():
            yield {"ph": "C", "pid": d, "tid": 0, "ts": _us(float(times[at])), "name": "memory",
                   "args": {"GiB": round(float(held[at]) / 2**30, 4)}}  # fmt: skip


def draw(timeline: Timeline, width: int = 80) -> list[str]:
    """The pipeline as text: a row per stage, a letter per moment (the operation that takes most of it; `.` idle).

    A step with too many operations for the width shows its first and its last part, on one scale.
    """
    s, start, end = timeline.schedule, timeline.start_s, timeline.whole_end_s
    label = len(f"stage {s.num_devices - 1} ")
    cells, total = max(width - label, 20), float(end.max(initial=0.0))
    usual = float(np.median(timeline.work.dur[timeline.work.dur > 0])) if (timeline.work.dur > 0).any() else 1.0
    whole = total <= usual * cells
    shown = total if whole else usual * cells
    windows = [(0.0, total)] if whole else [(0.0, shown * 0.5), (total - shown * 0.5, total)]
    columns = cells if whole else (cells - 5) // 2
    lines = []
    for d in range(s.num_devices):
        ops = slice(int(s.first[d]), int(s.first[d + 1]))
        parts = [_cells(start[ops], end[ops], s.kind[ops], low, high, columns) for low, high in windows]
        lines.append(f"stage {d}".ljust(label) + " ... ".join(parts))
    idle = 1.0 - timeline.busy_s / max(timeline.makespan_s, 1e-300)
    lines.append("F forward, B backward (I, W: of inputs, of weights), . idle")
    lines.append(f"{s.num_micro_batches} micro-batches, {timeline.makespan_s:.4g} s, stages idle "
                 f"{100 * idle.min():.1f} to {100 * idle.max():.1f} %")  # fmt: skip
    return lines


def _cells(start: Array, end: Array, kind: NDArray[np.int64], low: float, high: float, columns: int) -> str:
    """Letters of one window: per column the kind that covers most of it."""
    edges = np.linspace(low, high, columns + 1)
    covered = np.zeros((5, columns))
    for letter in range(4):
        mine = kind == letter
        busy = np.concatenate([[0.0], np.cumsum((end - start)[mine])])
        times = np.stack([start[mine], end[mine]], axis=1).ravel()
        steps = np.stack([busy[:-1], busy[1:]], axis=1).ravel()
        if len(times):
            covered[letter] = np.diff(np.interp(edges, times, steps, left=0.0, right=busy[-1]))
    covered[4] = np.diff(edges) - covered[:4].sum(axis=0)
    return "".join((LETTERS + ".")[i] for i in np.argmax(covered, axis=0))
