"""Plans with stages of their own: finalists of the exhaustive search, simulated, each with its best partition."""

from __future__ import annotations

from ...errors import InputError
from ..document.certificate import Certificate
from ..document.plan import Plan
from ..evaluation.candidates import candidates
from ..request.resolve import Resolved
from ..search.outcome import SearchOutcome
from ..stages.finalists import Finalists
from .assembly import build_plan, certify_to_gap
from .families import best_of_families
from .other_targets import compare_targets
from .watch import Watch

_FINALISTS = 12  # families whose best layout is simulated and split
_LEAVE_OUT = "leave out `--stages own`"


def plan_custom_stages(resolved: Resolved, watch: Watch) -> Plan:
    """The plan of the simulated and split finalists. Raises InputError where no simulation knows what is requested."""
    _check(resolved)
    outcome = best_of_families(resolved, watch, _FINALISTS)
    finalists = Finalists(resolved, watch.left_s)
    finalists.run([layout for _, _, layout in outcome.top.rows], split=not outcome.stopped)
    listed = candidates(resolved, finalists.listed)
    best_s, stopped = listed[0].step_s, outcome.stopped or finalists.stopped
    by_target = None if stopped else compare_targets(resolved, listed[0], watch, simulate=True, own_is_best=False)
    certificate = _certify(resolved, outcome, finalists, best_s)
    plan = build_plan(resolved, listed, certificate, outcome.count, by_target)
    return watch.warn(plan.with_warnings(finalists.notes))


def _check(resolved: Resolved) -> None:
    if resolved.workload.objective == "memory":
        raise InputError("stages of their own save time, and the objective is memory", hint="leave one of them out")
    if names := [name for name, _ in resolved.workload.techniques]:
        text = f"stages of their own are simulated, and no simulation knows {', '.join(names)}"
        raise InputError(text, hint=_LEAVE_OUT)
    if resolved.cluster.links is not None:
        raise InputError("stages of their own where links differ are not planned yet", hint=_LEAVE_OUT)


def _certify(resolved: Resolved, outcome: SearchOutcome, finalists: Finalists, best_s: float) -> Certificate:
    """No layout, in any split of its layers, is below the bound."""
    bound_s = min(best_s, finalists.lower_bound_s)
    rows = outcome.top.rows
    if len(rows) >= max(resolved.request.top, _FINALISTS):
        bound_s = min(bound_s, rows[-1][0])  # a full list: layouts beyond its last were not simulated
    if outcome.stopped:
        bound_s = min(bound_s, outcome.lower_bound)
    space = outcome.count.to_space_count(resolved.space.axis_sizes(), finalists.simulated)
    return certify_to_gap(space, best_s, bound_s, outcome.stopped or finalists.stopped)
