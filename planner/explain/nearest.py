"""The layout closest to a refused one that a target can express, and what it costs."""

from __future__ import annotations

from ...cost_models.layouts import FIELD_NAMES, Layout
from ...errors import MeshwrightError
from ..document.candidate import Candidate
from ..document.plan import Plan
from ..evaluation.candidates import candidates
from ..evaluation.staged import Staged
from ..heterogeneous.islands import applies
from ..request.load import request_from_dict
from ..request.resolve import resolve
from ..search.run import search_of
from ..space.rules import fixed

# A field cannot change alone: what may follow it.
_FOLLOWS = {
    "pp": ("dp", "schedule", "vpp", "shard"),
    "tp": ("dp", "sequence_parallel", "shard"),
    "cp": ("dp", "cp_algorithm", "shard"),
    "ep": ("etp",),
    "schedule": ("vpp",),
    "vpp": ("schedule",),
    "zero": ("shard",),
    "recompute": ("recompute_modules", "recompute_layers"),
    "recompute_modules": ("recompute", "recompute_layers"),
    "recompute_layers": ("recompute", "recompute_modules"),
}
_MESH = ("tp", "cp", "pp", "dp", "ep", "etp")
# Given up one after the other until a layout is found: first what only moves memory, then the mesh.
_THEN = (
    ("recompute", "recompute_modules", "recompute_layers", "offload", "offload_layers", "offload_modules"),
    ("zero", "shard", "micro_batch"),
    ("pp", "schedule", "vpp", "dp"),
    ("tp", "sequence_parallel", "cp", "cp_algorithm", "ep", "etp"),
)


def nearest(plan: Plan, choice: int, to: str, fields: tuple[str, ...]) -> Candidate | None:
    """The fastest layout that fits and that `to` can run, with as few fields of layout `choice` changed as it takes,
    beginning with `fields`. None if there is none."""
    layout = plan.candidates[choice - 1].to_layout()
    resolved = resolve(request_from_dict(plan.request)).for_target(to)
    beside_mesh = tuple(field for field in fields if field not in _MESH)
    free: set[str] = set()
    for more in (beside_mesh, fields, *_THEN):
        free |= {name for field in more for name in (field, *_FOLLOWS.get(field, ()))} & set(FIELD_NAMES)
        held = tuple(
            fixed(name, getattr(layout, name), f"{name}={getattr(layout, name)}")
            for name in FIELD_NAMES
            if name not in free and name != "precision"
        )
        outcome = search_of(resolved, resolved.space_under(resolved.target_rules, held), top=1).run()
        if outcome.top.rows:
            return candidates(resolved, [Staged.of(resolved, outcome.top.rows[0][2])])[0]
    return None


def changes(before: Layout, after: Layout) -> dict[str, str]:
    """The values of `--fix` that lead from one to the other."""
    old, new = before.as_dict(), after.as_dict()
    out = {}
    for name, value in new.items():
        if value != old[name]:
            out[name] = str(value["mode"] if isinstance(value, dict) else value).lower()
    return out


def nearest_hint(plan: Plan, choice: int, to: str, fields: tuple[str, ...]) -> str:
    """One sentence: which layout to take instead, at what price."""
    again = f"plan again with `--target {to}`"
    try:
        if applies(resolve(request_from_dict(plan.request))):  # `nearest` takes all groups of nodes for the weakest
            return again
        near_plan = nearest(plan, choice, to, fields)
    except MeshwrightError:  # the request of the plan refers to files that are gone
        return again
    if near_plan is None:
        return f"no layout of this plan's model and cluster fits on {to}; `meshwright show targets` lists the others"
    candidate = plan.candidates[choice - 1]
    slower = near_plan.step_s / candidate.step_s - 1
    cost = f"{near_plan.layout_id}, {near_plan.step_s:.3g} s per step there ({slower:+.1%})"
    same = [listed.choice for listed in plan.candidates if listed.layout_id == near_plan.layout_id]
    if same:
        return f"the nearest that it can is `--choice {same[0]}`: {cost}"
    differs = changes(candidate.to_layout(), near_plan.to_layout())
    fixes = " ".join(f"--fix {name}={value}" for name, value in differs.items())
    return f"the nearest that it can is {cost}: plan again with `--target {to} {fixes}`"
