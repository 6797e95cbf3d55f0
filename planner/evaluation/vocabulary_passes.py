"""A layout with vocabulary parallelism in the event simulator: its order and its costs, out of those of its layers."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import TYPE_CHECKING

import numpy as np

from ...cost_models.arrays import Array
from ...cost_models.quantities.stages import EMBEDDING
from ...cost_models.quantities.vocabulary import Vocabulary
from ...cost_models.schedules.simulator import Costs, Schedule
from ...cost_models.schedules.vocabulary import Seconds, vocabulary_1f1b, with_passes
from ...cost_models.step.vocabulary_seconds import vocabulary_messages_s, vocabulary_overhead_s, vocabulary_passes_s

if TYPE_CHECKING:
    from .staged import Staged

Collectives = Callable[[Array], tuple[Array, Array]]


def seconds_of(one: Staged, layers: Costs) -> Seconds:
    """What the passes take on every device: what messages cost it goes with S."""
    rates = one.resolved.rates
    s, t = (float(x[0]) for x in vocabulary_passes_s(one.ledger, rates))
    c0, c1, c2 = (float(x[0]) for x in vocabulary_messages_s(one.ledger, rates))
    backward = np.add(layers.input_s, layers.weight_s).tolist()
    beside_s = float(vocabulary_overhead_s(one.ledger, rates)[0])
    return Seconds(layers.forward_s, tuple(backward), s + beside_s, t, (c0, c1, c2), layers.forward_hop_s[0])


def costs_of(one: Staged, how: Vocabulary, layers: Costs, collectives: Collectives) -> Costs:
    """collectives: seconds to reduce the gradients and to gather the weights of [chunk, kind] layers."""
    part = np.zeros_like(one.rows)
    part[:, EMBEDDING:] = one.ledger.splits.total[0, EMBEDDING:] / one.layout.pp
    return with_passes(layers, how.barriers, seconds_of(one, layers), *collectives(np.vstack([one.rows, part])))


def schedule_of(one: Staged, how: Vocabulary) -> Schedule:
    pp = one.layout.pp
    layers = replace(one.costs, **{name: getattr(one.costs, name)[:pp] for name in
                                   ("forward_s", "input_s", "weight_s", "forward_hop_s")})  # fmt: skip
    return vocabulary_1f1b(one.num_micro_batches, how.barriers, seconds_of(one, layers))
