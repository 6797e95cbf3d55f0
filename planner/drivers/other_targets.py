"""The comparison with other targets: the fastest layout that each runs with its own software."""

from __future__ import annotations

import time
from collections.abc import Sequence

from ...cost_models import units
from ...cost_models.layouts import PRECISIONS, Layout, Layouts, parse
from ..document.base import rounded
from ..document.candidate import Candidate
from ..document.certificate import Outside, TargetBest, TargetComparison
from ..evaluation.staged import Staged
from ..request.resolve import Resolved
from ..search.tasks import Answer, Task, in_order
from ..space.counting import num_legal
from ..space.rules import BATCH
from ..space.same_layouts import same_layouts
from ..space.tree import Count
from ..switches.choices import lacks
from ..targets.registry import compared
from .watch import Watch

_WORTH_SAYING = 0.005  # relative: a smaller difference is not worth a line


def compare_targets(
    resolved: Resolved, own: Candidate, watch: Watch, *, simulate: bool, own_is_best: bool
) -> TargetComparison | None:  # fmt: skip
    """The fastest layout of every target beside `own`, that of the plan's target. simulate: as that was priced.
    own_is_best: whether it is the best of its target with even stages.

    None where nobody asks (any target will do, bytes are minimised, no target has the GPU) and where it was cut.
    """
    target, workload = resolved.target, resolved.workload
    if target.name == "any" or workload.objective == "memory" or resolved.cluster.gpu.plan_only or watch.cuts:
        return None
    others = [known for known in compared(resolved.problem, target.name)
              if known.name not in (target.name, target.built_on)]  # fmt: skip
    without = {known.name: reasons[0] for known in others if (reasons := known.cannot_train(resolved.problem))}
    for known in others:
        if (absent := lacks(known.name, resolved.fixed_switches)) and known.name not in without:
            without[known.name] = f"it has no {absent[0]} {resolved.fixed_switches[absent[0]]}"
    able = [known.name for known in others if known.name not in without]
    ends_s = time.time() + watch.left_s()
    twin = _twins(resolved, able, own_is_best=own_is_best)
    searched = [name for name in able if twin[name] == name]
    tasks = [Task.of(resolved, "step", target=name, tally=False, ends_s=ends_s) for name in searched]
    answers = dict(zip(searched, in_order(watch.pool, tasks, watch.report), strict=True))
    if stopped := next((answer.stopped for answer in answers.values() if answer.stopped), None):
        watch.cuts.append((stopped, "other targets were compared"))
        return None
    answers[target.name] = Answer(((own.step_s, rounded(own.device_bytes), own.layout_id),), Count(), None)
    answers = {name: answers[twin[name]] for name in able}
    without |= {name: _why_none(resolved.for_target(name), answer) for name, answer in answers.items()
                if not answer.rows}  # fmt: skip
    first = TargetBest(target=target.name, layout_id=own.layout_id, step_s=own.step_s,
                       device_bytes=rounded(own.device_bytes))  # fmt: skip
    rest = (_best(resolved, name, answer, simulate=simulate and twin[name] != target.name)
            for name, answer in answers.items() if answer.rows)  # fmt: skip
    return TargetComparison(best=(first, *rest), without=without)


def _twins(resolved: Resolved, names: Sequence[str], *, own_is_best: bool) -> dict[str, str]:
    """Target -> the first one of the same software that runs the same layouts: a search for that one answers for both.
    own_is_best: of the plan's target the best layout is known."""
    searched, out = [resolved] if own_is_best else [], dict[str, str]()
    for name in names:
        there = resolved.for_target(name)
        alike = (known for known in searched if same_layouts(known.space, there.space))
        out[name] = next((known.target.name for known in alike), name)
        if out[name] == name:
            searched.append(there)
    return out


def _why_none(there: Resolved, answer: Answer) -> str:
    """Why a target has no layout. there: the request for it."""
    if answer.legal:
        room = f" within {units.gib(there.budget_bytes)} GiB" if there.headroom_bytes else ""
        return f"no layout fits{room}"
    given = Layout(precision=PRECISIONS.index(there.workload.precision))
    if barred := [rule.explain(given, there.problem) for rule in there.target_rules
                  if rule.fields == ("precision",) and not rule.allows(Layouts.of([given]), there.problem)[0]]:
        return f"no legal layout: {barred[0]}"
    batch = there.workload.global_batch
    return f"no legal layout{f' of a global batch of {batch:,}' if num_legal(there.space.without(BATCH)) else ''}"


def _best(resolved: Resolved, target: str, answer: Answer, *, simulate: bool) -> TargetBest:
    step_s, device_bytes, layout_id = answer.rows[0]
    if simulate:
        step_s = rounded(Staged.of(resolved.for_target(target), parse(layout_id), simulate=True).step_s)
    return TargetBest(target=target, layout_id=layout_id, step_s=step_s, device_bytes=device_bytes)


def fastest_outside(comparison: TargetComparison | None) -> Outside | None:
    """The fastest of the other targets, if it beats the plan by enough."""
    if comparison is None:
        return None
    own, fastest = comparison.best[0], min(comparison.best, key=lambda best: best.step_s)
    if fastest.step_s >= own.step_s * (1 - _WORTH_SAYING):
        return None
    return Outside(layout_id=fastest.layout_id, step_s=fastest.step_s, targets=(fastest.target,))
