"""Plans for documents of mixed lengths where the rule of a framework chooses the degrees (degree_rules.py).

The plan chooses the tokens of a rank above which a degree doubles, tensor parallelism and recomputation. States are
sharded as the distributed optimizer shards them (ZeRO-1): with Megatron-FSDP Megatron refuses both of its rules, and
pipelines are not priced.
"""

from __future__ import annotations

from collections.abc import Iterator

from ...errors import InputError, UnsupportedError
from ..batches.degree_rules import RULES, DegreeRule
from ..batches.draws import draw
from ..batches.ledger_costs import longest_held
from ..batches.rule_trials import Trial, of_any_length, rounded_up, rule_candidates, rule_families, trials
from ..batches.unlike_degrees import BatchResult
from ..request.resolve import Resolved
from .mixed_lengths import NUM_BATCHES, MixedLengthsPlan, beside_one_degree, check, too_long
from .watch import Progress


def plan_by_rule(
    resolved: Resolved, progress: Progress | None = None, seed: int = 0, num_batches: int = NUM_BATCHES
) -> MixedLengthsPlan:
    """Plan `num_batches` drawn batches by the rule that the request names, or else the first of the target. Lengths are
    rounded up as the framework needs them.

    Raises InputError and UnsupportedError for what is not planned so, NoFeasibleLayoutError where all ranks together do
    not hold the longest document.
    """
    rule = RULES[resolved.request.workload.lengths_rule or resolved.target.mixed_lengths[0]]
    check(resolved)
    _check_rule(resolved, rule)
    resolved = of_any_length(resolved)
    drawn = draw(resolved.workload.lengths, resolved.workload.global_batch, num_batches, seed)
    longest = max(length for length, _ in resolved.workload.lengths)
    choices = _trials(resolved, rule, longest)

    def tried() -> Iterator[tuple[Trial, list[BatchResult]]]:
        for number, choice in enumerate(choices):
            if progress is not None:
                progress(number, len(choices), "planning batches")
            yield choice, choice.results(drawn)

    chosen, results = min(tried(), key=lambda each: sum(result.plan.step_s for result in each[1]))
    batches = tuple(rounded_up(lengths, chosen.multiple) for lengths in drawn)
    longest = -(-longest // chosen.multiple) * chosen.multiple
    return beside_one_degree(resolved, (chosen.family, chosen.costs), batches, longest, results, seed,
                             (rule, chosen.rank_tokens))  # fmt: skip


def _check_rule(resolved: Resolved, rule: DegreeRule) -> None:
    gpus = resolved.problem.num_gpus
    if gpus & (gpus - 1) or gpus < 2:
        text = f"--max-len: Megatron's groups of ranks are powers of two from 2, and {gpus:,} GPUs are none"
        raise InputError(text, hint="plan for a power of two of GPUs")
    if not rule.has_latent_attention and any(attention.kv_lora_rank for attention in resolved.model.attentions):
        raise UnsupportedError(
            f"--max-len: {resolved.model.name} has latent attention, which Megatron's {rule.name} context parallelism "
            "lacks", hint="`--lengths-rule dynamic`, `--target meshwright`, or one degree for all: leave out "
                          "`--max-len`")  # fmt: skip


def _trials(resolved: Resolved, rule: DegreeRule, longest: int) -> list[Trial]:
    """The families that can train. Raises NoFeasibleLayoutError where none holds the longest document."""
    able = list(trials(rule, rule_candidates(resolved), longest))
    if not able:
        held = max(longest_held(resolved, family) for family in rule_families(resolved))
        raise too_long(resolved, longest, held, rule_families)
    return able
