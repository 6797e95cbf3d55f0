"""Costs of sequences on groups of each degree out of the ledger: the same formulas that price every layout.

A rank-group trains packed micro-batches. The ledger prices one that holds T tokens on every rank, all in documents of s
tokens (`mean_len` and `mean_square_len` of the workload), on d ranks: price of two micro-batches less price of one. The
seconds that do not grow with T are those of a micro-batch whatever it holds (gathers of sharded weights, launches); the
rest over T d is the seconds of a token, taken at the lengths of a grid. A document is priced as if those beside it had
its length: a ring of unlike documents hides more of the messages of the short ones, so its price is an upper one.
States are sharded over all ranks (ZeRO-1 or 3), so groups of any degree meet in one exchange, and the memory of a rank
depends on its tokens alone. Pipelines are priced full, with 2 pp and 2 pp - 1 micro-batches; their bubble is the price
that grows with T beyond these.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from itertools import product
from typing import Protocol

import numpy as np

from ...cost_models import build_ledger
from ...cost_models.arrays import Array
from ...cost_models.layouts import CP_ALGORITHMS, RECOMPUTE_MODES, SELECTIVE_DEFAULT, Layout, Layouts, module_mask
from ...cost_models.problem import Problem
from ...cost_models.quantities import tables
from ...cost_models.quantities.tables import index_keys
from ...cost_models.rates.rates import Rates
from ...cost_models.step import step
from ...cost_models.step.step import Estimate
from ..space.rules import violations
from .costs import GroupCosts, powers_of_two

_TOKENS = 4096  # of a rank, at which seconds and bytes are taken; both are linear in them
_SHORT = 256  # tokens of documents whose attention does not count
_ROUND = 128  # tokens of a rank are a multiple


class Priced(Protocol):
    """A problem with what its prices depend on: a resolved request, or a published run."""

    @property
    def problem(self) -> Problem: ...
    @property
    def rates(self) -> Rates: ...
    @property
    def budget_bytes(self) -> float: ...  # of the memory of a device


@dataclass(frozen=True)
class Family:
    """The costs that groups of all degrees have in common."""

    tp: int
    cp_algorithm: str
    recompute: str  # mode
    zero: int = 3
    recompute_layers: int = 0  # of full recomputation; 0: all
    pp: int = 1  # stages; a rank is then a pipeline
    modules: tuple[str, ...] = SELECTIVE_DEFAULT  # recomputed, where that is selective

    def layout(self, degree: int, num_gpus: int) -> Layout:
        """Its layout with groups of `degree` ranks, whose micro-batch has as many sequences as the group has ranks."""
        dp = num_gpus // (self.tp * self.pp * degree)
        return Layout(
            tp=self.tp, sequence_parallel=int(self.tp > 1), cp=degree, pp=self.pp, dp=dp, shard=dp, micro_batch=degree,
            zero=self.zero, cp_algorithm=CP_ALGORITHMS.index(self.cp_algorithm) if degree > 1 else 0,
            recompute=RECOMPUTE_MODES.index(self.recompute), recompute_layers=self.recompute_layers,
            recompute_modules=module_mask(self.modules) if self.recompute == "selective" else 0,
        )  # fmt: skip


def families(
    priced: Priced, algorithms: Sequence[str] = ("ulysses", "ring", "allgather"), stages: Sequence[int] = (3, 1),
    modules: tuple[str, ...] | None = None,
) -> Iterator[Family]:  # fmt: skip
    """The families that are compared. stages: of ZeRO. modules: those of selective recomputation; None: attention, or
    activation functions where attention is fused and saves no scores, so that its recomputation frees nothing."""
    if modules is None:
        modules = SELECTIVE_DEFAULT if priced.problem.stack.attention == "unfused" else ("act",)
    for tp in powers_of_two(priced.problem.gpus_per_node).tolist():
        for algorithm, recompute, zero in product(algorithms, RECOMPUTE_MODES, stages):
            yield Family(tp, algorithm, recompute, zero, modules=modules)


def ledger_costs(priced: Priced, family: Family) -> GroupCosts | None:
    """Costs of a family; None where no layout of it is legal or a rank holds no token."""
    pricer = _Pricer(priced, family)
    room = pricer.rank_tokens()
    if room < _ROUND:
        return None
    grid = _grid(priced.problem.workload.seq_len)
    full, half = (pricer.micro_batch_s(tokens, _SHORT)[0] for tokens in (room, room // 2))
    fixed_s = max(2.0 * half - full, 0.0)
    seconds = np.stack([pricer.micro_batch_s(room, length) for length in grid])
    degrees = np.array([layout.cp for layout in pricer.layouts], dtype=np.int64)
    step_s, half_step_s = (float(pricer.priced(tokens, _SHORT, pricer.few).step_s[0]) for tokens in (room, room // 2))
    passes = (step_s - half_step_s) / (full - half) if family.pp > 1 else 1.0  # micro-batches, and the bubble
    return GroupCosts(
        num_ranks=pricer.num_ranks, degrees=degrees, rank_tokens=room, grid=grid,
        token_s=(seconds - fixed_s) / (room * degrees), micro_batch_s=fixed_s,
        once_s=step_s - passes * full, fill=passes - pricer.few,
    )  # fmt: skip


def longest_held(priced: Priced, family: Family) -> int:
    """Tokens of the longest sequence that groups of a family hold; 0 for none."""
    pricer = _Pricer(priced, family)
    return pricer.rank_tokens() * max((layout.cp for layout in pricer.layouts), default=0)


def token_bytes(priced: Priced, family: Family) -> float:
    """Bytes of the activations of a token more in every micro-batch, on the fullest rank."""
    pricer = _Pricer(priced, family)
    tokens = pricer.rank_tokens()
    return (pricer.most_bytes(tokens) - pricer.most_bytes(tokens // 2)) / (tokens - tokens // 2)


def _grid(longest: int) -> Array:
    """Lengths from that of short documents to `longest`, each twice the one before."""
    count = max(1, int(np.ceil(np.log2(max(longest / _SHORT, 2.0)))))
    return np.asarray(_SHORT * 2.0 ** np.arange(count + 1), dtype=np.float64)


class _Pricer:
    """Prices of the layouts of a family, one per degree."""

    def __init__(self, priced: Priced, family: Family) -> None:
        self.subject, num_gpus = priced, priced.problem.num_gpus
        self.num_ranks = num_gpus // (family.tp * family.pp)
        self.few = 2 * family.pp - 1  # micro-batches that fill a pipeline
        problem = self._problem(_TOKENS, _SHORT, 1)
        layouts = (family.layout(int(degree), num_gpus) for degree in powers_of_two(self.num_ranks))
        self.layouts = [layout for layout in layouts if not violations(layout, problem)]

    def _problem(self, tokens: int, length: float, num_micro_batches: int) -> Problem:
        """`tokens` on every rank in each micro-batch, in documents of `length`."""
        workload = replace(
            self.subject.problem.workload, seq_len=tokens, global_batch=self.num_ranks * num_micro_batches, packed=True,
            mean_len=float(length), mean_square_len=float(length) ** 2, lengths=(),
        )  # fmt: skip
        return replace(self.subject.problem, workload=workload)

    def priced(self, tokens: int, length: float, num_micro_batches: int) -> Estimate:
        """The closed form of the layouts."""
        columns = Layouts.of(self.layouts)
        keys, index = index_keys(columns)
        problem = self._problem(tokens, length, num_micro_batches)
        ledger = build_ledger.build(problem, tables.build(problem, keys), columns, index)
        return step.price(ledger, self.subject.rates)

    def micro_batch_s(self, tokens: int, length: float) -> Array:
        """[D] seconds of a micro-batch more."""
        more, few = (self.priced(tokens, length, number).step_s for number in (self.few + 1, self.few))
        return np.asarray(more - few)

    def rank_tokens(self) -> int:
        """Tokens of a micro-batch that fit on a rank: bytes grow linearly with them. 0 without a legal layout."""
        if not self.layouts:
            return 0
        tokens, least, more = _TOKENS, 0.0, 0.0
        while more <= least:  # few tokens may hide beside the peak of the states
            least, more = (self.most_bytes(count) for count in (tokens, 2 * tokens))
            if more <= least and least > self.subject.budget_bytes:
                return 0
            tokens *= 2
        tokens //= 2
        room = tokens + (self.subject.budget_bytes - least) / ((more - least) / tokens)
        return max(int(room // _ROUND) * _ROUND, 0)

    def most_bytes(self, tokens: int) -> float:
        """Bytes of the fullest rank of any layout, with `tokens` on each."""
        return float(self.priced(tokens, _SHORT, self.few + 1).device_bytes.max())
