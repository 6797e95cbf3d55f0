"""Waiting for the slowest GPUs of a large job."""

from __future__ import annotations

import math

from ..quantities.ledger import Ledger


def straggler_share(ledger: Ledger) -> float:
    """Added to every step of more than a node's worth of GPUs, which waits for the slowest: per doubling above 8."""
    return ledger.problem.stack.straggler_share * max(math.log2(ledger.problem.num_gpus / 8), 0.0)
