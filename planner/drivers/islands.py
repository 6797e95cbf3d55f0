"""Plans for a cluster whose groups of nodes differ: each island is priced as what it is."""

from __future__ import annotations

from dataclasses import replace

from ..document.plan import Plan
from ..heterogeneous import candidates as heterogeneous
from ..request.resolve import Resolved
from .assembly import build_plan, certify_to_gap
from .watch import Watch


def plan_islands(resolved: Resolved, watch: Watch) -> Plan:
    """The best strategy over all sets of islands. Raises NoFeasibleLayoutError if none fits, or SearchInterrupted."""
    search, unusable = heterogeneous.searched(resolved, watch.left_s, watch.report)
    if not search.choices:
        raise heterogeneous.nothing_fits(resolved, search)
    listed = heterogeneous.listed(resolved, search)
    # Before the certificate, as Ctrl-C there stops `search`.
    even = heterogeneous.even_strategy(resolved, search, watch.late)
    best_s = listed[0].step_s
    space = search.count.to_space_count(resolved.space.axis_sizes(), search.choices.priced)
    certificate = certify_to_gap(space, best_s, min(search.lower_bound_s, best_s), search.stopped)
    # Nothing here is planned as if all groups were alike, so no loss of such a plan is worth a warning.
    warnings = tuple(warning for warning in resolved.warnings if warning.code != "uniform-plan")
    plan = build_plan(replace(resolved, warnings=warnings), listed, certificate, search.count)
    plan = plan.with_warnings((*unusable, *search.notes), search.cut_short)
    return plan.model_copy(update={"ways": heterogeneous.strategies(search, even)})
