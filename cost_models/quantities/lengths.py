"""Documents of different length: how much longer the busiest data-parallel rank works on attention.

Packed sequences have the same tokens but not the same sum of squared lengths; a step ends with its slowest rank. The
share is simulated: documents drawn from the histogram fill sequences, sequences are dealt to ranks.
"""

from __future__ import annotations

from functools import lru_cache

import numpy as np
from numpy.typing import NDArray

from ..specs.workload import Workload

_SEQUENCES = 4096  # drawn once, from which steps are dealt
_STEPS = 16
_SEED = 20_240_601


@lru_cache(maxsize=64)
def _squares(lengths: tuple[tuple[int, float], ...], seq_len: int) -> NDArray[np.float64]:
    """Sum of squared document lengths of each simulated sequence; a document that does not fit is cut at its end."""
    rng = np.random.default_rng(_SEED)
    sizes, shares = (np.array(column, dtype=np.float64) for column in zip(*lengths, strict=True))
    draws = rng.choice(sizes, size=_SEQUENCES * max(1, int(2 * seq_len / (sizes @ shares))), p=shares / shares.sum())
    ends = np.cumsum(draws)
    last = int(ends[-1] // seq_len)
    cuts = np.union1d(ends[ends < last * seq_len], seq_len * np.arange(1, last + 1))
    pieces = np.diff(np.concatenate([[0.0], cuts]))
    sequence = np.minimum(((cuts - 0.5) // seq_len).astype(np.int64), last - 1)
    return np.bincount(sequence, weights=pieces**2, minlength=last)[:_SEQUENCES].astype(np.float64)


@lru_cache(maxsize=4096)
def imbalance(workload: Workload, ranks: int) -> float:
    """Attention work of the busiest of `ranks` data-parallel ranks over the mean, over simulated steps (>= 1)."""
    if not workload.lengths or not workload.packed or ranks == 1 or workload.global_batch % ranks:
        return 1.0
    squares = _squares(workload.lengths, workload.seq_len)
    rng = np.random.default_rng(_SEED + ranks)
    steps = rng.choice(squares, size=(_STEPS, ranks, workload.global_batch // ranks)).sum(axis=2)
    return float((steps.max(axis=1) / steps.mean(axis=1)).mean())
