"""The engine of the simulator: the dependencies and end times of operations.

A device runs its operations in their order (orders.py), each when its input is there: an F when the chunk
before has sent its output, an I or B when the chunk behind has sent the gradient. A device sends one message after the
other, and receives beside that.

Seconds are rounded to multiples of a power of two (relative 2^-50 of the step), so that sums are exact: a steady state
repeats to the last bit, and the result does not depend on the order of additions.
"""

from __future__ import annotations

import math
from collections import deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np

from ...errors import FieldProblem, InputError
from ..arrays import Array, Ints
from .costs import Costs
from .orders import F, I, Schedule, W


@dataclass(frozen=True)
class Work:
    """A schedule with its costs as flat lists."""

    dep: Ints  # [ops] the operation whose end it waits for, len(dep) for none (a sentinel that ends at 0)
    lag: Array  # [ops] seconds from that end to the arrival of the input, if the link is free
    link: Array  # [ops] seconds of it that the link is busy
    # [ops] the operation whose message the same device sends before, len(dep) where the link is always free by then
    queued: Ints
    dur: Array  # [ops] seconds that it takes
    before: Array  # [ops + 1] seconds of all operations before it
    # per device, in order: first F of a chunk, and seconds of all gathers that must be over by then
    gates: list[list[tuple[int, float]]]
    last: Ints  # [chunk] the last operation that makes its weight gradients
    quantum_s: float  # all seconds are multiples of it


def column(values: Sequence[float], size: int) -> Array:
    """[size] the values, or zeros for an empty tuple."""
    return np.asarray(values, dtype=np.float64) if len(values) else np.zeros(size)


def prepare(schedule: Schedule, costs: Costs, quantum_s: float = 0.0) -> Work:
    """Dependencies and seconds of every operation, rounded to `quantum_s` (default: what suits the schedule)."""
    costs.check(schedule)
    n, chunks, kind, chunk = len(schedule.code), schedule.num_chunks, schedule.kind, schedule.chunk
    slot = schedule.code >> 2  # (micro-batch, chunk) as one number
    ends_at = np.arange(n) + schedule.fused  # a pair ends, for those who wait, with its second half
    # at[0, slot]: the F of a slot; at[1, slot]: the I or B that makes the gradient of its input. W makes nothing that
    # another device waits for.
    at = np.full((2, schedule.num_micro_batches * chunks), n)
    forward = kind == F
    at[0, slot[forward]], backward = ends_at[forward], (kind == I) | (kind == 1)
    at[1, slot[backward]] = ends_at[backward]
    dep = np.full(n, n)
    above, below = schedule.upstream[chunk], schedule.downstream[chunk]
    first, last = forward & (above >= 0), backward & (below >= 0)
    dep[first] = at[0, (slot + above - chunk)[first]]
    dep[last] = at[1, (slot + below - chunk)[last]]
    lag, link = np.zeros((2, n))
    hops = (costs.forward_hop_s, costs.forward_link_s), (costs.backward_hop_s, costs.backward_link_s)
    for brings, (hop_s, link_s) in zip((first, last), hops, strict=True):
        lag[brings] = column(hop_s, chunks)[chunk[brings]]
        link[brings] = column(link_s or hop_s, chunks)[chunk[brings]]
    device = np.append(schedule.device_of_op, -1)
    # Chunks of one device hand tensors on in memory.
    same = device[dep] == device[:-1]
    lag[same] = link[same] = 0.0
    dep[same & (dep < np.arange(n))] = n  # the order of the row sees to it
    f, i, w = (column(x, chunks)[chunk] for x in (costs.forward_s, costs.input_s, costs.weight_s))
    dur = np.select([kind == F, kind == I, kind == W], [f, i, w], i + w)
    dur = _fused(schedule, dur)
    # On a grid of a power of two all sums are exact, so shifted copies of a period agree to the last bit.
    quantum = quantum_s or _quantum(float(dur.sum() + lag.sum() + 2 * column(costs.gather_s, chunks).sum()))
    dur, lag, link = (np.rint(x / quantum) * quantum for x in (dur, lag, link))
    before = np.concatenate([[0.0], np.cumsum(dur)])
    queued = _queued(device, dep, link, dur)
    return Work(dep, lag, link, queued, dur, before, _gates(schedule, costs), _last_weights(schedule), quantum)


