"""Lower bounds of a step over all assignments of strategies to the layers of a pipeline: Lagrangian, stage by stage.

A stage is hard to bound for two reasons: hidden seconds are a minimum, `min(a, b)`, and all items share the memory.

- Hidden seconds are at most a, and at most b. So for either choice of the side, a step is at least a linear function of
  the sums of a stage.
- The memory constraint is moved into the objective: bytes above the room cost l seconds each, with a multiplier l >= 0
  (Lagrangian relaxation). Any l gives a lower bound.

A linear function of sums is least where every item takes its own best option. So no plan in which the largest transient
of a stage is t is below

    max over sides and multipliers l of  sum over items min over options up to t (cost + l x resident) - l x (room - t)

and the best multiplier makes it the linear relaxation of the stage. The bound is the least over t.
"""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass
from functools import cached_property
from itertools import product

import numpy as np
from numpy.typing import NDArray

from ...cost_models.arrays import Array
from ...cost_models.layerwise.costs import (
    CAST,
    GATHER,
    GATHERING,
    REDUCE,
    SCATTERING,
    STEADY,
    SUMS,
    UPDATE,
    B,
    F,
    LayerwisePipeline,
)
from ...cost_models.quantities.stages import HEAD
from .space import Instance, Pieces

_HALVINGS = 30
_NEVER = 1e30  # seconds of an option that no plan can have
_SIDES = 3  # linear functions of a stage that are used, the highest
# Multipliers, relative to the best one of a whole stage. The rest of a stage may have another best one.
_MULTIPLIERS = (0.8, 1.0, 1.25)


@dataclass(frozen=True)
class Lines:
    """Linear functions below the seconds of a stage, for every largest transient t."""

    weights: Array  # [line, SUMS] of its sums
    price: Array  # [t, line] seconds per byte: the multipliers
    remaining: Array  # [item + 1, t, line] seconds of all items from each on, at least

    def of(self, sums: Array, resident: Array, t: int, position: int, room: Array) -> Array:
        """[n] bound of a stage with sums [n, SUMS] and resident bytes [n] of the items before `position`."""
        lines = sums @ self.weights.T + (resident - room)[:, None] * self.price[t] + self.remaining[position, t]
        return np.asarray(lines.max(axis=1))


