"""Tensors that a stage of an encoder and its decoder keeps once, whatever its number of layers, and sends on.

A stage inside the encoder sends the hidden states of the source. From where the decoder starts on, stages send the
encoder's output and the hidden states of the target, and before a head alone those (runtime/model/two_stacks.py).
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import cached_property
from typing import TYPE_CHECKING

import numpy as np

from ..arrays import Array, Ints, Mask
from ..problem import Problem
from ..specs.model import Layer
from .element_bytes import activation_bytes
from .shards import Shard
from .stages import EXTRA_KINDS, HEAD

if TYPE_CHECKING:
    from .ledger import Ledger
    from .tables import Tables


@dataclass(frozen=True, eq=False)
class Loads:
    """The layers of both stacks on stages. rows: [..., kind] layers and edges, as in stages.py."""

    problem: Problem
    rows: Array

    @cached_property
    def encodes(self) -> Mask:
        """[...] whether there are layers of the encoder."""
        return self._any(lambda kind: kind.encodes)

    @cached_property
    def decodes(self) -> Mask:
        """[...] whether there are layers of the decoder."""
        return self._any(lambda kind: not kind.encodes)

    @cached_property
    def starts(self) -> Mask:
        """[...] whether the first layer of the decoder is there."""
        return self._any(lambda kind: kind.starts and not kind.encodes)

    @cached_property
    def ends(self) -> Mask:
        """[...] whether the head is there."""
        return np.asarray(self.rows[..., HEAD] > 0)

    def _any(self, wanted: Callable[[Layer], bool]) -> Mask:
        kinds = [i for i, variant in enumerate(self.problem.variants) if wanted(self.problem.model.kinds[variant.kind])]
        return np.asarray((self.rows[..., kinds] > 0).any(axis=-1))


def encoder_output(tables: Tables) -> Array:
    """[key] bytes of a rank's part of the encoder's output, per micro-batch."""
    workload, model = tables.problem.workload, tables.problem.model
    shard = Shard.of(tables.keys, model, workload)
    tokens = shard.sp_tokens * (workload.source_len or workload.seq_len) / workload.seq_len
    return np.asarray(activation_bytes(workload) * model.hidden * tokens)


def _biases(tables: Tables, *, encodes: bool) -> Array:
    """[key] bytes of the biases of a stack's scores, which a fused kernel takes as an input and keeps: a number for
    each head, query and key, for all sequences."""
    problem, workload = tables.problem, tables.problem.workload
    kind = next(kind for kind in problem.model.kinds if kind.encodes == encodes)
    tp = np.asarray(tables.keys["tp"], dtype=np.float64)
    if kind.attention is None or not kind.attention.relative_bias or problem.stack.attention == "unfused":
        return np.zeros_like(tp)
    length = (workload.source_len or workload.seq_len) if encodes else workload.seq_len
    return np.asarray(activation_bytes(workload) * kind.attention.heads / tp * length**2)


def kept_once(tables: Tables, rows: Array, key: Ints) -> Array:
    """[n] bytes that a stage keeps of a micro-batch beside its layers, under any recomputation: the biases of each
    stack that it has layers of and, for the decoder's, the output of the encoder. rows: [n, kind]."""
    if tables.problem.model.encoder is None:
        return np.zeros(len(rows))
    loads = Loads(tables.problem, rows)
    of_decoder = _biases(tables, encodes=False) + encoder_output(tables)
    return np.asarray(loads.encodes * _biases(tables, encodes=True)[key] + loads.decodes * of_decoder[key])


def stashed_once(tables: Tables, rows: Array, key: Ints) -> Array:
    """[n] what of that waits for W: the input of the products for keys and values."""
    if tables.problem.model.encoder is None:
        return np.zeros(len(rows))
    return np.asarray(Loads(tables.problem, rows).decodes * encoder_output(tables)[key])


def _shares(problem: Problem) -> tuple[float, float]:
    """The message inside the encoder, and the one before a head alone, as shares of the largest message."""
    workload = problem.workload
    source = (workload.source_len or workload.seq_len) / workload.seq_len
    return source / workload.sent_share, 1.0 / workload.sent_share


def message_bytes(ledger: Ledger) -> Array:
    """[n] bytes of a message from stage to stage, the mean over a pipeline; for a bound the least of any."""
    message = ledger.tables.message[ledger.key]
    if ledger.problem.model.encoder is None:
        return message
    inside, alone = _shares(ledger.problem)
    if ledger.splits.is_bound:
        return np.asarray(message * min(inside, alone))
    loads = [_on_profile(ledger, j) for j in range(ledger.num_profiles)]
    before = ledger.over_profiles(np.array([~load.decodes & ~load.ends for load in loads]))  # stages
    heads = ledger.over_profiles(np.array([~load.decodes & load.ends for load in loads]))
    number = ledger.layouts["pp"] - 1
    sent = before * inside + heads * alone + np.maximum(number - before - heads, 0.0)
    return np.asarray(message * np.where(number > 0, sent / np.maximum(number, 1), 1.0))


def arriving_bytes(ledger: Ledger, j: int) -> Array:
    """[n] bytes of a message that arrives on a device of profile j, the mean of one in each direction."""
    message = ledger.tables.message[ledger.key]
    if ledger.problem.model.encoder is None or ledger.splits.is_bound:
        return message_bytes(ledger)
    (inside, alone), load = _shares(ledger.problem), _on_profile(ledger, j)
    device, last = ledger.splits.first[:, j][ledger.split], ledger.layouts["pp"] - 1
    head_alone = np.any([(~other.decodes & other.ends) for other in
                         (_on_profile(ledger, k) for k in range(ledger.num_profiles))], axis=0)  # fmt: skip
    before = np.where(~load.decodes & load.ends, alone, np.where(~load.decodes | load.starts, inside, 1.0))
    after = np.where(load.decodes, np.where(head_alone & (device == last - 1), alone, 1.0), inside)
    has_before, has_after = device > 0, device < last
    number = np.maximum(has_before.astype(np.float64) + has_after, 1.0)
    return np.asarray(message * (before * has_before + after * has_after) / number)


def sent_bytes(ledger: Ledger, rows: Array) -> Array:
    """[chunk] bytes that each chunk of a layout sends on; those of the last one, which sends nothing, are as if it did.
    rows: [chunk, kind]."""
    message = np.full(len(rows), float(ledger.tables.message[ledger.key][0]))
    if ledger.problem.model.encoder is None:
        return message
    inside, alone = _shares(ledger.problem)
    layers = rows[:, : -EXTRA_KINDS].sum(axis=1).cumsum()
    started = layers > ledger.problem.model.encoder.layers
    return np.asarray(message * np.where(layers == layers[-1], alone, np.where(started, 1.0, inside)))


def _on_profile(ledger: Ledger, j: int) -> Loads:
    return Loads(ledger.problem, ledger.splits.counts[:, j][ledger.split])
