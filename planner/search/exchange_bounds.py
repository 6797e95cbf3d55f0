"""Seconds that data parallelism shows at least in the layouts below a node of the search.

A layout either sends the gradients of all its micro-batches together, once per step (ZeRO 0 and 1), or those of every
micro-batch (ZeRO 2 and 3). The least of each term is that of no layout: nothing for a micro-batch, and nothing for the
step. The lesser of both kinds is a higher bound. What is sent depends on no recomputation and no offload, so it is
worked out once for all nodes that share the rest.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property

import numpy as np

from ...cost_models import build_ledger
from ...cost_models.arrays import Array, Ints, Mask, group_rows
from ...cost_models.layouts import Layouts
from ...cost_models.quantities.ledger import Ledger
from ...cost_models.quantities.tables import Tables
from ...cost_models.rates.rates import Rates
from ...cost_models.schedule_kinds import FOLDED
from ...cost_models.step import data_parallel, lower_bounds
from ...cost_models.step.stage_seconds import compute_s
from ...cost_models.step.stragglers import straggler_share
from ..space.rules import Rule
from ..space.tree import Columns, allowed, select
from .branching import Branching

# What is sent once per step depends on these, the ZeRO stage, and whether the schedule is a V: on no switch.
_READ = ("tp", "sequence_parallel", "cp", "ep", "etp", "micro_batch", "pp", "vpp", "dp")
_SCATTERED = 2  # the least ZeRO stage that sends gradients of every micro-batch; stage 3 sends no less


@dataclass(frozen=True)
class ExchangeBounds:
    """Bounds of nodes. limit_s: only bounds within it are raised; infinite: none."""

    branching: Branching
    rates: Rates
    limit_s: float

    def raised(self, seconds: Array, batch: Ledger, level: int) -> Array:
        """[n] bounds of nodes of `level` without what is sent once per step (`lower_bounds.bound` of the relaxed
        batch), raised by it."""
        near = np.flatnonzero(seconds <= self.limit_s) if np.isfinite(self.limit_s) else np.empty(0, np.int64)
        if not len(near):
            return seconds
        nodes = _Nodes(self, batch.tables, select(dict(batch.layouts), near), batch.key[near], level)
        out = seconds.copy()
        out[near] = nodes.raised(seconds[near])
        return out


@dataclass(frozen=True)
class _Nodes:
    """Nodes of one level."""

    bounds: ExchangeBounds
    tables: Tables
    columns: Columns  # relaxed
    key: Ints  # [n] shard key in the tables
    level: int

    def raised(self, seconds: Array) -> Array:
        """[n] `seconds`, raised by what is sent once per step."""
        x, stage = self.columns, self.columns["zero"]
        if self.level == 2:
            return np.asarray(seconds + self._shown_s(stage)[0])
        all_shard = (x["dp"] * x["cp"] > 1).astype(np.int64)
        out = np.asarray(seconds + self._shown_s(np.zeros_like(stage), all_shard).min(axis=0))
        may_scatter = np.flatnonzero(stage >= _SCATTERED)
        scattered_s = seconds[may_scatter]
        # One within the limit is looked at anyway, so its bound as a layout that scatters need not be known.
        slow = out[may_scatter] > self.bounds.limit_s
        if slow.any():
            scattered_s[slow] = self._of(may_scatter[slow])._scattered_s()
        out[may_scatter] = np.minimum(out[may_scatter], scattered_s)
        return out

    def _of(self, rows: Ints) -> _Nodes:
        return _Nodes(self.bounds, self.tables, select(self.columns, rows), self.key[rows], self.level)

    def _scattered_s(self) -> Array:
        """[n] seconds that no layout below with ZeRO 2 or 3 beats."""
        stage = np.full_like(self.key, _SCATTERED)
        ledger = self._ledger({**self.columns, "zero": stage, "offload": np.zeros_like(self.key)}, self.key)
        seconds, _ = lower_bounds.bound(ledger, self.bounds.rates, states_known=False, scattered=True, memory=False)
        return np.asarray(seconds + self._shown_s(stage, scattered=True)[0])

    def _ledger(self, columns: Columns, key: Ints) -> Ledger:
        return build_ledger.build(self.bounds.branching.counts.space.problem, self.tables, Layouts(columns), key)

    @cached_property
    def _hidden_s(self) -> Array:
        """[2, n] seconds of compute, forward and backward, that such traffic hides behind at most. Where recomputation
        is not known there is no limit."""
        if not self.level:
            return np.full((2, len(self.key)), np.inf)
        ledger = self._ledger(self.columns, self.key)
        return np.asarray(data_parallel.window(ledger) * np.array(compute_s(ledger, self.bounds.rates)).max(axis=1))

    def _shown_s(self, *stages: Ints, scattered: bool = False) -> Array:
        """[stage, n] under each of these ZeRO stages [n], seconds that show at least of what is sent once per step, by
        any legal size of the shard group; infinite where none is legal. scattered: or under stage 3 in place of 2,
        which gathers no weights once per step, and may be legal with other sizes."""
        x, number = self.columns, len(self.key)
        _, alike = group_rows((FOLDED[x["schedule"]].astype(np.int64), *(x[name] for name in _READ)))
        stage = np.concatenate(stages)
        first, index = group_rows((np.tile(alike, len(stages)), stage))
        rules = [] if scattered else self.bounds.branching.counts.level_rules["state"]
        columns = {**select(x, first % number), "zero": stage[first]}
        legal, sent = self._least_sent(columns, self.key[first % number], rules)
        shown, stack = np.zeros((len(stages), number)), self.bounds.rates.stack
        for share, *both in sent:
            reduce_s, gather_s = (seconds[index].reshape(shown.shape) for seconds in both)
            shown += share * data_parallel.shown_s(stack, reduce_s, gather_s * (not scattered), *self._hidden_s)
        return np.where(legal[index].reshape(shown.shape), shown, np.inf)

    def _least_sent(
        self, columns: Columns, key: Ints, rules: Sequence[Rule]
    ) -> tuple[Mask, list[tuple[float, Array, Array]]]:  # fmt: skip
        """[n] whether some size of the shard group is legal; of each part of the traffic, the share of all steps that
        it has, and [n] seconds of reducing gradients and of gathering weights, each with the size that makes it least.
        Stragglers are counted."""
        branching = self.bounds.branching
        every = branching.shards({**columns, "_key": key, "_row": np.arange(len(key))})
        every = select(every, allowed(rules, every, branching.counts.space.problem))
        starts = np.flatnonzero(np.diff(every["_row"], prepend=-1))
        legal = np.zeros(len(key), dtype=bool)
        legal[every["_row"]] = True
        if not len(starts):
            return legal, []
        ledger, sent = self._ledger(every, every["_key"]), []
        for traffic in ledger.traffic:
            both = np.zeros((2, len(key)))
            exchanged_s = np.array(data_parallel.once_per_step_s(ledger, self.bounds.rates, traffic))
            both[:, legal] = np.minimum.reduceat(exchanged_s, starts, axis=1)
            sent.append((traffic.share * (1 + straggler_share(ledger)), *both))
        return legal, sent
