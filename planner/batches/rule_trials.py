"""Batches under the rule of a framework: which layouts can train them, and which tokens of a rank are tried.

States are sharded as the distributed optimizer shards them (ZeRO-1), and TransformerEngine exchanges keys in a ring.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, replace

import numpy as np

from ...cost_models.arrays import Array
from ...cost_models.layouts import SELECTIVE_DEFAULT
from ..request.resolve import Resolved
from .batch_plan import BatchPlan, batch_plan
from .costs import GroupCosts
from .degree_rules import DegreeRule
from .family_choice import Candidate, bound_s
from .ledger_costs import Family, Priced, families, ledger_costs
from .unlike_degrees import BatchResult

ALGORITHM, ZERO = "ring", 1  # of all families
_FEWEST_TOKENS = 256  # of a rank, that are tried
_FEWER = 0.7  # times as many tokens of a rank are tried next


def of_any_length(resolved: Resolved) -> Resolved:
    """The software without buffers for one length: those of tp_comm_overlap have the tokens of --seq-length
    (Megatron-LM d98e8a64, `_initialize_tp_communicators`)."""
    switches = replace(resolved.switches, settings={**resolved.switches.settings, "tp_comm_overlap": "off"})
    return resolved.under(switches)


def rule_families(priced: Priced) -> Iterator[Family]:
    """The families that are compared. Megatron recomputes activation functions in layers of experts alone."""
    return families(priced, (ALGORITHM,), (ZERO,), SELECTIVE_DEFAULT)


def rule_candidates(priced: Priced) -> Iterator[Candidate]:
    """The families that are compared and have a price."""
    return ((family, costs) for family in rule_families(priced) if (costs := ledger_costs(priced, family)))


def rounded_up(lengths: Array, multiple: int) -> Array:
    """Lengths as a framework pads documents."""
    return np.ceil(lengths / multiple) * multiple


@dataclass(frozen=True, eq=False)
class Trial:
    """A family under a rule, and the tokens of a rank that its groups hold."""

    rule: DegreeRule
    family: Family
    costs: GroupCosts
    rank_tokens: int

    @property
    def multiple(self) -> int:
        """Tokens of which the lengths are multiples."""
        return self.rule.multiple(self.costs.num_ranks, self.family.tp)

    @property
    def rule_costs(self) -> GroupCosts:
        """The costs of the groups that the rule forms."""
        return self.rule.costs(self.costs, self.rank_tokens)

    def plans(self, batches: Sequence[Array]) -> list[BatchPlan]:
        """The groups of the rule for batches of such lengths, rounded up."""
        costs = self.rule_costs
        rounded = (rounded_up(lengths, self.multiple) for lengths in batches)
        return [batch_plan(self.rule.micro_batches(lengths, self.rank_tokens, costs.num_ranks), lengths, costs)
                for lengths in rounded]  # fmt: skip

    def results(self, batches: Sequence[Array]) -> list[BatchResult]:
        """The same with what no groups beat."""
        return [BatchResult(plan, bound_s(rounded_up(lengths, self.multiple), self.rule_costs))
                for plan, lengths in zip(self.plans(batches), batches, strict=True)]  # fmt: skip


def trials(rule: DegreeRule, candidates: Iterable[Candidate], longest: int) -> Iterator[Trial]:
    """Layouts and tokens of a rank that can train documents of up to `longest` tokens: ranks form groups of every
    degree, and together hold the longest one. Tokens of a rank: as its memory holds, and fewer while all ranks hold the
    longest document."""
    for family, costs in candidates:
        multiple = rule.multiple(costs.num_ranks, family.tp)
        rounded, tokens = -(-longest // multiple) * multiple, costs.rank_tokens
        if not 1 < costs.num_ranks == costs.degrees[-1] or costs.longest < rounded:
            continue
        while tokens >= max(_FEWEST_TOKENS, rounded / costs.num_ranks):
            yield Trial(rule, family, costs, tokens)
            tokens = int(tokens * _FEWER)
