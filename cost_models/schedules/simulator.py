"""Event simulator: runs a pipeline schedule operation by operation.

`simulate(schedule, costs)` returns a `Timeline`: start and end of each operation, exposed weight gathers and gradient
reductions, and memory over time. Orders are in orders.py, v_shaped.py and csv.py, dependencies in engine.py, the
repetition of steady states in steady_state.py.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import cached_property

import numpy as np

from ...errors import InputError
from ..arrays import Array
from ..schedule_kinds import by_code
from . import orders, v_shaped
from .costs import Costs
from .engine import Work, column, prepare, run
from .orders import B, F, I, Schedule
from .steady_state import run_repeating

__all__ = ["ORDERS", "Costs", "Schedule", "Timeline", "make", "simulate"]


# Name -> order for (devices, micro-batches, chunks per device, micro-batches per group).
ORDERS: dict[str, Callable[[int, int, int, int], Schedule]] = {
    "gpipe": lambda p, m, v, g: orders.gpipe(p, m),
    "1f1b": lambda p, m, v, g: orders.one_f_one_b(p, m),
    "interleaved": orders.interleaved,
    "zb-h1": lambda p, m, v, g: orders.zb_h1(p, m),
    "zb-h2": lambda p, m, v, g: orders.zb_h2(p, m),
    "zb-v": lambda p, m, v, g: v_shaped.v_schedule("zb-v", p, m),
    "v-half": lambda p, m, v, g: v_shaped.v_schedule("v-half", p, m),
    "v-min": lambda p, m, v, g: v_shaped.v_schedule("v-min", p, m),
    "dualpipe": lambda p, m, v, g: v_shaped.dualpipe(p, m),
    "dualpipe-v": lambda p, m, v, g: v_shaped.dualpipe_v(p, m),
}
by_code("order of passes", ORDERS)  # every schedule of a layout has one; the others are for studies of schedules


def make(name: str, p: int, m: int, v: int = 1, group: int = 0) -> Schedule:
    """The order of a schedule on p devices for m micro-batches; v and group for `interleaved` only."""
    if name not in ORDERS:
        raise InputError(f"unknown schedule `{name}`", hint=f"known: {', '.join(ORDERS)}")
    return ORDERS[name](p, m, v, group)


@dataclass(frozen=True, eq=False)
class Timeline:
    """The result of a run. All seconds count from the start of the step."""

    schedule: Schedule  # the order that was run
    costs: Costs  # the seconds that it was run with
    work: Work  # both as flat lists
    end_s: Array  # [ops] when each operation ends
    queued_s: Array  # [ops] how long the message with its input waits for the link
    reduce_start_s: Array  # [chunk] when its gradient reduction starts
    reduce_end_s: Array  # [chunk] when its gradient reduction ends
    skipped: int = 0  # operations whose times were repeated, not run

    @cached_property
    def start_s(self) -> Array:
        """[ops] when each operation starts. Both halves of a fused pair last from its start to its end."""
        start = self.end_s - self.work.dur
        pairs = np.flatnonzero(self.schedule.fused)
        start[pairs] = start[pairs + 1]
        return np.asarray(start)

    @cached_property
    def whole_end_s(self) -> Array:
        """[ops] when each operation ends; both halves of a fused pair end with the second."""
        end = self.end_s.copy()
        pairs = np.flatnonzero(self.schedule.fused)
        end[pairs] = end[pairs + 1]
        return np.asarray(end)

    @cached_property
    def compute_end_s(self) -> Array:
        """[device] end of its last operation."""
        return np.asarray(self.end_s[self.schedule.first[1:] - 1])

    @cached_property
    def passes_end_s(self) -> Array:
        """[device] end of its last operation and of what hides behind none. A device that is done early waits for it
        while others still compute."""
        return self.compute_end_s + column(self.costs.unhidden_s, self.schedule.num_devices)

    @cached_property
    def exposed_reduce_s(self) -> Array:
        """[device] from its last operation to the end of its last reduction."""
        done = self.compute_end_s.copy()
        np.maximum.at(done, self.schedule.device, self.reduce_end_s)
        return np.asarray(done - self.compute_end_s)

    @cached_property
    def device_end_s(self) -> Array:
        """[device] end of its optimizer."""
        ready = self.passes_end_s + self.exposed_reduce_s
        # Clipping needs the norm of all gradients, so no optimizer starts before the last reduction.
        return np.asarray(ready.max() + column(self.costs.optimizer_s, len(ready)))

    @property
    def makespan_s(self) -> float:
        """Seconds of the step: all devices start together, the last one ends it."""
        return float(self.device_end_s.max())

    @cached_property
    def busy_s(self) -> Array:
        """[device] seconds in operations."""
        return np.asarray(np.add.reduceat(self.work.dur, self.schedule.first[:-1]))

    @property
    def bubble_s(self) -> float:
        """Makespan beyond the busiest device's operations."""
        return self.makespan_s - float(self.busy_s.max())

    def memory(self, device: int) -> tuple[Array, Array]:
        """(seconds, bytes) of the device after each change: two per operation, at its start and at its end."""
        s, c = self.schedule, self.costs
        ops = slice(int(s.first[device]), int(s.first[device + 1]))
        activation = column(c.activation_bytes, s.num_chunks)[s.chunk[ops]]
        stash = column(c.stash_bytes, s.num_chunks)[s.chunk[ops]]
        kind = s.kind[ops]
        # F makes activations when it starts. B frees them when it ends. I frees all but the stash, which W frees.
        change = np.empty((len(kind), 2))
        change[:, 0] = np.where(kind == F, activation, 0.0)
        change[:, 1] = np.select([kind == F, kind == B, kind == I], [0.0, -activation, stash - activation], -stash)
        static = column(c.static_bytes, s.num_devices)[device]
        times = np.stack([self.start_s[ops], self.end_s[ops]], axis=1)
        return times.ravel(), static + np.cumsum(change.ravel())

    @cached_property
    def peak_bytes(self) -> Array:
        """[device] most bytes at any time."""
        return np.array([max(self.memory(d)[1].max(), 0.0) for d in range(self.schedule.num_devices)])