def _fused(schedule: Schedule, dur: Array) -> Array:
    """[ops] `dur` where a pair is an F that takes no time and a B that takes both: kernels of the two run side by side
    on one device, so neither ends before the other, and no seconds are saved."""
    pairs, paired = np.flatnonzero(schedule.fused), dur.copy()
    paired[pairs + 1] += dur[pairs]
    paired[pairs] = 0.0
    return paired


def _queued(device: Ints, dep: Ints, link: Array, dur: Array) -> Ints:
    """[ops] Work.queued. A message is sent when its operation has run, so it finds the link free if no message before
    it takes longer than that operation: where this is so of all messages of a device, none waits. (A fused pair may
    send two at once.)"""
    n = len(dep)
    queued, readers = np.full(n, n), np.flatnonzero(link > 0)
    if not len(readers) or (dur.all() and link.max() <= dur.min()):  # the usual case, without sorting; no fused pair
        return queued
    readers = readers[np.argsort(dep[readers], kind="stable")]  # a device's operations lie together, in its order
    sender = dep[readers]
    # A message can be late only if the one before it from the same device keeps the link for longer than the operation
    # between them takes. All messages of such a device are followed up; those of all others cost nothing here.
    follows = device[sender[1:]] == device[sender[:-1]]
    between_s = np.where(sender[1:] == sender[:-1], 0.0, dur[sender[1:]])
    waits = device[sender[1:]][follows & (link[readers[:-1]] > between_s)]
    mine = follows & np.isin(device[sender[1:]], waits)
    queued[readers[1:][mine]] = readers[:-1][mine]
    return queued


def _quantum(most_s: float) -> float:
    """The power of two below which seconds are rounded: sums up to most_s stay exact in doubles."""
    if not math.isfinite(most_s):
        raise InputError("the seconds of all operations add up to infinity", hint="give seconds below 1e300")
    return 2.0 ** max(math.frexp(most_s)[1] - 51, -1000) if most_s > 0 else 1.0


def _gates(schedule: Schedule, costs: Costs) -> list[list[tuple[int, float]]]:
    """Per device: the first F of each chunk, and the gather seconds that must be over by then."""
    gather = column(costs.gather_s, schedule.num_chunks)
    gates: list[list[tuple[int, float]]] = [[] for _ in range(schedule.num_devices)]
    if gather.any():
        forward = np.flatnonzero(schedule.kind == F)
        _, where = np.unique(schedule.chunk[forward], return_index=True)
        for op in sorted(forward[where].tolist()):
            row = gates[int(schedule.device_of_op[op])]
            row.append((op, (row[-1][1] if row else 0.0) + float(gather[schedule.chunk[op]])))
    return gates


def _last_weights(schedule: Schedule) -> Ints:
    """[chunk] last W or B of the chunk."""
    ops = np.flatnonzero((schedule.kind == W) | (schedule.kind == 1))
    last = np.full(schedule.num_chunks, -1)
    np.maximum.at(last, schedule.chunk[ops], ops)
    return last


def run(schedule: Schedule, work: Work, costs: Costs) -> tuple[Array, Array]:
    """([ops] when each operation ends, and how long the message that brings its input waits for its link). A device
    runs as far as its inputs are there, then sleeps until another has run the operation that it waits for.

    Raises InputError where no device can go on.
    """
    dep, end, lag = work.dep.tolist(), [-1.0] * len(work.dep) + [0.0], work.lag.tolist()
    advance = _advance(work, dep, end, lag)
    devices, first = range(schedule.num_devices), schedule.first.tolist()
    next_op, clock = first[:-1], [0.0] * schedule.num_devices
    # A device stops at its gates, the first F of each chunk, and looks there whether the weights have been gathered.
    stops = [[first[d + 1], *(op for op, _ in reversed(work.gates[d]))] for d in devices]
    home, awake = schedule.device_of_op.tolist(), deque(devices)
    sleepers: list[list[int]] = [[] for _ in devices]  # devices that wait for an operation of this one
    while awake:
        d = awake.popleft()
        op, now = advance(next_op[d], stops[d][-1], clock[d])
        while op == stops[d][-1] and len(stops[d]) > 1 and end[dep[op]] >= 0.0:
            stops[d].pop()
            ready = max(now, end[dep[op]] + lag[op])
            op, now = advance(op, stops[d][-1], ready + stall_s(schedule, work, costs, op, ready))
        next_op[d], clock[d] = op, now
        if asleep := sleepers[d]:
            sleepers[d] = []
            for other in asleep:
                (awake if end[dep[next_op[other]]] >= 0.0 else sleepers[d]).append(other)
        if op < first[d + 1]:
            sleepers[home[dep[op]]].append(d)
    if any(next_op[d] < first[d + 1] for d in devices):
        raise deadlock(schedule, work, next_op)
    return np.array(end[:-1]), np.array(lag) - work.lag


