"""Bytes of layers under separate strategies, which no rate has a part in.

As in costs.py, a sum over layers is made of the ledgers of devices that have just one layer. Flat buffers are those of
the stage in which all layers have the strategy. Of transient bytes, the largest count.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import cached_property

import numpy as np

from ..arrays import Array
from ..problem import Problem
from ..quantities.device_memory import BUFFERS, LASTING, DeviceMemory
from ..quantities.ledger import Ledger
from ..quantities.memory import flat_buffer_bytes
from ..quantities.moments import (
    AT_LOSS,
    IN_EMBEDDING,
    IN_HEAD,
    IN_LAYER,
    IN_PREDICTION,
    TRANSIENT,
    number_of_moments,
    unusable,
)
from ..quantities.resident import in_flight
from ..quantities.stages import EMBEDDING, EMBEDDING_COPY, EXTRA_KINDS, HEAD, Splits, split_rows


@dataclass(frozen=True)
class Bytes:
    """Bytes of n strategies, all of one pp, for every kind of item: layers, then the edges of stages.py. All but the
    transient ones add up over the items of a stage."""

    problem: Problem
    whole: Ledger  # [n] strategies as layouts of the whole model
    states: Array  # [3, kind, n] weights, gradients, optimizer
    flat: Array  # [profile, kind, n] of flat buffers
    unusable: Array  # [kind, n] freed, and of no use to anything else (moments.unusable)
    saved: Array  # [kind, n] activations of a micro-batch
    transient: Array  # [TRANSIENT, kind, n] at the item's fullest moment; a stage has those of the fullest item

    @classmethod
    def of_rows(cls, whole: Ledger) -> Bytes:
        """The memory of the rows of a ledger."""
        units, num = alone(whole), whole.problem.num_kinds + EXTRA_KINDS
        memory = DeviceMemory(units)
        buffers = [memory.buffers(k) for k in range(num)]
        trained = np.array([units.trained[k][0] for k in range(num)])
        return cls(
            whole.problem, whole,
            states=np.array([[of_kind[name] for of_kind in buffers] for name in ("weights", "gradients", "optimizer")]),
            flat=np.array([_flat(whole, j) * share(trained, whole.trained[j][0]) for j in range(whole.num_profiles)]),
            unusable=np.array([unusable(units, k) for k in range(num)]),
            saved=np.array([memory.of_micro_batch.saved[k] for k in range(num)]), transient=_transient(memory, num),
        )  # fmt: skip


def alone(whole: Ledger) -> Ledger:
    """The same strategies on devices that have one item each; then on a device with a layer and the embedding, and on
    one with a layer and the head, as the tensors that live at the loss depend on both."""
    num = whole.problem.num_kinds + EXTRA_KINDS
    counts = np.zeros((1, num + 2, num))
    counts[0, :num] = np.eye(num)
    counts[0, [num, num + 1], [whole.problem.pattern[0], whole.problem.pattern[-1]]] = 1.0
    counts[0, num, EMBEDDING] = counts[0, num + 1, HEAD] = 1.0
    zero = np.zeros((1, num + 2))
    splits = Splits(counts, zero, zero + 1.0, counts.sum(axis=1), adds_up=True)
    return replace(whole, splits=splits, split=np.zeros(len(whole.layouts), dtype=np.int64))


def share(part: Array, whole: Array) -> Array:
    """part / whole, in the shape of `part`; 0 where there is nothing."""
    return np.divide(part, whole, out=np.zeros_like(part), where=np.broadcast_to(whole > 0, part.shape))


def _flat(whole: Ledger, j: int) -> Array:
    """[n] bytes of flat copies on the device of profile j (DeviceMemory.buffers)."""
    copies = flat_buffer_bytes(whole.problem.stack, whole.problem.state_bytes, whole.trained[j][0], whole.updated[j])
    return np.where((whole.layouts["zero"] > 0) & ~whole.states.away, copies, 0.0)


def _transient(memory: DeviceMemory, num: int) -> Array:
    """[TRANSIENT, kind, n] bytes at the fullest moment of each item: for a layer and the embedding, in its backward
    pass; for the head, at the loss or in its own pass."""
    units = memory.ledger
    n, kinds = len(units.layouts), units.problem.num_kinds
    out = np.zeros((len(TRANSIENT), num, n))
    of_head = [at for at in (AT_LOSS, IN_HEAD, IN_PREDICTION) if at < number_of_moments(units.problem)]
    where = {**{k: (k, [IN_LAYER]) for k in range(kinds)}, num + EMBEDDING: (num, [IN_EMBEDDING]),
             num + HEAD: (num + 1, of_head)}  # fmt: skip
    for kind, (profile, at) in where.items():
        passing = memory.moments(profile)
        transient = np.array([passing[name][at] for name in TRANSIENT])
        fullest = transient.sum(axis=0).argmax(axis=0)
        out[:, kind] = transient[:, fullest, np.arange(n)]
    return out


@dataclass(frozen=True)
class LayerStages:
    """The stages of plans of one number of stages and of micro-batches."""

    prices: Bytes
    m: int  # micro-batches
    sizes: tuple[int, ...] | None  # [stage] layers; None: as even as possible

    @property
    def pp(self) -> int:
        return int(self.prices.whole.layouts["pp"][0])

    @cached_property
    def counts(self) -> Array:
        """[stage, kind] layers of each stage, with embedding and head."""
        problem = self.prices.problem
        return split_rows(problem.pattern, problem.num_kinds, problem.edges, self.pp, 1, False, self.sizes)

    @cached_property
    def profile(self) -> list[int]:
        """Profile of each stage in the ledger of whole stages."""
        known = self.prices.whole.splits.counts[int(self.prices.whole.split[0])]
        return [next(j for j, row in enumerate(known) if np.array_equal(row, stage)) for stage in self.counts]

    @cached_property
    def in_flight(self) -> Array:
        """[stage] micro-batches that a stage holds."""
        ones, stages = np.ones(self.pp), np.arange(float(self.pp))
        return in_flight(np.zeros(self.pp, dtype=np.int64), ones * self.pp, ones, ones * self.m, stages)

    @cached_property
    def handed_on(self) -> Array:
        """[stage] micro-batches whose outputs a stage keeps where the software does (Ledger.saved_output)."""
        return np.where(np.arange(self.pp) < self.pp - 1, self.in_flight, 0.0)

    @cached_property
    def layers(self) -> list[tuple[int, ...]]:
        """Kinds of the layers of each stage, in their order."""
        sizes, pattern = self.counts[:, :-EXTRA_KINDS].sum(axis=1).astype(int), self.prices.problem.pattern
        ends = np.cumsum(sizes)
        return [tuple(pattern[end - size : end]) for size, end in zip(sizes, ends, strict=True)]

    @cached_property
    def items(self) -> list[list[int]]:
        """The contents of each stage in the order of the model: kinds of layers, the embedding first, the head last."""
        rows = [list(kinds) for kinds in self.layers]
        return [[EMBEDDING] * (s == 0) + row + [HEAD] * (s == self.pp - 1) for s, row in enumerate(rows)]

    def kinds_of(self, stage: int, item: int) -> list[int]:
        """Kinds of the ledger that an item is on a stage: the head may have a copy of the embedding beside it."""
        return [item] + [EMBEDDING_COPY] * (item == HEAD and bool(self.counts[stage, EMBEDDING_COPY]))

    def buffers_of(self, rows: Sequence[int], *, together: bool = False) -> list[tuple[dict[str, float], float]]:
        """[stage] bytes of every buffer (device_memory.BUFFERS) of a plan, and of freed ones of no use. rows: the
        strategies of embedding, layers and head in the order of the model.

        When the backward pass reaches the last layer of a strategy, the activations of the layers behind it are gone,
        and at the embedding those of all layers. together: at layers, no activations are gone, as the search has it,
        which goes through layers in any order.
        """
        out, start = [], 0
        for stage, items in enumerate(self.items):
            out.append(self._buffers_of_stage(stage, rows[start : start + len(items)], together=together))
            start += len(items)
        return out

    def _buffers_of_stage(self, stage: int, rows: Sequence[int], *, together: bool) -> tuple[dict[str, float], float]:
        prices, items = self.prices, self.items[stage]
        buffers, unused = dict.fromkeys(BUFFERS, 0.0), 0.0
        buffers["activations"] += float(self.handed_on[stage] * prices.whole.saved_output[rows[-1]])
        fullest_bytes, fullest, fullest_gone = 0.0, dict.fromkeys(TRANSIENT, 0.0), 0.0
        for item, row, gone in zip(items, rows, self._gone_bytes(items, rows, together=together), strict=True):
            for kind in self.kinds_of(stage, item):
                for name, states in zip(LASTING, prices.states[:, kind, row], strict=False):
                    buffers[name] += float(states)
                buffers["activations"] += float(self.in_flight[stage] * prices.saved[kind, row])
                buffers["workspace"] += float(prices.flat[self.profile[stage], kind, row])
                unused += float(prices.unusable[kind, row])
                moment = dict(zip(TRANSIENT, prices.transient[:, kind, row].tolist(), strict=True))
                if sum(moment.values()) - gone > fullest_bytes:
                    fullest_bytes, fullest, fullest_gone = sum(moment.values()) - gone, moment, gone
        buffers["activations"] -= fullest_gone
        for name, num_bytes in fullest.items():
            buffers[name] += num_bytes
        return buffers, unused

    def _gone_bytes(self, items: Sequence[int], rows: Sequence[int], *, together: bool) -> list[float]:
        """[item] activations of a micro-batch that are gone in its backward pass: those of the layers behind the last
        one of its strategy; at the embedding, those of the whole stage."""
        pairs = list(zip(items, rows, strict=True))
        saved = [float(self.prices.saved[item, row]) if item >= 0 else 0.0 for item, row in pairs]
        last = {row: index for index, (item, row) in enumerate(pairs) if item >= 0}
        gone = [0.0 if item < 0 or together else sum(saved[last[row] + 1 :]) for item, row in pairs]
        if items[0] == EMBEDDING:
            gone[0] = sum(float(self.prices.saved[item, row]) for item, row in pairs)
        return gone
