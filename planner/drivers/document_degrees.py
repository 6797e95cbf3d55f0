"""Documents of mixed lengths, by what the target does with them: it follows a sampler plan, or has its own rule."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict, replace

from ...cost_models.layouts import CP_ALGORITHMS
from ...errors import InputError, UnsupportedError
from ..batches.degree_rules import RULES
from ..batches.rule_trials import ALGORITHM, of_any_length
from ..document.lengths_plan import LengthsPlan
from ..document.plan import Plan
from ..request.load import request_from_dict
from ..request.resolve import Resolved, resolve
from ..targets.setup import Documents
from .given_layout import evaluate_resolved
from .length_schemes import schemes_of, with_schemes
from .mixed_lengths import MixedLengthsPlan, plan_mixed_lengths
from .rule_lengths import plan_by_rule
from .watch import Progress


def plan_document_degrees(
    resolved: Resolved, progress: Progress | None, seed: int, num_batches: int, schemes: Sequence[str]
) -> MixedLengthsPlan:  # fmt: skip
    """Plans of `num_batches` drawn batches, and published schemes beside them. Raises InputError for an unknown scheme,
    UnsupportedError where the target has one degree for all."""
    target, compared = resolved.target, schemes_of(schemes)
    if not target.mixed_lengths:
        raise UnsupportedError(
            f"--max-len: {target.framework} has one context-parallel degree for all documents of a run",
            hint="leave out `--target`, and `emit plan.json --to` writes that degree, with documents packed; "
                 "meshwright and megatron give each document its own")  # fmt: skip
    rule = resolved.request.workload.lengths_rule
    if rule is not None and rule not in target.mixed_lengths:
        raise InputError(f"--lengths-rule {rule}: {target.framework} has no such rule",
                         hint="`--target megatron` has hybrid and dynamic")  # fmt: skip
    planner = plan_mixed_lengths if "planned" in target.mixed_lengths else plan_by_rule
    return with_schemes(planner(resolved, progress, seed, num_batches), compared, progress)


def training_plan(plan: LengthsPlan) -> Plan:
    """The plan of one layout that starts the run of a framework which gives documents degrees by its own rule.

    All ranks are context parallel: groups of any degree are parts of them. Where documents train one by one the loader
    reads packs of `seq_len` tokens, as many as hold the documents of a step; else documents. Its candidate is priced as
    if all documents had the degree of all ranks; the seconds by the rule are in `resolved.documents`.
    Raises UnsupportedError for a plan whose degrees no framework chooses.
    """
    if not plan.rule_tokens:
        raise UnsupportedError(
            "the plan gives each document a degree of its own, and only our runtime trains by it",
            hint="`meshwright launch` trains it; `--target megatron` plans by the rule of Megatron; `emit --to` a "
                 "framework of one degree, such as torchtitan, writes that degree",
        )
    rule = RULES[plan.rule]
    before = of_any_length(resolve(request_from_dict(plan.request)))
    multiple = rule.multiple(plan.ranks, plan.widest.tp)
    seq_len = -(-plan.longest // multiple) * multiple
    documents = before.workload.global_batch
    packs = max(1, round(documents * (before.workload.mean_len or seq_len) / seq_len)) if rule.one_by_one else documents
    # Positions are stretched to the longest document: Megatron asks for as many as a pack has tokens.
    model = replace(before.model, max_positions=max(before.model.max_positions, seq_len))
    workload = replace(before.workload, seq_len=seq_len, global_batch=packs)
    resolved = replace(before, model=model, workload=workload)
    layout = replace(plan.widest, cp=plan.ranks, dp=1, shard=1, micro_batch=1,
                     cp_algorithm=CP_ALGORITHMS.index(ALGORITHM))  # fmt: skip
    by_rule = Documents(rule=rule.name, rank_tokens=plan.rule_tokens, multiple=multiple, per_step=documents,
                        step_s=plan.policy("per sequence").mean_s)  # fmt: skip
    made = evaluate_resolved(resolved, str(layout), fidelity="closed form")
    return made.model_copy(update={"resolved": {**made.resolved, "documents": asdict(by_rule)}})
