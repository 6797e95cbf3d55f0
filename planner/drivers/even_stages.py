"""Plans whose layers are divided evenly over the stages: the exhaustive search, priced by the closed form."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import numpy as np

from ..document.plan import Plan
from ..evaluation.candidates import candidates
from ..evaluation.staged import Staged
from ..request.resolve import Resolved
from .alternatives import FAMILIES, Listed, listed_rows
from .assembly import build_plan, certify
from .families import best_of_families
from .other_targets import compare_targets
from .preference import prefer
from .watch import Watch

_SIMULATED_DIFFERS = 0.02  # relative: from here on the simulated step of the best layout is worth a warning


def plan_even_stages(resolved: Resolved, watch: Watch, *, fastest: bool = False) -> Plan:
    """The plan of the exhaustive search, by the closed form. fastest: put the fastest layout first, also where the
    model does not tell a simpler one from it."""
    in_bytes = resolved.workload.objective == "memory"
    outcome = best_of_families(resolved, watch, 0 if in_bytes else FAMILIES)
    rows = outcome.top.rows
    choice, preference = rows[0], None
    own = candidates(resolved, [Staged.of(resolved, choice[2])])[0]
    if not (fastest or outcome.stopped or in_bytes):
        choice, preference = prefer(resolved, outcome, watch)
    outcome.start = None  # there may be millions of meshes, and no later step needs them
    chosen = [Listed(row) for row in rows] if in_bytes else listed_rows(resolved, choice, rows)
    staged = [Staged.of(resolved, one.row[2]) for one in chosen]
    listed = tuple(candidate.model_copy(update={"merits": tuple(one.merits), "near_run": one.near_run})
                   for candidate, one in zip(candidates(resolved, staged), chosen, strict=True))  # fmt: skip
    by_target = None if outcome.stopped else compare_targets(resolved, own, watch)
    plan = build_plan(resolved, listed, certify(resolved, outcome), outcome.count, by_target)
    plan = plan.model_copy(update={"preference": preference})
    doubts = [] if in_bytes else where_the_simulator_differs(staged)
    return watch.warn(plan.with_warnings(doubts))


def where_the_simulator_differs(staged: Sequence[Staged]) -> list[str]:
    """A warning where the best layout by the closed form takes longer in the simulator, with the fastest one there."""
    first = replace(staged[0], simulate=True)
    if first.step_s <= first.closed_s * (1 + _SIMULATED_DIFFERS):
        return []
    steps = [first.step_s, *(replace(layout, simulate=True).step_s for layout in staged[1:])]
    fastest = int(np.argmin(steps))
    text = f"simulated operation by operation, layout 1 takes {first.step_s:.3g} s (closed form {first.closed_s:.3g} s)"
    other = f", layout {fastest + 1} {steps[fastest]:.3g} s" if fastest else ""
    return [f"{text}{other}: `--stages own` ranks by simulation"]
