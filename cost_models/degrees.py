"""Sizes that parallel degrees may have, and the parts that they cut a sequence into."""

from __future__ import annotations

from collections.abc import Mapping
from functools import cache
from typing import Any

import numpy as np

from .layouts import CP_ALGORITHMS


@cache
def divisors(n: int) -> tuple[int, ...]:
    """All divisors of n, ascending."""
    small = [d for d in range(1, int(n**0.5) + 1) if n % d == 0]
    return tuple(sorted({*small, *(n // d for d in small)}))


@cache
def shard_sizes(dp: int, cp: int) -> tuple[int, ...]:
    """Sizes that the shard group of ZeRO may have, ascending: divisors of dp that shard at all, cp ranks included."""
    return tuple(d for d in divisors(dp) if d * cp > 1)


def sequence_parts(x: Mapping[str, Any]) -> tuple[Any, Any]:
    """(chunks of a sequence, parts that its length must be a multiple of) of layouts given by their fields.

    Ring and all-gather balance the causal half by giving each cp rank two chunks (zigzag); sequence parallelism splits
    what a rank has over tp.
    """
    per_rank = np.where(np.asarray(x["cp_algorithm"]) == CP_ALGORITHMS.index("ulysses"), 1, 2)
    chunks = np.where(np.asarray(x["cp"]) > 1, per_rank * x["cp"], 1)
    return chunks, chunks * np.where(np.asarray(x["sequence_parallel"]) > 0, x["tp"], 1)
