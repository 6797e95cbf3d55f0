"""The number of separate messages for the copies of a token, one copy per expert, to the ranks of the experts."""

from __future__ import annotations

import numpy as np
from numpy.typing import ArrayLike

from ..arrays import Array


def distinct_share(domains: ArrayLike, copies: float, groups: tuple[int, int] = (1, 1)) -> Array:
    """[n] items that leave a domain where each enters every other domain at most once, over all copies that would.

    Copies fall on `domains` D independently: (D-1)(1 - (1 - 1/D)^k) domains are hit of k (1 - 1/D) copies that leave.
    groups (g, t): an item's copies go to t of g groups of neighbours. Those lie in t D/g domains, or in t at most where
    a domain holds several; copies fall on these, of which as of all 1 - 1/D are elsewhere.
    """
    domains = np.maximum(np.asarray(domains, dtype=np.float64), 1.0)
    reached = np.minimum(domains, np.maximum(groups[1], domains * (groups[1] / groups[0])))
    return np.asarray(reached * (1.0 - (1.0 - 1.0 / reached) ** copies) / copies)
