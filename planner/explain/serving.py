"""Why a deployment: where its latencies go, what more of each resource would carry, and what the others lack.

The parts of an iteration are its derivatives by the seconds of host, products, memory, links and small kernels. An
iteration is homogeneous of degree one in these, so the parts add up to it (Euler).
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace

import numpy as np

from ...cost_models.arrays import Array
from ...cost_models.rates.collectives import Curve
from ...cost_models.serving.constants import ServingConstants
from ...cost_models.serving.image_placement import front_s, placement
from ...cost_models.serving.instance_iterations import decoding_batch
from ...cost_models.serving.iteration import Batch, iteration_seconds
from ...cost_models.serving.pool import Pool
from ..document.base import DocumentPart
from ..document.serving_plan import ServingCandidate, ServingPlan
from ..drivers.serving import demand_of
from ..serving.candidates import Demand
from ..serving.listed import deployment_of, engines_of, workload_of
from ..serving.promises import Priced, largest_load, priced
from ..serving.search import Deployment, fleets_pool

_STEP = 1e-3  # of the logarithm of a resource, of a derivative
_MORE = 1.1  # times a resource, of an effect
_POINTS = 40  # of a curve
_BEYOND = 1.1  # times the largest load of a closed loop, where its curve ends
_Slowed = tuple[Pool, ServingConstants]


class LatencyPart(DocumentPart):
    """A part of the latencies of the promised share of requests."""

    name: str
    ttft_s: float
    tpot_s: float


class Effect(DocumentPart):
    """The largest load with a tenth more of one resource."""

    resource: str
    largest_load: float


class Rival(DocumentPart):
    """Another deployment of the plan beside the chosen one."""

    choice: int
    deployment_id: str
    more_gpus: int  # negative: fewer
    more_usd: float | None  # per hour
    more_load: float  # of the largest load, relative
    more_ttft: float  # of what is promised, relative
    more_tpot: float


class LoadPoint(DocumentPart):
    """Latencies under a load."""

    load: float
    ttft_s: float  # of the promised share of requests
    tpot_s: float


class ServingExplanation(DocumentPart):
    """See the module."""

    choice: int
    parts: tuple[LatencyPart, ...]
    effects: tuple[Effect, ...]
    one_less: float | None  # largest load of an instance fewer; None: one instance, or disaggregated pools
    rivals: tuple[Rival, ...]
    curve: tuple[LoadPoint, ...]  # up to a load near the largest stable one


def explain_serving(plan: ServingPlan, choice: int = 1) -> ServingExplanation:
    """Deployment `choice` of the plan, priced anew. Raises InputError for no such deployment, or an older plan."""
    candidate, demand = plan.candidate(choice), demand_of(workload_of(plan), engines_of(plan))
    deployment = deployment_of(plan, candidate, demand.promises)
    return ServingExplanation(
        choice=choice, parts=_parts(demand, deployment, candidate), effects=_effects(demand, deployment),
        one_less=_one_less(demand, deployment), rivals=tuple(rival_of(it, candidate) for it in plan.candidates
                                                     if it is not candidate),
        curve=_curve(demand, deployment, candidate),
    )  # fmt: skip


def _priced(demand: Demand, deployment: Deployment, load: Array) -> Priced:
    """The deployment under loads [n]."""
    count = len(load)
    prefill, decode = (fleets_pool([fleet] * count) for fleet in (deployment.prefill, deployment.decode))
    return priced(prefill, decode, np.full(count, deployment.disaggregated), load, demand.promises, demand.constants,
                  np.full(count, deployment.transfer_s))  # fmt: skip


def _parts(demand: Demand, deployment: Deployment, candidate: ServingCandidate) -> tuple[LatencyPart, ...]:
    """The parts of the mean, then those of the promised share of requests beyond it."""
    promises, constants = demand.promises, demand.constants
    asked = candidate.largest_load if demand.load is None else demand.load
    at = _priced(demand, deployment, np.array([asked]))
    service = {name: float(getattr(at.service, name)[0])
               for name in ("ttft_s", "tpot_s", "queue_s", "first_token_s", "decode_s", "sequences")}  # fmt: skip
    prefill, decode = fleets_pool([deployment.prefill]), fleets_pool([deployment.decode])
    none, load = np.zeros(1), at.load
    begin_s = float(front_s(prefill, constants, load.prompt)[0])
    away_s = float(placement(prefill, constants).before_s[0])
    own_s = service["ttft_s"] - service["queue_s"] - deployment.transfer_s - begin_s - service["first_token_s"]
    batch = decoding_batch(at.service.sequences, decode, load)
    decoding = _shares(decode, constants, batch)
    beside = none if deployment.disaggregated else batch.sequences
    prompting = _shares(prefill, constants, replace(
        batch, sequences=beside, prompt_tokens=np.minimum(load.prefilled, prefill.chunk_tokens)))  # fmt: skip
    ttft = {name: service["first_token_s"] * share + own_s * prompting[name] for name, share in decoding.items()}
    ttft["host"] += begin_s - away_s
    decode_s = service["decode_s"] / float(decode.given_tokens(load.output)[0])  # of a token
    tpot = {name: decode_s * share for name, share in decoding.items()}
    share = f"beyond the mean, to p{100 * promises.share:g}"
    rows = [*((name, ttft[name], tpot[name]) for name in decoding), ("queue", service["queue_s"], 0.0),
            ("prompts of others", 0.0, service["tpot_s"] - decode_s),
            ("transfer of the cache", deployment.transfer_s, 0.0), ("device and edge", away_s, 0.0),
            (share, candidate.ttft_promised_s - service["ttft_s"],
             candidate.tpot_promised_s - service["tpot_s"])]  # fmt: skip
    return tuple(LatencyPart(name=name, ttft_s=first, tpot_s=each) for name, first, each in rows if first or each)


def _host(pool: Pool, constants: ServingConstants, factor: float) -> _Slowed:
    slower = replace(constants, sequence_s=constants.sequence_s * factor, step_s=constants.step_s * factor)
    return replace(pool, host_s=pool.host_s * factor), slower


def _compute(pool: Pool, constants: ServingConstants, factor: float) -> _Slowed:
    return replace(pool, flops_per_s=pool.flops_per_s / factor, dense_flops_per_s=pool.dense_flops_per_s / factor,
                   attention_flops_per_s=pool.attention_flops_per_s / factor), constants  # fmt: skip


def _bandwidth(pool: Pool, constants: ServingConstants, factor: float) -> _Slowed:
    return replace(pool, memory_bw_bytes_per_s=pool.memory_bw_bytes_per_s / factor), constants


def _links(pool: Pool, constants: ServingConstants, factor: float) -> _Slowed:
    def slower(curve: Curve) -> Curve:
        return Curve(curve.latency_s * factor, curve.s_per_byte * factor, curve.ramp)

    return replace(pool, all_reduce=slower(pool.all_reduce), all_to_all=slower(pool.all_to_all),
                   all_gather=slower(pool.all_gather), p2p=slower(pool.p2p)), constants  # fmt: skip


def _kernels(pool: Pool, constants: ServingConstants, factor: float) -> _Slowed:
    return pool, replace(constants, short_s=constants.short_s * factor)


# Resource -> the pool and constants whose seconds of it are times a factor.
_RESOURCES: Mapping[str, Callable[[Pool, ServingConstants, float], _Slowed]] = {
    "host": _host, "compute": _compute, "memory bandwidth": _bandwidth, "links": _links, "small kernels": _kernels,
}  # fmt: skip


def _shares(pool: Pool, constants: ServingConstants, batch: Batch) -> dict[str, float]:
    """Resource -> its part of an iteration, of all of it."""
    def seconds(slower: Callable[[Pool, ServingConstants, float], _Slowed], factor: float) -> float:
        return float(iteration_seconds(*slower(pool, constants, factor), batch)[0])

    parts = {name: (seconds(slower, 1 + _STEP) - seconds(slower, 1 - _STEP)) / (2 * _STEP)
             for name, slower in _RESOURCES.items()}  # fmt: skip
    return {name: part / sum(parts.values()) for name, part in parts.items()}


def _effects(demand: Demand, deployment: Deployment) -> tuple[Effect, ...]:
    pools = [fleets_pool([fleet]) for fleet in (deployment.prefill, deployment.decode)]
    changed = {name: [slower(it, demand.constants, 1 / _MORE) for it in pools]
               for name, slower in _RESOURCES.items()}  # fmt: skip
    room = "room for passes" if pools[-1].methods.fills else "KV cache"
    changed[room] = [(it.roomier(_MORE - 1.0), demand.constants) for it in pools]
    return tuple(_effect(demand, deployment, name, each) for name, each in changed.items())


def _effect(demand: Demand, deployment: Deployment, name: str, changed: Sequence[_Slowed]) -> Effect:
    (prefill, constants), (decode, _) = changed
    load = largest_load(prefill, decode, np.array([deployment.disaggregated]), demand.promises, constants,
                        np.array([deployment.transfer_s]))  # fmt: skip
    return Effect(resource=name, largest_load=float(load[0]))


def _one_less(demand: Demand, deployment: Deployment) -> float | None:
    instances = deployment.decode.instances - 1
    if deployment.disaggregated or not instances:
        return None
    pool = fleets_pool([replace(deployment.decode, instances=instances)])
    return float(largest_load(pool, pool, np.array([False]), demand.promises, demand.constants)[0])


def rival_of(other: ServingCandidate, chosen: ServingCandidate) -> Rival:
    rents = (other.usd_per_hour, chosen.usd_per_hour)
    return Rival(
        choice=other.choice, deployment_id=other.deployment_id, more_gpus=other.gpus - chosen.gpus,
        more_usd=None if rents[0] is None or rents[1] is None else rents[0] - rents[1],
        more_load=other.largest_load / chosen.largest_load - 1,
        more_ttft=other.ttft_promised_s / chosen.ttft_promised_s - 1,
        more_tpot=other.tpot_promised_s / chosen.tpot_promised_s - 1,
    )  # fmt: skip


def _curve(demand: Demand, deployment: Deployment, candidate: ServingCandidate) -> tuple[LoadPoint, ...]:
    most = candidate.stable_load or candidate.largest_load * _BEYOND
    load = most * np.linspace(0.0, 1.0, _POINTS + 1)[1:]
    at = _priced(demand, deployment, load)
    columns = zip(load, at.latencies.ttft_s, at.latencies.tpot_s, at.service.stable, strict=True)
    return tuple(LoadPoint(load=float(each), ttft_s=float(first), tpot_s=float(token))
                 for each, first, token, held in columns if held)  # fmt: skip
