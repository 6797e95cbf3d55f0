"""A layout with vocabulary parallelism in the event simulator: its order and its costs, out of those of its layers."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

import numpy as np

from ...cost_models.arrays import Array
from ...cost_models.quantities.stages import EMBEDDING
from ...cost_models.quantities.vocabulary import Vocabulary
from ...cost_models.schedules.simulator import Costs, Schedule
from ...cost_models.schedules.vocabulary import Seconds, vocabulary_1f1b, with_passes
from ...cost_models.step.vocabulary_seconds import vocabulary_messages_s, vocabulary_overhead_s, vocabulary_passes_s
from .staged_layout import StagedLayout

Collectives = Callable[[Array], tuple[Array, Array]]


def seconds_of(staged: StagedLayout, layers: Costs) -> Seconds:
    """Seconds of the passes S and T on every device. S has the seconds that their messages cost a device."""
    rates = staged.resolved.rates
    s, t = (float(seconds[0]) for seconds in vocabulary_passes_s(staged.ledger, rates))
    c0, c1, c2 = (float(seconds[0]) for seconds in vocabulary_messages_s(staged.ledger, rates))
    backward = np.add(layers.input_s, layers.weight_s).tolist()
    beside_s = float(vocabulary_overhead_s(staged.ledger, rates)[0])
    return Seconds(layers.forward_s, tuple(backward), s + beside_s, t, (c0, c1, c2), layers.forward_hop_s[0])


def costs_of(staged: StagedLayout, vocabulary: Vocabulary, layers: Costs, collectives: Collectives) -> Costs:
    """collectives: seconds to reduce the gradients and to gather the weights of [chunk, kind] layers."""
    part = np.zeros_like(staged.rows)
    part[:, EMBEDDING:] = staged.ledger.splits.total[0, EMBEDDING:] / staged.layout.pp
    collective_s = collectives(np.vstack([staged.rows, part]))
    return with_passes(layers, vocabulary.barriers, seconds_of(staged, layers), *collective_s)


def schedule_of(staged: StagedLayout, vocabulary: Vocabulary, costs: Costs) -> Schedule:
    """The order of the passes. costs: those of `costs_of`."""
    pp = staged.layout.pp
    layers = replace(costs, **{name: getattr(costs, name)[:pp] for name in
                                   ("forward_s", "input_s", "weight_s", "forward_hop_s")})  # fmt: skip
    return vocabulary_1f1b(staged.num_micro_batches, vocabulary.barriers, seconds_of(staged, layers))
