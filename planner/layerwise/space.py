"""The space of layer-wise plans: for every number of stages and of micro-batches, the strategies of a layer, of the
embedding and of the head, with their costs."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace
from functools import cached_property
from itertools import combinations

import numpy as np
from numpy.typing import NDArray

from ...cost_models.arrays import Array, Ints
from ...cost_models.degrees import divisors
from ...cost_models.layerwise.costs import STEADY, SUMS, LayerwisePipeline, Prices
from ...cost_models.layerwise.memory import LayerStages
from ...cost_models.layouts import CP_ALGORITHMS, FIELDS, PRECISIONS, Layouts
from ...cost_models.quantities.stages import EMBEDDING, EXTRA_KINDS, HEAD
from ...cost_models.quantities.tables import build, index_keys
from ...cost_models.rates.rates import Rates
from ...cost_models.step import stragglers
from ..space.tree import Columns, Space, allowed, cross

_ULYSSES = CP_ALGORITHMS.index("ulysses")


def strategies(space: Space, pp: int) -> Layouts:
    """All strategies of one layer on a stage of G = GPUs / pp, for every number m of micro-batches of a step.

    A strategy is tensor parallelism (with sequence parallelism) or Ulysses over a divisor of G, data parallelism over
    the rest, a ZeRO stage and a recompute mode; nothing is offloaded. Those that a rule forbids as a layout of the
    whole model are left out.

    All strategies of one m take the same B/m sequences at once, so the micro-batch of a rank is B / (m dp).
    """
    gpus, problem = space.problem.num_gpus // pp, space.problem
    pairs = [(tp, cp) for a in divisors(gpus) for tp, cp in dict.fromkeys(((a, 1), (1, a)))]
    meshes = [(tp, cp, gpus // (tp * cp), b) for tp, cp in pairs for b in divisors(problem.workload.global_batch)]
    tp, cp, dp, micro_batch = (np.array(column, dtype=np.int64) for column in zip(*meshes, strict=True))
    columns: Columns = {field.name: np.full(len(tp), field.default, dtype=np.int64) for field in FIELDS}
    columns |= {"tp": tp, "cp": cp, "dp": dp, "shard": dp, "micro_batch": micro_batch, "pp": np.full_like(tp, pp)}
    columns |= {"sequence_parallel": (tp > 1).astype(np.int64), "cp_algorithm": np.where(cp > 1, _ULYSSES, 0)}
    columns["precision"] = np.full_like(tp, PRECISIONS.index(problem.workload.precision))
    recomputes = space.recomputes(pp)
    whole = (recomputes["recompute_layers"] == 0) & (recomputes["offload_layers"] == 0)
    columns = _crossed(columns, {name: column[whole] for name, column in recomputes.items()})
    sharable = columns["dp"] * columns["cp"] > 1  # else there is no group to shard states over
    parts = [
        _crossed({name: column[sharable == shares] for name, column in columns.items()}, space.states(ranks))
        for shares, ranks in ((False, 1), (True, 2))
    ]
    joined = {name: np.concatenate([part[name] for part in parts]) for name in columns}
    return Layouts(joined).take(allowed(space.rules, joined, problem) & (joined["offload"] == 0))


def _crossed(columns: Columns, options: Columns) -> Columns:
    return cross({name: column for name, column in columns.items() if name not in options}, options)


@dataclass(frozen=True)
class Pieces:
    """Options of one item on one stage."""

    rows: Ints  # [o] of the strategies
    sums: Array  # [o, SUMS] seconds
    resident: Array  # [o] bytes that add up over items
    transient: Array  # [o] bytes at the fullest moment of the item
    at_end: Array  # [o] bytes that add up in the backward pass of the embedding, on the stage that has it
    split: Ints  # [o] index of tp x cp
    once_terms_s: Array  # [o] seconds of step.ONCE_TERMS

    def take(self, rows: NDArray[np.generic]) -> Pieces:
        return Pieces(*(getattr(self, name)[rows] for name in Pieces.__dataclass_fields__))


@dataclass(frozen=True)
class Instance(LayerStages):
    """All plans of one number of stages and of micro-batches."""

    prices: Prices
    rows: Ints  # strategies of `prices` with these numbers
    memory_bytes: float  # of a GPU
    mixed: bool = False  # only plans in which at least two items cut their sequences differently

    def parts(self) -> list[Instance]:
        """The same plans in parts: one for every tp x cp, and one for plans that mix some."""
        split = self.prices.split[self.rows]
        single = [replace(self, rows=self.rows[split == a]) for a in self.splits]
        return [*single, replace(self, mixed=True)] if len(single) > 1 else single

    @cached_property
    def mixing_s(self) -> float:
        """Seconds of a step that resharding takes at least."""
        if not self.mixed:
            return 0.0
        least = float(self.resharding_s[~np.eye(len(self.splits), dtype=bool)].min())
        return least * (self.m if self.pp == 1 else 1)

    @cached_property
    def least_outside_bytes(self) -> float:
        """`outside_bytes`, at least."""
        number = 2 if self.mixed and self.pp == 1 else 1
        return min(self.outside_bytes(np.array(chosen)) for chosen in combinations(self.splits.tolist(), number))

    @cached_property
    def splits(self) -> Ints:
        """The distinct tp x cp."""
        return np.unique(self.prices.split[self.rows])

    @cached_property
    def resharding_s(self) -> Array:
        """[from, to] seconds per micro-batch between `splits`."""
        return self.prices.resharding_s(int(self.rows[0]), self.splits)

    @cached_property
    def pipeline(self) -> LayerwisePipeline:
        prices = self.prices
        calls = np.maximum(self.counts[:, :-EXTRA_KINDS].sum(axis=1), 1.0)
        hop_s, link_s = (float(seconds[self.rows[0]]) for seconds in (prices.hop_s, prices.link_s))
        share = stragglers.straggler_share(prices.whole)
        return LayerwisePipeline(prices.rates, float(self.m), hop_s, link_s, calls, share)

    @property
    def reserved(self) -> float:
        """Bytes that the allocator reserves for a byte of a tensor."""
        return 1.0 + self.prices.rates.overheads.reserve_share

    @property
    def budget_bytes(self) -> float:
        """Bytes of tensors that a GPU has room for, before communicators."""
        return self.memory_bytes / self.reserved

    def outside_bytes(self, splits: Ints) -> float:
        """Part of it for context and communicators of a stage with these `splits`."""
        return self.prices.context_bytes(splits) / self.reserved

    def sums_of(self, rows: tuple[int, ...]) -> Array:
        """[stage, SUMS] of a plan: strategies of embedding, layers and head, in the order of the model."""
        prices, sums = self.prices, np.zeros((self.pp, len(SUMS)))
        split, position = np.searchsorted(self.splits, prices.split[list(rows)]), 0
        for stage, items in enumerate(self.items):
            of_stage = prices.seconds[self.profile[stage]]
            for item in items:
                sums[stage] += of_stage[:, self.kinds_of(stage, item), rows[position]].sum(axis=1)
                if position:
                    sums[stage, STEADY] += self.resharding_s[split[position - 1], split[position]]
                position += 1
        return sums

    def step_s(self, rows: tuple[int, ...]) -> float:
        """Seconds of a step of a plan."""
        return float(self.pipeline.step_s(self.sums_of(rows), self.prices.once_terms_s[rows[-1]]))

    def memory_of(self, rows: tuple[int, ...], *, together: bool = False) -> list[dict[str, float]]:
        """[stage] bytes of a plan: of every buffer (device_memory.BUFFERS), of freed blocks that nothing else can use
        (`unusable`), and outside the allocator (`context`). together: as `buffers_of`."""
        prices = self.prices
        out = []
        start = 0
        for items, (buffers, unused) in zip(self.items, self.buffers_of(rows, together=together), strict=True):
            outside = prices.context_bytes(np.unique(prices.split[list(rows[start : start + len(items)])]))
            out.append({**buffers, "unusable": unused, "context": outside})
            start += len(items)
        return out

    def uniform(self) -> tuple[Array, Array]:
        """[row] step seconds, and bytes of the fullest GPU, of one strategy everywhere."""
        prices, rows = self.prices, self.rows
        sums = np.einsum("sk,sqkn->nsq", self.counts, prices.seconds[self.profile][..., rows])
        step_s = self.pipeline.step_s(sums, prices.once_terms_s[rows])
        resident = prices.states[..., rows].sum(axis=0) + prices.flat[self.profile][..., rows]
        resident = resident + self.in_flight[:, None, None] * prices.saved[:, rows]
        resident = resident + prices.unusable[:, rows] / self.reserved
        transient = np.repeat(prices.transient[..., rows].sum(axis=0)[None], self.pp, axis=0)
        transient[:, EMBEDDING] -= self.counts @ prices.saved[:, rows]  # one micro-batch of activations is gone by then
        largest = np.where(self.counts[:, :, None] > 0, transient, 0.0).max(axis=1)
        outputs = self.handed_on[:, None] * prices.whole.saved_output[rows]
        tensors = (np.einsum("sk,skn->sn", self.counts, resident) + largest + outputs).max(axis=0)
        outside = np.array([prices.context_bytes(prices.split[[row]]) for row in rows])
        return step_s, tensors * self.reserved + outside

    def pieces(self, stage: int, item: int) -> Pieces:
        """All options of an item (a kind of layer, or EMBEDDING, HEAD) on a stage, but those that another beats."""
        profile, known = self.profile[stage], self._options
        kinds = self.kinds_of(stage, item)
        if (profile, item) not in known:
            known[profile, item] = self._undominated(profile, kinds, item)
        rows = known[profile, item]
        sums, states, saved, transient = self._summed(profile, kinds, rows)
        once_s = self._once_terms_s(item, rows)
        split = np.searchsorted(self.splits, self.prices.split[rows])
        resident = states + self.in_flight[stage] * saved
        if item >= 0:  # outputs that a stage keeps, in equal parts for its layers: they are the same for all strategies
            resident = resident + self.handed_on[stage] * self.prices.whole.saved_output[rows] / len(self.layers[stage])
        at_end = resident - saved if stage == 0 and self.pp > 1 else np.zeros(len(rows))
        if item == EMBEDDING:
            at_end, transient = at_end + transient, np.zeros(len(rows))
        return Pieces(rows, sums, resident, transient, at_end, split, once_s)

    @cached_property
    def _options(self) -> dict[tuple[int, int], Ints]:
        """(profile, item) -> rows, filled as they are needed."""
        return {}

    def _summed(self, profile: int, kinds: list[int], rows: Ints) -> tuple[Array, Array, Array, Array]:
        prices = self.prices
        sums = sum(prices.seconds[profile, :, kind][:, rows] for kind in kinds)
        beside = prices.flat[profile] + prices.unusable / self.reserved
        states = sum(prices.states[:, kind][:, rows].sum(axis=0) + beside[kind, rows] for kind in kinds)
        saved = sum(prices.saved[kind, rows] for kind in kinds)
        transient = np.max([prices.transient[:, kind][:, rows].sum(axis=0) for kind in kinds], axis=0)
        return np.asarray(sums).T, np.asarray(states), np.asarray(saved), transient

    def _once_terms_s(self, item: int, rows: Ints) -> Array:
        """[o] seconds once per step: all are counted with the head."""
        return self.prices.once_terms_s[rows] if item == HEAD else np.zeros(len(rows))

    def _undominated(self, profile: int, kinds: list[int], item: int) -> Ints:
        """Strategies that no other of the same split beats in every sum; of equal ones the first.

        Resharding depends on the split, so strategies of different splits cannot stand for each other. Recompute is of
        layers, so an edge has one strategy for all of its modes. Tied edges keep all strategies, as both must agree.
        """
        rows, layouts = self.rows, self.prices.whole.layouts
        if item in (EMBEDDING, HEAD):
            names = ("tp", "cp", "zero")
            code = np.stack([layouts[name][rows] for name in names])
            rows = rows[np.sort(np.unique(code, axis=1, return_index=True)[1])]
            if self.ties_edges:
                return rows
        sums, states, saved, transient = self._summed(profile, kinds, rows)
        everything = np.column_stack([sums, states, saved, transient, self._once_terms_s(item, rows)])
        split = self.prices.split[rows]
        return rows[is_undominated(everything, split)]

    @property
    def ties_edges(self) -> bool:
        """Whether embedding and head are one matrix, and so have one strategy."""
        return self.prices.problem.model.tied_embeddings


def is_undominated(values: Array, group: Ints) -> NDArray[np.bool_]:
    """[row] whether no other row of the same group is less or equal in all columns; of equal rows the first stays."""
    undominated = np.ones(len(values), dtype=bool)
    for number in np.unique(group):
        members = np.flatnonzero(group == number)
        order = np.arange(len(members))
        beats = np.ones((len(members), len(members)), dtype=bool)  # [first, second] whether first beats second
        for column in values[members].T:
            slack = 1e-12 * np.abs(column)
            beats &= column[:, None] <= (column + slack)[None, :]
        equal = beats & beats.T
        beats &= ~equal | (order[:, None] < order[None, :])
        np.fill_diagonal(beats, False)
        undominated[members] = ~beats.any(axis=0)
    return undominated


def instances(space: Space, rates: Rates, memory_bytes: float) -> Iterator[Instance]:
    """Every number of stages, and of micro-batches, that leaves a layer some strategy."""
    problem = space.problem
    by_pp = {pp: strategies(space, pp) for pp in divisors(problem.num_gpus) if pp <= problem.model.num_layers}
    by_pp = {pp: layouts for pp, layouts in by_pp.items() if len(layouts)}
    if not by_pp:
        return
    keys, key = index_keys(Layouts.concatenate(by_pp.values()))
    tables, start = build(problem, keys), 0
    for layouts in by_pp.values():
        prices = Prices.of(problem, rates, tables, layouts, key[start : start + len(layouts)])
        start += len(layouts)
        m = problem.workload.global_batch // (layouts["dp"] * layouts["micro_batch"])
        for number in np.unique(m).tolist():
            yield Instance(prices, number, None, np.flatnonzero(m == number), memory_bytes)
