"""Plans for a cluster whose groups of nodes differ: each island is priced as what it is."""

from __future__ import annotations

from dataclasses import replace

from ..document.plan import Plan
from ..heterogeneous import candidates as heterogeneous
from ..request.resolve import Resolved
from .assembly import build_plan, certify_to_gap
from .preference import simplest_of
from .watch import Watch


def plan_islands(resolved: Resolved, watch: Watch, *, fastest: bool = False) -> Plan:
    """The best strategy over all sets of islands, of those that the model does not tell from it the simplest that the
    search kept. fastest: the best itself. Raises NoFeasibleLayoutError if none fits, or SearchInterrupted."""
    search, unusable = heterogeneous.searched(resolved, watch.left_s, watch.report)
    if not search.choices:
        raise heterogeneous.nothing_fits(resolved, search)
    ranked = search.choices.distinct
    number, preference = 0, None
    if not (fastest or search.stopped):
        rows = [(choice.staged.step_s, choice.staged.id, choice.staged.layout) for choice in ranked]
        number, preference = simplest_of(rows)
    listed = heterogeneous.listed(resolved, [ranked[number], *ranked[:number], *ranked[number + 1 :]])
    # Before the certificate, as Ctrl-C there stops `search`.
    even = heterogeneous.even_strategy(resolved, search, watch.late)
    best_s = ranked[0].staged.step_s
    space = search.count.to_space_count(resolved.space.axis_sizes(), search.choices.priced)
    certificate = certify_to_gap(space, best_s, min(search.lower_bound_s, best_s), search.stopped)
    # Nothing here is planned as if all groups were alike, so no loss of such a plan is worth a warning.
    warnings = tuple(warning for warning in resolved.warnings if warning.code != "uniform-plan")
    plan = build_plan(replace(resolved, warnings=warnings), listed, certificate, search.count)
    plan = plan.with_warnings((*unusable, *search.notes), search.cut_short)
    return plan.model_copy(update={"ways": heterogeneous.strategies(search, even), "preference": preference})
