"""Replicas that train apart for some steps: which layouts have them, and what they keep beside the optimizer."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import NDArray

from .base import Columns, Need

if TYPE_CHECKING:
    from ..problem import Problem

# fp32 each, per parameter of a rank: what the last exchange left (outer parameters) and the outer momentum.
OUTER_BYTES = 4.0
# Of an outer update, per parameter: difference from the outer parameters (2 reads), momentum (read and written),
# outer and inner parameters written.
OUTER_PASSES = 6.0


def _allows(x: Columns, problem: Problem) -> NDArray[np.bool_]:
    # Without ZeRO every data-parallel rank is a replica: it must hold all experts, and no part of a sequence only.
    copies = np.where(x["zero"] > 0, x["dp"] // x["shard"], x["dp"])
    whole = (x["cp"] == 1) & (x["ep"] * x["etp"] <= x["tp"])
    return np.asarray((copies > 1) & ((x["zero"] > 0) | whole))


WHOLE_REPLICAS = Need(
    ("tp", "cp", "dp", "ep", "etp", "zero", "shard"), _allows,
    "replicas of the whole model: ZeRO in shard groups smaller than dp, or none of it with cp 1 and ep within tp",
)  # fmt: skip