def _advance(
    work: Work, dep: list[int], end: list[float], lag: list[float]
) -> Callable[[int, int, float], tuple[int, float]]:
    """A function that runs operations `i` to `stop` of a device, from `time` on, until the input of one is missing:
    (that operation, or `stop`; when the one before it ends). It records in `end` and `lag`.

    A closure over plain lists: a step has millions of operations, and attributes or NumPy scalars take several times
    as long.
    """
    dur, sends, queued, link = work.dur.tolist(), _senders(work), work.queued.tolist(), work.link.tolist()
    free = [0.0] * (len(dep) + 1)  # when the link is free after the message to an operation

    def advance(i: int, stop: int, time: float) -> tuple[int, float]:
        for op in range(i, stop):
            t = end[dep[op]]
            if t < 0.0:
                return op, time
            t += lag[op]
            if t > time:
                time = t
            time += dur[op]
            end[op] = time
            if op in sends:
                # Messages of a device leave one after another: one that finds the link busy is late by the wait.
                for reader in sends[op]:
                    wait = max(free[queued[reader]] - time, 0.0)
                    free[reader] = time + wait + link[reader]
                    lag[reader] += wait
        return stop, time

    return advance


def _senders(work: Work) -> dict[int, list[int]]:
    """Operation -> those its messages go to over links that may be busy: they wait for one, or one for them."""
    delayed, sends = np.flatnonzero(work.queued < len(work.dep)), dict[int, list[int]]()
    for reader in np.union1d(delayed, work.queued[delayed]).tolist():
        sends.setdefault(int(work.dep[reader]), []).append(reader)
    return sends


def stall_s(schedule: Schedule, work: Work, costs: Costs, op: int, ready_s: float) -> float:
    """How long the first F of a chunk waits for gathered weights, ready to run at `ready_s`.

    Gathers run one after another, at full speed while the device is idle, slower while it computes, this F
    included but for the layers of the last bucket.
    """
    device = int(schedule.device_of_op[op])
    needed = next(total for gate, total in work.gates[device] if gate == op)
    busy = float(work.before[op] - work.before[schedule.first[device]])
    # The gather stream has run since the start of the step, slowed down while the device computes. The last layers of a
    # chunk are needed last, so all buckets but one may still arrive while its first F runs.
    gathered = ready_s - (1.0 - costs.gather_overlap) * busy
    hidden = costs.gather_overlap * float(work.dur[op]) * (1.0 - 1.0 / costs.buckets)
    return math.ceil(max(needed - gathered - hidden, 0.0) / work.quantum_s) * work.quantum_s


def deadlock(schedule: Schedule, work: Work, at: Sequence[int]) -> InputError:
    """The open dependencies, one line per unfinished device. `at`: its next operation."""
    problems = []
    for d, op in enumerate(at):
        if op == schedule.first[d + 1]:
            continue
        wanted = int(work.dep[op])
        other = f"row {schedule.device_of_op[wanted] + 1}, column {schedule.column[wanted]}"
        text = f"`{schedule.label(op)}` waits for `{schedule.label(wanted)}` ({other})"
        where = f"column {schedule.column[op]}"
        problems.append(FieldProblem(f"{text}, which never runs", file=schedule.name, line=d + 1, field=where,
                                hint="the schedule deadlocks: change the order of these operations"))  # fmt: skip
    return InputError.of(problems)
