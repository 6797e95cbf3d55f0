"""Rules by which a framework gives documents their degrees while it trains, in place of a search."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace

from ...cost_models.arrays import Array
from .batch_plan import Group
from .costs import GroupCosts
from .dynamic_rule import dynamic_micro_batches
from .hybrid_rule import hybrid_micro_batches


@dataclass(frozen=True, kw_only=True)
class DegreeRule:
    """A rule with one knob, the tokens of a rank above which a document has a larger degree."""

    name: str  # of `--lengths-rule`
    # (lengths [k], tokens of a rank, ranks) -> the groups of each micro-batch.
    micro_batches: Callable[[Array, int, int], list[list[Group]]]
    # (ranks, tp) -> tokens of which the length of every document is a multiple.
    multiple: Callable[[int, int], int]
    one_by_one: bool  # whether the documents of a group train one after another; else packed, in one pass
    has_latent_attention: bool  # whether groups of its own reach latent attention
    words: str  # predicate of the framework, with `tokens` of a rank

    def costs(self, costs: GroupCosts, rank_tokens: int) -> GroupCosts:
        """The costs of groups that hold so many tokens on a rank."""
        return costs.one_by_one(rank_tokens) if self.one_by_one else replace(costs, rank_tokens=rank_tokens)


# Groups of a micro-batch with few documents grow to all ranks, so a document has a piece for both halves of a zigzag
# over all of them, and each piece is divided by the tensor-parallel GPUs.
RULES: dict[str, DegreeRule] = {
    rule.name: rule
    for rule in (
        DegreeRule(
            name="hybrid", micro_batches=hybrid_micro_batches,
            multiple=lambda ranks, tp: ranks * max(2, tp), one_by_one=True, has_latent_attention=False,
            words="gives a document the least power of two of ranks with at most {tokens:,} tokens of it on each, and "
                  "trains it alone, its length rounded up",
        ),
        # `_calculate_padding_divisor` of megatron/training/datasets/sft_dataset.py, Megatron-LM d48bd6be.
        DegreeRule(
            name="dynamic", micro_batches=dynamic_micro_batches,
            multiple=lambda ranks, tp: 2 * ranks * tp, one_by_one=False, has_latent_attention=True,
            words="gives a group a power of two of ranks with at most {tokens:,} tokens on each, and trains its "
                  "documents packed, their lengths rounded up",
        ),
    )
}  # fmt: skip

# As verl runs the second (0.9.1, utils/dynamic_cp_scheduler.py): documents are padded in their groups, to tp tokens on
# one rank and to 2 tp d on d of them.
OF_VERL = replace(RULES["dynamic"], multiple=lambda ranks, tp: 2 * tp)
