"""Lower bounds on the exposed seconds of data parallelism below a node of the search.

A layout sends gradients once per step (ZeRO 0 and 1) or once per micro-batch (ZeRO 2 and 3). Minimising each term
separately would give zero for both. The minimum over the two kinds is a tighter bound. The messages do not depend on
recomputation and offload, so they are computed once for all nodes that share the other fields.
"""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from functools import cached_property

import numpy as np

from ...cost_models import build_ledger
from ...cost_models.arrays import Array, Ints, group_rows
from ...cost_models.layouts import Layouts
from ...cost_models.problem import Problem
from ...cost_models.quantities.ledger import Ledger
from ...cost_models.quantities.tables import Tables
from ...cost_models.rates.rates import Rates
from ...cost_models.schedule_kinds import FOLDED
from ...cost_models.specs.stack import StackSpec
from ...cost_models.step import data_parallel, lower_bounds, reserved_memory
from ...cost_models.step.optimizer_seconds import least_optimizer_s
from ...cost_models.step.stage_seconds import compute_s
from ...cost_models.step.stragglers import straggler_share_of
from ..space.tree import Columns, allowed, select
from .branching import Branching, alike
from .top_k import TIE

# Messages per step and the optimizer depend on these fields and on whether the schedule is a V, not on switches.
_READ = ("tp", "sequence_parallel", "cp", "ep", "etp", "micro_batch", "pp", "vpp", "dp", "offload")
_WORTH, _LEFT_OUT = 0.1, 8  # share of cut nodes that justifies the work; skipped batches between two trials
_LATE = 0.3  # weight of the last batch in the moving average of cut nodes
_STAYS = 1 - TIE  # bytes are summed in another order here than in the price of a layout
_SCATTERED = 2  # the lowest ZeRO stage with gradient messages per micro-batch; stage 3 sends no less


@dataclass(eq=False)
class CutShares:
    """Moving average, by level, of the share of nodes that raised bounds cut.

    Where it is small, few batches are tried; later batches may differ from the first.
    """

    of_level: dict[int, float] = field(default_factory=dict)
    left_out: dict[int, int] = field(default_factory=dict)  # batches since the last trial

    def asks(self, level: int) -> bool:
        """Whether bounds of the next batch are raised."""
        if self.of_level.get(level, 1.0) >= _WORTH or self.left_out.get(level, 0) >= _LEFT_OUT:
            self.left_out[level] = 0
            return True
        self.left_out[level] = self.left_out.get(level, 0) + 1
        return False

    def learn(self, level: int, cut: float) -> None:
        """Add the cut share of a batch."""
        known = self.of_level.get(level, cut)
        self.of_level[level] = known + _LATE * (cut - known)


@dataclass(frozen=True)
class ExchangeBounds:
    """Bounds of nodes. memory_bytes: per GPU. limit_s: only bounds up to it are raised; infinite: none."""

    branching: Branching
    rates: Rates
    memory_bytes: float
    limit_s: float
    cut_shares: CutShares

    @property
    def problem(self) -> Problem:
        return self.branching.counts.space.problem

    @property
    def scattering(self) -> int:
        """The lowest ZeRO stage of any layout that sends gradients per micro-batch."""
        some = self.branching.counts.num_shards.table[:, _SCATTERED:].any(axis=0)
        return _SCATTERED + int(some.argmax())

    @property
    def all_scatter(self) -> bool:
        """Whether every layout sends gradients per micro-batch."""
        return not self.branching.counts.num_shards.table[:, :_SCATTERED].any()

    def raised(self, seconds: Array, batch: Ledger, level: int) -> Array:
        """[n] bounds of nodes of `level`, raised by the messages per step.

        bounds: without these messages (`lower_bounds.bound` of the relaxed batch).
        """
        near = np.flatnonzero(seconds <= self.limit_s) if np.isfinite(self.limit_s) else np.empty(0, np.int64)
        if not len(near) or not self.cut_shares.asks(level):
            return seconds
        columns = {**batch.layouts.columns, **({} if batch.unlike is None else {"_node": batch.unlike.row})}
        nodes = _Nodes(self, batch.tables, select(columns, near), batch.key[near], level)
        out = seconds.copy()
        raised = nodes.raised(seconds[near])
        # If no layout fits, the memory cuts handle it.
        out[near] = np.where(np.isfinite(raised), raised, seconds[near])
        self.cut_shares.learn(level, float((out[near] > self.limit_s).mean()))
        return out


