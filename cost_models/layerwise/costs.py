"""Layers of one model under separate strategies: seconds of each, and of a step of a pipeline of them.

A strategy is a `Layout`; all of a plan have one number of stages and of micro-batches, so tp x cp x dp GPUs of a stage
share the same sequences in another way. Every number is the ledger's, of the layout that has the strategy everywhere:

- what is a sum over layers (compute, states, activations) is the ledger's of a device that has just that layer;
- what a stage does as a whole (collectives in pieces, flat buffers) is the ledger's of the stage in which all have the
  strategy, and a layer takes part in it by its share of the parameters;
- what comes and goes (moments.py) is that of the layer, embedding or head that needs most.

A plan whose layers all have one strategy takes exactly what `step.price` gives for that layout
(tests/planner/layerwise/test_layerwise.py).
New is only what lies between strategies: `resharding_s`.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property
from math import gcd

import numpy as np

from .. import build_ledger
from ..arrays import Array, Ints
from ..layouts import Layouts
from ..problem import Problem
from ..quantities import gradients
from ..quantities.ledger import Ledger
from ..quantities.stages import EXTRA_KINDS
from ..quantities.tables import Tables
from ..rates import collectives
from ..rates.kernel_seconds import KernelSeconds, kernel_seconds
from ..rates.rates import Rates
from ..step import optimizer_seconds, sharded_states, stage_messages, step
from ..step.data_parallel import alone_s, early_sum_s, group_curve, once_per_step_s, shown_s
from ..step.pipeline import one_f_one_b_hop_s
from .memory import Bytes, alone, share

# Sums over the layers of a stage, seconds. Per micro-batch: forward, backward; `steady`, which nothing hides (gradient
# accumulation, copies of gathered states, resharding); traffic of sharded states forward and backward. Per step:
# gradients reduced, weights gathered, parameters updated, weights cast; per micro-batch but the last: copies summed.
SUMS = ("forward", "backward", "steady", "gathering", "scattering", "reduce", "gather", "update", "cast", "early")
F, B, STEADY, GATHERING, SCATTERING, REDUCE, GATHER, UPDATE, CAST, EARLY = range(len(SUMS))


@dataclass(frozen=True)
class Prices(Bytes):
    """Seconds beside the bytes."""

    rates: Rates
    seconds: Array  # [profile of a stage, SUMS, kind, n]
    accumulate_s: Array  # [kind, n] part of `steady`: gradients that are added up
    copies_s: Array  # [kind, n] part of `steady`: copies of gathered states

    @classmethod
    def of(cls, problem: Problem, rates: Rates, tables: Tables, layouts: Layouts, key: Ints) -> Prices:
        whole = build_ledger.build(problem, tables, layouts, key)
        units, num = alone(whole), problem.num_kinds + EXTRA_KINDS
        kinds, bandwidth = range(num), rates.memory_bw_bytes_per_s
        accumulated = np.array([gradients.accumulated_bytes(units, k) for k in kinds])
        accumulate_s = accumulated / rates.bandwidth("accumulation")[0]
        trained = np.array([units.trained[k][0] for k in kinds])
        gathering, scattering, copies_s = _traffic(whole, units, rates, num)
        forward, backward = _compute(units, kernel_seconds(tables, rates), num)
        reduced, gathered = once_per_step_s(whole, rates, whole.traffic[0])
        most = np.max([part[0] for part in whole.trained], axis=0)
        moved = np.array([units.updated[k] for k in kinds]) * optimizer_seconds.update_bytes(whole)
        update_s = moved / rates.bandwidth("update")[0]
        cast_s = np.array([gradients.cast_bytes(units, k) for k in kinds]) / bandwidth
        common = (forward, backward, accumulate_s + copies_s)
        early = early_sum_s(whole, rates, whole.traffic[0])
        reduced, early = (share(trained, most) * seconds for seconds in (reduced, early))
        gathered = _share_of_new(whole) * gathered
        once = (reduced, gathered, update_s, cast_s, early)
        profiles = range(whole.num_profiles)
        seconds = np.array([[*common, gathering[j], scattering[j], *once] for j in profiles])
        return cls(**vars(Bytes.of_rows(whole)), rates=rates, seconds=seconds, accumulate_s=accumulate_s,
                   copies_s=copies_s)  # fmt: skip

    @cached_property
    def split(self) -> Ints:
        """[n] parts that the sequences of a micro-batch are cut into: tp x cp."""
        return np.asarray(self.whole.layouts["tp"] * self.whole.layouts["cp"])

    @cached_property
    def hop_s(self) -> Array:
        """[n] seconds of a stage-to-stage message; where activations are split over tp, the same for all strategies."""
        return stage_messages.hop_s(self.whole, self.rates)

    @cached_property
    def link_s(self) -> Array:
        """[n] how long the link is busy with it."""
        return stage_messages.link_s(self.whole, self.rates)

    @cached_property
    def once_terms(self) -> dict[str, Array]:
        """[n] seconds of each of step.ONCE_TERMS. A plan has those of the strategy of its head."""
        return step.once_terms(self.whole, self.rates)

    @cached_property
    def once_terms_s(self) -> Array:
        """[n] their sum."""
        return np.asarray(sum(self.once_terms.values()))

    def resharding_s(self, row: int, splits: Ints) -> Array:
        """[from, to] seconds per micro-batch, forward and backward, between items whose sequences are cut into
        `splits` parts; row: any of the strategies.

        Ranks of a stage hold equal parts: cut into a, rank i has part i mod a of the sequences i // a. From a to b,
        blocks of lcm(a, b) ranks exchange all they hold, each with lcm/gcd others, gcd ranks apart: an all-to-all,
        which nothing hides. tp and Ulysses of one degree cut alike.
        """
        parts = [int(a) for a in splits]
        pairs = [(a * b // gcd(a, b) // gcd(a, b), gcd(a, b)) for a in parts for b in parts]
        size, stride = (np.array(column, dtype=np.int64) for column in zip(*pairs, strict=True))
        curve = group_curve(self.rates, "tp", "all_to_all", size, stride)
        message_bytes = np.full(len(pairs), self.whole.tables.message[self.whole.key[row]])
        return 2.0 * collectives.seconds(curve, message_bytes).reshape(len(parts), len(parts))

    def context_bytes(self, splits: Ints) -> float:
        """Bytes outside the allocator on a rank that cuts sequences into each of `splits` parts: a communicator for
        every distinct group, of the parts and of the copies."""
        over, pp = self.rates.overheads, int(self.whole.layouts["pp"][0])
        gpus = self.problem.num_gpus // pp
        groups = {(int(a), 1) for a in splits if a > 1} | {(gpus // int(a), int(a)) for a in splits if gpus > a}
        return over.context_bytes + over.communicator_bytes * (len(groups) + (pp > 1))


@dataclass(frozen=True)
class LayerwisePipeline:
    """Adds the sums of stages up to a step of 1F1B, as `step` does."""

    rates: Rates
    m: float  # micro-batches
    hop_s: float  # of a stage-to-stage message
    link_s: float  # that it keeps the link busy
    calls: Array  # [stage] layers
    straggler_share: float  # of a step, added to it
    shares: Array | None = None  # [2] of a cycle that may hide work once per step, for bounds; None: its compute

    @property
    def pp(self) -> int:
        return len(self.calls)

    def exposed_s(self, sums: Array) -> Array:
        """[..., stage, 4] seconds of sharded states' traffic: those that show, forward and backward, then those that
        hide; sums: [..., stage, SUMS]."""
        stack, out = self.rates.stack, []
        for compute, traffic in ((F, GATHERING), (B, SCATTERING)):
            seconds = sums[..., traffic]
            out.append(sharded_states.hidden_s(stack, seconds, sums[..., compute], self.calls))
        hidden = np.stack(out, axis=-1)
        shown = sums[..., [GATHERING, SCATTERING]] - (1.0 - stack.contention) * hidden
        return np.concatenate([shown, hidden], axis=-1)

    def cycle_s(self, sums: Array) -> tuple[Array, Array]:
        """[..., stage] seconds of a micro-batch; [..., stage, 2] of compute that nothing hides behind yet."""
        traffic = self.exposed_s(sums)
        cycle = sums[..., F] + sums[..., B] + sums[..., STEADY] + traffic[..., 0] + traffic[..., 1]
        room = sums[..., [F, B]] - traffic[..., 2:] if self.shares is None else cycle[..., None] * self.shares
        return cycle, room

    def hops_s(self, total: Array, slowest: Array) -> Array:
        """[...] seconds of stage-to-stage messages that nothing hides."""
        pp, m, hop_s, link_s = (np.array(float(x)) for x in (self.pp, self.m, self.hop_s, self.link_s))
        return one_f_one_b_hop_s(pp, m, hop_s, link_s, total, slowest)

    def data_parallel_s(self, most: Array, room: Array) -> Array:
        """Seconds of data parallelism that show; most: [..., SUMS from REDUCE on]; room: [..., 2] seconds of forward
        and backward to hide it behind."""
        forward, backward, again = room[..., 0], room[..., 1], self.m - 1.0 if self.pp == 1 else 0.0
        once = shown_s(self.rates.stack, most[..., 0], most[..., 1], forward, backward)
        return np.asarray(once + again * alone_s(self.rates.stack, most[..., EARLY - REDUCE], backward))

    def step_s(self, sums: Array, once_terms_s: Array | float) -> Array:
        """[...] seconds of a step: the slowest stage m times, the others once, messages, data parallelism, update."""
        cycle, room = self.cycle_s(sums)
        slowest = np.argmax(cycle, axis=-1)[..., None]
        longest, total = np.take_along_axis(cycle, slowest, -1)[..., 0], cycle.sum(axis=-1)
        beside = np.take_along_axis(room, slowest[..., None], -2)[..., 0, :]
        most = sums[..., REDUCE:].max(axis=-2)
        step_s = self.m * longest + np.maximum(total - longest, 0.0) + self.hops_s(total, longest) + once_terms_s
        step_s = step_s + self.data_parallel_s(most, beside) + most[..., 2] + most[..., 3]
        return np.asarray(step_s * (1.0 + self.straggler_share))


def _compute(units: Ledger, seconds: KernelSeconds, num: int) -> tuple[Array, Array]:
    """[kind, n] seconds of the forward pass, and of the backward pass with recomputation."""
    forward, backward = units.per_kind(seconds.forward_s), units.per_kind(seconds.backward_s)
    redo = units.per_code(seconds.recompute_by_code)
    return np.array([forward[k] for k in range(num)]), np.array([backward[k] + redo[k] for k in range(num)])


def _share_of_new(whole: Ledger) -> Array:
    """[kind, n] part that a layer has of the new weights that ranks of the fullest stage gather."""
    rows = whole.new_weights(0)
    most = np.max([whole.on_profile(j, {k: rows[k] for k in whole.kinds}) for j in range(whole.num_profiles)], axis=0)
    return share(rows, most)


def _traffic(whole: Ledger, units: Ledger, rates: Rates, num: int) -> tuple[Array, Array, Array]:
    """[profile, kind, n] seconds per micro-batch of sharded states forward and backward, and [kind, n] of copies."""
    n = len(whole.layouts)
    gathering, scattering = np.zeros((2, whole.num_profiles, num, n))
    copies_s = np.zeros((num, n))
    rows = np.flatnonzero((whole.layouts["zero"] >= 2) & ~whole.states.whole_in_pipeline)
    if not len(rows):
        return gathering, scattering, copies_s
    times = sharded_states.when(whole, rows, whole.layouts["zero"][rows] == 3)[:, None]
    curves = sharded_states.curves_of(whole, rates, rows)
    moved = np.stack([sharded_states.moved_by(units, rows, k, curves)[1] for k in range(num)], axis=1)
    for j in range(whole.num_profiles):
        seconds, of_all = (part[:, None] for part in sharded_states.moved_by(whole, rows, j, curves))
        forward, backward, gradients = times * seconds * share(moved, of_all)
        gathering[j][:, rows], scattering[j][:, rows] = forward, backward + gradients
    shards = whole.dense_groups.shard[rows] > 1
    copies_s[:, rows] = (times * sharded_states.copied_s(whole, rates, shards, moved)).sum(axis=0)
    return gathering, scattering, copies_s


__all__ = ["SUMS", "LayerwisePipeline", "Prices"]
