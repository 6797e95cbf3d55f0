"""Plans for documents of mixed lengths where Megatron's hybrid context parallelism chooses the degrees.

The rule of its scheduler (planner/batches/hybrid_rule.py) forms the groups, and each document trains alone. The plan
chooses the tokens of a rank above which a degree doubles, tensor parallelism and recomputation. States are sharded as
the distributed optimizer shards them (ZeRO-1): with Megatron-FSDP and pipelines Megatron refuses the rule.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import replace

from ...cost_models.arrays import Array
from ...errors import InputError, UnsupportedError
from ..batches.draws import draw
from ..batches.ledger_costs import longest_held
from ..batches.schemes.megatron_hybrid import Trial, able_trials, fastest, hybrid_families
from ..request.resolve import Resolved
from .mixed_lengths import NUM_BATCHES, MixedLengthsPlan, beside_one_degree, check, too_long
from .watch import Progress


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
    trials = _trials(resolved, drawn)
    choices = [(trial, tokens) for trial in trials for tokens in trial.rank_tokens]

    def reported() -> Iterator[tuple[Trial, int]]:
        for number, choice in enumerate(choices):
            if progress is not None:
                progress(number, len(choices), "planning batches")
            yield choice

    chosen, tokens, results = fastest(reported())
    return beside_one_degree(resolved, (chosen.family, chosen.costs), chosen.batches, chosen.longest, results, seed,
                             tokens)  # fmt: skip


def of_any_length(resolved: Resolved) -> Resolved:
    """The software without buffers for one length: those of tp_comm_overlap have the tokens of --seq-length
    (Megatron-LM d98e8a64, `_initialize_tp_communicators`)."""
    switches = replace(resolved.switches, settings={**resolved.switches.settings, "tp_comm_overlap": "off"})
    return resolved.under(switches)


def _check_hybrid(resolved: Resolved) -> None:
    gpus = resolved.problem.num_gpus
    if gpus & (gpus - 1) or gpus < 2:
        text = f"--max-len: Megatron's groups of ranks are powers of two from 2, and {gpus:,} GPUs are none"
        raise InputError(text, hint="plan for a power of two of GPUs")
    if any(attention.kv_lora_rank for attention in resolved.model.attentions):
        raise UnsupportedError(
            f"--max-len: {resolved.model.name} has latent attention, which Megatron's hybrid context parallelism lacks",
            hint="`--target meshwright`, or one degree for all: leave out `--max-len`")  # fmt: skip


def _trials(resolved: Resolved, drawn: Sequence[Array]) -> list[Trial]:
    """The families that can train. Raises NoFeasibleLayoutError where none holds the longest document."""
    longest = max(length for length, _ in resolved.workload.lengths)
    able = able_trials(resolved, drawn, longest)
    if not able:
        held = max(longest_held(resolved, family) for family in hybrid_families(resolved))
        raise too_long(resolved, longest, held, hybrid_families)
    return able
