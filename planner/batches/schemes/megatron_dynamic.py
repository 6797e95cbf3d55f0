"""Dynamic context parallelism of Megatron's dev branch: the rule of its scheduler (dynamic_rule.py).

States are sharded as the distributed optimizer shards them (ZeRO-1), and TransformerEngine exchanges keys in a ring.
Documents of a group train packed, in one pass. The tokens of a rank, its only knob, are those that make the batches
fastest. Its pipelines are not priced, nor ranks that are no power of two.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np

from ....cost_models.arrays import Array
from ....errors import InputError
from ..batch_plan import BatchPlan, batch_plan
from ..costs import GroupCosts
from ..dynamic_rule import dynamic_micro_batches
from ..ledger_costs import Family
from ..policy import Step
from .base import Scheme, Subject, words_of
from .megatron_hybrid import tried_tokens


@dataclass(frozen=True, eq=False)
class _Choice:
    """A family, and the tokens of a rank that its groups hold."""

    family: Family
    costs: GroupCosts
    rank_tokens: int

    def steps(self, batches: Sequence[Array]) -> list[BatchPlan]:
        """A plan per batch, whose lengths are rounded up as SFTDataset pads them: to both halves of a zigzag over all
        ranks, times the tensor-parallel ranks (`_calculate_padding_divisor` of
        megatron/training/datasets/sft_dataset.py)."""
        costs, multiple = replace(self.costs, rank_tokens=self.rank_tokens), _multiple(self.costs, self.family)
        rounded = [np.ceil(lengths / multiple) * multiple for lengths in batches]
        return [batch_plan(dynamic_micro_batches(lengths, self.rank_tokens, costs.num_ranks), lengths, costs)
                for lengths in rounded]  # fmt: skip


def _multiple(costs: GroupCosts, family: Family) -> int:
    return 2 * costs.num_ranks * family.tp


def _run(subject: Subject) -> tuple[str, Sequence[Step]]:
    choices = []
    for family, costs in subject.candidates("ring", 1):
        longest = -(-subject.longest // _multiple(costs, family)) * _multiple(costs, family)
        if 1 < costs.num_ranks == costs.degrees[-1] and costs.longest >= longest:
            choices += [_Choice(family, costs, tokens) for tokens in tried_tokens(costs, longest)]
    if not choices:
        raise InputError("needs a power of two of GPUs that together hold the longest document")
    chosen, plans = subject.fastest(choices, _Choice.steps)
    return f"{words_of(chosen.family)}, {chosen.rank_tokens:,} tokens", plans


SCHEME = Scheme(name="megatron-dynamic", source="Megatron-LM d48bd6be, branch dev", basis="code",
                rule="by document, packed", run=_run)  # fmt: skip
