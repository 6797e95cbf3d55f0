"""The exact search for deployments whose prompts and answers have instances of their own, under requests per second.

The time to first token is the sum of a part that depends on the prefill instances and their number, of an iteration of
the decode instances, and of the transfer of the cache; the time per output token depends on the decode instances alone.
So both pools are priced by themselves, and every pair of them is compared.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np

from ...cost_models.arrays import Array, Ints
from ...cost_models.serving.iteration import ServingConstants
from ...cost_models.serving.pool import Pool
from .instance import pool
from .promises import Promises, holds_a_sequence, largest_load, priced
from .search import Deployment, Rival, Stand, stands_pool
from .space import Site, Space

_MANY = 1e9  # instances of a pool that the other one never waits for
_TIE = 1e-9  # relative, of prices


@dataclass(frozen=True, kw_only=True)
class Apart:
    """The cheapest deployments apart that keep the promises, those that carry most first, and what became of all."""

    deployments: tuple[Deployment, ...]
    total: int
    broken: int  # a promise
    out_of_memory: int
    bounded: int  # keep the promises and cost more
    # GPUs for a request per second, where any part of an instance can be had; None: no instance keeps the promises.
    prefill_gpus: float | None
    decode_gpus: float | None


@dataclass(frozen=True)
class _Side:
    """One role on one site, a row per layout and number of instances."""

    space: Space
    columns: Pool  # [instance]
    legal_gpus: Ints  # of all rows, those that do not fit the memory included
    instance: Ints  # [row] index into the instances of the space, ascending
    number: Ints  # [row] of instances, ascending
    gpus: Ints  # [row] of all of them
    # [row] prefill: TTFT but for decoding and transfer; decode: what it adds to TTFT; infinite: not kept.
    seconds: Array
    cache_bytes: Array  # [instance] of a prompt on a GPU


@dataclass(frozen=True)
class _Pair:
    """Rows of two sides."""

    price: float
    prefill: Stand
    decode: Stand
    transfer_s: float


def search_apart(
    spaces: Sequence[Space], load: float, promises: Promises, constants: ServingConstants, between_bw: float,
    rival: Rival | None = None,
) -> Apart:  # fmt: skip
    """load: requests per second. between_bw: bytes/s of a GPU from site to site. rival: deployments that cost more are
    left out, and the GPUs of each role are not sought."""
    prefill, decode = ([_side(space, load, promises, constants, prefills=prefills) for space in spaces
                        if space.instances] for prefills in (True, False))  # fmt: skip
    rented = all(space.site.usd_per_gpu_hour is not None for space in spaces)
    total = held = kept = 0
    pairs = list[_Pair]()
    for one in prefill:
        for other in decode:
            budget = one.space.site.num_gpus if one.space is other.space else None
            total += _combinations(one.legal_gpus, other.legal_gpus, budget)
            held += _combinations(one.gpus, other.gpus, budget)
            found, keep = _pairs(one, other, promises, between_bw, rented=rented)
            pairs, kept = pairs + found, kept + keep
    least = min((pair.price for pair in pairs), default=0.0)
    if rival is not None:
        least = min(least, rival.price)
    cheapest = [pair for pair in pairs if pair.price <= least * (1 + _TIE)]
    deployments = _carrying(cheapest, promises, constants) if cheapest else []
    return Apart(
        deployments=tuple(deployments), total=total, broken=held - kept, out_of_memory=total - held,
        bounded=kept - len(deployments),
        prefill_gpus=None if rival else _least_gpus(prefill, promises, constants, prefills=True),
        decode_gpus=None if rival else _least_gpus(decode, promises, constants, prefills=False),
    )  # fmt: skip


def _side(
    space: Space, load: float, promises: Promises, constants: ServingConstants, *, prefills: bool
) -> _Side:  # fmt: skip
    """Chunks make no difference to instances that decode: one size stands for all."""
    columns = pool(space.instances)
    fits = holds_a_sequence(columns, promises)
    chunk = space.instances[0].chunk_tokens
    chosen = [i for i, it in enumerate(space.instances) if prefills or it.chunk_tokens == chunk]
    every = np.array([(i, n) for i in chosen for n in range(1, space.most[i] + 1)])
    layout_gpus = np.array([it.layout.gpus for it in space.instances])
    rows = every[fits[every[:, 0]]]
    instance, number = rows[:, 0], rows[:, 1]
    seconds = _seconds(columns, instance, number, load, promises, constants, prefills=prefills)
    return _Side(space, columns, layout_gpus[every[:, 0]] * every[:, 1], instance, number,
                 layout_gpus[instance] * number, seconds,
                 columns.kv_bytes * columns.kv_elements(np.array(promises.requests.prompt)) / columns.pp)  # fmt: skip


def _seconds(
    columns: Pool, instance: Ints, number: Ints, load: float, promises: Promises, constants: ServingConstants, *,
    prefills: bool,
) -> Array:  # fmt: skip
    """As `_Side.seconds`: beside a pool of the other role that is never waited for."""
    if not len(instance):
        return np.zeros(0)
    this, other = columns.rows(instance, number.astype(float)), columns.rows(instance, np.full(len(instance), _MANY))
    pools = (this, other) if prefills else (other, this)
    asked = replace(promises, ttft_s=np.inf, tpot_s=np.inf if prefills else promises.tpot_s)
    at = priced(*pools, np.ones(len(instance), dtype=bool), np.full(len(instance), load), asked, constants)
    first_s = at.service.first_token_s
    seconds = at.latencies.ttft_s - first_s if prefills else first_s
    return np.where(at.kept, seconds, np.inf)


def _combinations(first: Ints, second: Ints, budget: int | None) -> int:
    """Pairs of rows that the GPUs of a site suffice for; None: each has a site of its own."""
    if budget is None:
        return len(first) * len(second)
    return int(np.searchsorted(np.sort(second), budget - first, side="right").sum())


def _pairs(one: _Side, other: _Side, promises: Promises, between_bw: float, *, rented: bool) -> tuple[list[_Pair], int]:
    """The cheapest pairs of an instance that prefills with instances that decode, and how many keep the promises."""
    usable = np.isfinite(other.seconds)
    rows, same = np.flatnonzero(usable), one.space is other.space
    bandwidth = _bandwidth(one.space.site) if same else between_bw
    prices = [side.space.site.usd_per_gpu_hour or 0.0 if rented else 1.0 for side in (one, other)]
    best, least, kept = list[_Pair](), np.inf, 0
    for instance in np.unique(one.instance) if len(rows) else ():
        of_instance = one.instance == instance
        each = one.space.instances[instance].layout.gpus
        transfer_s = np.maximum(one.cache_bytes[instance], other.cache_bytes[other.instance[rows]]) / bandwidth
        slack = promises.ttft_s - other.seconds[rows] - transfer_s
        needed = np.searchsorted(-one.seconds[of_instance], -slack, side="left") + 1
        most = np.full(len(rows), one.number[of_instance].max())
        if same:
            most = np.minimum(most, (one.space.site.num_gpus - other.gpus[rows]) // each)
        kept += int(np.maximum(most - needed + 1, 0).sum())
        price = np.where(needed <= most, needed * each * prices[0] + other.gpus[rows] * prices[1], np.inf)
        if not price.min() <= least * (1 + _TIE):
            continue
        least = float(price.min())
        best += [_pair(one, other, int(instance), int(needed[i]), int(rows[i]), float(price[i]), float(transfer_s[i]))
                 for i in np.flatnonzero(price <= least * (1 + _TIE)) if np.isfinite(price[i])]  # fmt: skip
    return [pair for pair in best if pair.price <= least * (1 + _TIE)], kept


def _pair(
    one: _Side, other: _Side, instance: int, number: int, row: int, price: float, transfer_s: float
) -> _Pair:  # fmt: skip
    prefill = Stand(site=one.space.site, instance=one.space.instances[instance], instances=number)
    decode = Stand(site=other.space.site, instance=other.space.instances[other.instance[row]],
                   instances=int(other.number[row]))  # fmt: skip
    return _Pair(price, prefill, decode, transfer_s)


def _bandwidth(site: Site) -> float:
    """Of a GPU, to the other pool: in a node where there is one node alone, else between nodes."""
    return site.levels[0 if site.num_gpus <= site.gpus_per_node else -1].bw_bytes_per_s


def _carrying(pairs: Sequence[_Pair], promises: Promises, constants: ServingConstants) -> list[Deployment]:
    """The deployments with the largest loads that they carry, the largest first."""
    most = largest_load(
        stands_pool([pair.prefill for pair in pairs]), stands_pool([pair.decode for pair in pairs]),
        np.ones(len(pairs), dtype=bool), promises, constants, np.array([pair.transfer_s for pair in pairs]),
    )  # fmt: skip
    made = [Deployment(prefill=pair.prefill, decode=pair.decode, transfer_s=pair.transfer_s, largest_load=float(load))
            for pair, load in zip(pairs, most, strict=True) if load > 0]  # fmt: skip
    return sorted(made, key=lambda it: -it.largest_load)


def _least_gpus(
    sides: Sequence[_Side], promises: Promises, constants: ServingConstants, *, prefills: bool
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
        load = largest_load(*pools, np.ones(len(rows), dtype=bool), asked, constants)
        least += [float(gpus / at) for gpus, at in zip(this.gpus, load, strict=True) if at > 0]
    return min(least, default=None)
