"""Pairs of instances that prefill and instances that decode: the cheapest that keep the promises.

Under requests per second, the time to first token is the sum of a part that depends on the prefill instances and their
number, of an iteration of the decode instances, and of the transfer of the cache; the time per output token depends on
the decode instances alone. So both pools are priced by themselves, and every pair of them is compared.

Of requests at any time, the rate depends on both pools. So the pairs are priced, the cheapest first, until some keep
the promises. Those are left out that break one even where a request is alone, which their pools tell.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace

import numpy as np

from ...cost_models.arrays import Array, Ints
from ...cost_models.serving.iteration import ServingConstants
from ...cost_models.serving.pool import Pool
from .promises import Promises, priced
from .search import Stand
from .space import Site, Space

TIE = 1e-9  # relative, of prices


@dataclass(frozen=True)
class Side:
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

    def pool(self, rows: Ints) -> Pool:
        return self.columns.rows(self.instance[rows], self.number[rows].astype(float))

    def stand(self, row: int) -> Stand:
        return self.stand_of(int(self.instance[row]), int(self.number[row]))

    def stand_of(self, instance: int, number: int) -> Stand:
        return Stand(site=self.space.site, instance=self.space.instances[instance], instances=number)


@dataclass(frozen=True)
class Pair:
    """Rows of two sides."""

    price: float
    prefill: Stand
    decode: Stand
    transfer_s: float


@dataclass(frozen=True)
class Meeting:
    """Instances of two sites, or of one, that could be pairs."""

    prefill: Side
    decode: Side
    budget: int | None  # GPUs that both share; None: each has a site of its own
    bandwidth: float  # bytes/s of a GPU to the other pool
    prices: tuple[float, float]  # of a GPU that prefills and of one that decodes

    @classmethod
    def of(cls, prefill: Side, decode: Side, between_bw: float, *, rented: bool) -> Meeting:
        site, same = prefill.space.site, prefill.space is decode.space
        one, other = (side.space.site.usd_per_gpu_hour or 0.0 if rented else 1.0 for side in (prefill, decode))
        return cls(prefill, decode, site.num_gpus if same else None, _bandwidth(site) if same else between_bw,
                   (one, other))  # fmt: skip

    def combinations(self, first: Ints, second: Ints) -> int:
        """Pairs of rows with so many GPUs each that there are GPUs for."""
        if self.budget is None:
            return len(first) * len(second)
        return int(np.searchsorted(np.sort(second), self.budget - first, side="right").sum())

    def transfer_s(self, instance: Ints | int, rows: Ints) -> Array:
        """Of a prompt's cache, from prefill instances to rows that decode."""
        sent = np.maximum(self.prefill.cache_bytes[instance], self.decode.cache_bytes[self.decode.instance[rows]])
        return np.asarray(sent / self.bandwidth)


def _bandwidth(site: Site) -> float:
    """Of a GPU, to the other pool: in a node where there is one node alone, else between nodes."""
    return site.levels[0 if site.num_gpus <= site.gpus_per_node else -1].bw_bytes_per_s


@dataclass(frozen=True)
class _Prices:
    """A prefill layout with the rows that decode: the fewest instances of it that keep the promises, and the price."""

    instance: int
    rows: Ints
    needed: Ints  # [of rows]
    price: Array  # [of rows]; infinite: there are not so many GPUs
    transfer_s: Array  # [of rows]
    kept: int  # pairs, with more instances that prefill, too


