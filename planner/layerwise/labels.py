"""The dynamic program of a layer-wise plan: labels of the items done, with bounds, from the first item to the last.

A label has the sums, bytes and set of splits of the open stage, and of closed stages what the step depends on: sum and
maximum of cycles, what the slowest one can hide, maxima of what is done once. A label goes if

- its bound (bounds.py) is not below the threshold, or
- another one of the same last split, set of splits and largest transient is no worse in everything: of labels that
  differ in the order of equal layers one is left, or
- there are more than `limit` of its kind, or too many of all: then the least bound of those dropped bounds the result.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field, replace

import numpy as np
from numpy.typing import NDArray

from ...cost_models.arrays import Array, Ints
from ...cost_models.layerwise.costs import REDUCE, STEADY, SUMS
from .bounds import Bounds, Stage

_BLOCK = 128  # labels that are compared at once
_MOST = 4000  # labels of all kinds after an item


@dataclass(frozen=True)
class State:
    """Labels after some items: partial plans, by the quantities that the rest of a plan depends on."""

    sums: Array  # [n, SUMS] seconds of the open stage
    resident: Array  # [n] bytes of the open stage
    at_end: Array  # [n] bytes of the open stage in the backward pass of the embedding
    t: Ints  # [n] index of the largest transient of the open stage
    split: Ints  # [n] index of the last item's tp x cp; -1: none
    used: Ints  # [n] bits of all tp x cp of the open stage
    mixed: NDArray[np.bool_]  # [n] whether any two neighbours cut sequences differently
    total: Array  # [n] seconds of the cycles of closed stages
    longest: Array  # [n] seconds of the longest of them
    room: Array  # [n, 2] seconds of forward and backward to hide behind on that stage
    most: Array  # [n, 4] seconds of work once per step, the most of all closed stages
    once_terms_s: Array  # [n] seconds of step.ONCE_TERMS

    @classmethod
    def empty(cls) -> State:
        zero, none = np.zeros(1), np.full(1, -1)
        sums = np.zeros((1, len(SUMS)))
        once = sums[:, REDUCE:]
        return cls(sums, zero, zero, none, none, none * 0, zero > 0, zero, zero, np.zeros((1, 2)), once, zero)

    def take(self, rows: NDArray[np.generic]) -> State:
        return State(*(getattr(self, name)[rows] for name in State.__dataclass_fields__))

    @classmethod
    def joined(cls, parts: Sequence[State]) -> State:
        return cls(*(np.concatenate([getattr(part, name) for part in parts]) for name in cls.__dataclass_fields__))

    @property
    def dimensions(self) -> Array:
        """[n, column] quantities in which a label must be no worse than another to replace it. Columns that are equal
        for all labels are left out."""
        columns = (self.sums, self.resident, self.at_end, self.total, self.longest, -self.room, self.most,
                   self.once_terms_s)  # fmt: skip
        every = np.column_stack(columns)
        return np.asarray(every[:, np.ptp(every, axis=0) > 0]) if len(every) > 1 else every


@dataclass
class LabelSearchResult:
    """The best plan below the threshold, if there is one."""

    rows: tuple[int, ...] | None  # strategies of embedding, layers and head
    step_s: float  # inf without a plan
    lower_bound_s: float  # no plan takes less


@dataclass
class Labels:
    """The dynamic program over the items of one instance."""

    bounds: Bounds
    threshold: float  # seconds: only plans that take less are searched
    limit: int  # labels of one kind after an item
    most: float = np.inf  # labels to form before giving up
    dropped_s: float = np.inf  # seconds: least bound of the labels that a limit dropped
    formed: int = 0  # labels so far
    trail: list[tuple[Ints, Ints]] = field(default_factory=list)  # by item: [n] label before, [n] strategy

    def run(self) -> LabelSearchResult:
        state = State.empty()
        for stage in self.bounds.stages:
            state = replace(state, sums=0.0 * state.sums, resident=0.0 * state.resident, at_end=0.0 * state.at_end,
                            used=0 * state.used)  # fmt: skip
            for position, item in enumerate(stage.items):
                state = self._after(state, stage, position, item)
                if self.formed > self.most:
                    return LabelSearchResult(None, np.inf, self.bounds.step_s)
                if not len(state.resident):
                    return LabelSearchResult(None, np.inf, min(self.dropped_s, self.threshold))
        step_s = self._steps(state)
        at = int(step_s.argmin())
        if step_s[at] >= self.threshold:
            return LabelSearchResult(None, np.inf, min(self.dropped_s, self.threshold))
        return LabelSearchResult(self._traced(at), float(step_s[at]), min(self.dropped_s, float(step_s[at])))

    def _after(self, state: State, stage: Stage, position: int, item: int) -> State:
        """The labels after an item that may lead to the best plan."""
        closes, pieces = position == len(stage.items) - 1, stage.pieces[item]
        parts = []
        worth = self.bounds.worth(stage, item, self.threshold)
        for t in np.flatnonzero(worth.any(axis=1)).tolist():
            labels = np.arange(len(state.t)) if position == 0 else np.flatnonzero(state.t == t)
            allowed = np.flatnonzero(worth[t])
            self.formed += len(labels) * len(allowed)
            if self.formed > self.most:
                break
            before, option, grown = self._expanded(state, labels, stage, t, item, allowed)
            if closes:
                grown = self._closed(grown, stage)
            least = self._least(grown, stage, t, position, closes)
            below = least < self.threshold
            parts.append((before[below], option[below], grown.take(below), least[below]))
        if not parts:
            return state.take(np.zeros(0, dtype=np.int64))
        before, option, least = (np.concatenate([part[i] for part in parts]) for i in (0, 1, 3))
        grown = State.joined([part[2] for part in parts])
        best = self._undominated(grown, least, closes)
        self.trail.append((before[best], pieces.rows[option[best]]))
        return grown.take(best)

    def _expanded(
        self, state: State, labels: Ints, stage: Stage, t: int, item: int, allowed: Ints
    ) -> tuple[Ints, Ints, State]:
        """Each of the `labels` with each of the options `allowed` that fits: index of the label, of the option, and the
        new labels."""
        instance, pieces = self.bounds.instance, stage.pieces[item]
        before, option = np.repeat(labels, len(allowed)), np.tile(allowed, len(labels))
        used = state.used[before] | (1 << pieces.split[option])
        resident = state.resident[before] + pieces.resident[option]
        at_end = state.at_end[before] + pieces.at_end[option]
        fits = np.maximum(resident + stage.transients[t], at_end) <= self._budget(used)
        before, option = before[fits], option[fits]
        last, split = state.split[before], pieces.split[option]
        sums = state.sums[before] + pieces.sums[option]
        sums[:, STEADY] += np.where(last >= 0, instance.resharding_s[last, split], 0.0)
        grown = replace(
            state.take(before), sums=sums, resident=resident[fits], at_end=at_end[fits], t=np.full_like(split, t),
            split=split, used=used[fits], mixed=state.mixed[before] | ((last >= 0) & (last != split)),
            once_terms_s=state.once_terms_s[before] + pieces.once_terms_s[option],
        )  # fmt: skip
        return before, option, grown

    def _budget(self, used: Ints) -> Array:
        """[n] bytes for the tensors of a stage with these splits."""
        instance = self.bounds.instance
        distinct, inverse = np.unique(used, return_inverse=True)
        sets = [instance.splits[[bool(bits >> i & 1) for i in range(len(instance.splits))]] for bits in distinct]
        free = np.array([instance.budget_bytes - instance.outside_bytes(splits) for splits in sets])
        return free[inverse] if len(free) else np.zeros(0)

    def _closed(self, state: State, stage: Stage) -> State:
        """The labels with the open stage added to the closed ones."""
        pipe = replace(self.bounds.pipe, calls=self.bounds.pipe.calls[stage.stage : stage.stage + 1])
        cycles, rooms = pipe.cycle_s(state.sums[:, None])
        cycle, room = cycles[:, 0], rooms[:, 0]
        slower = cycle > state.longest
        return replace(
            state, sums=np.zeros_like(state.sums), resident=np.zeros_like(state.resident),
            at_end=np.zeros_like(state.at_end), t=np.full_like(state.t, -1), total=state.total + cycle,
            longest=np.where(slower, cycle, state.longest),
            room=np.where(slower[:, None], room, state.room), most=np.maximum(state.most, state.sums[:, REDUCE:]),
        )  # fmt: skip

    def _least(self, state: State, stage: Stage, t: int, position: int, closed: bool) -> Array:
        """[n] seconds that no completion of a label beats: the largest of three bounds. They differ in the room that
        the work once per step has to hide: without limit, as in the functions of the open stage, behind the longest
        cycle."""
        bounds, pipe = self.bounds, self.bounds.pipe
        later = bounds.cycle_s[stage.stage + 1 :]
        longest = np.maximum(state.longest, later.max(initial=0.0))
        total, carried = state.total + later.sum(), np.zeros(len(state.resident))
        if not closed:
            room = self._budget(state.used) - stage.transients[t]
            cycle, once = (lines.of(state.sums, state.resident, t, position + 1, room)
                           for lines in (stage.cycle, stage.once))  # fmt: skip
            longest, total = np.maximum(longest, cycle), total + cycle
            carried = once - cycle
        most = np.maximum(state.most, state.sums[:, REDUCE:])
        of_cycles = (pipe.m - 1) * longest + total + pipe.hops_s(total, longest)
        of_cycles = of_cycles + self._once(most, np.full((len(most), 2), np.inf))
        of_stage = total + carried + bounds.least_hops_s
        if bounds.may_hide and (pipe.pp > 1 or pipe.shares is not None):
            hidden = (pipe.m - 1) * longest + total + bounds.least_hops_s
            hidden = hidden + self._once(most, longest[:, None] * bounds.compute_shares)
            of_stage = np.maximum(of_stage, hidden)
        step_s = np.maximum(of_cycles, of_stage) + np.maximum(state.once_terms_s, bounds.once_terms_s)
        step_s = step_s + np.where(state.mixed, 0.0, bounds.instance.mixing_s)
        return np.asarray(step_s * (1.0 + pipe.straggler_share))

    def _once(self, most: Array, room: Array) -> Array:
        return self.bounds.pipe.data_parallel_s(most, room) + most[:, 2] + most[:, 3]

    def _steps(self, state: State) -> Array:
        """[n] seconds of the finished plans."""
        pipe = self.bounds.pipe
        step_s = (pipe.m - 1) * state.longest + state.total + pipe.hops_s(state.total, state.longest)
        step_s = step_s + state.once_terms_s
        return np.asarray((step_s + self._once(state.most, state.room)) * (1.0 + pipe.straggler_share))

    def _undominated(self, state: State, least: Array, closed: bool) -> Ints:
        """The labels that no other of their kind beats, those with the least bounds first, within the limits."""
        by_bound = np.argsort(least, kind="stable")
        used = np.zeros_like(by_bound) if closed else state.used[by_bound]
        kinds = np.stack([state.split[by_bound], used, state.t[by_bound]])
        _, kind = np.unique(kinds, axis=1, return_inverse=True)
        dimensions, out = state.dimensions, []
        for number in range(int(kind.max(initial=-1)) + 1):
            labels = by_bound[kind == number]
            best = frontier(dimensions[labels], self.limit)
            if len(best) == self.limit and best[-1] + 1 < len(labels):
                self.dropped_s = min(self.dropped_s, float(least[labels[best[-1] + 1]]))
            out.append(labels[best])
        undominated = np.concatenate(out) if out else np.zeros(0, dtype=np.int64)
        if len(undominated) > _MOST:
            order = np.argsort(least[undominated], kind="stable")
            self.dropped_s = min(self.dropped_s, float(least[undominated[order[_MOST]]]))
            undominated = undominated[order[:_MOST]]
        return undominated

    def _traced(self, label: int) -> tuple[int, ...]:
        """The strategies of all items of a finished label."""
        rows = []
        for before, strategy in reversed(self.trail):
            rows.append(int(strategy[label]))
            label = int(before[label])
        return tuple(reversed(rows))


def frontier(values: Array, limit: int) -> Ints:
    """The first `limit` rows, in their order, that no earlier row of the result is as good as in every column."""
    front = np.zeros(0, dtype=np.int64)
    slack = 1e-12 * np.abs(values).max(axis=0, initial=0.0)
    for start in range(0, len(values), _BLOCK):
        block = np.arange(start, min(start + _BLOCK, len(values)))
        worse = (values[front][:, None] <= values[block][None] + slack).all(axis=2).any(axis=0)
        block = block[~worse]
        among = (values[block][:, None] <= values[block][None] + slack).all(axis=2)
        block = block[~np.triu(among, 1).any(axis=0)]
        front = np.concatenate([front, block])[:limit]
        if len(front) == limit:
            break
    return front
