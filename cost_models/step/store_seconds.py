"""Seconds of states that live on a store: a drive, or a node of the network (quantities/stores.py)."""

from __future__ import annotations

import numpy as np

from ..arrays import Array
from ..quantities.ledger import Ledger
from ..quantities.stores import ADAM_BYTES, Store
from ..quantities.weight_bytes import stored_bytes
from ..rates.rates import Rates


def host_s_per_byte(ledger: Ledger, rates: Rates) -> float:
    """Seconds of a byte that an optimizer on the host moves."""
    bw = rates.host_memory_bw_bytes_per_s
    return 1 / bw if ledger.far is None else ledger.far.adam_s_per_byte(bw)


def copy_s_per_byte(ledger: Ledger, rates: Rates) -> float:
    """Seconds of a byte of activations between GPU and host, one way."""
    bw = rates.pcie_bw_bytes_per_s
    return 1 / bw if ledger.far is None else ledger.far.copy_s_per_byte(bw)


def pass_s(ledger: Ledger, rates: Rates) -> Array:
    """[2, J, n] seconds per micro-batch of fetched and returned data: forward, backward; 0 without a store."""
    store = ledger.store
    if store is None:
        return np.zeros((2, ledger.num_profiles, len(ledger.layouts)))
    bw, pcie = store.link_bytes_per_s, rates.pcie_bw_bytes_per_s if store.over_pcie else np.inf
    returned = np.array(ledger.updated) * store.returned
    fetched = np.zeros_like(returned)
    if store.weights:
        fetched = np.array([stored_bytes(ledger, j) for j in range(ledger.num_profiles)])
    # A duplex link carries weights in and gradients out at once; PCIe always does.
    if not ledger.problem.stack.differentiates:  # weights come for both passes at once, and go back when these end
        return np.array([np.maximum(fetched / bw, fetched / pcie), np.zeros_like(fetched)])
    longer = np.maximum(fetched, returned)
    there = longer if store.duplex else fetched + returned
    passes = ledger.problem.workload.forward_passes
    return np.array([passes * np.maximum(fetched / bw, fetched / pcie), np.maximum(there / bw, longer / pcie)])


def new_weights_s(ledger: Ledger, rates: Rates) -> Array:
    """[n] seconds of the weights that a step of the optimizer on the GPU writes to the host."""
    mine = np.max(ledger.updated, axis=0)
    return np.asarray(mine * ledger.problem.state_bytes.weight / rates.pcie_bw_bytes_per_s)


def update_s(store: Store, ledger: Ledger, rates: Rates) -> Array:
    """[n] seconds of the optimizer's step: states through the device, Adam beside it, whichever is longer."""
    memory = rates.host_memory_bw_bytes_per_s if store.adam_bytes_per_s is None else store.adam_bytes_per_s
    mine = np.max(ledger.updated, axis=0)
    return np.asarray(mine * np.maximum(store.updated / store.update_bytes_per_s, ADAM_BYTES / memory))
