"""The exact search for deployments whose prompts and answers have instances of their own."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, replace
from itertools import product

import numpy as np

from ...cost_models.arrays import Array, Ints, Mask
from ...cost_models.serving.constants import ServingConstants
from ...cost_models.serving.phases import sent_bytes
from ...cost_models.serving.pool import Pool
from ...cost_models.serving.served_model import keeps_states
from .instance import pool
from .pairs import (
    TIE,
    Meeting,
    Pair,
    Side,
    pairs_at_once,
    pairs_over_day,
    pairs_that_carry_most,
    pairs_under_rate,
)
from .promises import ALONE, ROUNDING, Promises, holds_a_sequence, largest, largest_load, priced
from .search import Deployment, Incumbent, fleets_pool
from .space import Space

_MANY = 1e9  # instances of a pool that the other one never waits for


@dataclass(frozen=True, kw_only=True)
class DisaggregatedResult:
    """The cheapest disaggregated deployments that keep the promises, those that carry most first, and counts of all."""

    deployments: tuple[Deployment, ...]
    total: int
    broken: int  # a promise
    unlike: int  # caches do not get from one instance to the other
    out_of_memory: int
    bounded: int  # cost more or carry less; priced or not, none of them is known to break a promise
    # GPUs for a request per second, where any part of an instance can be had; None: no instance keeps the promises, or
    # the load is requests at any time.
    prefill_gpus: float | None
    decode_gpus: float | None


def search_disaggregated(
    prefills: Sequence[Space], decodes: Sequence[Space], load: float | None, promises: Promises,
    constants: ServingConstants, between_bw: float, incumbent: Incumbent | None = None, rates: Sequence[float] = (),
) -> DisaggregatedResult:  # fmt: skip
    """load: requests per second, or at any time; None: as many per second as the sites carry. between_bw: bytes/s of a
    GPU from site to site. incumbent: deployments that cost more are left out, and the GPUs of each role are not sought,
    which only requests per second need. rates: of the hours of a day, the load among them: the cheapest over all hours
    are sought."""
    rented = all(space.site.usd_per_gpu_hour is not None for space in prefills)
    hours = Counter(rates or [ALONE if load is None or promises.closed else load])
    carried = 0.0 if incumbent is None else incumbent.largest_load
    least_load = carried if load is None and not promises.closed else None
    prefills, decodes = _by_degrees(prefills), _by_degrees(decodes)
    sides = [[sides_of(spaces, rate, promises, constants, prefills=spaces is prefills, least=least_load)
              for spaces in (prefills, decodes)] for rate in sorted(hours)]  # fmt: skip
    prefill, decode = sides[-1]
    total = held = kept = unlike = 0
    pairs, least = list[Pair](), np.inf if incumbent is None else incumbent.cost(load)
    for i, one in enumerate(prefill):
        for j, other in enumerate(decode):
            meeting = Meeting.of(one, other, between_bw, rented=rented)
            total += meeting.combinations(one.legal_gpus, other.legal_gpus)
            if not _meet(one.space, other.space):
                unlike += meeting.combinations(one.legal_gpus, other.legal_gpus)
                continue
            held += meeting.combinations(one.gpus, other.gpus)
            by_hour = [(Meeting.of(ones[i], others[j], between_bw, rented=rented), hours[rate])
                       for rate, (ones, others) in zip(sorted(hours), sides, strict=True)] if rates else []  # fmt: skip
            found, keep = _pairs(meeting, by_hour, load, promises, constants, least)
            pairs, kept = pairs + found, kept + keep
            least = min([least, *(pair.price for pair in found)])
    cheapest = [pair for pair in pairs if pair.price <= least + abs(least) * (TIE if load is not None else ROUNDING)]
    deployments = _carrying(cheapest, promises, constants) if cheapest else []
    one_gpus, other_gpus = (None, None) if incumbent or promises.closed else _gpus_of_roles(
        prefill, decode, promises, constants)  # fmt: skip
    return DisaggregatedResult(
        deployments=tuple(deployments), total=total, broken=held - kept, unlike=unlike,
        out_of_memory=total - unlike - held,
        bounded=kept - len(deployments), prefill_gpus=one_gpus, decode_gpus=other_gpus,
    )  # fmt: skip


def _pairs(
    meeting: Meeting, by_hour: Sequence[tuple[Meeting, int]], load: float | None, promises: Promises,
    constants: ServingConstants, least: float,
) -> tuple[list[Pair], int]:  # fmt: skip
    """The cheapest pairs, and how many keep the promises. least: the price of the best so far."""
    if load is None:
        return pairs_that_carry_most(meeting, promises, constants, max(-least, 0.0))
    if promises.closed:
        return pairs_at_once(meeting, load, promises, constants, least)
    return pairs_over_day(by_hour, promises) if by_hour else pairs_under_rate(meeting, promises)


def _by_degrees(spaces: Sequence[Space]) -> list[Space]:
    """The same instances in spaces of one tp and one number of stages each, where their caches depend on them."""
    out = list[Space]()
    for space in spaces:
        numbers = range(len(space.instances))
        engine = space.instances[0].engine if numbers else None
        if engine is None or (engine.disaggregated_pp, engine.disaggregated_state_tp) == ("any", "any"):
            out.append(space)
            continue
        degrees = [(it.layout.tp, it.layout.pp) for it in space.instances]
        for each in dict.fromkeys(degrees):
            rows = [row for row in numbers if degrees[row] == each]
            out.append(replace(space, instances=tuple(space.instances[row] for row in rows),
                               most=tuple(space.most[row] for row in rows)))  # fmt: skip
    return out


def _meet(prefill: Space, decode: Space) -> bool:
    """Whether caches get from instances of one space to those of the other."""
    return _why_not(prefill, decode) is None


def _why_not(prefill: Space, decode: Space) -> str | None:
    one, other = prefill.instances[0], decode.instances[0]
    return one.engine.no_transfer(one.layout, other.layout, states=keeps_states(one.model))


def without_transfer(prefills: Sequence[Space], decodes: Sequence[Space]) -> str | None:
    """Why caches get from no instance of one role to one of the other; None: they do, or there are no instances."""
    sides = [[it for it in _by_degrees(spaces) if it.instances] for spaces in (prefills, decodes)]
    reasons = [_why_not(one, other) for one, other in product(*sides)]
    return None if not reasons or None in reasons else reasons[0]


def sides_of(
    spaces: Sequence[Space], load: float, promises: Promises, constants: ServingConstants, *, prefills: bool,
    least: float | None,
) -> list[Side]:  # fmt: skip
    """The instances of one role, in every number. Rows of all spaces are priced by the same calls, which take hardly
    longer for many rows than for few. least: load of which pairs are sought that carry as much; None: it is given."""
    spaces = [space for space in spaces if space.instances]
    rows = [_SideRows.of(space, promises, prefills=prefills) for space in spaces]
    if not spaces:
        return []
    columns, each = pool([it for space in spaces for it in space.instances]), [len(it.instance) for it in rows]
    before = np.cumsum([0, *(len(space.instances) for space in spaces)])
    instance = np.concatenate([it.instance + start for it, start in zip(rows, before[:-1], strict=True)])
    number = np.concatenate([it.number for it in rows])
    under = np.full(len(number), load)
    seconds = _seconds(columns, instance, number, under, promises, constants, prefills=prefills)
    most = under + np.inf if least is None else _largest(columns, instance, number, promises, constants,
                                                         prefills=prefills, least=least)  # fmt: skip
    parts = (np.split(values, np.cumsum(each)[:-1]) for values in (seconds, most))
    return [Side(space, it.columns, it.legal_gpus, it.instance, it.number, it.gpus, seconds,
                 sent_bytes(it.columns, np.array(promises.requests.prompt)),
                 sent_bytes(it.columns, promises.requests.prompt_lengths.at(np.array([promises.share]))), most)
            for space, it, seconds, most in zip(spaces, rows, *parts, strict=True)]  # fmt: skip


@dataclass(frozen=True)
class _SideRows:
    """The rows of a side."""

    columns: Pool  # [instance]
    legal_gpus: Ints
    instance: Ints
    number: Ints
    gpus: Ints

    @classmethod
    def of(cls, space: Space, promises: Promises, *, prefills: bool) -> _SideRows:
        """Chunks make no difference to instances that decode: one size stands for all."""
        columns = pool(space.instances)
        fits = holds_a_sequence(columns, promises)
        chunk = space.instances[0].chunk_tokens
        chosen = [i for i, it in enumerate(space.instances) if prefills or it.chunk_tokens == chunk]
        every = np.array([(i, n) for i in chosen for n in range(space.least, space.most[i] + 1)])
        layout_gpus = np.array([it.layout.gpus for it in space.instances])
        instance, number = every[fits[every[:, 0]]].T
        return cls(columns, layout_gpus[every[:, 0]] * every[:, 1], instance, number, layout_gpus[instance] * number)


def _largest(
    columns: Pool, instance: Ints, number: Ints, promises: Promises, constants: ServingConstants, *, prefills: bool,
    least: float,
) -> Array:  # fmt: skip
    """[row] load that no pair with it exceeds; 0 where that is below `least`. Of Poisson arrivals so many instances
    carry as many times that of one."""
    limit_s = min(promises.ttft_s if prefills else np.inf, np.finfo(float).max)  # infinite seconds are never kept

    def kept(instance: Ints, number: Ints, load: Array) -> Mask:
        seconds = _seconds(columns, instance, number, load, promises, constants, prefills=prefills)
        return np.asarray(seconds <= limit_s)

    rows = np.arange(len(instance))
    if least > 0:
        rows = rows[kept(instance, number, np.full(len(rows), least * (1 - ROUNDING)))]
    poisson = promises.requests.arrival_scv == 1.0
    asked, at = np.unique(instance[rows], return_inverse=True) if poisson else (instance[rows], np.arange(len(rows)))
    instances = np.ones_like(asked) if poisson else number[rows]
    most = largest(lambda load, at: kept(asked[at], instances[at], load), instances.astype(float))
    out = np.zeros(len(instance))
    out[rows] = most[at] * (number[rows] if poisson else 1)
    return out


def _seconds(
    columns: Pool, instance: Ints, number: Ints, load: Array, promises: Promises, constants: ServingConstants, *,
    prefills: bool,
) -> Array:  # fmt: skip
    """As `Side.seconds`: beside a pool of the other role that is never waited for."""
    if not len(instance):
        return np.zeros(0)
    this, other = columns.rows(instance, number.astype(float)), columns.rows(instance, np.full(len(instance), _MANY))
    pools = (this, other) if prefills else (other, this)
    asked = replace(promises, ttft_s=np.inf, tpot_s=np.inf if prefills else promises.tpot_s)
    at = priced(*pools, np.ones(len(instance), dtype=bool), load, asked, constants)
    room = at.service.room
    beyond_s = np.where(this.decodes_first > 0, room.at_most(promises.share) - room.mean_s, 0.0)
    first_s = at.service.first_token_s + beyond_s
    seconds = at.latencies.ttft_s - first_s if prefills else first_s
    return np.where(at.kept, seconds, np.inf)


def _carrying(pairs: Sequence[Pair], promises: Promises, constants: ServingConstants) -> list[Deployment]:
    """The deployments with the largest loads that they carry, the largest first."""
    most = largest_load(
        fleets_pool([pair.prefill for pair in pairs]), fleets_pool([pair.decode for pair in pairs]),
        np.ones(len(pairs), dtype=bool), promises, constants, np.array([pair.transfer_s for pair in pairs]),
    )  # fmt: skip
    made = [Deployment(prefill=pair.prefill, decode=pair.decode, transfer_s=pair.transfer_s, largest_load=float(load))
            for pair, load in zip(pairs, most, strict=True) if load > 0]  # fmt: skip
    return sorted(made, key=lambda it: -it.largest_load)


def _gpus_of_roles(
    prefills: Sequence[Side], decodes: Sequence[Side], promises: Promises, constants: ServingConstants
) -> tuple[float | None, float | None]:  # fmt: skip
    """GPUs of each role for a request per second, of instances that have one of the other role to meet."""
    ones = [one for one in prefills if any(_meet(one.space, other.space) for other in decodes)]
    others = [other for other in decodes if any(_meet(one.space, other.space) for one in prefills)]
    return (_least_gpus(ones, promises, constants, prefills=True),
            _least_gpus(others, promises, constants, prefills=False))


def _least_gpus(
    sides: Sequence[Side], promises: Promises, constants: ServingConstants, *, prefills: bool
) -> float | None:  # fmt: skip
    """GPUs of a role for a request per second, in parts of instances."""
    asked = replace(promises, tpot_s=np.inf) if prefills else replace(promises, ttft_s=np.inf)
    least = list[float]()
    for side in sides:
        rows = np.unique(side.instance)
        if not len(rows):
            continue
        this, other = side.columns.rows(rows, np.ones(len(rows))), side.columns.rows(rows, np.full(len(rows), _MANY))
        pools = (this, other) if prefills else (other, this)
        load = largest_load(*pools, np.ones(len(rows), dtype=bool), asked, constants, worth=1.0 / this.gpus)
        least += [float(gpus / at) for gpus, at in zip(this.gpus, load, strict=True) if at > 0]
    return min(least, default=None)
