"""A deployment as it is listed in a plan: priced under the load, simulated, and what binds it."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import lru_cache

import numpy as np

from ...cost_models.arrays import Array, Mask
from ...cost_models.serving.arrivals import Requests
from ...cost_models.serving.constants import ServingConstants
from ...cost_models.serving.image_placement import front_s, placement
from ...cost_models.serving.iteration import Batch, iteration_seconds
from ...cost_models.serving.phases import growth, phases
from ...cost_models.serving.pool import Pool
from ...cost_models.serving.service import Service
from ...cost_models.serving.simulation import Simulated, simulate
from ..document.serving_plan import (
    Binds,
    Percentiles,
    Role,
    ServingCandidate,
    ServingPool,
    SimulatedService,
    TowerPieces,
)
from .instance import Instance, InstanceLayout, pool
from .promises import Priced, Promises, capacity, largest_load, priced, unpromised
from .search import Deployment, Fleet, fleets_pool

_BEYOND = 1.01  # times the largest load, where what binds breaks
# Simulated requests: as many as come in so many lives of those that run at once, and of models that fill in, whose
# passes are remembered, in so many relaxation times of a queue with load factor rho, each of rho / (1 - sqrt(rho))^2
# arrivals (M/M/1: J. W. Cohen, The Single Server Queue, 1982). Relaxation times of decoders are left out: to simulate
# them would take longer than all the rest of a plan.
_REQUESTS, _MOST_REQUESTS, _LIVES = 400, 3000, 10
_CARRIES = 1.1  # times the largest load with twice the room: room binds where it carries as much
_BATCH = 8  # sequences of a step of the emitted limit
_HEADROOM = 1.5  # of the emitted limit over the sequences that run at the largest load
_TRIED = 200  # numbers of sequences at which speculation is compared
_REMEMBERED = 32  # simulated instances: more than those of the deployments that one plan simulates


@dataclass(frozen=True, kw_only=True)
class Demand:
    """The requests and promises of every deployment. load: requests per second, or at once in a closed loop; None: no
    given one. rates: requests per second in the hours of a day, whose largest is the load; empty: the load is one
    rate."""

    load: float | None
    promises: Promises
    constants: ServingConstants
    rates: tuple[float, ...] = ()


def candidates(demand: Demand, deployments: Sequence[Deployment]) -> tuple[ServingCandidate, ...]:
    """The deployments under the load of the demand; without one each under its own largest load."""
    largest = _largest(deployments)
    now, most = at(demand, deployments, _load(demand, deployments)), at(demand, deployments, largest)
    beyond = at(demand, deployments, largest * _BEYOND)
    stable = largest_load(*_columns(deployments), unpromised(demand.promises), demand.constants,
                          _transfers(deployments))  # fmt: skip
    return tuple(
        _candidate(demand, it, row, now, float(most.service.sequences[row]),
                   _binds(demand, beyond, it, row),
                   None if demand.promises.closed else float(stable[row]))
        for row, it in enumerate(deployments)
    )  # fmt: skip


def simulated_service(demand: Demand, deployment: Deployment) -> SimulatedService:
    """The deployment under the same load, as it is listed."""
    return _simulated(demand, deployment, at(demand, [deployment], _load(demand, [deployment])).service, 0)


def _largest(deployments: Sequence[Deployment]) -> Array:
    return np.array([it.largest_load for it in deployments])


def _load(demand: Demand, deployments: Sequence[Deployment]) -> Array:
    largest = _largest(deployments)
    return largest if demand.load is None else np.full_like(largest, demand.load)


def _candidate(
    demand: Demand, deployment: Deployment, row: int, now: Priced, most_sequences: float, binds: Binds,
    stable_load: float | None,
) -> ServingCandidate:  # fmt: skip
    service = now.service
    ttft_s, tpot_s, tokens = (float(column[row]) for column in (service.ttft_s, service.tpot_s,
                                                                 service.output_tokens_per_s))  # fmt: skip
    output = demand.promises.requests.output
    decode = fleets_pool([deployment.decode])
    first = float(decode.first_tokens(np.array([output]))[0])
    rate, usd = tokens / output, deployment.usd_per_hour
    taken = _taken(demand, deployment, service, row)
    roles: tuple[Role, ...] = ("prefill", "decode") if deployment.disaggregated else ("both",)
    return ServingCandidate(
        choice=row + 1, deployment_id=deployment_id(deployment), gpus=deployment.gpus, rate=rate,
        gpu_hours=deployment.gpu_hours,
        pools=tuple(_pool(fleet, role, demand, most_sequences)
                    for fleet, role in zip(deployment.fleets, roles, strict=True)),
        concurrency=taken * (ttft_s + (output - first) * tpot_s), ttft_s=ttft_s, tpot_s=tpot_s,
        ttft_promised_s=float(now.latencies.ttft_s[row]), tpot_promised_s=float(now.latencies.tpot_s[row]),
        largest_load=deployment.largest_load, stable_load=stable_load, output_tokens_per_s=tokens,
        output_tokens_per_s_per_gpu=tokens / deployment.gpus, goodput_per_gpu=deployment.largest_load / deployment.gpus,
        sequences=float(service.sequences[row]), prompt_load=float(service.prompt_load[row]), binds=binds,
        usd_per_hour=usd, usd_per_mtoken=None if usd is None else usd / 3600.0 / tokens * 1e6,
        simulated=_simulated(demand, deployment, service, row),
    )  # fmt: skip


def deployment_id(deployment: Deployment) -> str:
    """`2 x tp4`, or `1 x tp4 + 2 x tp2` (prefill + decode)."""
    return " + ".join(f"{fleet.instances} x {layout_id(fleet.instance.layout)}" for fleet in deployment.fleets)


def layout_id(layout: InstanceLayout) -> str:
    """`tp4-pp2`: degrees above 1."""
    parts = [f"tp{layout.tp}", *(f"{name}{value}" for name, value in (
        ("pp", layout.pp), ("adp", layout.attention_dp), ("ep", layout.ep)) if value > 1)]  # fmt: skip
    return "-".join(parts)


def at(demand: Demand, deployments: Sequence[Deployment], load: Array) -> Priced:
    """The deployments under a load each, one per row."""
    return _priced(demand, deployments, load, 0.0)


def _priced(demand: Demand, deployments: Sequence[Deployment], load: Array, more_room: float) -> Priced:
    prefill, decode, disaggregated = _columns(deployments)
    return priced(prefill.roomier(more_room), decode.roomier(more_room), disaggregated, load, demand.promises,
                  demand.constants, _transfers(deployments))  # fmt: skip


def _columns(deployments: Sequence[Deployment]) -> tuple[Pool, Pool, Mask]:
    return (fleets_pool([it.prefill for it in deployments]), fleets_pool([it.decode for it in deployments]),
            np.array([it.disaggregated for it in deployments]))  # fmt: skip


def _transfers(deployments: Sequence[Deployment]) -> Array:
    return np.array([it.transfer_s for it in deployments])


def _binds(demand: Demand, beyond: Priced, deployment: Deployment, row: int) -> Binds:
    """The limit that breaks first, where the load is a little too large."""
    promises = demand.promises
    if beyond.latencies.ttft_s[row] > promises.ttft_s:
        return "ttft"
    if beyond.latencies.tpot_s[row] > promises.tpot_s:
        return "tpot"
    if bool(beyond.service.stable[row]):
        return "nothing"
    if deployment.decode.instance.model.fills:
        more = _priced(demand, [deployment], np.array([deployment.largest_load * _CARRIES]), more_room=1.0)
        return "room" if more.service.stable[0] else "sequences" if promises.closed else "passes"
    return "cache" if beyond.service.sequences[row] >= 0.99 * beyond.service.capacity[row] else "queue"


def _pool(fleet: Fleet, role: Role, demand: Demand, sequences: float) -> ServingPool:
    layout, columns = fleet.instance.layout, fleets_pool([fleet])
    held = int(capacity(columns, demand.promises.requests)[0])
    room = float(columns.cache_bytes[0])
    wanted = int(np.ceil(max(sequences, 1.0) * _HEADROOM / _BATCH)) * _BATCH
    return ServingPool(
        role=role, site=fleet.site.name, gpu=fleet.site.gpu.name, gpus_per_node=fleet.site.gpus_per_node,
        instances=fleet.instances, gpus=fleet.gpus, tp=layout.tp, pp=layout.pp, ep=layout.ep,
        attention_dp=layout.attention_dp, chunk_tokens=fleet.instance.chunk_tokens,
        max_sequences=max(min(wanted, held), 1), weights=fleet.instance.weights, kv_cache=fleet.instance.cache,
        proposed_tokens=0 if role == "prefill" else int(columns.draft_tokens[0]),
        speculation_pays_up_to=None if role == "prefill" else _pays_up_to(columns, demand),
        weights_bytes=float(columns.weights_bytes[0]), cache_bytes=room, cache_sequences=held,
        tower=None if role == "decode" else _tower(columns, demand),
    )  # fmt: skip


def _tower(columns: Pool, demand: Demand) -> TowerPieces | None:
    """The places of the pieces of the tower, where devices may run some."""
    if columns.images is None or not columns.methods.uplink_bytes_per_s:
        return None
    placed = placement(columns, demand.constants)
    device, edge = int(placed.device[0]), int(placed.edge[0])
    return TowerPieces(device=device, edge=edge, instance=len(columns.images.flops) - device - edge)


def _pays_up_to(columns: Pool, demand: Demand) -> int | None:
    """Sequences of an instance up to which a token takes less time with speculation than without."""
    if not columns.draft_tokens[0]:
        return None
    held = max(int(capacity(columns, demand.promises.requests)[0]), 1)
    number = np.unique(np.geomspace(1, held, _TRIED).astype(np.int64))
    rows = columns.rows(np.zeros(len(number), dtype=np.int64), np.ones(len(number)))
    none = np.zeros(len(number))
    requests = demand.promises.requests
    context = none + requests.running_prompt + requests.running_output / 2
    batch = Batch(sequences=number / columns.pp[0], context=context, prompt_tokens=none, prompt_context=none,
                  prompt_groups=none + 1.0)  # fmt: skip
    plain = replace(rows, draft_tokens=none, step_tokens=none + 1.0)
    drafted_s, plain_s = (iteration_seconds(it, demand.constants, batch) / it.step_tokens for it in (rows, plain))
    pays = drafted_s < plain_s
    return int(number[pays].max()) if pays.any() else 0


def _relaxation(service: Service, row: int) -> float:
    """Requests that come while an instance forgets its state."""
    factor = min(float(service.load_factor[row]), 1.0 - 1e-6)
    return max(float(service.sequences[row]), factor / float(1.0 - factor**0.5) ** 2)


def _taken(demand: Demand, deployment: Deployment, service: Service, row: int) -> float:
    """Requests per second that take passes."""
    rate = float(service.output_tokens_per_s[row]) / demand.promises.requests.output
    return rate * (1.0 - fleets_pool([deployment.decode]).methods.skipped)


def _simulated(demand: Demand, deployment: Deployment, service: Service, row: int) -> SimulatedService:
    """One instance of each pool with its share of the load; requests are dealt at random. A loop over two pools is
    simulated as arrivals at its rate at each of them, by chance and not when a request has ended."""
    promises, rate = demand.promises, _taken(demand, deployment, service, row)
    number = int(np.clip(_LIVES * _relaxation(service, row), _REQUESTS, _MOST_REQUESTS))
    split = deployment.disaggregated or beside_one_another(deployment.decode.instance)
    roles = ((deployment.prefill, True, not split), (deployment.decode, not split, True))
    closed = promises.closed and not deployment.disaggregated
    latencies = [_instance(fleet.instance, demand.constants, _requests(demand, fleet, rate, number, closed=closed),
                           prefills=prefills, decodes=decodes) for fleet, prefills, decodes in roles]  # fmt: skip
    first, last = latencies
    ttft_s, tpot_s = first.ttft_s, last.tpot_s
    if split:
        ttft_s = ttft_s + _transfers_s(deployment, promises, first.prompts) + last.ttft_s
    early, quick = ttft_s <= promises.ttft_s, tpot_s <= promises.tpot_s
    kept = early.mean() * quick.mean() if split else (early & quick).mean()
    return SimulatedService(requests=number, ttft_s=_percentiles(ttft_s), tpot_s=_percentiles(tpot_s), kept=float(kept))


def _requests(demand: Demand, fleet: Fleet, rate: float, number: int, *, closed: bool) -> Requests:
    """The share of an instance. Of a closed loop those that it begins with come beside the number."""
    columns = pool([fleet.instance])
    clients = max(int(np.ceil((demand.load or 0.0) / fleet.instances)), 1)
    return Requests(
        lengths=demand.promises.requests, rate=0.0 if closed else rate / fleet.instances,
        share=(1.0 - columns.methods.skipped) / fleet.instances,
        concurrency=clients, number=number + clients * closed,
        front_s=float(front_s(columns, demand.constants, np.zeros(1))[0]),
    )  # fmt: skip


def _transfers_s(deployment: Deployment, promises: Promises, prompts: Array) -> Array:
    """[request] seconds in which the caches of these prompts go from pool to pool."""
    prefill, decode = fleets_pool([deployment.prefill]), fleets_pool([deployment.decode])
    return deployment.transfer_s * growth(prefill, decode, np.array([promises.requests.prompt]), prompts)


@lru_cache(maxsize=_REMEMBERED)
def _instance(
    instance: Instance, constants: ServingConstants, requests: Requests, *, prefills: bool, decodes: bool
) -> Simulated:  # fmt: skip
    """Remembered: deployments that are tried are listed too, and disaggregated deployments have pools in common."""
    columns = pool([instance])
    held = float(capacity(columns, requests.lengths)[0])
    if prefills != decodes and columns.methods.prompt_share:
        prompts, answers, _ = phases(columns)
        columns = prompts if prefills else answers
    return simulate(columns, constants, requests, held, prefills=prefills, decodes=decodes)


def beside_one_another(instance: Instance) -> bool:
    """Whether prompts and answers have multiprocessors of their own on its GPUs."""
    return pool([instance]).methods.prompt_share > 0


def _percentiles(values: Array) -> Percentiles:
    p50, p90, p99 = (float(value) for value in np.quantile(values, [0.5, 0.9, 0.99]))
    return Percentiles(mean=float(values.mean()), p50=p50, p90=p90, p99=p99)
