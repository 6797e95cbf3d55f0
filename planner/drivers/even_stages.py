"""Plans whose layers are divided evenly over the stages: the exhaustive search by the closed form, and the order of its
best layouts by the simulator."""

from __future__ import annotations

from collections.abc import Sequence

from ..document.base import rounded
from ..document.candidate import Candidate
from ..document.certificate import Certificate
from ..document.plan import Plan
from ..evaluation.candidates import candidates
from ..request.resolve import Resolved
from .alternatives import FAMILIES, Listed, listed_rows
from .assembly import build_plan, certify
from .families import best_of_families
from .global_batch import batch_warnings
from .other_targets import compare_targets
from .preference import prefer
from .simulated_order import WINDOW, Fidelity, SimulatedOrder
from .watch import Watch


def plan_even_stages(
    resolved: Resolved, watch: Watch, *, fastest: bool = False, fidelity: Fidelity = "simulated"
) -> Plan:  # fmt: skip
    """The plan of the exhaustive search. fastest: put the fastest layout first, also where the model does not tell a
    simpler one from it. fidelity: of the steps of its layouts, and of their order."""
    in_bytes = resolved.workload.objective == "memory"
    window = WINDOW if fidelity == "simulated" and not in_bytes else 0.0
    outcome = best_of_families(resolved, watch, 0 if in_bytes else FAMILIES, window)
    order = SimulatedOrder(resolved, outcome, fidelity).run(watch)
    first, preference = outcome.top.rows[0] if in_bytes else order.rows[0], None
    choice, own = first, candidates(resolved, [order.of(first[2])])[0]
    if not (fastest or outcome.stopped or in_bytes):
        choice, preference = prefer(order, watch)
    outcome.start = None  # there may be millions of meshes, and no later step needs them
    chosen = [Listed(row) for row in outcome.top.rows] if in_bytes else listed_rows(resolved, choice, order.leaders)
    by_target = None
    if not outcome.stopped:
        by_target = compare_targets(resolved, own, watch, simulate=fidelity == "simulated", own_is_best=True)
    warnings: list[str] = []
    if not (outcome.stopped or in_bytes):
        warnings = batch_warnings(resolved, outcome.top.rows[0][0], watch)
    certificate = _certify(resolved, order)
    plan = build_plan(resolved, _listed(order, chosen), certificate, outcome.count, by_target)
    return watch.warn(plan.model_copy(update={"preference": preference}).with_warnings(warnings))


def _listed(order: SimulatedOrder, chosen: Sequence[Listed]) -> tuple[Candidate, ...]:
    priced = candidates(order.resolved, [order.of(one.row[2]) for one in chosen])
    return tuple(candidate.model_copy(update={"merits": tuple(one.merits), "near_run": one.near_run})
                 for candidate, one in zip(priced, chosen, strict=True))  # fmt: skip


def _certify(resolved: Resolved, order: SimulatedOrder) -> Certificate:
    """The proof by the closed form, and the layouts near its best that the simulator ordered."""
    certificate, top = certify(resolved, order.outcome), order.outcome.top
    space = certificate.space.model_copy(update={"simulated": order.simulated})
    update = {"space": space, "kept": len(top.kept[0]), "kept_within": rounded(top.kept_window)}
    return certificate.model_copy(update=update) if order.simulated and top.window else certificate