def _prices(meeting: Meeting, promises: Promises) -> Iterator[_Prices]:
    """By prefill layout. The seconds of the sides are those under a rate."""
    one, other = meeting.prefill, meeting.decode
    rows = np.flatnonzero(np.isfinite(other.seconds))
    for instance in np.unique(one.instance) if len(rows) else ():
        of_instance = one.instance == instance
        each = one.space.instances[instance].layout.gpus
        transfer_s = meeting.transfer_s(int(instance), rows)
        slack = promises.ttft_s - other.seconds[rows] - transfer_s
        needed = np.searchsorted(-one.seconds[of_instance], -slack, side="left") + 1
        most = np.full(len(rows), one.number[of_instance].max())
        if meeting.budget is not None:
            most = np.minimum(most, (meeting.budget - other.gpus[rows]) // each)
        cost = needed * each * meeting.prices[0] + other.gpus[rows] * meeting.prices[1]
        yield _Prices(int(instance), rows, needed, np.where(needed <= most, cost, np.inf), transfer_s,
                      int(np.maximum(most - needed + 1, 0).sum()))  # fmt: skip


def pairs_under_rate(meeting: Meeting, promises: Promises) -> tuple[list[Pair], int]:
    """The cheapest pairs of an instance that prefills with instances that decode, and how many keep the promises.

    The seconds of the sides are those under the rate.
    """
    best, least, kept = list[Pair](), np.inf, 0
    for at in _prices(meeting, promises):
        kept += at.kept
        if not at.price.min() <= least * (1 + TIE):
            continue
        least = float(at.price.min())
        best += [_pair(meeting, at, int(i)) for i in np.flatnonzero(at.price <= least * (1 + TIE))
                 if np.isfinite(at.price[i])]  # fmt: skip
    return [pair for pair in best if pair.price <= least * (1 + TIE)], kept


def pairs_over_day(hours: Sequence[tuple[Meeting, int]], promises: Promises) -> tuple[list[Pair], int]:
    """The pairs of layouts that cost least over the hours of a day, with their cheapest instances in the busiest one,
    and how many pairs keep the promises there.

    hours: the sides under each rate, the largest last, with the number of hours that have it.
    """
    busiest = list[_Prices]()
    total = np.zeros((1, 1))
    for meeting, number in hours:
        busiest = list(_prices(meeting, promises))
        least = np.full((len(meeting.prefill.space.instances), len(meeting.decode.space.instances)), np.inf)
        for at in busiest:
            np.minimum.at(least[at.instance], meeting.decode.instance[at.rows], at.price)
        total = total + number * least
    meeting, pairs = hours[-1][0], list[Pair]()
    for at in busiest:
        of_row = total[at.instance, meeting.decode.instance[at.rows]]
        for decodes in np.unique(meeting.decode.instance[at.rows][of_row <= total.min() * (1 + TIE)]):
            rows = np.flatnonzero(meeting.decode.instance[at.rows] == decodes)
            if np.isfinite(total[at.instance, decodes]):
                chosen = _pair(meeting, at, int(rows[np.argmin(at.price[rows])]))
                pairs.append(replace(chosen, price=float(total[at.instance, decodes])))
    return pairs, sum(at.kept for at in busiest)


def pairs_at_once(
    meeting: Meeting, load: float, promises: Promises, constants: ServingConstants, most: float
) -> tuple[list[Pair], int]:  # fmt: skip
    """The cheapest pairs that keep the promises with so many requests at any time, none dearer than `most`, and how
    many are not known to break one.

    The seconds of the sides are those of a request alone.
    """
    one, other = meeting.prefill, meeting.decode
    first, second = (grid.ravel() for grid in np.meshgrid(np.arange(len(one.instance)), np.arange(len(other.instance)),
                                                          indexing="ij"))  # fmt: skip
    if meeting.budget is not None:
        room = one.gpus[first] + other.gpus[second] <= meeting.budget
        first, second = first[room], second[room]
    transfer_s = meeting.transfer_s(one.instance[first], second)
    usable = one.seconds[first] + other.seconds[second] + transfer_s <= promises.ttft_s
    broken = int((~usable).sum())
    first, second, transfer_s = first[usable], second[usable], transfer_s[usable]
    price = one.gpus[first] * meeting.prices[0] + other.gpus[second] * meeting.prices[1]
    for value in np.unique(price[price <= most * (1 + TIE)]):
        at = np.flatnonzero(price == value)
        kept = priced(one.pool(first[at]), other.pool(second[at]), np.ones(len(at), dtype=bool),
                      np.full(len(at), load), promises, constants, transfer_s[at]).kept  # fmt: skip
        broken += int((~kept).sum())
        if kept.any():
            found = [Pair(float(value), one.stand(first[i]), other.stand(second[i]), float(transfer_s[i]))
                     for i in at[kept]]  # fmt: skip
            break
    else:
        found = []
    return found, meeting.combinations(one.gpus, other.gpus) - broken


def _pair(meeting: Meeting, at: _Prices, i: int) -> Pair:
    """The fewest instances of the prefill layout with one of the rows that decode."""
    prefill = meeting.prefill.stand_of(at.instance, int(at.needed[i]))
    return Pair(float(at.price[i]), prefill, meeting.decode.stand(at.rows[i]), float(at.transfer_s[i]))