@dataclass(frozen=True)
class _Sizes:
    """Groups of nodes, with every legal size of the shard group for which the states fit."""

    group: Ints  # [n] of the nodes
    number: Ints  # [group] sizes
    size: Ints  # [k] sizes of all groups, concatenated
    sent: list[tuple[float, Array, Array]]  # share of steps, [k] seconds of reductions, [k] of gathers
    update_s: Array  # [k] seconds of the optimizer

    @property
    def least(self) -> Ints:
        """[n] the smallest size; 0 without one."""
        out, some = np.zeros(len(self.number), np.int64), self.number > 0
        if some.any():
            out[some] = np.minimum.reduceat(self.size, (np.cumsum(self.number) - self.number)[some])
        return out[self.group]

    def least_s(self, stack: StackSpec, group: Ints, hidden_s: Array) -> Array:
        """[r] exposed seconds of the messages per step and the optimizer, at least, for rows of these groups.

        hidden_s [2, r]: seconds of compute that hide messages. Infinite without a size.
        """
        start, number = np.cumsum(self.number) - self.number, self.number[group]
        row, before = np.repeat(np.arange(len(group)), number), np.cumsum(number) - number
        at = np.arange(len(row)) + np.repeat(start[group] - before, number)
        once_s, hidden_s = self.update_s[at], hidden_s[:, row]
        for share, reduce_s, gather_s in self.sent:
            once_s += share * data_parallel.shown_s(stack, reduce_s[at], gather_s[at], *hidden_s)
        least, some = np.full(len(group), np.inf), number > 0
        if some.any():
            least[some] = np.minimum.reduceat(once_s, before[some])
        return least


