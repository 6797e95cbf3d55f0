"""Plans for documents of mixed lengths where Megatron's hybrid context parallelism chooses the degrees.

The rule of its scheduler (planner/batches/hybrid_rule.py) forms the groups, and each document trains alone. The plan
chooses the tokens of a rank above which a degree doubles, tensor parallelism and recomputation. States are sharded as
the distributed optimizer shards them (ZeRO-1): with Megatron-FSDP and pipelines Megatron refuses the rule.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace

import numpy as np

from ...cost_models.arrays import Array
from ...errors import InputError, UnsupportedError
from ..batches.batch_plan import batch_plan
from ..batches.costs import GroupCosts
from ..batches.draws import draw
from ..batches.hybrid_rule import hybrid_micro_batches
from ..batches.ledger_costs import Family, families, ledger_costs, longest_held
from ..batches.unlike_degrees import BatchResult
from ..request.resolve import Resolved
from .mixed_lengths import NUM_BATCHES, MixedLengthsPlan, beside_one_degree, bound_s, check, too_long
from .watch import Progress

_FEWEST_TOKENS = 256  # of a rank, that are tried
_FEWER = 0.7  # times as many tokens of a rank are tried next


@dataclass(frozen=True, eq=False)
class _Trial:
    """A family, with lengths as its groups need them."""

    family: Family
    costs: GroupCosts
    batches: tuple[Array, ...]
    longest: int  # tokens of the longest document

    @classmethod
    def of(cls, family: Family, costs: GroupCosts, drawn: Sequence[Array], longest: int) -> _Trial:
        multiple = length_multiple(costs.num_ranks, family.tp)
        return cls(family, costs, tuple(_rounded_up(lengths, multiple) for lengths in drawn),
                   int(_rounded_up(np.array([longest]), multiple)[0]))  # fmt: skip

    @property
    def is_able(self) -> bool:
        """Whether ranks may form groups of every degree, and hold the longest document."""
        return 1 < self.costs.num_ranks == self.costs.degrees[-1] and self.costs.longest >= self.longest

    @property
    def rank_tokens(self) -> Iterator[int]:
        """Tokens of a rank that are tried: as its memory holds, and fewer while all ranks hold the longest document."""
        tokens = self.costs.rank_tokens
        while tokens >= max(_FEWEST_TOKENS, self.longest / self.costs.num_ranks):
            yield tokens
            tokens = int(tokens * _FEWER)

    def results(self, rank_tokens: int) -> list[BatchResult]:
        """The groups of the rule, and what no groups beat."""
        costs = self.costs.one_by_one(rank_tokens)
        return [BatchResult(batch_plan(hybrid_micro_batches(lengths, rank_tokens, costs.num_ranks), lengths, costs),
                            bound_s(lengths, costs)) for lengths in self.batches]  # fmt: skip


def plan_hybrid_lengths(
    resolved: Resolved, progress: Progress | None = None, seed: int = 0, num_batches: int = NUM_BATCHES
) -> MixedLengthsPlan:
    """Plan `num_batches` drawn batches by the rule. Lengths are rounded up as Megatron needs them.

    Raises InputError and UnsupportedError for what is not planned so, NoFeasibleLayoutError where all ranks together do
    not hold the longest document.
    """
    check(resolved)
    _check_hybrid(resolved)
    resolved = of_any_length(resolved)
    drawn = draw(resolved.workload.lengths, resolved.workload.global_batch, num_batches, seed)
    choices = [(trial, tokens) for trial in _trials(resolved, drawn) for tokens in trial.rank_tokens]
    best_s, best = np.inf, list[BatchResult]()
    for number, (trial, tokens) in enumerate(choices):
        if progress is not None:
            progress(number, len(choices), "planning batches")
        results = trial.results(tokens)
        if (step_s := sum(result.plan.step_s for result in results)) < best_s:
            best_s, best, (chosen, rule_tokens) = step_s, results, (trial, tokens)
    return beside_one_degree(resolved, chosen.family, chosen.costs, chosen.batches, chosen.longest, best, seed,
                             rule_tokens)  # fmt: skip


def length_multiple(num_ranks: int, tp: int) -> int:
    """Tokens of which the length of a document is a multiple: both halves of a zigzag over all ranks, and the tokens of
    each rank over its tensor-parallel GPUs. Groups of a micro-batch with few documents grow to all ranks."""
    return num_ranks * max(2, tp)


def of_any_length(resolved: Resolved) -> Resolved:
    """The software without buffers for one length: those of tp_comm_overlap have the tokens of --seq-length
    (Megatron-LM d98e8a64, `_initialize_tp_communicators`)."""
    switches = replace(resolved.switches, settings={**resolved.switches.settings, "tp_comm_overlap": "off"})
    return resolved.under(switches)


def _families(resolved: Resolved) -> Iterator[Family]:
    """The families that are compared: TransformerEngine's default exchange, in a ring."""
    return families(resolved, ("ring",), zero=1)


def _check_hybrid(resolved: Resolved) -> None:
    gpus = resolved.problem.num_gpus
    if gpus & (gpus - 1) or gpus < 2:
        text = f"--max-len: Megatron's groups of ranks are powers of two from 2, and {gpus:,} GPUs are none"
        raise InputError(text, hint="plan for a power of two of GPUs")
    if any(attention.kv_lora_rank for attention in resolved.model.attentions):
        raise UnsupportedError(
            f"--max-len: {resolved.model.name} has latent attention, which Megatron's hybrid context parallelism lacks",
            hint="`--target meshwright`, or one degree for all: leave out `--max-len`")  # fmt: skip


def _rounded_up(lengths: Array, multiple: int) -> Array:
    return np.ceil(lengths / multiple) * multiple


def _trials(resolved: Resolved, drawn: Sequence[Array]) -> list[_Trial]:
    """The families that can train. Raises NoFeasibleLayoutError where none holds the longest document."""
    longest = max(length for length, _ in resolved.workload.lengths)
    priced = [(family, costs) for family in _families(resolved) if (costs := ledger_costs(resolved, family))]
    able = [trial for family, costs in priced if (trial := _Trial.of(family, costs, drawn, longest)).is_able]
    if not able:
        held = max(longest_held(resolved, family) for family in _families(resolved))
        raise too_long(resolved, longest, held, _families)
    return able
