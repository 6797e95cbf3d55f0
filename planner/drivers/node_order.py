"""Plans for nodes whose links differ: the search gives lower bounds, the placement of the finalists gives prices."""

from __future__ import annotations

from ...cost_models.layouts import Layout
from ..document.base import rounded
from ..document.candidate import Candidate
from ..document.plan import Plan
from ..evaluation.network import optimistic
from ..placement.place import FINALISTS, place, placed
from ..request.resolve import Resolved
from .assembly import build_plan, certify
from .families import best_of_families
from .watch import Watch

_EQUAL = 1e-9  # relative


def plan_node_order(resolved: Resolved, watch: Watch, seed: int) -> Plan:
    """The best layout with its best order of nodes. The search runs on a network as fast as its fastest link, so its
    bound holds for every order; the gap to the placed price stays in the certificate."""
    outcome = best_of_families(optimistic(resolved), watch, FINALISTS)
    rows = outcome.top.rows
    listed = placed(resolved, [row[2] for row in rows], [row[0] for row in rows], resolved.request.top, seed)
    certificate = certify(resolved, outcome)
    if certificate.lower_bound_s is not None:
        gap = max(0.0, 1.0 - certificate.lower_bound_s / listed[0].step_s)
        update = {"gap": rounded(gap), "proven": certificate.proven and gap < _EQUAL}
        certificate = certificate.model_copy(update=update)
    return watch.warn(build_plan(resolved, listed, certificate, outcome.count))


def placed_alone(resolved: Resolved, layout: Layout) -> Candidate:
    """One layout with its best order of nodes."""
    return place(resolved, layout)
