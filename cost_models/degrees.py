"""Sizes that parallel degrees may have, and the parts that they cut a sequence into."""

from __future__ import annotations

from collections.abc import Mapping
from functools import cache
from typing import Any

import numpy as np
from numpy.typing import ArrayLike

from .arrays import Ints
from .layouts import CP_ALGORITHMS


@cache
def divisors(n: int) -> tuple[int, ...]:
    """All divisors of n, ascending."""
    small = [d for d in range(1, int(n**0.5) + 1) if n % d == 0]
    return tuple(sorted({*small, *(n // d for d in small)}))


@cache
def shard_sizes(dp: int, cp: int) -> tuple[int, ...]:
    """Sizes that the shard group of ZeRO may have, ascending: divisors of dp that shard at all, cp ranks included. One
    rank is a group of itself."""
    return tuple(d for d in divisors(dp) if d * cp > 1) or (1,)


def sequence_parts(x: Mapping[str, Any]) -> tuple[Any, Any]:
    """(chunks of a sequence, parts that its length must be a multiple of) of layouts given by their fields.

    Ring and all-gather balance the causal half by giving each cp rank two chunks (zigzag); sequence parallelism splits
    what a rank has over tp.
    """
    per_rank = np.where(np.asarray(x["cp_algorithm"]) == CP_ALGORITHMS.index("ulysses"), 1, 2)
    chunks = np.where(np.asarray(x["cp"]) > 1, per_rank * x["cp"], 1)
    return chunks, chunks * np.where(np.asarray(x["sequence_parallel"]) > 0, x["tp"], 1)


def interleaving_group(pp: ArrayLike, m: ArrayLike) -> Ints:
    """Micro-batches of a chunk that an interleaved pipeline runs at a time: the fewest, pp or more, that leave no last
    group of fewer than pp; all m where there are fewer than pp.

    Smaller groups hold fewer activations. Groups of fewer than pp wait for the chunk before, and Megatron-LM refuses
    them (forward_backward_pipelining_with_interleaving). Where torch takes m, its m / max(1, m // pp) is the same
    (ScheduleInterleaved1F1B).
    """
    number = np.maximum(np.rint(np.asarray(m)), 1).astype(np.int64)
    least = np.minimum(np.asarray(pp).astype(np.int64), number)
    group, rest = least, number % least
    while (short := (rest > 0) & (rest < least)).any():
        # With as many full groups, one more in each takes one of every group from the last.
        group = np.where(short, group - (-rest // (number // group)), group)
        rest = number % group
    return np.asarray(group)
