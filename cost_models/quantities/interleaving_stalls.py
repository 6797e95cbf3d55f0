"""Stalls of interleaved pipelines whose chunks are not equally long.

Devices take turns through their chunks, a group of micro-batches of each, and wait for neighbours that are at a longer
one, even where all devices have as much to do in sum. The order repeats itself every group, so three short runs tell
what a step of any number takes: each operation one turn after those that it waits for, all devices and splits at once.
A test holds it against the event simulator, which does the same one operation after the other.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property, lru_cache
from typing import TYPE_CHECKING

import numpy as np

from ..arrays import Array, Ints, group_rows
from ..degrees import interleaving_group
from .even_stages import Edges, even_sizes, groups_of, most_chunks
from .stages import Partition, SplitKey, chunk_rows, recomputed_rows

if TYPE_CHECKING:
    from ..problem import Problem

Flops = tuple[tuple[float, ...], tuple[float, ...]]  # forward, backward; of each kind, as in stages.py
Ends = tuple[tuple[int, ...], int, Edges, Flops]  # layers of each kind, number of kinds, and both of the above
_NOTHING = 1e-9  # a share below this is rounding
_AT_ONCE = 1 << 18  # numbers per array of the turns that are prepared together


@dataclass(frozen=True)
class Turns:
    """How many micro-batches take turns: `group` of each chunk at a time, `last` of them in the last group.

    Where there are fewer than stages, a group has a turn for each stage, and `last` of them are used.
    """

    group: int
    last: int


@dataclass(frozen=True, eq=False)
class Stalls:
    """Stalls of interleaved pipelines of some splits. partition: stages of the only split; None: those of the problem,
    else as even as possible."""

    problem: Problem
    keys: tuple[SplitKey, ...]
    partition: Partition | None = None

    def cycles(self, split: Ints, m: Array) -> Array:
        """[n] seconds of a step beyond the slowest device's work and the bubble (step/pipeline.py), in units of what
        the slowest device does for a micro-batch. split: [n] index into `keys`; m: [n] micro-batches."""
        several = np.array([pp > 1 and vpp > 1 and not folded for pp, vpp, folded in self.keys])
        rows, waits = np.flatnonzero(several[split]), np.zeros(len(split))
        if not len(rows):
            return waits
        columns = split[rows], np.rint(m[rows]).astype(np.int64)
        first, which = group_rows(columns)
        keys, number = np.array(self.keys)[columns[0][first]], columns[1][first]
        pp, vpp = keys[:, 0], keys[:, 1]
        group = np.where(number < pp, pp, interleaving_group(pp, number))
        last = np.where(number < pp, number, (number - 1) % group + 1)
        shares = np.empty((len(number), 3))
        alike, of_turns = group_rows((pp, group, last))
        for index, row in enumerate(alike.tolist()):
            here = of_turns == index
            shares[here] = self._shares(int(pp[row]), vpp[here], Turns(int(group[row]), int(last[row])))
        once, third, further = shares.T
        groups = -(-number // group)
        waits[rows] = np.where(groups > 1, third + (groups - 3) * further, once)[which]
        return waits

    @cached_property
    def _ends(self) -> Ends:
        problem, (forward, backward) = self.problem, self.problem.flops.tolist()
        return problem.pattern, problem.num_kinds, problem.edges, (tuple(forward), tuple(backward))

    @cached_property
    def _given(self) -> Partition | None:
        """The stages of the partition or of the problem; None for the most even ones."""
        if self.partition is not None:
            return None if self.partition == _even(self._ends, len(self.partition.sizes)) else self.partition
        return None if self.problem.stages is None else Partition(self.problem.stages)

    def _shares(self, pp: int, vpp: Ints, turns: Turns) -> Array:
        """[r, 3] `stall_shares` of splits into `vpp` [r] chunks on each of pp devices."""
        out, number = np.empty((len(vpp), 3)), -1 if self._given is None else len(self._given.sizes)
        given = np.asarray(vpp * pp == number)
        if self._given is not None and given.any():
            out[given] = _of_given_split(self._ends, pp, self._given, turns)
        if not given.all():
            out[~given] = _of_even_splits(self._ends, pp, turns)[vpp[~given]]
        return out


def _even(ends: Ends, num_chunks: int) -> Partition:
    pattern, _, edges, _ = ends
    return Partition(even_sizes(pattern, edges, num_chunks))


@lru_cache(maxsize=1024)
def _of_even_splits(ends: Ends, pp: int, turns: Turns) -> Array:
    """[v, 3] `stall_shares` of the most even splits into v chunks on each of pp devices, for every v that leaves an
    inner chunk a layer; none for v of 0 and 1. Chunks are taken to last as long as they have FLOPs."""
    most = most_chunks(len(groups_of(ends[0], ends[2].joined))) // pp
    stalls = np.zeros((most + 1, 3))
    if pp > 1 and most > 1:
        stalls[2:] = _of_splits(ends, pp, [_even(ends, pp * v) for v in range(2, most + 1)], turns)
    return stalls


@lru_cache(maxsize=256)
def _of_given_split(ends: Ends, pp: int, split: Partition, turns: Turns) -> Array:
    """[3] `stall_shares` of one split."""
    return np.asarray(_of_splits(ends, pp, [split], turns)[0])


def _of_splits(ends: Ends, pp: int, splits: Sequence[Partition], turns: Turns) -> Array:
    """[split, 3] `stall_shares` of splits. Recomputation counts where stages choose it."""
    pattern, num_kinds, edges, flops = ends
    seconds = np.full((2, len(splits), max(len(split.sizes) for split in splits) // pp, pp), np.nan)
    for n, split in enumerate(splits):
        v = len(split.sizes) // pp
        passes = np.array(flops) @ chunk_rows(pattern, num_kinds, edges, pp, v, False, split.sizes).T
        if split.recomputed is not None:
            passes[1] += flops[0] @ recomputed_rows(pattern, num_kinds, edges, split).T
        seconds[:, n, :v] = passes.reshape(2, v, pp)
    return stall_shares(seconds[0], seconds[1], turns)


def stall_shares(forward: Array, backward: Array, turns: Turns) -> Array:
    """[n, 3] seconds of a step beyond the slowest device's work and the bubble, as multiples of what the slowest device
    does for a micro-batch: of one group; of three; and more for every further one.

    forward, backward: [n, chunk, device] as in `makespans`. More than one are on a line through three and four, where
    the order repeats itself. Below 0 where the longest chunks are not those of the slowest device: the bubble is
    shorter.
    """
    p, chunks = forward.shape[2], np.isfinite(forward[:, :, 0]).sum(axis=1)
    numbers = np.array([1, 3, 4] if turns.last >= p else [1])  # fewer micro-batches than stages are one group
    repeated = (len(numbers), 1, 1)
    runs = makespans(np.tile(forward, repeated), np.tile(backward, repeated), np.repeat(numbers, len(forward)), turns)
    once, *more = runs.reshape(len(numbers), -1)
    three, four = more or (once, once)
    device = np.nansum(forward + backward, axis=1)
    slowest = device.max(axis=1)
    refilled = 1 + max(p - turns.last, 0) * (chunks - 1) / max(p - 1, 1)
    bubble = (device.sum(axis=1) - slowest) / chunks * refilled
    further = np.maximum(four - three, turns.group * slowest)
    work = turns.last * slowest
    beyond = np.array([
        once - bubble - work, three - bubble - work - 2 * turns.group * slowest, further - turns.group * slowest,
    ]).T / slowest[:, None]  # fmt: skip
    return np.where(abs(beyond) > _NOTHING, beyond, 0.0)


def makespans(forward: Array, backward: Array, groups: Ints, turns: Turns) -> Array:
    """[n] seconds of interleaved 1F1B (Narayanan et al., SC21) over equal links of no latency. forward, backward:
    [n, chunk, device] seconds of a micro-batch, chunks that a row does not have NaN; groups: [n] numbers of groups.

    Device d runs 2(p-1-d) + (v-1) group forwards ahead. In turn i + p-1-d it runs that many after forward i, and
    backward i: what comes from its neighbours they have run in a turn before, and what comes from the chunk before, at
    the other end of the pipeline, as many turns before as the group has.
    """
    n, _, p = forward.shape
    row, chunks = np.arange(n), np.isfinite(forward[:, :, 0]).sum(axis=1)
    last = max(turns.last, p)  # turns of the last group, used or not
    total = int((chunks * ((groups - 1) * turns.group + last)).max())
    late = p - 1 - np.arange(p)
    ahead = 2 * late + ((chunks - 1) * turns.group)[:, None]
    place, size, used = _places(chunks, groups, turns, last, total)
    width = total + 2  # the last column of what has ended is never written: nothing before the first chunk
    before = row[:, None] * width + np.where(place == 0, width - 1, np.arange(total + 1) - size)
    ends_f, ends_b = np.zeros((2, n * width))  # of the last device, and of the first one
    done_f, done_b, arrives = np.zeros((3, n, p))
    first, end = -int((ahead - late).max()), total + p - 1
    at_once = max(_AT_ONCE // (n * p), 1)
    for start in range(first, end, at_once):
        i = np.arange(start, min(start + at_once, end))[:, None, None] - late
        at_f, runs_f, seconds_f = _taken(forward, place, used, i + ahead)
        at_b, runs_b, seconds_b = _taken(backward, chunks[:, None] - 1 - place, used, i + np.zeros_like(ahead))
        source_f, source_b = before[row, at_f[:, :, 0]], before[row, at_b[:, :, -1]]
        own_f, own_b = row * width + at_f[:, :, -1], row * width + at_b[:, :, 0]
        for turn in range(len(i)):
            arrives[:, 1:] = done_f[:, :-1]
            arrives[:, 0] = ends_f[source_f[turn]]
            np.maximum(arrives, done_b, out=arrives)
            done_f = np.where(runs_f[turn], np.add(arrives, seconds_f[turn], out=arrives), done_b)
            ends_f[own_f[turn]] = done_f[:, -1]
            arrives[:, :-1] = done_b[:, 1:]
            arrives[:, -1] = ends_b[source_b[turn]]
            np.maximum(arrives, done_f, out=arrives)
            done_b = np.where(runs_b[turn], np.add(arrives, seconds_b[turn], out=arrives), done_f)
            ends_b[own_b[turn]] = done_b[:, 0]
    return np.asarray(done_b.max(axis=1))


def _taken(seconds: Array, chunk: Ints, used: Array, number: Ints) -> tuple[Ints, Array, Array]:
    """[turn, n, device] of turns with these numbers: the number, within those that there are; whether there is a
    micro-batch for it; and its seconds. chunk, used: as of `_places`."""
    row, at = np.arange(len(chunk))[:, None], np.clip(number, 0, chunk.shape[1] - 1)
    return at, (number == at) & used[row, at], seconds[row, chunk[row, at], np.arange(seconds.shape[2])]


def _places(chunks: Ints, groups: Ints, turns: Turns, last: int, most: int) -> tuple[Ints, Ints, Array]:
    """[n, turn] the chunk (from the end, of a backward pass) that comes, how many turns its group has for each chunk,
    and whether there is a micro-batch for the turn: of `most` turns and one more, where there is none."""
    number, cycle = np.arange(most + 1), (chunks * turns.group)[:, None]
    group = np.minimum(number // cycle, groups[:, None] - 1)
    size = np.where(group == groups[:, None] - 1, last, turns.group)
    within = number - group * cycle
    used = (within < chunks[:, None] * size) & (within % size < np.where(size == last, turns.last, turns.group))
    return np.minimum(within // size, chunks[:, None] - 1), size, used
