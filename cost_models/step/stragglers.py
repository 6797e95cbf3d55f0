"""Waiting for the slowest GPUs of a large job."""

from __future__ import annotations

import math

from ..arrays import Array
from ..quantities.ledger import Ledger
from ..specs.stack import StackSpec


def straggler_share(ledger: Ledger) -> float:
    """Added to every step of more than a node's worth of GPUs, which waits for the slowest: per doubling above 8."""
    return straggler_share_of(ledger.problem.stack, ledger.problem.num_gpus)


def waiting_share(ledger: Ledger) -> Array | float:
    """[n] the same, with the replicas that a technique says are slow in a step."""
    return straggler_share(ledger) + ledger.waits


def straggler_share_of(stack: StackSpec, num_gpus: int) -> float:
    """The same for a job of `num_gpus`."""
    # A step ends with its slowest rank: the expected maximum of n delays with exponential tails grows as log n.
    return stack.straggler_share * max(math.log2(num_gpus / 8), 0.0)
