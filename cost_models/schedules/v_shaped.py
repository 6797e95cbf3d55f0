"""Orders of the schedules whose devices hold two chunks: ZB-V, V-Half, V-Min, DualPipe and DualPipeV.

V-schedules (Qi et al., arXiv 2405.15362): chunk c sits on device c going there and 2p-1-c coming back. One micro-batch
is a building block, repeated every 6 units (F = I = W = 1 of a chunk); the steps between neighbouring devices set how
long activations live, hence the memory: p micro-batches (ZB-V), about p/2 (V-Half) and p/3 (V-Min). The block gives the
order of F and I; W fills what would be idle, and is forced where memory reaches the schedule's limit (list scheduling).
DualPipe and DualPipeV: the eight phases of github.com/deepseek-ai/DualPipe.
"""

from __future__ import annotations

import heapq
from functools import lru_cache
from itertools import product

import numpy as np

from ...errors import InputError
from ..arrays import Ints
from .orders import B, F, I, Schedule, W, assemble, codes, find_steady, resized

# Units between neighbours: F going there, F coming back, I going there, I coming back.
STEPS = {"zb-v": (4, 2, 4, 2), "v-half": (2, 1, 2, 1), "v-min": (1, 1, 1, 1)}
_UNITS = 6  # of a micro-batch per device: F, I, W of two chunks
_FULL = 12  # micro-batches per stage up to which an order is scheduled in full; beyond, its middle is repeated


