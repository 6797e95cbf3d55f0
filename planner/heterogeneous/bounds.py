"""The layouts that could be fastest on the islands of a heterogeneous cluster, whatever each island's part of the work.

The trees are those of `exhaustive` and `relaxed_search`, with bounds of work that unlike devices share
(step/shared_bounds.py): `SharedPipelines` shares the layers of one pipeline over the islands, `SharedReplicas` the
micro-batches of replicas that each lie on one island. A node of the second is a layout of as many GPUs as the islands'
greatest common divisor, with all of the batch: an island with r times these GPUs runs r times the replicas, so the same
layouts divide.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import replace
from itertools import permutations
from typing import Any

import numpy as np
from numpy.typing import NDArray

from ...cost_models import build_ledger
from ...cost_models.arrays import Array, Ints, Mask
from ...cost_models.layouts import Layouts
from ...cost_models.problem import Problem
from ...cost_models.quantities.device_memory import LASTING, DeviceMemory
from ...cost_models.quantities.ledger import Ledger
from ...cost_models.quantities.resident import in_flight
from ...cost_models.quantities.stages import EMBEDDING, EMBEDDING_COPY, HEAD, MTP
from ...cost_models.quantities.tables import Tables, build, index_keys
from ...cost_models.rates import collectives
from ...cost_models.rates.kernel_seconds import kernel_seconds
from ...cost_models.schedule_kinds import FOLDED
from ...cost_models.specs.cluster import Bridge
from ...cost_models.step import lower_bounds, reserved_memory, shared_bounds, stragglers
from ..search.exhaustive import ROWS, Search
from ..search.mesh_bounds import KEYS
from ..space.rules import Columns as Fields
from ..space.rules import Rule
from ..space.tree import Columns, Space
from ..stages.relaxed_search import AnySplit
from .islands import IslandPart, bridged, crossing, gradient_bytes


def whole_stages(space: Space, parts: Sequence[IslandPart]) -> Space:
    """The pipelines of which every island holds whole stages."""
    gpus = [part.num_gpus for part in parts]
    unit, total = math.gcd(*gpus), sum(gpus)

    def fits(x: Fields, problem: Problem) -> Mask:
        return np.asarray((total % x["pp"] == 0) & (unit % np.maximum(total // x["pp"], 1) == 0))

    return replace(space, rules=(*space.rules, Rule("stages straddle islands", ("pp",), fits, "")))


class _Shared(Search):
    """A search whose tables are priced under the rates of every island."""

    parts: tuple[IslandPart, ...]

    def __init__(self, space: Space, parts: Sequence[IslandPart], **options: Any) -> None:
        super().__init__(space, parts[0].rates, **options)
        self.parts, self.island_rates = tuple(parts), [part.rates for part in parts]
        total = sum(part.num_gpus for part in parts)
        self.shares = [part.num_gpus / total for part in parts]  # [island] of all GPUs
        self.mean = self.problem.num_gpus / total  # share of the ledger's micro-batches that the mean replica runs
        self.growth = 1.0 + stragglers.straggler_share_of(self.problem.stack, total)

    def _mesh_bounds(self, meshes: Columns) -> tuple[Array, Array]:
        _, needed = super()._mesh_bounds(meshes)
        keys, index = index_keys(meshes)
        totals, load = build_ledger.build_totals(self.problem), np.empty(len(keys["tp"]))
        for start in range(0, len(load), KEYS):
            part = slice(start, start + KEYS)
            tables = build(self.problem, {name: column[part] for name, column in keys.items()})
            kernels = [kernel_seconds(tables, rates) for rates in self.island_rates]
            seconds = np.array([island.forward_s + island.backward_s for island in kernels])  # [island, kind, key]
            w = shared_bounds.weights(np.einsum("k,gkn->gn", totals, seconds), self.shares)
            load[part] = totals @ (w[:, None] * seconds).min(axis=0)
        m = self.mean * self.problem.workload.global_batch / (meshes["dp"] * meshes["micro_batch"])
        return m * load[index] / meshes["pp"], needed

    def _ledgers(self, ledger: Ledger) -> list[Ledger]:
        """One ledger per island: quantities do not depend on the island."""
        return [ledger] * len(self.island_rates)


class SharedPipelines(_Shared, AnySplit):
    """The nodes with the least bounds, as `AnySplit` lists them; the pipeline passes the islands in any order.
    bridges: between every two of them."""

    def __init__(self, space: Space, parts: Sequence[IslandPart], bridges: Sequence[Bridge], **options: Any) -> None:
        super().__init__(space, parts, **options)
        self.bridges = bridges

    def _of_mean(self, tables: Tables, columns: Columns, key: Ints, level: int) -> tuple[Array, Array]:
        ledger = build_ledger.build(self.problem, tables, Layouts(columns), key, mean=True)
        states, shards = level >= 2, level == 3
        _, needed = lower_bounds.bound(ledger, self.rates, states_known=states, shards_known=shards, memory=level > 0,
                               any_split=True)  # fmt: skip
        between = self._between_s(ledger)
        shared = self._ledgers(ledger), self.island_rates, self.shares
        seconds = shared_bounds.least_pipeline(*shared, *between, states_known=states, shards_known=shards)
        if level >= 2:
            needed = np.where(self._fits(ledger), needed, np.inf)
        return self.growth * seconds, needed

    def _between_s(self, ledger: Ledger) -> tuple[Array, Array]:
        """[n] seconds of a micro-batch's messages over bridges, one way, at least, and seconds that these keep a link
        busy. A pipeline crosses at least one bridge less than it has islands, and none faster than the fastest. Chunks
        of interleaved and V schedules cross again."""
        x, senders = ledger.layouts, self.problem.num_gpus // ledger.layouts["pp"]
        message = ledger.tables.message[ledger.key]
        if not self.bridges:
            return np.zeros(len(message)), np.zeros(len(message))
        best, sending = np.full((2, len(message)), np.inf)
        for bridge in self.bridges:
            for number in np.unique(senders).tolist():
                curve, here = crossing(self.rates, bridge, number, "p2p"), senders == number
                seconds = collectives.seconds(curve, message[here])
                best[here] = np.minimum(best[here], seconds)
                sending[here] = np.minimum(sending[here], seconds - bridge.link.latency_s)
        chunks = np.where(FOLDED[x["schedule"]], 2, x["vpp"])
        times = np.where(len(self.parts) == 2, 2 * chunks - 1, chunks)
        return (len(self.parts) - 1) * best, np.maximum(sending, 0.0) * times

    def _fits(self, ledger: Ledger) -> NDArray[np.bool_]:
        """[n] whether the model may fit the GPUs of the islands, in some order of them.

        A stage holds at most (memory - what it holds anyway) / (states + micro-batches in flight x saved) of all
        layers, each as the mean of all. The model fits only if these shares add up to all layers.
        """
        x, pp = ledger.layouts, ledger.layouts["pp"].astype(np.float64)
        states, saved = self._stage_bytes(ledger)
        first, last = self._edge_bytes(ledger)
        transient = self._transient_bytes(ledger)
        fixed, growth = reserved_memory.fixed_bytes(ledger, self.rates), 1 + self.rates.overheads.reserve_share
        room = [(part.alone.budget_bytes - fixed) / growth for part in self.parts]
        best = np.zeros(len(pp))
        for order in permutations(range(len(self.parts))):
            total, possible = np.zeros(len(pp)), np.ones(len(pp), dtype=bool)
            borders = np.cumsum([self.shares[island] for island in order])
            for device in range(int(pp.max())):
                island = np.minimum(np.searchsorted(borders, (device + 0.5) / pp), len(order) - 1)
                free = np.choose(island, [room[number] for number in order])
                free = free - first * (device == 0) - last * (device == pp - 1)
                free = free - transient * ((device > 0) & (device < pp - 1))
                flying = in_flight(x["schedule"], x["pp"], x["vpp"], ledger.m, np.full(len(pp), float(device)))
                possible &= (free >= 0) | (device >= pp)
                total += np.where(device < pp, np.maximum(free, 0.0) / (states + flying * saved), 0.0)
            best = np.maximum(best, np.where(possible, total, 0.0))
        return np.asarray(best >= 1.0)

    def _stage_bytes(self, ledger: Ledger) -> tuple[Array, Array]:
        """[n] bytes of the states of all layers, and of the activations that one micro-batch saves in all of them."""
        x, pp = ledger.layouts, ledger.layouts["pp"].astype(np.float64)
        layers = np.setdiff1d(np.arange(_num_kinds(ledger)), _edges(ledger))
        buffers = DeviceMemory(_of_kinds(ledger, layers)).buffers(0)
        of_last = in_flight(x["schedule"], x["pp"], x["vpp"], ledger.m, pp - 1.0)  # those of a mean stage
        states = sum(buffers[name] for name in LASTING if name != "activations")
        return pp * np.asarray(states), pp * buffers["activations"] / of_last

    def _edge_bytes(self, ledger: Ledger) -> tuple[Array, Array]:
        """[n] bytes of the embedding, on the first stage, and of head and MTP modules, on the last."""
        edges = _edges(ledger)
        embedding, head = (DeviceMemory(_of_kinds(ledger, kinds, whole=True)).buffers(0)
                           for kinds in (edges[:1], edges[1:]))  # fmt: skip
        # The embedding's gradient comes when a micro-batch of activations is gone, so its transient bytes do not count.
        first, last = np.asarray(sum(embedding[name] for name in LASTING)), np.asarray(sum(head.values()))
        folded = FOLDED[ledger.layouts["schedule"]]  # in a V, one device holds both ends
        return np.where(folded, first + last, first), np.where(folded, 0.0, last)

    def _transient_bytes(self, ledger: Ledger) -> Array:
        """[n] transient bytes beside the kind of layer that needs least."""
        buffers = [DeviceMemory(_of_kinds(ledger, np.array([kind]))).buffers(0)
                   for kind in range(self.problem.num_kinds)]  # fmt: skip
        sums = [np.sum([sizes[name] for name in sizes if name not in LASTING], axis=0) for sizes in buffers]
        return np.asarray(np.min(sums, axis=0))


def _num_kinds(ledger: Ledger) -> int:
    return int(ledger.splits.counts.shape[2])


def _edges(ledger: Ledger) -> NDArray[np.int64]:
    """Kinds that are no layers: the embedding first."""
    return np.asarray(_num_kinds(ledger) + np.array([EMBEDDING, HEAD, MTP, EMBEDDING_COPY]))


def _of_kinds(ledger: Ledger, kinds: NDArray[np.int64], *, whole: bool = False) -> Ledger:
    """A ledger of mean stages with these kinds only. whole: with all of them on one device."""
    splits = ledger.splits
    counts, back = np.zeros_like(splits.counts), None
    counts[:, :, kinds] = splits.total[:, None, kinds] if whole else splits.counts[:, :, kinds]
    if splits.back is not None:
        back = counts * (splits.back.any(axis=2, keepdims=True) if whole else splits.back > 0)
        back = back if whole else np.minimum(back, splits.back)
    return replace(ledger, splits=replace(splits, counts=counts, back=back))


class SharedReplicas(_Shared):
    """The layouts of replicas with the least bounds. bridges: between every two of the islands. equal_shares: all
    replicas run equally many micro-batches."""

    def __init__(
        self, space: Space, parts: Sequence[IslandPart], bridges: Sequence[Bridge], *, equal_shares: bool = False,
        **options: Any,
    ) -> None:  # fmt: skip
        super().__init__(space, parts, **options)
        self.equal_shares = equal_shares
        # Every island sends all gradients once at least, over the widest of its bridges.
        widest = max(
            bridged(bridge, part.num_gpus).bw_bytes_per_s * part.num_gpus
            for bridge in bridges for part in parts if part.number in bridge.ends
        )  # fmt: skip
        self.sum_s = gradient_bytes(self.problem) / widest

    def _bounds(self, tables: Tables, rows: Columns, level: int) -> tuple[Array, Array]:
        ledger = build_ledger.build(self.problem, tables, Layouts(self.branching.relaxed(rows, level)), rows["_key"])
        _, needed = lower_bounds.bound(ledger, self.rates, states_known=level == 2, memory=level > 0)
        shared = self._ledgers(ledger), self.island_rates, self.shares, self.mean, self.sum_s
        seconds = shared_bounds.least_replicas(*shared, equal=self.equal_shares, states_known=level == 2)
        return self.growth * seconds, needed

    def _price(self, tables: Tables, columns: Columns) -> None:
        for start in range(0, len(columns["tp"]), ROWS):
            part = {name: column[start : start + ROWS] for name, column in columns.items()}
            layouts = Layouts(part)
            ledger = build_ledger.build(self.problem, tables, layouts, part["_key"])
            needed, _ = reserved_memory.fullest_stage(DeviceMemory(ledger), self.rates)
            shared = self._ledgers(ledger), self.island_rates, self.shares, self.mean, self.sum_s
            seconds = shared_bounds.least_replicas(*shared, equal=self.equal_shares, states_known=True,
                                                   shards_known=True)  # fmt: skip
            fits = needed <= self.memory_bytes
            self.count.out_of_memory += int((~fits).sum())
            self.count.priced += int(fits.sum())
            self.top.offer(np.where(fits, self.growth * seconds, np.inf), layouts)
