"""A deployment that a plan lists, to be priced anew by what the plan resolved."""

from __future__ import annotations

from dataclasses import replace

import numpy as np

from ...cost_models.serving.constants import ServingConstants
from ...cost_models.techniques.base import Applied
from ...cost_models.techniques.registry import SERVING, applied
from ...errors import InputError
from ...profiles.cluster.document import cluster_from_dict
from ...profiles.stack.engines import UNSTATED, Engines, shipped_engines
from ..document.serving_plan import ServingCandidate, ServingPlan, ServingPool
from ..document.specs import build, model_of
from ..request.images import served_images
from ..request.serving import ServeWorkload
from ..request.speculation import step_tokens
from .instance import InstanceLayout, Speculation, passes_of
from .promises import Promises, priced
from .search import Deployment, Fleet, fleets_pool
from .space import Served, Site, sites_of

_FILE = "the plan"  # as messages name it


def workload_of(plan: ServingPlan) -> ServeWorkload:
    """The workload; the numbers of a canonical form have no units, and were checked when it was made."""
    return ServeWorkload.model_construct(**plan.request["workload"])


def engines_of(plan: ServingPlan) -> Engines:
    """Engines with the numbers that the plan rests on. Raises InputError for a plan that does not have them."""
    if "constants" not in plan.resolved:
        raise InputError("the plan is of an older version, which did not keep the constants of its engine",
                         hint="plan again")  # fmt: skip
    constants = build(ServingConstants, plan.resolved["constants"], "resolved.constants", _FILE)
    hosts = {str(plan.resolved["engine"]): {UNSTATED: float(plan.resolved["host_s"])}}
    return replace(shipped_engines(), constants=constants, hosts=hosts)


def deployment_of(plan: ServingPlan, candidate: ServingCandidate, promises: Promises) -> Deployment:
    """The deployment that `candidate` states. Raises InputError for damaged specs of model or cluster."""
    engines = engines_of(plan)
    sites = {site.name: site for site in sites_of(cluster_from_dict(plan.resolved["cluster"]))}
    fleets = [_stand(plan, pool, sites, engines) for pool in candidate.pools]
    deployment = Deployment(prefill=fleets[0], decode=fleets[-1], largest_load=candidate.largest_load)
    return replace(deployment, transfer_s=_transfer_s(deployment, candidate, promises, engines.constants))


def _stand(plan: ServingPlan, pool: ServingPool, sites: dict[str, Site], engines: Engines) -> Fleet:
    if pool.site not in sites:
        raise InputError(f"the cluster of the plan has no nodes {pool.site}", hint="plan again")
    site = sites[pool.site]
    served = replace(served_in(plan, engines), weights=pool.weights, cache=pool.kv_cache)
    layout = InstanceLayout(tp=pool.tp, attention_dp=pool.attention_dp, pp=pool.pp, ep=pool.ep, instances=1)
    instance = served.instance(site, layout, pool.chunk_tokens)
    return Fleet(site=site, instance=instance, instances=pool.instances)


def served_in(plan: ServingPlan, engines: Engines) -> Served:
    """The model as all instances of the plan serve it. Raises InputError for a damaged spec of the model."""
    model, work = model_of(plan.resolved, _FILE), workload_of(plan)
    return Served.of(model, str(work.precision), plan.best.pools[-1].kv_cache, engines, str(plan.resolved["engine"]),
                     speculation=_speculation_of(plan), techniques=techniques_of(plan),
                     passes=passes_of(model, work.passes, plan.lengths.output.mean),
                     images=served_images(model, work.images, plan.lengths.prompt.mean))


def techniques_of(plan: ServingPlan) -> Applied:
    """Techniques that the deployments of the plan use: those of its request, and those that the search chose."""
    return applied(plan.resolved.get("techniques", {}), SERVING)


def _speculation_of(plan: ServingPlan) -> Speculation | None:
    given = plan.request["workload"].get("speculate")
    if not given:
        return None
    draft = plan.resolved.get("draft")
    return Speculation(tokens=given["tokens"], step_tokens=step_tokens(given["tokens"], given["accepted"]),
                       draft=model_of({"model": draft}, _FILE) if draft else None)  # fmt: skip


def _transfer_s(
    deployment: Deployment, candidate: ServingCandidate, promises: Promises, constants: ServingConstants
) -> float:  # fmt: skip
    """Seconds of a cache from pool to pool: the part of TTFT that the rest does not explain."""
    if not deployment.disaggregated:
        return 0.0
    load = candidate.concurrency if promises.closed else candidate.rate
    without = priced(fleets_pool([deployment.prefill]), fleets_pool([deployment.decode]), np.array([True]),
                     np.array([load]), promises, constants).service.ttft_s[0]  # fmt: skip
    return max(candidate.ttft_s - float(without), 0.0)
