"""Orders of a pipeline that no layout names, V-Half and V-Min (arXiv 2405.15362): a published run may have them.

Such a run is priced as ZB-V, whose devices hold the same two chunks. The longer time of its own order is simulated
beside ZB-V's, with equal devices as slow as the slowest. It keeps the activations of fewer micro-batches.
"""

from __future__ import annotations

import numpy as np

from ...cost_models.quantities.activations import Activations
from ...cost_models.quantities.ledger import Ledger
from ...cost_models.rates.kernel_seconds import kernel_seconds
from ...cost_models.rates.rates import Rates
from ...cost_models.schedules.costs import Costs
from ...cost_models.schedules.simulator import make, simulate
from ...cost_models.schedules.v_shaped import limit_chunks
from ...cost_models.step.stage_seconds import stage_seconds

PRICED_AS = "zb-v"
ORDERS = ("v-half", "v-min")


def longer_s(order: str, ledger: Ledger, rates: Rates) -> float:
    """Seconds that the step of a ledger of one ZB-V layout takes longer in that order."""
    stage, by_kind = stage_seconds(ledger, rates), ledger.per_kind(kernel_seconds(ledger.tables, rates).weight_s)
    weights = np.array([ledger.on_profile(j, by_kind)[0] for j in range(ledger.num_profiles)])
    slowest = int(np.argmax(stage.cycle[:, 0]))
    forward = float(stage.forward[slowest, 0])
    inputs = max(float(stage.backward[slowest, 0] - weights[slowest]), 0.0)
    weight = float(stage.cycle[slowest, 0]) - forward - inputs  # with what adds gradients up
    pp, m = int(ledger.layouts["pp"][0]), max(round(float(ledger.m[0])), 1)
    ends = []
    for name in (order, PRICED_AS):
        schedule = make(name, pp, m)
        ends.append(float(simulate(schedule, Costs.even(schedule, forward, inputs, weight)).end_s.max()))
    return ends[0] - ends[1]


def freed_bytes(order: str, ledger: Ledger, j: int) -> float:
    """Bytes of activations that a device of profile j holds less in that order than in ZB-V."""
    pp, m = int(ledger.layouts["pp"][0]), float(ledger.m[0])
    held = [min(limit_chunks(name, pp) / 2, m) for name in (PRICED_AS, order)]
    return (held[0] - held[1]) * float(Activations(ledger).saved[j][0])
