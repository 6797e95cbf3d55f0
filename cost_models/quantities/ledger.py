"""A batch of layouts as quantities: layers per stage, micro-batches in flight, bytes per buffer, collective calls.

No bandwidth, efficiency or fitted constant appears here. Arrays over the batch are [n]; per stage profile (stages.py)
they are lists over J of [n].
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import cached_property

import numpy as np

from ..arrays import Array, Ints, Mask, distinct
from ..layouts import Layouts
from ..problem import Problem
from ..schedule_kinds import FOLDED
from .by_code import ByCode
from .exchanges import PLAIN, Exchanges
from .groups import Groups
from .interleaving_stalls import Stalls
from .stages import Splits
from .state_placement import StatePlacement
from .stores import FarMemory, Store
from .tables import Tables
from .traffic import StateTraffic
from .vocabulary import Vocabulary
from .zeroth_order import ZerothOrder


@dataclass(frozen=True, eq=False)
class Ledger:
    """Quantities of a batch of n layouts on J stage profiles."""

    problem: Problem
    tables: Tables  # operations, parameters and bytes per layer kind and shard key
    layouts: Layouts  # [n]
    key: Ints  # [n] shard key of a row: a column of the tables
    codes: tuple[tuple[int, int], ...]  # distinct (recompute mode, modules)
    code: Ints  # [n] index into `codes`
    splits: Splits  # layers per stage of the distinct (pp, vpp, schedule shape)
    split: Ints  # [n] index into `splits`
    traffic: tuple[StateTraffic, ...]  # of the phases of training, whose shares sum to 1
    stalls: Stalls | None = None  # what interleaved pipelines wait, None: not counted
    exchanges: Exchanges = PLAIN  # collectives of sharded states, per micro-batch
    store: Store | None = None  # what of the states is on a drive or on another node
    far: FarMemory | None = None  # where a part of what is on the host has a memory of its own
    vocabulary: Vocabulary | None = None  # how embedding and head are over all stages, where they are
    repeats: Array | float = 1.0  # [n] times that each layer computes each micro-batch, over all replicas
    path: Array | None = None  # [n] stages that a micro-batch passes; None: all
    waits: Array | float = 0.0  # [n] of a step, added by waiting for replicas that are slow in it
    zeroth_order: ZerothOrder | None = None  # what takes the place of gradients; None: there are gradients
    unlike: UnlikeRows | None = None  # None: not known, or nearly all rows

    def once(self, quantity: Callable[[Ledger], Array]) -> Array:
        """[..., n] a quantity that recomputation does not change, worked out once for rows that agree in all else."""
        if self.unlike is None:
            return quantity(self)
        return np.take(quantity(self.unlike.ledger), self.unlike.row, axis=-1)

    def at(self, rows: Ints) -> tuple[Ledger, Ints, Ints | slice]:
        """The same for some rows: a ledger, its rows that are needed, and [r] the number among these of each row."""
        if self.unlike is None:
            return self, rows, slice(None)
        needed, number = distinct(self.unlike.row[rows], len(self.unlike.first))
        return self.unlike.ledger, needed, number

    @cached_property
    def m(self) -> Array:
        """[n] micro-batches per pipeline and step, with those that are repeated: B / (dp x micro batch) without."""
        once = self.problem.workload.global_batch / (self.layouts["dp"] * self.layouts["micro_batch"])
        return np.asarray(once * self.repeats, dtype=np.float64)

    @property
    def num_profiles(self) -> int:
        return int(self.splits.first.shape[1])

    @cached_property
    def kinds(self) -> tuple[int, ...]:
        """Kinds that occur at all (there is mostly no MTP projection)."""
        return tuple(k for k in range(self.splits.counts.shape[2]) if self.splits.counts[:, :, k].any())

    @cached_property
    def counts(self) -> list[dict[int, Array]]:
        """Per profile: kind -> [n] layers of that kind on the device."""
        return [self.of_split(self.splits.counts, j) for j in range(self.num_profiles)]

    def of_split(self, counts: Array, j: int) -> dict[int, Array]:
        """Kind -> [n] of [split, J, kind] counts those of profile j."""
        return {k: counts[:, j, k][self.split] for k in self.kinds}

    @cached_property
    def back(self) -> list[dict[int, Array]]:
        """Per profile: kind -> [n] what of `counts` is on the chunk that a V comes back through; {} without a V."""
        if self.splits.back is None:
            return [{}] * self.num_profiles
        return [self.of_split(self.splits.back, j) for j in range(self.num_profiles)]

    @cached_property
    def totals(self) -> dict[int, Array]:
        """Kind -> [n] layers of that kind over all devices."""
        return {k: self.splits.total[:, k][self.split] for k in self.kinds}

    @cached_property
    def layers(self) -> list[Array]:
        """Per profile: [n] decoder layers on the device."""
        return [self.splits.layers[:, j][self.split] for j in range(self.num_profiles)]

    @cached_property
    def devices(self) -> Array:
        """[J, n] devices of each profile."""
        return self.splits.devices.T[:, self.split]

    def over_profiles(self, rows: Array) -> Array:
        """Sum over all devices of the pipeline of a [J, n] quantity: [n]."""
        return np.asarray((self.devices * rows).sum(axis=0))

    def recomputed(self, j: int, rows: dict[int, Array]) -> Array:
        """Sum over the layers of profile j that are under recompute: [n]. All of them; n of them, of average kind; or
        those that the split names."""
        if self.splits.recomputed is not None:
            return weighted(self.of_split(self.splits.recomputed, j), rows)
        return self.first_layers(self.counts[j], rows, self.layouts["recompute_layers"])

    def recomputed_back(self, j: int, rows: dict[int, Array]) -> Array:
        """[n] the same of the chunk that comes back through a V: the layers that are left of n for it."""
        if self.splits.recomputed_back is not None:
            return weighted(self.of_split(self.splits.recomputed_back, j), rows)
        # Layers are recomputed in the order of the model, so the chunk that comes back has its turn after the other.
        wanted, back = self.layouts["recompute_layers"], self.back[j]
        before = self.layers[j] - _layers(back, self.problem.num_kinds)
        remaining = np.where((wanted > 0) & (wanted <= before), -1, np.where(wanted > 0, wanted - before, 0))
        return self.first_layers(back, rows, remaining)

    def first_layers(self, counts: dict[int, Array], rows: dict[int, Array], wanted: Array) -> Array:
        """[n] sum over so many layers of these, of average kind; 0: all of them, -1: none. A vision tower is recomputed
        with any of them, whole."""
        total = weighted(counts, rows)
        if not wanted.any():
            return total
        layers = np.maximum(_layers(counts, self.problem.num_kinds), 1.0)
        share = np.where(wanted != 0, np.clip(wanted / layers, 0.0, 1.0), 1.0)
        embedding = self.problem.num_kinds
        tower = counts[embedding] * rows[embedding] if self.problem.model.tower and embedding in counts else 0.0
        return np.asarray(share * (total - tower) + tower)

    def per_kind(self, table: Array) -> dict[int, Array]:
        """Rows of a [kind, key] table for the batch: kind -> [n]."""
        return {k: table[k][self.key] for k in self.kinds}

    def per_code(self, table: ByCode) -> dict[int, Array]:
        """Rows of a table by recomputation for the batch: kind -> [n]."""
        return table.look_up(self.kinds, self.codes, self.code, self.key)

    def on_profile(self, j: int, rows: dict[int, Array]) -> Array:
        """Sum over the kinds of profile j: [n]."""
        return weighted(self.counts[j], rows)

    def over_devices(self, rows: dict[int, Array]) -> Array:
        """Sum over all devices of the pipeline: [n]."""
        return weighted(self.totals, rows)

    @cached_property
    def dense_groups(self) -> Groups:
        return Groups.dense(self.layouts)

    @cached_property
    def expert_groups(self) -> Groups:
        return Groups.experts(self.layouts)

    @cached_property
    def trained(self) -> list[tuple[Array, Array]]:
        """Per profile: [n] trained (dense, expert) parameters of a rank before ZeRO."""
        dense = self.per_kind(self.tables.parameters["trained_dense"])
        experts = self.per_kind(self.tables.parameters["trained_experts"])
        has_experts = self.problem.model.is_moe
        # Experts have other groups than the rest, hence other shard sizes and collectives: they are counted apart.
        zero = np.zeros(len(self.layouts))
        return [
            (self.on_profile(j, dense), self.on_profile(j, experts) if has_experts else zero)
            for j in range(self.num_profiles)
        ]

    def new_weights(self, part: int) -> Array:
        """[kind, n] bytes of a rank's trained weights, dense (0) or of experts (1), as they are gathered once an update
        has written them."""
        states, kinds = self.problem.state_bytes, self.problem.parameters
        trained = self.tables.parameters[("trained_dense", "trained_experts")[part]][:, self.key]
        if states.gathered == states.weight:
            return np.asarray(trained * states.weight)
        narrow = np.array([states.weight if kind.frozen or i >= self.problem.num_kinds else states.gathered
                           for i, kind in enumerate(kinds)])[:, None]  # fmt: skip
        return np.asarray(trained * np.where(self.states.quantises_update, narrow, states.weight))

    @cached_property
    def updated(self) -> list[Array]:
        """Per profile: [n] parameters a rank's optimizer steps over, its shard from ZeRO-1 on."""
        dense, experts = self.dense_groups.shard, self.expert_groups.shard
        return [d / dense + e / experts for d, e in self.trained]

    def state_sharers(self, reach: int | None, divided: Mask) -> list[Ints]:
        """[n] ranks over which a state of the dense parameters, and of experts, is divided where it is."""
        per_node = self.problem.gpus_per_node
        return [np.where(divided, groups.within(reach, per_node), 1)
                for groups in (self.dense_groups, self.expert_groups)]  # fmt: skip

    @cached_property
    def states(self) -> StatePlacement:
        """The placement of states, and when they are unsharded."""
        return StatePlacement(self.problem, self.layouts, self.m, self.store)

    @cached_property
    def saved_output(self) -> Array:
        """[n] bytes of what a stage hands on, per micro-batch in flight: DeepSpeed's pipeline keeps it as it keeps what
        a stage takes (pipe/engine.py, pipe_buffers); Megatron-LM frees it (deallocate_output_tensor)."""
        if self.problem.stack.flat_buffers != "deepspeed":
            return np.zeros(len(self.layouts))
        return np.asarray(self.tables.operations[0].input_bytes + np.zeros(self.tables.num_keys))[self.key]

    def largest(self, j: int, rows: Array) -> Array:
        """[n] the most of [kind of layer, n] bytes of a layer, of the kinds on the device of profile j; 0 without."""
        most = np.zeros(rows.shape[1])
        for kind in set(self.kinds).intersection(range(len(rows))):
            most = np.maximum(most, rows[kind] * (self.counts[j][kind] > 0))
        return most

    @cached_property
    def chunks(self) -> Ints:
        """[n] chunks of a stage."""
        x = self.layouts
        of_pipeline = np.where(FOLDED[x["schedule"]], 2, x["vpp"])
        return np.where(x["pp"] > 1, of_pipeline, 1)

    @cached_property
    def communicators(self) -> Array:
        """[n] process groups with buffers of their own."""
        # NCCL allocates its buffers per communicator; a group of one rank makes none.
        x = self.layouts
        return np.asarray(sum((x[name] > 1).astype(np.float64) for name in ("tp", "cp", "pp", "dp", "ep", "etp")))


@dataclass(frozen=True, eq=False)
class UnlikeRows:
    """The rows of a ledger that differ in more than recomputation and layers on the host."""

    ledger: Ledger  # of these rows, for quantities that read neither
    first: Ints  # [u] the first row of each in the whole ledger
    row: Ints  # [n] which of them a row of the whole ledger is


def _layers(counts: dict[int, Array], num_kinds: int) -> Array:
    """[n] layers among these."""
    return np.asarray(sum((count for kind, count in counts.items() if kind < num_kinds), start=np.zeros(1)))


def weighted(counts: dict[int, Array], rows: dict[int, Array]) -> Array:
    """[n] sum over kinds of counts [n] times rows [n]; 0 without kinds."""
    total: Array | None = None
    for kind, count in counts.items():
        of_kind = count * rows[kind]
        total = of_kind if total is None else np.add(total, of_kind, out=total)
    return np.asarray(0.0 if total is None else total)
