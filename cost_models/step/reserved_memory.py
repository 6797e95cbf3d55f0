"""Bytes that the driver shows: what the allocator reserves beyond the buffers, the context, communicators."""

from __future__ import annotations

import numpy as np

from ..arrays import Array, Ints
from ..quantities.ledger import Ledger
from ..quantities.moments import unusable
from ..rates.rates import Rates


def fullest_stage(ledger: Ledger, rates: Rates, *, gathered: bool = True) -> tuple[Array, Ints]:
    """[n] bytes of the fullest stage as the driver would show them, and its profile; `gathered`: count that buffer."""
    held = np.array([reserved_bytes(ledger, rates, j, gathered=gathered) for j in range(ledger.num_profiles)])
    fullest = np.argmax(held, axis=0)
    return held[fullest, np.arange(len(ledger.layouts))] + fixed_bytes(ledger, rates), fullest


def least_bytes(ledger: Ledger, rates: Rates) -> Array:
    """[n] bytes that no choice of recomputation beats: weights, gradients and optimizer states of the fullest stage."""
    held = np.max([np.sum(list(ledger.states(j).values()), axis=0) for j in range(ledger.num_profiles)], axis=0)
    return np.asarray(held * (1 + rates.overheads.reserve_share) + fixed_bytes(ledger, rates))


def reserved_bytes(ledger: Ledger, rates: Rates, j: int, *, gathered: bool = True) -> Array:
    """[n] bytes that the allocator holds on the device of profile j at its peak."""
    allocated = np.asarray(sum(ledger.memory(j, gathered=gathered).values()))
    return allocated * (1 + rates.overheads.reserve_share) + unusable(ledger, j)


def fixed_bytes(ledger: Ledger, rates: Rates) -> Array:
    """[n] bytes outside the allocator: context and communicators."""
    over = rates.overheads
    return np.asarray(over.context_bytes + over.communicator_bytes * ledger.communicators)
