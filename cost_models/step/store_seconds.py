"""Seconds of states that live on a store: a drive, or a node of the network (quantities/stores.py)."""

from __future__ import annotations

import numpy as np

from ..arrays import Array
from ..quantities.ledger import Ledger
from ..quantities.stores import ADAM_BYTES, Store
from ..rates.rates import Rates


def pass_s(ledger: Ledger, rates: Rates) -> Array:
    """[2, J, n] seconds per micro-batch of fetched and returned data: forward, backward; 0 without a store."""
    store = ledger.store
    if store is None:
        return np.zeros((2, ledger.num_profiles, len(ledger.layouts)))
    bw, mine = store.link_bytes_per_s, np.array(ledger.updated)
    pcie = rates.pcie_bw_bytes_per_s if store.over_pcie else np.inf
    # A duplex link carries weights in and gradients out at once; PCIe always does.
    longer = np.maximum(store.fetched, store.returned)
    there = longer if store.duplex else store.fetched + store.returned
    return np.array([mine * np.maximum(store.fetched / bw, store.fetched / pcie),
                     mine * np.maximum(there / bw, longer / pcie)])  # fmt: skip


def update_s(store: Store, ledger: Ledger, rates: Rates) -> Array:
    """[n] seconds of the optimizer's step: states through the device, Adam beside it, whichever is longer."""
    memory = rates.host_memory_bw_bytes_per_s if store.adam_bytes_per_s is None else store.adam_bytes_per_s
    mine = np.max(ledger.updated, axis=0)
    return np.asarray(mine * np.maximum(store.updated / store.update_bytes_per_s, ADAM_BYTES / memory))
