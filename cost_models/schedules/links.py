"""The simulator where messages share NICs: events in the order of time.

A stage-to-stage message or a gradient reduction that runs over a NIC takes its seconds there if it is alone. Those that
are under way together follow one another in the order they were ready (`serialise`), or each runs at an equal share of
the speed (`share`). Only the sender's NIC counts: links are full duplex, and receivers keep up. Messages of a device
over no NIC follow one another, as without sharing.
"""

from __future__ import annotations

import heapq
from collections import deque

import numpy as np

from ..arrays import Array
from .costs import Costs
from .engine import Work, column, deadlock, stall_s
from .orders import Schedule

_OP, _ARRIVED, _REDUCE, _REDUCED, _NIC = range(5)


class _Nic:
    """Fluid sharing: virtual time passes at 1/n with n messages under way; one ends when it has passed its seconds."""

    def __init__(self, one_at_a_time: bool) -> None:
        self.serial = one_at_a_time
        self.jobs: list[tuple[float, int, tuple[int, int]]] = []
        self.queue: deque[tuple[float, tuple[int, int]]] = deque()
        self.virtual = self.clock = 0.0
        self.version = self.count = 0

    def pass_time(self, now: float) -> None:
        if self.jobs:
            self.virtual += (now - self.clock) / len(self.jobs)
        self.clock = now

    def submit(self, now: float, seconds: float, job: tuple[int, int]) -> None:
        """A message of `seconds`; it starts now, or after those before it."""
        self.pass_time(now)
        if self.serial and self.jobs:
            self.queue.append((seconds, job))
            return
        heapq.heappush(self.jobs, (self.virtual + seconds, self.count, job))
        self.count += 1

    def finish(self, now: float) -> tuple[int, int]:
        """The message that ends now."""
        self.pass_time(now)
        self.virtual, _, job = heapq.heappop(self.jobs)
        if self.queue:
            self.submit(now, *self.queue.popleft())
        return job

    def next_s(self) -> float:
        """When the next message ends if none joins."""
        return self.clock + max(self.jobs[0][0] - self.virtual, 0.0) * len(self.jobs)


