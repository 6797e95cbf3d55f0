"""Pipeline overhead beyond the cycles of the slowest stage: fill and drain, stalls, exposed messages."""

from __future__ import annotations

import numpy as np

from ..arrays import Array
from ..quantities.ledger import Ledger
from ..rates.kernel_seconds import kernel_seconds
from ..rates.rates import Rates
from .pipeline import Fill, Messages, bubble_s, exposed_hop_s
from .stage_messages import message_s
from .stage_seconds import StageSeconds
from .vocabulary_seconds import vocabulary_passes_s


def pipeline_s(ledger: Ledger, rates: Rates, stage: StageSeconds, cycle: Array) -> tuple[Array, Array]:
    """[n] seconds of fill and drain: the work of all devices but the slowest, in the form of each schedule; and of
    stage-to-stage messages that nothing hides."""
    x = ledger.layouts
    if not (x["pp"] > 1).any():
        return np.zeros(len(cycle)), np.zeros(len(cycle))
    pp, vpp = x["pp"].astype(np.float64), x["vpp"].astype(np.float64)
    # While the pipeline fills and drains, the slowest device waits for one micro-batch to pass all other devices.
    total_c, passes = ledger.over_profiles(stage.cycle), np.zeros(len(cycle))
    if ledger.vocabulary is not None:
        # Its passes fill no pipeline: micro-batches run them on all stages at once, and messages are on their way.
        passes = sum(vocabulary_passes_s(ledger, rates), passes)
    weight = ledger.once(lambda unlike: _weight_s(unlike, rates))
    # What traffic hides behind is not there to fill a bubble: else a slower product would hide more and fill more.
    mean_w = ledger.over_profiles(np.maximum(weight - stage.used[1], 0.0)) / pp
    # F, B, W of "all devices but one" by their mean: then a longer cycle never shortens a step, which bounds rely on.
    mean_f, mean_b = (ledger.over_profiles(seconds) / pp for seconds in (stage.forward, stage.backward))
    hidden_f = ledger.over_profiles(np.minimum(stage.used[0], stage.forward)) * (pp - 1) / pp
    others_c = np.maximum(np.maximum(total_c - cycle, 0.0) - (pp - 1) * passes, 0.0)
    others_f, others_b, others_w = ((pp - 1) * mean for mean in (mean_f, mean_b, mean_w))
    fill = Fill(pp, vpp, ledger.m, total_c / pp, hidden_f, others_c, others_f, others_b, others_w)
    bubble = bubble_s(x["schedule"], fill)
    bubble = np.maximum(bubble + _chunk_stalls_s(ledger, cycle), 0.0)
    hop_s, link_s = ledger.once(lambda unlike: np.array(message_s(unlike, rates)))
    messages = Messages(pp, vpp, ledger.m, hop_s, link_s, total_c - pp * passes, cycle, mean_f, mean_b,
                        mean_w)  # fmt: skip
    # Of a shorter path the other stages, and the messages between them, are as many fewer.
    others = 1.0 if ledger.path is None else (ledger.path - 1) / np.maximum(pp - 1, 1.0)
    return np.asarray(np.where(pp > 1, bubble * others, 0.0)), exposed_hop_s(x["schedule"], messages) * others


def _weight_s(ledger: Ledger, rates: Rates) -> Array:
    """[J, n] seconds per micro-batch of W."""
    rows = ledger.per_kind(kernel_seconds(ledger.tables, rates).weight_s)
    return np.array([ledger.on_profile(j, rows) for j in range(ledger.num_profiles)])


def _chunk_stalls_s(ledger: Ledger, cycle: Array) -> Array:
    """[n] seconds that devices wait for longer chunks of others (interleaving_stalls.py)."""
    stalls = ledger.stalls
    if stalls is None:
        return np.zeros(len(cycle))
    return np.asarray(cycle * ledger.once(lambda unlike: stalls.cycles(unlike.split, unlike.m)))
