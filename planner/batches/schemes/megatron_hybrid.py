"""Megatron's hybrid context parallelism: the rule of its scheduler (hybrid_rule.py), and each document trains alone.

States are sharded as the distributed optimizer shards them (ZeRO-1), and TransformerEngine exchanges keys in a ring.
The tokens of a rank above which a degree doubles are those that make the batches fastest.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass

import numpy as np

from ....cost_models.arrays import Array
from ....errors import InputError
from ..batch_plan import BatchPlan, batch_plan
from ..costs import GroupCosts
from ..family_choice import bound_s
from ..hybrid_rule import hybrid_micro_batches
from ..ledger_costs import Family, Priced, families, ledger_costs
from ..unlike_degrees import BatchResult
from .base import Scheme, Subject, words_of

_FEWEST_TOKENS = 256  # of a rank, that are tried
_FEWER = 0.7  # times as many tokens of a rank are tried next


def hybrid_families(priced: Priced) -> Iterator[Family]:
    """The families that are compared."""
    return families(priced, ("ring",), (1,))


def length_multiple(num_ranks: int, tp: int) -> int:
    """Tokens of which the length of a document is a multiple: both halves of a zigzag over all ranks, and the tokens of
    each rank over its tensor-parallel GPUs. Groups of a micro-batch with few documents grow to all ranks."""
    return num_ranks * max(2, tp)


def tried_tokens(costs: GroupCosts, longest: int) -> Iterator[int]:
    """Tokens of a rank: as its memory holds, and fewer while all ranks hold the longest document."""
    tokens = costs.rank_tokens
    while tokens >= max(_FEWEST_TOKENS, longest / costs.num_ranks):
        yield tokens
        tokens = int(tokens * _FEWER)


def _rounded_up(lengths: Array, multiple: int) -> Array:
    return np.ceil(lengths / multiple) * multiple


@dataclass(frozen=True, eq=False)
class Trial:
    """A family, with lengths as its groups need them."""

    family: Family
    costs: GroupCosts
    batches: tuple[Array, ...]
    longest: int  # tokens of the longest document

    @classmethod
    def of(cls, family: Family, costs: GroupCosts, drawn: Sequence[Array], longest: int) -> Trial:
        multiple = length_multiple(costs.num_ranks, family.tp)
        return cls(family, costs, tuple(_rounded_up(lengths, multiple) for lengths in drawn),
                   int(_rounded_up(np.array([longest]), multiple)[0]))  # fmt: skip

    @property
    def is_able(self) -> bool:
        """Whether ranks may form groups of every degree, and hold the longest document."""
        return 1 < self.costs.num_ranks == self.costs.degrees[-1] and self.costs.longest >= self.longest

    @property
    def rank_tokens(self) -> Iterator[int]:
        """Tokens of a rank that are tried."""
        return tried_tokens(self.costs, self.longest)

    def results(self, rank_tokens: int) -> list[BatchResult]:
        """The groups of the rule, and what no groups beat."""
        costs = self.costs.one_by_one(rank_tokens)
        return [BatchResult(batch_plan(hybrid_micro_batches(lengths, rank_tokens, costs.num_ranks), lengths, costs),
                            bound_s(lengths, costs)) for lengths in self.batches]  # fmt: skip


def able_trials(priced: Priced, drawn: Sequence[Array], longest: int) -> list[Trial]:
    """The families that can train; none where they do not hold the longest document."""
    costs = [(family, costs) for family in hybrid_families(priced) if (costs := ledger_costs(priced, family))]
    return [trial for family, costs in costs if (trial := Trial.of(family, costs, drawn, longest)).is_able]


def fastest(choices: Iterable[tuple[Trial, int]]) -> tuple[Trial, int, list[BatchResult]]:
    """The trial and the tokens of a rank with the shortest steps, and these."""
    results = ((trial, tokens, trial.results(tokens)) for trial, tokens in choices)
    return min(results, key=lambda choice: sum(result.plan.step_s for result in choice[2]))


def _run(subject: Subject) -> tuple[str, Sequence[BatchPlan]]:
    trials = able_trials(subject.priced, subject.batches, subject.longest)
    if not trials:
        raise InputError("needs a power of two of GPUs that together hold the longest document")
    trial, tokens, results = fastest((trial, tokens) for trial in trials for tokens in trial.rank_tokens)
    return f"{words_of(trial.family)}, {tokens:,} tokens", [result.plan for result in results]


SCHEME = Scheme(name="megatron-hybrid", source="Megatron-LM d98e8a64", basis="code", rule="one per document", run=_run)