def simulate(schedule: Schedule, costs: Costs, *, extrapolate: bool = True) -> Timeline:
    """Runs the schedule. Pure and deterministic.

    extrapolate: where the middle of the order repeats and two periods of the run agree in every end time to the last
    bit, the rest of the middle is not run but shifted; the result is the same. Raises InputError for costs that do not
    fit the schedule and for a schedule that deadlocks, with row and column.
    """
    work = prepare(schedule, costs)
    end, queued, skipped = run_repeating(schedule, work, costs) if extrapolate else (*run(schedule, work, costs), 0)
    starts, ends = _reductions(schedule, work, costs, end)
    return Timeline(schedule, costs, work, end, queued, starts, ends, skipped)


def _reductions(schedule: Schedule, work: Work, costs: Costs, end: Array) -> tuple[Array, Array]:
    """[chunk] start and end of each gradient reduction: in the order of their last W, one after another per device.

    A stream of its own: full speed while the device is idle, `overlap` while it computes; nothing before the last
    operation where overlap is 0. It can start when the first of `buckets` parts of the last W is done.
    """
    reduce_s = column(costs.reduce_s, schedule.num_chunks)
    starts, ends = np.zeros((2, schedule.num_chunks))
    slow = 1.0 - costs.overlap
    for d in range(schedule.num_devices):
        row = slice(int(schedule.first[d]), int(schedule.first[d + 1]))
        # `done` is the clock of the reduction stream: seconds of reducing that are possible by each start and end of an
        # operation. Times on it are mapped back to seconds of the step by interpolation.
        busy = work.before[row.start : row.stop + 1] - work.before[row.start]
        edges = np.stack([end[row] - work.dur[row], end[row]], axis=1).ravel()
        done = edges - slow * np.stack([busy[:-1], busy[1:]], axis=1).ravel()  # how much would be reduced by each edge
        stop, last, clock = float(end[row.stop - 1]), float(done[-1]), 0.0
        mine = np.flatnonzero(schedule.device == d)
        for chunk in mine[np.argsort(work.last[mine], kind="stable")].tolist():
            op = int(work.last[chunk])
            early = work.dur[op] * (1.0 - 1.0 / costs.buckets)
            last_w_s = last if costs.overlap == 0 else end[op] - slow * busy[op + 1 - row.start]
            begin = max(clock, last_w_s - costs.overlap * early)
            # The last bucket is complete only when the last W is, so at least its part follows.
            clock = max(begin + reduce_s[chunk], last_w_s + reduce_s[chunk] / costs.buckets)
            for out, value in ((starts, begin), (ends, clock)):
                out[chunk] = stop + value - last if value >= last else float(np.interp(value, done, edges))
    return starts, ends
