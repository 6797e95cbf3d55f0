"""Why not another deployment: one that is named beside the first of a plan."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import replace

from ...errors import InputError, NoFeasibleLayoutError
from ...profiles.cluster.document import cluster_from_dict
from ..document.base import DocumentPart
from ..document.serving_plan import ROLES, ServingCandidate, ServingPlan
from ..drivers.serving import demand_of
from ..serving.candidates import candidates
from ..serving.infeasible import no_deployment
from ..serving.listed import engines_of, served_in, workload_of
from ..serving.space import Spaces, sites_of
from ..serving.technique_choice import TechniqueSpaces, searched
from .serving import Rival, rival_of

# A degree of `layout_id` -> the axis of the space.
_AXES = {"tp": "tp", "pp": "pp", "adp": "attention_dp", "ep": "ep"}
_NAME = re.compile(r"\s*(?:(\d+)\s*x\s*)?((?:tp|pp|adp|ep)\d+(?:-(?:tp|pp|adp|ep)\d+)*)\s*")
_HINT = "write it as the plan does: `2 x tp4`, `1 x tp4-pp2`, or `1 x tp2 + 1 x tp4`: prefill + decode"


class ServingComparison(DocumentPart):
    """A deployment beside the first of a plan."""

    other: ServingCandidate
    rival: Rival
    enough: bool  # it carries the load within the promises


def compared(plan: ServingPlan, name: str) -> ServingComparison:
    """The deployment `name` (`2 x tp4`), of the plan or priced anew with its best chunk size.

    Raises InputError for no name of a deployment, NoFeasibleLayoutError where none of it keeps the promises.
    """
    plain = " ".join(name.split())
    other = next((it for it in plan.candidates if it.deployment_id == plain), None) or _priced(plan, name)
    load = demand_of(workload_of(plan), engines_of(plan)).load
    return ServingComparison(other=other, rival=rival_of(other, plan.best),
                             enough=load is None or other.largest_load >= load * (1 - 1e-6))  # fmt: skip


def _priced(plan: ServingPlan, name: str) -> ServingCandidate:
    fixes, engines = _fixed(name), engines_of(plan)
    demand = demand_of(workload_of(plan), engines)
    served = served_in(plan, engines)
    model, techniques = served.model, served.techniques
    if model.fills and len(fixes) > 1:
        raise NoFeasibleLayoutError(f"{name}: {model.name} fills in all tokens of an answer together, and its prompt "
                                    "sees the answer", hint="name one pool")  # fmt: skip
    cluster = cluster_from_dict(plan.resolved["cluster"])
    by_pool = {f"{role}.{axis}": value for role, fix in zip(ROLES, fixes, strict=False) for axis, value in fix.items()}
    spaces = Spaces.of(sites_of(cluster), replace(served, techniques=()), by_pool if len(fixes) > 1 else fixes[0])
    if (why := _broken(spaces, fixes)) is not None:
        raise NoFeasibleLayoutError(f"{name} {why}", hint="`explain` lists those of the plan")
    between_bw = cluster.levels[-1].bw_bytes_per_s
    field = TechniqueSpaces(spaces=spaces, wide=spaces, between_bw=between_bw)
    result = searched(field, replace(demand, load=None, rates=()), techniques).result(None)
    if not result.deployments:
        raise no_deployment(spaces, demand, result, between_bw)
    (candidate,) = candidates(demand, result.deployments[:1])
    return candidate


def _broken(spaces: Spaces, fixes: Sequence[Mapping[str, int]]) -> str | None:
    """Why no site has such instances; None: some have."""
    kinds = (spaces.prefill, spaces.decode) if len(fixes) > 1 else (spaces.aggregated,)
    for fix, kind in zip(fixes, kinds, strict=True):
        if any(space.instances for space in kind):
            continue
        needed = fix["tp"] * fix["pp"] * fix["attention_dp"] * fix["replicas"]
        most = max(space.site.num_gpus for space in kind)
        if needed > most:
            return f"needs {needed} GPUs, and there are {most} of a kind"
        return f"breaks rules of {', '.join(sorted({rule for space in kind for rule in space.ruled_out}))}"
    return None


def _fixed(name: str) -> list[dict[str, int]]:
    """Axes of the space and their values, of each pool."""
    pools = name.split("+")
    if len(pools) > len(ROLES):
        raise InputError(f"`{name}` has {len(pools)} pools", hint=f"two are {' and '.join(ROLES)}")
    return [_axes(name, pool) for pool in pools]


def _axes(name: str, pool: str) -> dict[str, int]:
    match = _NAME.fullmatch(pool)
    degrees = [] if match is None else re.findall(r"([a-z]+)(\d+)", match[2])
    if match is None or len({axis for axis, _ in degrees}) < len(degrees):
        raise InputError(f"`{name}` is no deployment", hint=_HINT)
    fix = {"tp": 1, "pp": 1, "attention_dp": 1, "ep": 1, "replicas": int(match[1] or 1)}
    fix |= {_AXES[axis]: int(value) for axis, value in degrees}
    if min(fix.values()) < 1:
        raise InputError(f"`{name}`: a degree below 1", hint=_HINT)
    return fix