class Stage:
    """Bounds of one stage of an instance.

    transients: [t] values of its largest transient. Unless these are `separate`, there is one, the least of all
    options, which stands for all. room: [t] bytes beside it.
    """

    def __init__(
        self, bounds: Bounds, stage: int, items: list[int], pieces: dict[int, Pieces], *, separate: bool
    ) -> None:
        self.bounds = bounds
        self.stage = stage
        self.items = items
        self.pieces = pieces
        instance = bounds.instance
        least = max((p.transient.min(initial=np.inf) for p in pieces.values()), default=np.inf)
        every = np.unique(np.concatenate([p.transient for p in pieces.values()]))
        self.transients = every[every >= least] if separate else np.array([least])
        self.allowed = {item: p.transient <= self.transients[:, None] if separate else np.ones((1, len(p.rows)), bool)
                        for item, p in pieces.items()}  # fmt: skip
        self.room = instance.budget_bytes - bounds.outside_bytes - self.transients
        if len(self.transients):
            resident, at_end = (
                np.sum([np.where(self.allowed[i], getattr(pieces[i], name), np.inf).min(axis=1) for i in items], axis=0)
                for name in ("resident", "at_end")
            )
            possible = (resident <= self.room) & (at_end <= self.room + self.transients)
            self.transients, self.room = self.transients[possible], self.room[possible]
            self.allowed = {item: mask[possible] for item, mask in self.allowed.items()}
        self.fits = len(self.transients) > 0

    @cached_property
    def cycle(self) -> Lines:
        """Functions below the seconds of a micro-batch."""
        return self._lines(self._cycle_sides())

    @cached_property
    def once(self) -> Lines:
        """Functions below the seconds of m micro-batches and of the work once per step."""
        return self._lines(self._step_sides())

    @cached_property
    def cycle_s(self) -> float:
        """Seconds of a micro-batch, at least."""
        return float(self.whole(self.cycle).min()) if self.fits else np.inf

    def whole(self, lines: Lines) -> Array:
        """[t] bound of the stage."""
        return np.asarray((lines.remaining[0] - lines.price * self.room[:, None]).max(axis=1))

    def forced(self, lines: Lines, item: int) -> Array:
        """[t, o] bound of the stage if an item of this kind takes each option."""
        options = self._priced(lines.weights, lines.price, item)
        whole = lines.remaining[0] - lines.price * self.room[:, None]
        forced = (whole[..., None] + options - options.min(axis=2, keepdims=True)).max(axis=1)
        return np.asarray(np.minimum(forced, _NEVER))

    def _priced(self, weights: Array, price: Array, item: int) -> Array:
        """[t, line, o] cost of every option, infinite where it is not allowed."""
        pieces = self.pieces[item]
        cost = (pieces.sums @ weights.T).T + price[..., None] * pieces.resident
        return np.where(self.allowed[item][:, None], cost, np.inf)

    def _lines(self, sides: Array) -> Lines:
        """The sides, each at its best multiplier and at some near it; of many sides the highest."""
        price = self._multipliers(sides)
        values = (self._remaining(sides, price)[0] - price * self.room[:, None]).min(axis=0)
        best = np.argsort(-values, kind="stable")[:_SIDES]
        weights, price = sides[best], price[:, best]
        if (price > 0).any():
            weights = np.tile(weights, (len(_MULTIPLIERS), 1))
            price = np.concatenate([factor * price for factor in _MULTIPLIERS], axis=1)
        return Lines(weights, price, self._remaining(weights, price))

    def _remaining(self, weights: Array, price: Array) -> Array:
        """[item + 1, t, line] sums from each item on, of the least cost of each item."""
        least = {item: self._priced(weights, price, item).min(axis=2) for item in self.pieces}
        rows = np.array([*(least[item] for item in self.items), np.zeros_like(price)])
        return np.asarray(rows[::-1].cumsum(axis=0)[::-1])

    def _multipliers(self, sides: Array) -> Array:
        """[t, side] the multiplier with the highest bound.

        The bound is concave in the multiplier. Its slope is the bytes above the room of the options that are best at
        that multiplier. So the search halves towards the point where these bytes change sign.
        """
        options = [(n, np.where(self.allowed[item][:, None], (self.pieces[item].sums @ sides.T).T, np.inf),
                    self.pieces[item].resident) for item, n in Counter(self.items).items()]  # fmt: skip

        def excess(price: Array) -> Array:
            needed = sum(n * resident[(cost + price[..., None] * resident).argmin(axis=2)]
                         for n, cost, resident in options)  # fmt: skip
            return np.asarray(needed) - self.room[:, None]

        low = np.zeros((len(self.transients), len(sides)))
        tight = excess(low) > 0
        if not tight.any():
            return low
        spread = max(float(np.ptp(self.pieces[item].sums @ sides.T)) for item in self.pieces)
        high = np.full_like(low, spread / (1e-4 * self.room.max()))
        for _ in range(_HALVINGS):
            middle = (low + high) / 2
            over = excess(middle) > 0
            low, high = np.where(over, middle, low), np.where(over, high, middle)
        return np.where(tight, high, 0.0)

    def _cycle_sides(self) -> Array:
        """[side, SUMS] weights of a cycle. The traffic of sharded states hides as far as its share, or behind all
        compute. A side that the stage can never be on is left out."""
        stack = self.bounds.pipe.rates.stack
        slows, calls = 1.0 - stack.contention, self.bounds.pipe.calls[self.stage]
        share = min(stack.fsdp_overlap, 1.0 - 1.0 / calls)
        choices, numbers = [], Counter(self.items).items()
        for compute, traffic in ((F, GATHERING), (B, SCATTERING)):
            spare = {item: p.sums[:, compute] - share * p.sums[:, traffic] for item, p in self.pieces.items()}
            least, most = (sum(n * float(f(spare[item])) for item, n in numbers) for f in (np.min, np.max))
            choices.append([(traffic, slows * share)] * (most >= 0) + [(compute, slows)] * (least < 0))
        sides = []
        for chosen in product(*choices):
            side = np.zeros(len(SUMS))
            side[[F, B, STEADY, GATHERING, SCATTERING]] = 1.0
            for column, hidden in chosen:
                side[column] -= hidden
            sides.append(side)
        return np.array(sides)

    def _step_sides(self) -> Array:
        """[side, SUMS] weights of m cycles and of the work once per step. Its communication hides as far as its share,
        or behind all compute of a micro-batch."""
        pipe = self.bounds.pipe
        shares = self.bounds.compute_shares
        sides = []
        stack, slows = pipe.rates.stack, 1.0 - pipe.rates.stack.contention
        overlaps = ((REDUCE, stack.dp_overlap, B, 1), (GATHER, stack.dp_gather_overlap, F, 0))
        for cycle in self._cycle_sides():
            for by_compute in product((False, True), repeat=2):
                if any(by_compute) and (pipe.pp > 1 or pipe.shares is not None) and not self.bounds.may_hide:
                    continue
                side = pipe.m * cycle
                side[[REDUCE, GATHER, UPDATE, CAST]] = 1.0
                for (column, share, compute, direction), limited in zip(overlaps, by_compute, strict=True):
                    if not limited:
                        side[column] -= slows * share
                    elif pipe.pp == 1 and pipe.shares is None:
                        side[compute] -= slows
                    else:
                        side = side - slows * shares[direction] * cycle
                sides.append(side)
        return np.array(sides)


