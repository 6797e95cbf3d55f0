"""Pipeline schedules as data: the order of operations per device, and the orders of the classic schedules.

A chunk is a run of layers on one device, numbered in the order of the model; micro-batches count from 0. Operations:
F forward, B whole backward, I gradient of the input only, W gradient of the weights only (B = I then W). An operation
is one integer, ((micro_batch * chunks) + chunk) * 4 + kind, so that the same operation of a later micro-batch differs
by a constant: steady states are found by comparing shifted arrays. V-shaped and bidirectional schedules are in
v_shaped.py, CSV in csv.py.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import cached_property

import numpy as np
from numpy.typing import NDArray

from ...errors import InputError
from ..arrays import Ints
from ..degrees import interleaving_group

F, B, I, W = range(4)  # noqa: E741
LETTERS = "FBIW"


@dataclass(frozen=True, eq=False)
class Schedule:
    """The operations of every device in the order it runs them."""

    name: str  # of the kind, or of the file that it comes from
    num_micro_batches: int  # of a step
    device: Ints  # [chunk] device that holds it
    upstream: Ints  # [chunk] the chunk whose output it reads, -1: none
    part: Ints  # [chunk] part of the model that it holds: DualPipe holds each part twice
    code: Ints  # [ops] operations as integers (`codes`) of device 0, then 1, ...
    first: Ints  # [devices + 1] index where the operations of each begin
    fused: NDArray[np.bool_]  # [ops] runs as one with the next operation: an overlapped pair of DualPipe
    column: Ints  # [ops] place in its row, from 1
    period: int = 0  # micro-batches after which the order repeats, 0: not known
    # [chunk] the chunk whose gradient it takes, -1: none; None: the one that reads its output
    behind: Ints | None = None

    @property
    def num_devices(self) -> int:
        return len(self.first) - 1

    @property
    def num_chunks(self) -> int:
        return len(self.device)

    @cached_property
    def kind(self) -> Ints:
        """[ops] F, B, I or W."""
        return self.code & 3

    @cached_property
    def chunk(self) -> Ints:
        """[ops] chunk of the operation."""
        return (self.code >> 2) % self.num_chunks

    @cached_property
    def micro_batch(self) -> Ints:
        """[ops] micro-batch of the operation."""
        return (self.code >> 2) // self.num_chunks

    @cached_property
    def downstream(self) -> Ints:
        """[chunk] the chunk whose gradient it takes: the one that reads its output; -1 for the last."""
        if self.behind is not None:
            return self.behind
        below = np.full(self.num_chunks, -1)
        has = np.flatnonzero(self.upstream >= 0)
        below[self.upstream[has]] = has
        return below

    @cached_property
    def device_of_op(self) -> Ints:
        """[ops] device that runs it."""
        return np.repeat(np.arange(self.num_devices), np.diff(self.first))

    def label(self, op: int) -> str:
        """The operation as torch.distributed.pipelining spells it: chunk, kind, micro-batch."""
        return f"{self.chunk[op]}{LETTERS[self.kind[op]]}{self.micro_batch[op]}"


def assemble(
    name: str, device: Sequence[int], m: int, rows: Sequence[Ints], *, period: int = 0, upstream: Sequence[int] = (),
    part: Sequence[int] = (), fused: Sequence[NDArray[np.bool_]] = (), columns: Sequence[Ints] = (),
    behind: Sequence[int] = (),
) -> Schedule:  # fmt: skip
    """A Schedule of the codes of each device (`rows`); by default chunk c reads from chunk c - 1."""
    chunks = len(device)
    sizes = [len(row) for row in rows]
    code = np.concatenate([np.asarray(row, dtype=np.int64) for row in rows])
    return Schedule(
        name, m, np.array(device), np.array(upstream or range(-1, chunks - 1)), np.array(part or range(chunks)), code,
        np.concatenate([[0], np.cumsum(sizes)]), np.concatenate(fused) if fused else np.zeros(len(code), dtype=bool),
        np.concatenate(columns) if columns else np.concatenate([np.arange(1, n + 1) for n in sizes]), period,
        np.array(behind) if behind else None,
    )  # fmt: skip


def codes(kind: int, chunk: Ints | int, micro_batch: Ints, chunks: int) -> Ints:
    """Operations as integers."""
    return np.asarray((micro_batch * chunks + chunk) * 4 + kind, dtype=np.int64)


def _sorted(*parts: tuple[Ints, Ints]) -> Ints:
    """Codes in the order of their keys; equal keys keep the order given."""
    keys = np.concatenate([key for key, _ in parts])
    return np.concatenate([code for _, code in parts])[np.argsort(keys, kind="stable")]


def _positive(**counts: int) -> None:
    if wrong := {name: value for name, value in counts.items() if value < 1}:
        name, value = next(iter(wrong.items()))
        raise InputError(f"{name}: {value} is out of range", hint="stages, chunks and micro-batches are 1 or more")


def gpipe(p: int, m: int) -> Schedule:
    """All forwards, then all backwards (Huang et al., arXiv 1811.06965). p stages, m micro-batches."""
    _positive(stages=p, micro_batches=m)
    j = np.arange(m)
    rows = [np.concatenate([codes(F, d, j, p), codes(B, d, j, p)]) for d in range(p)]
    return assemble("gpipe", range(p), m, rows)


def one_f_one_b(p: int, m: int) -> Schedule:
    """p - d - 1 forwards on device d, then one forward and one backward in turn (Narayanan et al., SC21, 2.2)."""
    _positive(stages=p, micro_batches=m)
    j = np.arange(m)
    rows = []
    for d in range(p):
        ahead = p - d - 1
        rows.append(_sorted((3 * (j - ahead), codes(F, d, j, p)), (3 * j + 1, codes(B, d, j, p))))
    return assemble("1f1b", range(p), m, rows, period=1)


def interleaved(p: int, m: int, v: int, group: int = 0) -> Schedule:
    """1F1B over v chunks per device, `group` micro-batches of a chunk at a time (default `interleaving_group`).

    Narayanan et al., SC21, 2.2; group: Megatron-LM `microbatch_group_size_per_vp_stage`, whose warm-up of
    2 (p - d - 1) + (v - 1) group chunks this follows. A last group of m mod group micro-batches is shorter.
    Groups (the last one too) of fewer than p micro-batches may deadlock: then `simulate` says so.
    """
    _positive(stages=p, micro_batches=m, chunks=v)
    group = group or int(interleaving_group(p, m))
    starts = range(0, m, group)
    table = [(j, c) for s in starts for c in range(v) for j in range(s, min(s + group, m))]
    order = np.array(table)
    k, j, c = np.arange(m * v), order[:, 0], order[:, 1]
    rows = []
    for d in range(p):
        ahead = 2 * (p - d - 1) + (v - 1) * group
        forward = (3 * (k - ahead), codes(F, c * p + d, j, p * v))
        rows.append(_sorted(forward, (3 * k + 1, codes(B, (v - 1 - c) * p + d, j, p * v))))
    return assemble("interleaved", [c % p for c in range(p * v)], m, rows, period=group)


def _handcrafted(name: str, p: int, m: int, ahead: Sequence[int], delay: Sequence[int]) -> Schedule:
    """Device d runs ahead[d] forwards, then F, I and the W of delay[d] micro-batches ago in turn."""
    _positive(stages=p, micro_batches=m)
    j = np.arange(m)
    rows = []
    for d in range(p):
        forward, backward = (3 * (j - ahead[d]), codes(F, d, j, p)), (3 * j + 1, codes(I, d, j, p))
        # a W whose turn comes after the last backward follows it at once
        rows.append(_sorted(forward, backward, (3 * (j + delay[d]) + 2, codes(W, d, j, p))))
    return assemble(name, range(p), m, rows, period=1)


def zb_h1(p: int, m: int) -> Schedule:
    """1F1B whose weight gradients come d micro-batches late on device d (Qi et al., arXiv 2401.10241, 2.1).

    Holds p micro-batches on every device (activations are kept until W).
    """
    return _handcrafted("zb-h1", p, m, [p - d - 1 for d in range(p)], list(range(p)))


def zb_h2(p: int, m: int) -> Schedule:
    """Twice the warm-up and twice the delay: no bubble between steps if F = I = W (arXiv 2401.10241, 2.2).

    Holds 2p - 1 micro-batches on every device. Steps follow each other without bubble only where the optimizer of a
    device need not wait for the others.
    """
    return _handcrafted("zb-h2", p, m, [2 * (p - d - 1) for d in range(p)], [2 * d for d in range(p)])


@dataclass(frozen=True)
class Steady:
    """The periodic middle of an order: operations `begin` to `end` of a device repeat every `length` operations."""

    period: int  # micro-batches from one repetition to the next
    begin: Ints  # [device] index in its own row
    end: Ints  # [device] index in its own row
    length: Ints  # [device] operations of one period


def steady(schedule: Schedule, period: int) -> Steady | None:
    """The part in which every device repeats its operations `period` micro-batches later, for at least three periods;
    or None."""
    shift = period * schedule.num_chunks * 4
    begin, end, length = [], [], []
    for d in range(schedule.num_devices):
        row = slice(schedule.first[d], schedule.first[d + 1])
        code, fused = schedule.code[row], schedule.fused[row]
        later = np.flatnonzero(code == code[len(code) // 2] + shift) if len(code) else code
        size = int(later[0]) - len(code) // 2 if len(later) else 0
        if size <= 0:
            return None
        same = (code[size:] - code[:-size] == shift) & (fused[size:] == fused[:-size])
        edges = np.flatnonzero(np.diff(np.concatenate([[False], same, [False]]).astype(np.int8)))
        if not len(edges):
            return None
        longest = int(np.argmax(edges[1::2] - edges[::2]))
        start, stop = int(edges[2 * longest]), int(edges[2 * longest + 1])
        cycle = np.bincount(code[stop : stop + size] & 3, minlength=4)
        if stop - start < 2 * size or cycle[F] != cycle[B] + cycle[I] or cycle[I] != cycle[W]:
            return None  # GPipe repeats forwards, then backwards: neither is a period of the schedule
        begin.append(start)
        end.append(stop + size)
        length.append(size)
    return Steady(period, np.array(begin), np.array(end), np.array(length))


def find_steady(schedule: Schedule, most: int = 16) -> Steady | None:
    """`steady` for the schedule's own period, or else the least period up to `most`."""
    periods = [schedule.period] if schedule.period else range(1, min(most, schedule.num_micro_batches // 3) + 1)
    return next((repeats for period in periods if (repeats := steady(schedule, period)) is not None), None)


def resized(schedule: Schedule, repeats: Steady, periods: int) -> Schedule:
    """The schedule with `periods` more periods (fewer if negative) in its middle."""
    shift = repeats.period * schedule.num_chunks * 4
    rows, fused = [], []
    for d in range(schedule.num_devices):
        row = slice(schedule.first[d], schedule.first[d + 1])
        code, joined = schedule.code[row], schedule.fused[row]
        end, size = repeats.end[d], repeats.length[d]
        added = max(periods, 0)
        keep = end + min(periods, 0) * size
        cycle = (code[end - size : end] + shift * (1 + np.arange(added))[:, None]).ravel()
        rows.append(np.concatenate([code[:keep], cycle, code[end:] + periods * shift]))
        fused.append(np.concatenate([joined[:keep], np.tile(joined[end - size : end], added), joined[end:]]))
    m = schedule.num_micro_batches + periods * repeats.period
    device, upstream, part = (list(column.tolist()) for column in (schedule.device, schedule.upstream, schedule.part))
    made = assemble(schedule.name, device, m, rows, upstream=upstream, part=part, fused=fused)
    return replace(made, period=repeats.period, behind=schedule.behind)
