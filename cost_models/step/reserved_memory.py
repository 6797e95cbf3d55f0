"""Device memory beyond buffers, as the driver shows it: allocator reserve, context, communicators."""

from __future__ import annotations

import numpy as np

from ..arrays import Array, Ints
from ..quantities.device_memory import DeviceMemory
from ..quantities.ledger import Ledger
from ..quantities.moments import unusable
from ..rates.rates import Rates


def fullest_stage(memory: DeviceMemory, rates: Rates, *, gathered: bool = True) -> tuple[Array, Ints]:
    """[n] bytes of the fullest stage as the driver would show them, and its profile; `gathered`: count that buffer."""
    profiles = range(memory.ledger.num_profiles)
    reserved = np.array([reserved_bytes(memory, rates, j, gathered=gathered) for j in profiles])
    fullest = np.argmax(reserved, axis=0)
    return reserved[fullest, np.arange(len(fullest))] + fixed_bytes(memory.ledger, rates), fullest


def least_bytes(ledger: Ledger, rates: Rates) -> Array:
    """[n] bytes that no choice of recomputation beats: weights, gradients and optimizer states of the fullest stage."""
    memory = DeviceMemory(ledger)
    states_bytes = np.max([memory.states_bytes(j) for j in range(ledger.num_profiles)], axis=0)
    return np.asarray(states_bytes * (1 + rates.overheads.reserve_share) + fixed_bytes(ledger, rates))


def reserved_bytes(memory: DeviceMemory, rates: Rates, j: int, *, gathered: bool = True) -> Array:
    """[n] bytes that the allocator holds on the device of profile j at its peak."""
    return reserved_states(memory, rates, j) + reserved_beside(memory, rates, j, gathered=gathered)


def reserved_states(memory: DeviceMemory, rates: Rates, j: int) -> Array:
    """[n] of them, those for weights, gradients and optimizer states."""
    # The caching allocator rounds blocks up and cannot always split or merge them: it reserves more than is allocated.
    return np.asarray(memory.states_bytes(j) * (1 + rates.overheads.reserve_share))


def reserved_beside(memory: DeviceMemory, rates: Rates, j: int, *, gathered: bool = True) -> Array:
    """[n] of them, those for what is there beside the states at the fullest moment."""
    allocated = memory.beside_states_bytes(j, gathered=gathered)
    return allocated * (1 + rates.overheads.reserve_share) + unusable(memory.ledger, j)


def fixed_bytes(ledger: Ledger, rates: Rates) -> Array:
    """[n] bytes outside the allocator: context and communicators."""
    over = rates.overheads
    return np.asarray(over.context_bytes + over.communicator_bytes * ledger.communicators)