@dataclass(frozen=True)
class _Nodes:
    """Nodes of one level."""

    bounds: ExchangeBounds
    tables: Tables
    columns: Columns  # relaxed
    key: Ints  # [n] shard key in the tables
    level: int

    def raised(self, seconds: Array) -> Array:
        """[n] `seconds`, raised by messages per step and by large minimum shard groups; infinite where nothing fits."""
        x, stage = self.columns, self.columns["zero"]
        may_scatter = np.flatnonzero(stage >= _SCATTERED)
        if self.level == 2:
            sizes = self._sizes(stage)
            if len(may_scatter):
                seconds[may_scatter] = self._of(may_scatter)._bound(sizes.least[may_scatter])
            return seconds + self._once_s(sizes)
        if self.bounds.all_scatter:
            if len(may_scatter):
                seconds[may_scatter] = self._of(may_scatter)._scattered_s()
            return seconds
        all_shard = (x["dp"] * x["cp"] > 1).astype(np.int64)
        once_s = [self._once_s(self._sizes(one)) for one in (np.zeros_like(stage), all_shard)]
        out = seconds + np.minimum(*once_s)
        scattered_s = seconds[may_scatter]
        # A node within the limit is expanded anyway, so its bound for scattering layouts is not needed.
        slow = out[may_scatter] > self.bounds.limit_s
        if slow.any():
            scattered_s[slow] = self._of(may_scatter[slow])._scattered_s()
        out[may_scatter] = np.minimum(out[may_scatter], scattered_s)
        return out

    def _of(self, rows: Ints) -> _Nodes:
        return replace(self, columns=select(self.columns, rows), key=self.key[rows])

    def _scattered_s(self) -> Array:
        """[n] lower bound on the seconds of descendant layouts with ZeRO 2 or 3."""
        stage = np.full_like(self.key, self.bounds.scattering)
        sizes = self._sizes(stage, scattered=True)
        sending = replace(self, columns={**self.columns, "zero": stage, "offload": np.zeros_like(stage)})
        return sending._bound(sizes.least, scattered=True) + sending._once_s(sizes)

    def _bound(self, least_shard: Ints, *, scattered: bool = False) -> Array:
        """[n] the bound without messages per step, for shard groups of at least these sizes."""
        ledger, known = self._ledger(self.columns, self.key), self.level == 2
        return lower_bounds.bound(ledger, self.bounds.rates, states_known=known, scattered=scattered, memory=False,
                                  least_shard=least_shard)[0]  # fmt: skip

    def _ledger(self, columns: Columns, key: Ints) -> Ledger:
        return build_ledger.build(self.bounds.problem, self.tables, Layouts(columns), key, alike=alike(columns))

    @cached_property
    def _hidden_s(self) -> Array:
        """[2, n] forward and backward compute seconds that hide such traffic; unlimited if recomputation is open."""
        if not self.level:
            return np.full((2, len(self.key)), np.inf)
        ledger = self._ledger(self.columns, self.key)
        return np.asarray(data_parallel.window(ledger) * np.array(compute_s(ledger, self.bounds.rates)).max(axis=1))

    def _once_s(self, sizes: _Sizes) -> Array:
        """[n] minimum seconds of the messages per step, and of the optimizer beyond those in the bound."""
        problem, stack, group = self.bounds.problem, self.bounds.rates.stack, sizes.group
        if self.level:
            least_s = sizes.least_s(stack, group, self._hidden_s)
        else:  # the same for all nodes of a group
            least_s = sizes.least_s(stack, np.arange(len(sizes.number)), np.full((2, len(sizes.number)), np.inf))[group]
        first, alike = self._alike(self.columns["zero"])
        counted_s = self._update_s(self._ledger(select(self.columns, first), self.key[first]))[alike]
        return np.asarray((1 + straggler_share_of(problem.stack, problem.num_gpus)) * (least_s - counted_s))

    def _alike(self, stage: Ints) -> tuple[Ints, Ints]:
        """Groups of nodes with equal messages per step under a ZeRO stage; see `group_rows`."""
        x = self.columns
        return group_rows((FOLDED[x["schedule"]].astype(np.int64), stage, *(x[name] for name in _READ)))

    def _sizes(self, stage: Ints, *, scattered: bool = False) -> _Sizes:
        """The sizes under these ZeRO stages.

        scattered: the stage of the node replaces 2. It gathers no weights per step, holds fewer bytes, and may be legal
        with other sizes.
        """
        first, group = self._alike(stage)
        branching, problem = self.bounds.branching, self.bounds.problem
        columns = {name: column for name, column in self.columns.items() if name != "_node"}  # all of them differ
        rows = {**select(columns, first), "_key": self.key[first], "_row": np.arange(len(first))}
        every = branching.shards({**rows, "_zero": rows["zero"] if scattered else stage[first], "zero": stage[first]})
        every = select(every, allowed([] if scattered else branching.counts.level_rules["state"], every, problem))
        held = reserved_memory.least_bytes(self._ledger({**every, "zero": every["_zero"]}, every["_key"]),
                                           self.bounds.rates) if len(every["_key"]) else np.empty(0)  # fmt: skip
        every = select(every, held * _STAYS <= self.bounds.memory_bytes)
        number = np.bincount(every["_row"], minlength=len(first))
        if not len(every["_key"]):
            return _Sizes(group, number, every["shard"], [], np.empty(0))
        ledger, sent = self._ledger(every, every["_key"]), []
        for traffic in ledger.traffic:
            reduce_s, gather_s = data_parallel.once_per_step_s(ledger, self.bounds.rates, traffic)
            sent.append((traffic.share, reduce_s, gather_s * (not scattered)))
        return _Sizes(group, number, every["shard"], sent, self._update_s(ledger))

    def _update_s(self, ledger: Ledger) -> Array:
        """[n] seconds of the optimizer in the bound."""
        return least_optimizer_s(ledger, self.bounds.rates, self.level == 2)
