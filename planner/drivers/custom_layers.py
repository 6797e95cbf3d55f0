"""Plans that may give every layer a strategy of its own, where that is faster than one strategy for all."""

from __future__ import annotations

from ..document.plan import Plan
from ..heterogeneous.islands import applies
from ..layerwise.candidate import added, best_layers, check
from ..request.resolve import Resolved
from .even_stages import plan_even_stages
from .watch import Watch


def plan_custom_layers(resolved: Resolved, watch: Watch, *, custom_stages: bool, techniques: bool) -> Plan:
    """The plan with even stages, and the best layer-wise plan in its list. Raises InputError beside stages of their
    own, techniques or islands."""
    check(
        resolved,
        custom_stages=custom_stages,
        techniques=techniques or bool(resolved.workload.techniques),
        islands=applies(resolved),
    )
    plan = plan_even_stages(resolved, watch, fastest=True, fidelity="closed form")
    return added(resolved, plan, best_layers(resolved, watch.late))
