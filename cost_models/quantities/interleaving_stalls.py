"""What interleaved pipelines wait where their chunks are not equally long.

Devices take turns through their chunks, p micro-batches of each, and wait for neighbours that are at a longer one, even
where all devices have as much to do in sum. The order repeats itself every p micro-batches, so three short runs tell
what a step of any number takes: each operation one turn after those that it waits for, all devices and splits at once.
A test holds it against the event simulator, which does the same one operation after the other.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import lru_cache
from typing import TYPE_CHECKING

import numpy as np

from ..arrays import Array, Ints
from .stages import Edges, Partition, SplitKey, chunk_rows, chunk_sizes, most_chunks, recomputed_rows

if TYPE_CHECKING:
    from ..problem import Problem

Flops = tuple[tuple[float, ...], tuple[float, ...]]  # forward, backward; of each kind, as in stages.py
_NOTHING = 1e-9  # a share below this is rounding


def of_keys(problem: Problem, keys: Sequence[SplitKey], partition: Partition | None = None) -> Array | None:
    """[split, 3] `stall_shares` of each split key, None where no split is interleaved. partition:
    stages of the only split; None: as even as possible."""
    several = [i for i, (pp, vpp, folded) in enumerate(keys) if pp > 1 and vpp > 1 and not folded]
    if not several:
        return None
    forward, backward = problem.flops.tolist()
    of_model = (problem.pattern, problem.num_kinds, problem.edges, (tuple(forward), tuple(backward)))
    if partition is not None and partition != _even(len(problem.pattern), len(partition.sizes)):
        return _of_splits(*of_model, keys[0][0], [partition])
    stalls = np.zeros((len(keys), 3))
    for i in several:
        pp, vpp, _ = keys[i]
        if problem.stages is not None and len(problem.stages) == pp * vpp:
            stalls[i] = _of_given_split(*of_model, pp, problem.stages)
        else:
            stalls[i] = _of_even_splits(*of_model, pp)[vpp]
    return stalls


def _even(num_layers: int, num_chunks: int) -> Partition:
    return Partition(tuple(chunk_sizes(num_layers, num_chunks)))


@lru_cache(maxsize=256)
def _of_even_splits(pattern: tuple[int, ...], num_kinds: int, edges: Edges, flops: Flops, pp: int) -> Array:
    """[v, 3] `stall_shares` of the most even splits into v chunks on each of pp devices, for every v that leaves an
    inner chunk a layer; none for v of 0 and 1. Chunks are taken to last as long as they have FLOPs."""
    most = most_chunks(len(pattern)) // pp
    stalls = np.zeros((most + 1, 3))
    if pp > 1 and most > 1:
        splits = [_even(len(pattern), pp * v) for v in range(2, most + 1)]
        stalls[2:] = _of_splits(pattern, num_kinds, edges, flops, pp, splits)
    return stalls


@lru_cache(maxsize=256)
def _of_given_split(
    pattern: tuple[int, ...], num_kinds: int, edges: Edges, flops: Flops, pp: int, sizes: tuple[int, ...]
) -> Array:
    """[3] `stall_shares` of chunks of these sizes."""
    return np.asarray(_of_splits(pattern, num_kinds, edges, flops, pp, [Partition(sizes)])[0])


def _of_splits(
    pattern: Sequence[int], num_kinds: int, edges: Edges, flops: Flops, pp: int, splits: Sequence[Partition]
) -> Array:
    """[split, 3] `stall_shares` of splits. What is recomputed counts where stages choose it."""
    seconds = np.full((2, len(splits), max(len(split.sizes) for split in splits) // pp, pp), np.nan)
    for n, split in enumerate(splits):
        v = len(split.sizes) // pp
        rows = chunk_rows(pattern, num_kinds, edges, pp, v, False, split.sizes)
        passes = np.array(flops) @ rows.T
        if split.recomputed is not None:
            passes[1] += flops[0] @ recomputed_rows(pattern, num_kinds, edges, split).T
        seconds[:, n, :v] = passes.reshape(2, v, pp)
    return stall_shares(*seconds)


def stall_shares(forward: Array, backward: Array) -> Array:
    """[n, 3] seconds of a step beyond the slowest device's work and the bubble of SC21's form, as shares of what the
    slowest device does for p micro-batches: of p micro-batches; and of more, for the first p and for every further p.

    forward, backward: [n, chunk, device] as in `makespans`. More than p are on a line through 3p and 4p, where the
    order repeats itself. Below 0 where the longest chunks are not those of the slowest device: the bubble is shorter.
    """
    groups = np.repeat(np.array([1, 3, 4]), len(forward))
    once, three, four = makespans(np.tile(forward, (3, 1, 1)), np.tile(backward, (3, 1, 1)), groups).reshape(3, -1)
    device = np.nansum(forward + backward, axis=1)
    slowest, p = device.max(axis=1), forward.shape[2]
    bubble = (device.sum(axis=1) - slowest) / np.isfinite(forward[:, :, 0]).sum(axis=1)
    further = np.maximum(four - three, p * slowest)
    beyond = np.array([once - bubble, three - 2 * further - bubble, further]).T / (p * slowest)[:, None] - 1.0
    return np.where(abs(beyond) > _NOTHING, beyond, 0.0)


def makespans(forward: Array, backward: Array, groups: Ints) -> Array:
    """[n] seconds of interleaved 1F1B (Narayanan et al., SC21) over equal links of no latency. forward, backward:
    [n, chunk, device] seconds of a micro-batch, chunks that a row does not have NaN; groups: [n] of p micro-batches.

    Device d runs 2(p-1-d) + (v-1)p forwards ahead. In turn i + p-1-d it runs that many after forward i, and backward i:
    what comes from its neighbours they have run in a turn before.
    """
    n, _, p = forward.shape
    rows, device = np.arange(n)[:, None], np.arange(p)
    chunks = np.isfinite(forward[:, :, 0]).sum(axis=1)[:, None]
    cycle = chunks * p
    total, ahead, late = cycle * groups[:, None], 2 * (p - 1 - device) + cycle - p, p - 1 - device
    done_f, done_b = np.zeros((2, n, p))
    for turn in range(-int((ahead - late).max()), int(total.max()) + p - 1):
        i = turn - late
        number = i + ahead
        chunk = number % cycle // p
        runs = (number >= 0) & (number < total)
        arrives = np.where((chunk == 0) & (device == 0), 0.0, np.roll(done_f, 1, axis=1))
        end_f = np.where(runs, np.maximum(done_b, arrives) + forward[rows, chunk, device], done_b)
        chunk = chunks - 1 - i % cycle // p
        runs_b = (i >= 0) & (i < total)
        arrives = np.where((chunk == chunks - 1) & (device == p - 1), 0.0, np.roll(done_b, -1, axis=1))
        done_b = np.where(runs_b, np.maximum(end_f, arrives) + backward[rows, chunk, device], end_f)
        done_f = end_f
    return np.asarray(done_b.max(axis=1))
