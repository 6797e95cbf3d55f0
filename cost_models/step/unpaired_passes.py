"""Passes without a partner where expert messages hide behind another micro-batch (`ep_overlap`).

A forward pass hides its messages behind a backward pass of another micro-batch, and the other way round. The first
forward passes of a step and its last backward passes have none beside them: "executed alone, no a2a overlapping"
(Megatron Core d98e8a64, combined_1f1b_schedule_for_no_pipelining). Without a pipeline that is one of each. In an
interleaved one, the last device runs (vpp - 1) pp + 1 forward passes of chunks ahead (get_pp_rank_microbatches), and as
many backward passes at the end; before and after, the pipeline fills and drains with such passes of pp - 1 devices: pp
micro-batches in all.
"""

from __future__ import annotations

import numpy as np

from ..arrays import Array
from ..quantities.ledger import Ledger
from ..rates.kernel_seconds import kernel_seconds
from ..rates.rates import Rates


def unpaired_s(ledger: Ledger, rates: Rates) -> Array:
    """[n] seconds of a step that these passes take longer than passes with another one beside them, by the mean
    stage."""
    x = ledger.layouts
    if not x["ep_overlap"].any():
        return np.zeros(len(x))
    rows = ledger.per_kind(kernel_seconds(ledger.tables, rates).alone_s)
    longer_s = ledger.over_profiles(np.array([ledger.on_profile(j, rows) for j in range(ledger.num_profiles)]))
    pp, vpp = x["pp"].astype(np.float64), x["vpp"].astype(np.float64)
    chunks = np.minimum((vpp - 1) * pp + 1, ledger.m * vpp)
    return np.asarray((pp - 1 + chunks) / vpp * longer_s / pp)