class Bounds:
    """Bounds of one instance. step_s: no plan of it takes less; inf where none fits. separate: one bound for every
    largest transient, which is tighter and takes longer."""

    def __init__(
        self, instance: Instance, pieces: list[dict[int, Pieces]] | None = None, *, separate: bool = False,
        items: list[list[int]] | None = None, pipe: LayerwisePipeline | None = None,
    ) -> None:  # fmt: skip
        self.instance, self.pipe = instance, pipe or instance.pipeline
        self.items = items or instance.items
        self.pieces = pieces or [{item: instance.pieces(s, item) for item in set(row)}
                                 for s, row in enumerate(self.items)]  # fmt: skip
        self.outside_bytes = instance.least_outside_bytes
        self.fits = all(len(p.rows) for of_stage in self.pieces for p in of_stage.values())
        self.step_s = np.inf
        self.cycle_s = np.zeros(0)
        self.stages = list[Stage]()
        if not self.fits:
            return
        parts = enumerate(zip(self.items, self.pieces, strict=True))
        self.stages = [Stage(self, s, row, of_stage, separate=separate) for s, (row, of_stage) in parts]
        self.fits = all(stage.fits for stage in self.stages)
        if self.fits:
            last = self.pieces[-1]
            self.once_terms_s = float(last[HEAD].once_terms_s.min()) if HEAD in last else 0.0
            self.cycle_s = np.array([stage.cycle_s for stage in self.stages])
            self.step_s = self._of_step()

    def again(self, threshold: float) -> Bounds:
        """Tighter bounds for plans below `threshold`: only options that such a plan may have, and separate transients.
        """
        remaining = []
        for stage in self.stages:
            worth = {item: np.asarray(self.worth(stage, item, threshold).any(axis=0)) for item in stage.pieces}
            remaining.append({item: pieces.take(worth[item]) for item, pieces in stage.pieces.items()})
        return Bounds(self.instance, remaining, separate=True, items=self.items, pipe=self.pipe)

    @cached_property
    def compute_shares(self) -> Array:
        """[2] the most of a cycle that can be forward, and backward, compute."""
        if self.pipe.shares is not None:
            return self.pipe.shares
        every = np.concatenate([p.sums for pieces in self.pieces for p in pieces.values()])
        return np.asarray((every[:, [F, B]] / np.maximum(every[:, [F, B]].sum(axis=1), 1e-30)[:, None]).max(axis=0))

    @cached_property
    def may_hide(self) -> bool:
        """Whether a longer cycle always makes a step longer, although more work once per step hides behind it."""
        return self.pipe.m - 1 >= (1.0 - self.pipe.rates.stack.contention) * float(self.compute_shares.sum())

    @property
    def least_hops_s(self) -> float:
        """Seconds of messages in every step: once through the pipeline and back."""
        return 2.0 * (self.pipe.pp - 1) * self.pipe.hop_s

    def _of_step(self) -> float:
        slowest = self.stages[int(self.cycle_s.argmax())]
        return float(self._step(slowest, np.asarray(slowest.cycle_s), slowest.whole(slowest.once).min()))

    def _step(self, stage: Stage, cycle_s: Array, once_s: Array) -> Array:
        """Seconds of a step, at least, whose `stage` takes cycle_s, or once_s with its work once per step. Two bounds
        hold: the pipeline of cycles, and this stage alone with its work once per step. The larger counts."""
        others = np.delete(self.cycle_s, stage.stage)
        longest, total = np.maximum(cycle_s, others.max(initial=0.0)), cycle_s + others.sum()
        of_cycles = (self.pipe.m - 1) * longest + total + self.pipe.hops_s(np.asarray(total), np.asarray(longest))
        of_stage = others.sum() + once_s + self.least_hops_s
        step_s = np.maximum(of_cycles, of_stage) + self.once_terms_s + self.instance.mixing_s
        return np.asarray(step_s * (1.0 + self.pipe.straggler_share))

    def worth(self, stage: Stage, item: int, threshold: float) -> NDArray[np.bool_]:
        """[t, o] options of an item that a plan below `threshold` may have, by the largest transient of the stage."""
        least = self._step(stage, stage.forced(stage.cycle, item), stage.forced(stage.once, item))
        return np.asarray(least < threshold)