class _Run:
    """One run. Events are (seconds, number, what, index): ties keep the order in which they were made."""

    def __init__(self, schedule: Schedule, work: Work, costs: Costs) -> None:
        self.schedule, self.work, self.costs = schedule, work, costs
        self.n, self.device = len(work.dep), schedule.device_of_op.tolist()
        self.dep, self.lag, self.dur = work.dep.tolist(), work.lag.tolist(), work.dur.tolist()
        self.link, self.before = work.link.tolist(), work.queued.tolist()
        self.free = [0.0] * (self.n + 1)
        self.queued = np.zeros(self.n)
        self.arrived = [dep == self.n for dep in self.dep]
        self.end = [0.0] * self.n  # known when an operation starts
        self.at, self.busy = schedule.first[:-1].tolist(), [False] * schedule.num_devices
        self.stop = schedule.first[1:].tolist()
        self.readers: dict[int, list[int]] = {}
        for op, dep in enumerate(self.dep):
            if dep < self.n:
                self.readers.setdefault(dep, []).append(op)
        self.gated = {op for row in work.gates for op, _ in row}
        self.nics: dict[int, _Nic] = {}
        self.events: list[tuple[float, int, int, int]] = []
        self.number = 0
        self._reductions()

    def _reductions(self) -> None:
        chunks = self.schedule.num_chunks
        self.reduce_s = column(self.costs.reduce_s, chunks).tolist()
        self.reduce_start, self.reduce_end = [0.0] * chunks, [0.0] * chunks
        self.chunk_of = {int(op): c for c, op in enumerate(self.work.last)}
        self.streams: list[list[int]] = [[] for _ in range(self.schedule.num_devices)]
        self.reducing = [False] * self.schedule.num_devices

    def push(self, now: float, what: int, index: int) -> None:
        heapq.heappush(self.events, (now, self.number, what, index))
        self.number += 1

    def go(self) -> None:
        """All events until none is left."""
        for d in range(self.schedule.num_devices):
            self.start(d, 0.0)
        handlers = (self.ended, self.message, self.reduction, self.reduced, self.nic_event)
        while self.events:
            now, _, what, index = heapq.heappop(self.events)
            handlers[what](index, now)
        if any(at < stop for at, stop in zip(self.at, self.stop, strict=True)):
            raise deadlock(self.schedule, self.work, self.at)

    def start(self, d: int, now: float) -> None:
        """The device's next operation, if it is free and its input is there."""
        op = self.at[d]
        if self.busy[d] or op == self.stop[d] or not self.arrived[op]:
            return
        if op in self.gated:
            now += stall_s(self.schedule, self.work, self.costs, op, now)
        self.busy[d], self.end[op] = True, now + self.dur[op]
        self.push(self.end[op], _OP, op)
        if op in self.chunk_of and self.costs.overlap > 0:
            self.push(now + self.dur[op] / self.costs.buckets, _REDUCE, self.chunk_of[op])

    def ended(self, op: int, now: float) -> None:
        """An operation ends: its message leaves, the device goes on."""
        d = self.device[op]
        self.busy[d] = False
        self.at[d] += 1
        for reader in self.readers.get(op, ()):
            self.send(reader, now)
        if self.at[d] == self.stop[d] and self.costs.overlap == 0:
            mine = np.flatnonzero(self.schedule.device == d)
            for chunk in mine[np.argsort(self.work.last[mine], kind="stable")].tolist():
                self.reduction(chunk, now)
        self.start(d, now)

    def send(self, reader: int, now: float) -> None:
        chunk, forward = int(self.schedule.chunk[reader]), self.schedule.kind[reader] == 0
        nics = self.costs.forward_nic if forward else self.costs.backward_nic
        if self.lag[reader] > 0 and nics and nics[chunk] >= 0:
            self.submit(nics[chunk], now, self.lag[reader], (_ARRIVED, reader))
        elif self.lag[reader] > 0:
            sent = max(now, self.free[self.before[reader]])
            self.free[reader], self.queued[reader] = sent + self.link[reader], sent - now
            self.push(sent + self.lag[reader], _ARRIVED, reader)
        else:
            self.message(reader, now)

    def message(self, op: int, now: float) -> None:
        """The input of an operation is there."""
        self.arrived[op] = True
        self.start(self.device[op], now)

    def reduction(self, chunk: int, now: float) -> None:
        """Gradients of a chunk wait for the device's reduction stream."""
        d = int(self.schedule.device[chunk])
        self.streams[d].append(chunk)
        if not self.reducing[d]:
            self.next_reduction(d, now)

    def next_reduction(self, d: int, now: float) -> None:
        if not self.streams[d]:
            return
        chunk = self.streams[d].pop(0)
        self.reducing[d], self.reduce_start[chunk] = True, now
        nic = self.costs.reduce_nic[d] if self.costs.reduce_nic else -1
        if nic >= 0 and self.reduce_s[chunk] > 0:
            self.submit(nic, now, self.reduce_s[chunk], (_REDUCED, chunk))
        else:
            self.push(now + self.reduce_s[chunk], _REDUCED, chunk)

    def reduced(self, chunk: int, now: float) -> None:
        """A reduction ends; its last bucket not before the last W and its own share."""
        d, op = int(self.schedule.device[chunk]), int(self.work.last[chunk])
        earliest = self.end[op] + self.reduce_s[chunk] / self.costs.buckets
        if earliest > now:
            self.push(earliest, _REDUCED, chunk)
            return
        self.reducing[d] = False
        self.reduce_end[chunk] = now
        self.next_reduction(d, now)

    def submit(self, nic: int, now: float, seconds: float, job: tuple[int, int]) -> None:
        one = self.nics.setdefault(nic, _Nic(self.costs.nic_mode == "serialise"))
        one.submit(now, seconds, job)
        self.plan(nic, one)

    def plan(self, nic: int, one: _Nic) -> None:
        """Announce when its next message ends; earlier announcements are void."""
        one.version += 1
        if one.jobs:
            self.push(one.next_s(), _NIC, nic << 40 | one.version)

    def nic_event(self, code: int, now: float) -> None:
        nic, version = code >> 40, code & (1 << 40) - 1
        one = self.nics[nic]
        if version == one.version:
            what, index = one.finish(now)
            self.plan(nic, one)
            (self.message if what == _ARRIVED else self.reduced)(index, now)


def run_shared(schedule: Schedule, work: Work, costs: Costs) -> tuple[Array, Array, Array, Array]:
    """([ops] end of each operation and waits as of `run`, [chunk] start and end of its reduction). Raises InputError
    for a deadlock."""
    one = _Run(schedule, work, costs)
    one.go()
    return np.array(one.end), one.queued, np.array(one.reduce_start), np.array(one.reduce_end)
