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

_BLOCK = 128
_MOST = 4000  # labels of all kinds


@dataclass(frozen=True)
class State:
    """Labels [n] after some items. sums [n, SUMS], held, at_end: of the open stage; t: index of its largest transient;
    split: index of the last item's (-1: none), used: bits of those of the stage; mixed: whether any differed. Of closed
    stages: total and longest cycle, room [n, 2] to hide behind the slowest, most [n, 4] of what is done once."""

    sums: Array
    held: Array
    at_end: Array
    t: Ints
    split: Ints
    used: Ints
    mixed: NDArray[np.bool_]
    total: Array
    longest: Array
    room: Array
    most: Array
    once_terms_s: Array

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
        """[n, column] what a label must be no worse in to take another's place."""
        columns = (self.sums, self.held, self.at_end, self.total, self.longest, -self.room, self.most,
                   self.once_terms_s)  # fmt: skip
        every = np.column_stack(columns)
        return np.asarray(every[:, np.ptp(every, axis=0) > 0]) if len(every) > 1 else every


@dataclass
class LabelSearchResult:
    """The best plan below the threshold, if there is one: strategies of embedding, layers and head. No plan is below
    lower_bound_s."""

    rows: tuple[int, ...] | None
    step_s: float
    lower_bound_s: float


@dataclass
class Labels:
    """The dynamic program over the items of one instance; `threshold`: only plans that take less are looked for."""

    bounds: Bounds
    threshold: float
    limit: int
    most: float = np.inf  # labels to look at before giving up
    dropped_s: float = np.inf
    looked_at: int = 0
    trail: list[tuple[Ints, Ints]] = field(default_factory=list)  # of every item: label before, strategy

    def run(self) -> LabelSearchResult:
        state = State.empty()
        for stage in self.bounds.stages:
            state = replace(state, sums=0.0 * state.sums, held=0.0 * state.held, at_end=0.0 * state.at_end,
                            used=0 * state.used)  # fmt: skip
            for position, item in enumerate(stage.items):
                state = self._after(state, stage, position, item)
                if self.looked_at > self.most:
                    return LabelSearchResult(None, np.inf, self.bounds.step_s)
                if not len(state.held):
                    return LabelSearchResult(None, np.inf, min(self.dropped_s, self.threshold))
        step_s = self._steps(state)
        at = int(step_s.argmin())
        if step_s[at] >= self.threshold:
            return LabelSearchResult(None, np.inf, min(self.dropped_s, self.threshold))
        return LabelSearchResult(self._traced(at), float(step_s[at]), min(self.dropped_s, float(step_s[at])))

    def _after(self, state: State, stage: Stage, position: int, item: int) -> State:
        """The labels worth going on with after an item."""
        closes, pieces = position == len(stage.items) - 1, stage.pieces[item]
        parts = []
        worth = self.bounds.worth(stage, item, self.threshold)
        for t in np.flatnonzero(worth.any(axis=1)).tolist():
            mine = np.arange(len(state.t)) if position == 0 else np.flatnonzero(state.t == t)
            allowed = np.flatnonzero(worth[t])
            self.looked_at += len(mine) * len(allowed)
            if self.looked_at > self.most:
                break
            before, option, grown = self._expanded(state, mine, stage, t, item, allowed)
            if closes:
                grown = self._closed(grown, stage)
            least = self._least(grown, stage, t, position, closes)
            below = least < self.threshold
            parts.append((before[below], option[below], grown.take(below), least[below]))
        if not parts:
            return state.take(np.zeros(0, dtype=np.int64))
        before, option, least = (np.concatenate([part[i] for part in parts]) for i in (0, 1, 3))
        grown = State.joined([part[2] for part in parts])
        kept = self._kept(grown, least, closes)
        self.trail.append((before[kept], pieces.rows[option[kept]]))
        return grown.take(kept)

    def _expanded(
        self, state: State, mine: Ints, stage: Stage, t: int, item: int, allowed: Ints
    ) -> tuple[Ints, Ints, State]:
        """The labels `mine` with each of the options `allowed` that fits: index of the label, of the option, and the
        labels."""
        instance, pieces = self.bounds.instance, stage.pieces[item]
        before, option = np.repeat(mine, len(allowed)), np.tile(allowed, len(mine))
        split = pieces.split[option]
        used, held = state.used[before] | (1 << split), state.held[before] + pieces.held[option]
        at_end = state.at_end[before] + pieces.at_end[option]
        fits = np.maximum(held + stage.transients[t], at_end) <= self._budget(used)
        before, option, split, used, held, at_end = (x[fits] for x in (before, option, split, used, held, at_end))
        old, sums = state.split[before], state.sums[before] + pieces.sums[option]
        sums[:, STEADY] += np.where(old >= 0, instance.resharding_s[old, split], 0.0)
        grown = replace(
            state.take(before), sums=sums, held=held, at_end=at_end, t=np.full_like(split, t), split=split, used=used,
            mixed=state.mixed[before] | ((old >= 0) & (old != split)),
            once_terms_s=state.once_terms_s[before] + pieces.once_terms_s[option],
        )  # fmt: skip
        return before, option, grown

    def _budget(self, used: Ints) -> Array:
        """[n] bytes for the tensors of a stage with these splits."""
        instance = self.bounds.instance
        distinct, inverse = np.unique(used, return_inverse=True)
        sets = [instance.splits[[bool(bits >> i & 1) for i in range(len(instance.splits))]] for bits in distinct]
        free = np.array([instance.budget_bytes - instance.outside_bytes(one) for one in sets])
        return free[inverse] if len(free) else np.zeros(0)

    def _closed(self, state: State, stage: Stage) -> State:
        """The labels with the open stage added to the closed ones."""
        pipe = replace(self.bounds.pipe, calls=self.bounds.pipe.calls[stage.stage : stage.stage + 1])
        cycles, rooms = pipe.cycle_s(state.sums[:, None])
        cycle, room = cycles[:, 0], rooms[:, 0]
        slower = cycle > state.longest
        return replace(
            state, sums=np.zeros_like(state.sums), held=np.zeros_like(state.held), at_end=np.zeros_like(state.at_end),
            t=np.full_like(state.t, -1), total=state.total + cycle, longest=np.where(slower, cycle, state.longest),
            room=np.where(slower[:, None], room, state.room), most=np.maximum(state.most, state.sums[:, REDUCE:]),
        )  # fmt: skip

    def _least(self, state: State, stage: Stage, t: int, position: int, closed: bool) -> Array:
        """[n] seconds that no completion of a label beats."""
        bounds, pipe = self.bounds, self.bounds.pipe
        later = bounds.cycle_s[stage.stage + 1 :]
        longest = np.maximum(state.longest, later.max(initial=0.0))
        total, carried = state.total + later.sum(), np.zeros(len(state.held))
        if not closed:
            room = self._budget(state.used) - stage.transients[t]
            cycle, once = (one.of(state.sums, state.held, t, position + 1, room) for one in (stage.cycle, stage.once))
            longest, total, carried = np.maximum(longest, cycle), total + cycle, once - cycle
        most = np.maximum(state.most, state.sums[:, REDUCE:])
        apart = (pipe.m - 1) * longest + total + pipe.hops_s(total, longest)
        apart = apart + self._once(most, np.full((len(most), 2), np.inf))
        together = total + carried + bounds.least_hops_s
        if bounds.may_hide and (pipe.pp > 1 or pipe.shares is not None):
            hidden = (pipe.m - 1) * longest + total + bounds.least_hops_s
            hidden = hidden + self._once(most, longest[:, None] * bounds.compute_shares)
            together = np.maximum(together, hidden)
        found = np.maximum(apart, together) + np.maximum(state.once_terms_s, bounds.once_terms_s)
        found = found + np.where(state.mixed, 0.0, bounds.instance.mixing_s)
        return np.asarray(found * (1.0 + pipe.straggler_share))

    def _once(self, most: Array, room: Array) -> Array:
        return self.bounds.pipe.once_s(most[:, 0], most[:, 1], room) + most[:, 2] + most[:, 3]

    def _steps(self, state: State) -> Array:
        """[n] seconds of the finished plans."""
        pipe = self.bounds.pipe
        step_s = (pipe.m - 1) * state.longest + state.total + pipe.hops_s(state.total, state.longest)
        step_s = step_s + state.once_terms_s
        return np.asarray((step_s + self._once(state.most, state.room)) * (1.0 + pipe.straggler_share))

    def _kept(self, state: State, least: Array, closed: bool) -> Ints:
        """Of labels of one kind, those that no other beats, bounds first."""
        at = np.argsort(least, kind="stable")
        used = np.zeros_like(at) if closed else state.used[at]
        kinds = np.stack([state.split[at], used, state.t[at]])
        _, kind = np.unique(kinds, axis=1, return_inverse=True)
        dimensions, out = state.dimensions, []
        for each in range(int(kind.max(initial=-1)) + 1):
            mine = at[kind == each]
            best = frontier(dimensions[mine], self.limit)
            if len(best) == self.limit and best[-1] + 1 < len(mine):
                self.dropped_s = min(self.dropped_s, float(least[mine[best[-1] + 1]]))
            out.append(mine[best])
        kept = np.concatenate(out) if out else np.zeros(0, dtype=np.int64)
        if len(kept) > _MOST:
            order = np.argsort(least[kept], kind="stable")
            self.dropped_s = min(self.dropped_s, float(least[kept[order[_MOST]]]))
            kept = kept[order[:_MOST]]
        return kept

    def _traced(self, label: int) -> tuple[int, ...]:
        rows = []
        for before, strategy in reversed(self.trail):
            rows.append(int(strategy[label]))
            label = int(before[label])
        return tuple(reversed(rows))


def frontier(values: Array, limit: int) -> Ints:
    """The first `limit` rows, in their order, that no earlier kept one is no worse than in every column."""
    kept = np.zeros(0, dtype=np.int64)
    slack = 1e-12 * np.abs(values).max(axis=0, initial=0.0)
    for start in range(0, len(values), _BLOCK):
        block = np.arange(start, min(start + _BLOCK, len(values)))
        worse = (values[kept][:, None] <= values[block][None] + slack).all(axis=2).any(axis=0)
        block = block[~worse]
        among = (values[block][:, None] <= values[block][None] + slack).all(axis=2)
        block = block[~np.triu(among, 1).any(axis=0)]
        kept = np.concatenate([kept, block])[:limit]
        if len(kept) == limit:
            break
    return kept
