"""The comparison with other targets: whether one of them runs a faster layout with its own software."""

from __future__ import annotations

import time

from ...cost_models.layouts import parse
from ..document.base import rounded
from ..document.certificate import Outside
from ..evaluation.staged import Staged
from ..request.resolve import Resolved
from ..search.tasks import Task, in_order
from ..targets.registry import able_to_train
from .watch import Watch

_WORTH_SAYING = 0.005  # relative: a smaller difference is not worth a line


def fastest_outside(
    resolved: Resolved, closed_s: float, best_s: float, watch: Watch, *, simulate: bool = False
) -> Outside | None:
    """The fastest layout that another target runs with its own software, if it beats the plan by enough.

    closed_s: the plan's best seconds by the closed form, which searches compare with; best_s: as the plan prices it,
    simulated or not. None too where nobody asks: any target will do, bytes are minimised, or no target has the GPU.
    """
    workload = resolved.workload
    if resolved.target.name == "any" or workload.objective == "memory" or resolved.cluster.gpu.plan_only or watch.cuts:
        return None
    names = [name for name in able_to_train(resolved.problem) if name != resolved.target.name]
    incumbent_s = min(closed_s, best_s) * (1 - _WORTH_SAYING)
    ends_s = time.time() + watch.left_s()
    tasks = [Task.of(resolved, "step", limit=incumbent_s, target=name, ends_s=ends_s) for name in names]
    winner = None
    for name, answer in zip(names, in_order(watch.pool, tasks, watch.report), strict=True):
        if answer.stopped:
            watch.cuts.append((answer.stopped, "other targets were compared"))
            return None
        if not answer.rows or answer.rows[0][0] >= incumbent_s:
            continue
        layout = parse(answer.rows[0][2])
        step_s = Staged.of(resolved.for_target(name), layout, simulate=simulate).step_s
        if step_s < best_s * (1 - _WORTH_SAYING):
            incumbent_s = answer.rows[0][0]
            winner = Outside(layout_id=str(layout), step_s=rounded(step_s), targets=(name,))
    return winner
