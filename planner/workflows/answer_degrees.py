"""A context-parallel degree for every answer of an update, by the rule of a framework (dynamic context parallelism).

The answers of an update have lengths at even steps of their distribution. The rule forms micro-batches of groups
(planner/batches/dynamic_rule.py); a layout and the tokens of a rank are chosen with which they end first.
"""

from __future__ import annotations

import math
from dataclasses import replace

import numpy as np

from ...cost_models.arrays import Array
from ...cost_models.layouts import Layout, Layouts
from ...errors import UnsupportedError
from ..batches.area_bound import area_s, least_makespan_s
from ..batches.batch_plan import BatchPlan
from ..batches.degree_rules import OF_VERL
from ..batches.packing import Batch
from ..batches.rule_groups import needed_ranks
from ..batches.rule_trials import Trial, of_any_length, rounded_up, rule_candidates, trials
from ..evaluation.staged import Staged
from ..request.resolve import Resolved
from ..targets.post_training.registry import RL_TARGETS
from .forward import forward_of
from .options import AnswerDegrees, Option, of_training
from .problem import RlProblem

RULE = OF_VERL


def check(rl: RlProblem, sees: bool) -> None:
    """Raises UnsupportedError for a step whose answers have no degrees of their own. sees: whether the model takes
    images."""
    work, gpus = rl.work, rl.cluster.num_gpus
    reasons = {
        f"{rl.models['policy'].name} has experts, whose groups would cross those of answers: not planned":
            rl.models["policy"].is_moe,
        f"precision {work.precision}: dynamic context parallelism has bf16": work.precision != "bf16",
        "the model takes images, which dynamic context parallelism does not": sees,
        f"groups of ranks are powers of two from 2, and {gpus:,} GPUs are none": gpus < 2 or bool(gpus & (gpus - 1)),
    }  # fmt: skip
    targets = [rl.target] if rl.target is not None else list(RL_TARGETS.values())
    of_targets = [it.cannot_run(rl.step, 0) + it.without_degrees(rl.step) for it in targets
                  if rl.target is not None or it.limits.by_answer is not None]  # fmt: skip
    problems = [text for text, applies in reasons.items() if applies]
    if all(of_targets):
        problems += of_targets[0]
    if problems:
        raise UnsupportedError("\n".join([f"--lengths-rule {work.lengths_rule} is not planned", *problems]),
                               hint="leave it out: one degree for all answers")  # fmt: skip


def lengths_of(rl: RlProblem) -> Array:
    """[answers of an update] tokens of prompts with their answers, rising."""
    work = rl.work
    return work.input + rl.lengths.evenly(work.answers // work.updates)


def fastest_by_rule(rl: RlProblem, gpus: int) -> Option | None:
    """The fastest training of the policy by the rule; None where nothing fits."""
    resolved = of_any_length(rl.on("policy", gpus, rl.work.answers // rl.work.updates))
    lengths = lengths_of(rl)
    able = [(_least_s(it, lengths), it) for it in trials(RULE, rule_candidates(resolved), rl.longest_allowed)]
    best: tuple[Trial, BatchPlan, Layout] | None = None
    for bound_s, trial in sorted(able, key=lambda each: each[0]):
        if best is not None and bound_s >= best[1].step_s:
            break
        [plan] = trial.plans([lengths])
        layout = _widest(rl, trial, plan, gpus)
        if (best is None or plan.step_s < best[1].step_s) and _runs(rl, resolved, layout):
            best = trial, plan, layout
    return None if best is None else _option(rl, resolved, *best)


def _least_s(trial: Trial, lengths: Array) -> float:
    """Seconds of an update that no groups of these ranks beat."""
    costs, rounded = trial.rule_costs, rounded_up(lengths[::-1], trial.multiple)
    batch = Batch(rounded, costs.seconds(rounded), costs)
    work_s = max(least_makespan_s(batch), area_s(batch, math.inf))
    return costs.once_s + costs.least_micro_batches(rounded) * costs.micro_batch_s + work_s


def _widest(rl: RlProblem, trial: Trial, plan: BatchPlan, gpus: int) -> Layout:
    """The layout of the widest groups; such a group also holds the longest answer that the engine allows."""
    degree = max(plan.degrees[-1], needed_ranks(rl.longest_allowed, trial.rank_tokens))
    return replace(trial.family.layout(degree, gpus), micro_batch=1)


def _runs(rl: RlProblem, resolved: Resolved, layout: Layout) -> bool:
    """Whether the trainer and the framework run a layout."""
    rules, columns = (*rl.trainer_rules, *rl.layout_rules), Layouts.of([layout])
    return all(bool(np.all(rule.allows(columns, resolved.problem))) for rule in rules)


def _option(rl: RlProblem, resolved: Resolved, trial: Trial, plan: BatchPlan, layout: Layout) -> Option:
    """Memory and the share of the forward pass are those of packs that fill the widest groups."""
    workload = replace(resolved.workload, seq_len=trial.rank_tokens * layout.cp,
                       global_batch=layout.dp * plan.num_micro_batches)  # fmt: skip
    packed = replace(resolved, workload=workload)
    staged = Staged.of(packed, layout)
    degrees = AnswerDegrees(degrees=plan.degrees, rank_tokens=trial.rank_tokens, micro_batches=plan.num_micro_batches,
                            forward_share=forward_of(packed, layout) / staged.closed_s)  # fmt: skip
    return replace(of_training(staged, rl.work.updates * plan.step_s), by_answer=degrees)