def v_schedule(name: str, p: int, m: int) -> Schedule:
    """ZB-V, V-Half or V-Min on p devices."""
    if name not in STEPS:
        raise InputError(f"unknown V-schedule `{name}`", hint=f"known: {', '.join(STEPS)}")
    if p < 1 or m < 1:
        raise InputError(f"{name}: {p} stages, {m} micro-batches", hint="both are 1 or more")
    short = _FULL * p + m % _FULL
    if m <= short + _FULL:
        return _list_scheduled(name, p, m)
    made = _list_scheduled(name, p, short)
    repeats = find_steady(made, 12)
    if repeats is None or (m - short) % repeats.period:
        return _list_scheduled(name, p, m)
    return resized(made, repeats, (m - short) // repeats.period)


@lru_cache(maxsize=256)
def block(name: str, p: int) -> Ints:
    """[device, (F there, F back, I there, I back)] units at which a building block runs them.

    The pauses at the three turns are the shortest for which no device has two operations in one unit modulo 6.
    """
    out, back, down, up = STEPS[name]
    d = np.arange(p)
    for turns in sorted(product(range(1, _UNITS + 1), repeat=3), key=lambda t: (sum(t), t)):
        there = out * d
        returning = out * (p - 1) + turns[0] + back * (p - 1 - d)
        inputs = returning[0] + turns[1] + down * d
        units = np.stack([there, returning, inputs, inputs[-1] + turns[2] + up * (p - 1 - d)], axis=1)
        taken = np.sort(units % _UNITS, axis=1)
        if (np.diff(taken, axis=1) > 0).all():
            return units
    raise InputError(f"{name}: no building block for {p} stages", hint="`--fix schedule=zb-v` has one")


def limit_chunks(name: str, p: int) -> int:
    """Chunks of activations a device may hold (kept until W): 2p for ZB-V, else what the building block holds."""
    if name == "zb-v":
        return 2 * p
    most = 0
    for row in block(name, p).tolist():
        free = sorted(set(range(_UNITS)) - {x % _UNITS for x in row})
        ends = []
        for start, gap in zip((row[2], row[3]), free, strict=True):
            ends.append(start + 1 + (gap - start - 1) % _UNITS + 1)
        spans = ((row[1], ends[0]), (row[0], ends[1]))
        blocks_alive = [sum(_copies(now - end, now - begin) for begin, end in spans) for now in range(4 * _UNITS * p)]
        most = max(most, *blocks_alive)
    return most


def _copies(low: int, high: int) -> int:
    """The number of multiples of _UNITS, from 0, above `low` and at most `high`: blocks alive at one moment."""
    return max(high // _UNITS - max(low // _UNITS, -1), 0)


@lru_cache(maxsize=64)
def _list_scheduled(name: str, p: int, m: int) -> Schedule:
    """F and I of each device in the order of the blocks, each as soon as it can; W where there is time, or must be."""
    chunks, j = 2 * p, np.arange(m)
    wanted = []
    for d, row in enumerate(block(name, p)):
        there, back = d, chunks - 1 - d
        keys = np.concatenate([_UNITS * j + unit for unit in row])
        ops = np.concatenate([codes(kind, c, j, chunks) for kind, c in ((F, there), (F, back), (I, back), (I, there))])
        wanted.append(ops[np.argsort(keys, kind="stable")].tolist())
    limit = limit_chunks(name, p)
    devices = [_Device(order, d, chunks, limit, name == "zb-v") for d, order in enumerate(wanted)]
    rows = [np.array(row) for row in _run(devices)]
    return assemble(name, [*range(p), *reversed(range(p))], m, rows)


def _needs(op: int, chunks: int) -> int:
    """The operation of another chunk whose result an F or I reads; -1 for none."""
    chunk = (op >> 2) % chunks
    if op & 3 == F:
        return op - 4 if chunk else -1
    return op + 4 if chunk < chunks - 1 else op - I + F


class _Device:
    """One device of the list scheduler: what it still has to run, and what it holds."""

    def __init__(self, order: list[int], there: int, chunks: int, limit: int, fills: bool) -> None:
        self.order, self.chunks, self.limit, self.at = order, chunks, limit, 0
        self.early = [op for op in order if op & 3 == F and (op >> 2) % chunks == there] if fills else []
        self.there, self.started, self.ran_early = there, 0, set[int]()
        self.late: list[int] = []
        self.late_at = self.held = 0
        self.row: list[int] = []

    def choose(self, now: float, ends: dict[int, float]) -> tuple[int, int, float]:
        """(operation to run now, or -1; else the operation it waits for and when that ends, if known)."""
        while self.at < len(self.order) and self.order[self.at] in self.ran_early:
            self.at += 1
        op = self.order[self.at] if self.at < len(self.order) else -1
        pending = self.late_at < len(self.late)
        if op < 0:
            return (self._weight() if pending else -1), -1, np.inf
        needed = _needs(op, self.chunks)
        ready = 0.0 if needed < 0 else ends.get(needed, np.inf)
        full = op & 3 == F and self.held >= self.limit
        if ready <= now and not (full and pending):
            self.at += 1
            return self._take(op), -1, 0.0
        if pending:
            return self._weight(), -1, 0.0
        return self._fill(now, ends), needed, ready

    def _fill(self, now: float, ends: dict[int, float]) -> int:
        """A forward of a later micro-batch, where one place is left for the chunk that comes back."""
        if self.started >= len(self.early) or self.held >= self.limit - 1:
            return -1
        op = self.early[self.started]
        needed = _needs(op, self.chunks)
        if needed >= 0 and ends.get(needed, np.inf) > now:
            return -1
        self.ran_early.add(op)
        return self._take(op)

    def _take(self, op: int) -> int:
        self.held += op & 3 == F
        self.started += op & 3 == F and (op >> 2) % self.chunks == self.there
        if op & 3 == I:
            self.late.append(op - I + W)
        self.row.append(op)
        return op

    def _weight(self) -> int:
        self.late_at += 1
        self.held -= 1
        self.row.append(self.late[self.late_at - 1])
        return self.row[-1]


def _run(devices: list[_Device]) -> list[list[int]]:
    """List scheduling in the order of time: a free device takes its next F or I, a waiting W, an early F, or pauses."""
    ends: dict[int, float] = {}
    sleepers: dict[int, list[int]] = {}
    free = [(0.0, d) for d in range(len(devices))]
    while free:
        now, d = heapq.heappop(free)
        op, needed, ready = devices[d].choose(now, ends)
        if op < 0:
            if needed >= 0 and ready < np.inf:
                heapq.heappush(free, (ready, d))
            elif needed >= 0:
                sleepers.setdefault(needed, []).append(d)
            continue
        ends[op] = now + 1.0  # the order is made for F = I = W
        heapq.heappush(free, (ends[op], d))
        for other in sleepers.pop(op, ()):
            heapq.heappush(free, (ends[op], other))
    return [device.row for device in devices]


class _Phases:
    """Writes the row of one device: two chunks (0 starts here or nearer, 1 comes back), each counting its own."""

    def __init__(self, chunk: tuple[int, int], chunks: int, lanes: tuple[tuple[int, int], tuple[int, int]]) -> None:
        self.chunk, self.chunks, self.lanes = chunk, chunks, lanes
        self.done = {(kind, phase): 0 for kind in (F, B) for phase in (0, 1)}
        self.row: list[int] = []
        self.fused: list[bool] = []
        self.late: list[int] = []

    def add(self, kind: int, phase: int, fused: bool = False) -> None:
        """The next F (kind F), B, or I (its W is kept for later) of a phase."""
        counter = (F if kind == F else B, phase)
        first, step = self.lanes[phase]
        micro_batch = first + step * self.done[counter]
        self.done[counter] += 1
        slot = (micro_batch * self.chunks + self.chunk[phase]) * 4
        self.row.append(slot + kind)
        self.fused.append(fused)
        if kind == I:
            self.late.append(slot + W)

    def both(self, forward: int, backward: int, fused: bool = True) -> None:
        """A forward and a backward as one pair."""
        self.add(F, forward, fused)
        self.add(B, backward)

    def weight(self) -> None:
        """The oldest W kept for later."""
        self.row.append(self.late.pop(0))
        self.fused.append(False)


def _dual_row(row: _Phases, ranks: int, rank: int, m: int) -> None:
    """The eight phases of a device: `rank` of `ranks` from the end of the pipe, m micro-batches per direction."""
    after = ranks - rank - 1
    for _ in range(2 * after):
        row.add(F, 0)
    for _ in range(rank + 1):
        row.add(F, 0)
        row.add(F, 1)
    for _ in range(after):
        row.add(I, 1)
        row.weight()
        row.add(F, 1)
    for i in range(m - 2 * ranks + rank + 1):
        row.both(0, 1, fused=i > 0 or after > 0)
        row.both(1, 0)
    for _ in range(after):
        row.add(B, 1)
        row.both(1, 0)
    split = False
    for i in range(rank + 1):
        halfway = i == (rank + 1) // 2
        split |= halfway and rank % 2 == 1
        row.add(I if split else B, 1)
        split |= halfway and rank % 2 == 0
        row.add(I if split else B, 0)
    for _ in range(after):
        row.weight()
        row.add(I, 0)
    for _ in range(rank + 1):
        row.weight()


def dualpipe_v(p: int, m: int) -> Schedule:
    """DualPipeV on p devices of two chunks each, m >= 2p micro-batches."""
    if p < 1 or m < 2 * p:
        raise InputError(f"dualpipe-v: {m} micro-batches on {p} devices", hint=f"it needs at least {2 * p}")
    rows = []
    for d in range(p):
        row = _Phases((d, 2 * p - 1 - d), 2 * p, ((0, 1), (0, 1)))
        _dual_row(row, p, d, m)
        rows.append(row)
    device = [*range(p), *reversed(range(p))]
    return assemble("dualpipe-v", device, m, [np.array(row.row) for row in rows], period=1,
                    fused=[np.array(row.fused) for row in rows])  # fmt: skip


def dualpipe(p: int, m: int) -> Schedule:
    """DualPipe on p devices (even): even micro-batches run from device 0 to p-1, odd ones the other way.

    Chunk c < p is part c for the even ones, chunk p + c part c, on device p-1-c, for the odd ones: parameters twice.
    """
    if p < 2 or p % 2 or m % 2 or m < 2 * p:
        raise InputError(
            f"dualpipe: {m} micro-batches on {p} devices",
            hint=f"it needs an even number of devices and an even number of micro-batches, at least {2 * p}",
        )
    rows = []
    for d in range(p):
        near, far = (d, 2 * p - 1 - d), ((0, 2), (1, 2))
        mirrored = d >= p // 2
        row = _Phases(near[::-1] if mirrored else near, 2 * p, far[::-1] if mirrored else far)
        _dual_row(row, p // 2, p - 1 - d if mirrored else d, m // 2)
        rows.append(row)
    device, parts = [*range(p), *reversed(range(p))], [*range(p), *range(p)]
    upstream = [*range(-1, p - 1), -1, *range(p, 2 * p - 1)]
    return assemble("dualpipe", device, m, [np.array(row.row) for row in rows], period=2, upstream=upstream,
                    part=parts, fused=[np.array(row.fused) for row in rows])  # fmt: skip
