"""Seconds of rounding the weights of the layers in place, once a step (quantities/rounding.py)."""

from __future__ import annotations

import numpy as np

from ..arrays import Array
from ..quantities.element_bytes import activation_bytes
from ..quantities.ledger import Ledger
from ..quantities.rounding import IN_PLACE
from ..rates.rates import Rates


def rounded_weights_s(ledger: Ledger, rates: Rates) -> Array:
    """[n] seconds of a step, of the rank with most weights."""
    rounding = ledger.problem.workload.rounding
    if rounding is None or rounding.weights != "step":
        return np.zeros(len(ledger.layouts))
    of_rank, layers = ledger.tables.parameters, ledger.problem.num_kinds
    rows = ledger.per_kind(of_rank["dense"] + of_rank["experts"])
    of_layers = {kind: number * (kind < layers) for kind, number in rows.items()}
    most = np.max([ledger.on_profile(j, of_layers) for j in range(ledger.num_profiles)], axis=0)
    num_bytes = activation_bytes(ledger.problem.workload) * most * IN_PLACE[rounding.symmetric_weights]
    return np.asarray(num_bytes / rates.bandwidth("rounded weights")[0])
