"""Tensors on the host that no layout names: outputs of feed-forward blocks, where a policy of MaxText keeps them there.

They travel beside those that the layout sends, over the same link to the host, and hide behind the same compute.
"""

from __future__ import annotations

import numpy as np

from ...cost_models.arrays import Array
from ...cost_models.quantities.ledger import Ledger
from ...cost_models.rates.rates import Rates
from ...cost_models.step.stage_seconds import offloaded_s, stage_seconds

BLOCK_OUTPUT = "mlpwo"  # as MaxText names it


def longer_s(ledger: Ledger, rates: Rates) -> Array:
    """[n] seconds that the steps of a ledger take longer where the output of every feed-forward block goes to the host
    in the forward pass and comes back in the backward pass."""
    stage, sent = stage_seconds(ledger, rates), offloaded_s(ledger, rates)
    by_kind = {kind: _output_bytes(ledger, kind) for kind in ledger.kinds}
    more = np.array([ledger.on_profile(j, by_kind) for j in range(ledger.num_profiles)]) / rates.pcie_bw_bytes_per_s
    compute = rates.stack.offload_overlap * np.array([stage.forward, stage.backward])
    shown = np.maximum(sent + more - compute, 0.0) - np.maximum(sent - compute, 0.0)
    slowest = np.argmax(stage.cycle, axis=0)
    return np.asarray(ledger.m * shown.sum(axis=0)[slowest, np.arange(len(slowest))])


def _output_bytes(ledger: Ledger, kind: int) -> Array:
    """[n] bytes of a layer and micro-batch: of every expert that a token goes to, else of the block."""
    if kind >= ledger.problem.num_kinds:  # an end of the model
        return np.zeros(len(ledger.layouts))
    operations = ledger.tables.operations[kind]
    outputs = [saved.num_bytes for saved in operations.saved if saved.name == "expert outputs"]
    of_key = outputs[0] if outputs else operations.input_bytes + np.zeros(ledger.tables.num_keys)
    return np.asarray(of_key[ledger.key])
