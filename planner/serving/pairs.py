"""Pairs of instances that prefill and instances that decode: the cheapest that keep the promises.

Under requests per second, the time to first token is the sum of a part that depends on the prefill instances and their
number, of an iteration of the decode instances, and of the transfer of the cache; the time per output token depends on
the decode instances alone. So both pools are priced by themselves, and every pair of them is compared.

Of requests at any time, the rate depends on both pools. So the pairs are priced, the cheapest first, until some keep
the promises. Those are left out that break one even where a request is alone, which their pools tell.

Without a load those are sought that carry most. Under requests per second no pair carries more than either of its pools
beside one of the other role that is never waited for; the pairs are priced in that order, until none can be better.
Only those are bisected that keep the promises under as much as the best so far carries.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace

import numpy as np

from ...cost_models.arrays import Array, Ints, Mask
from ...cost_models.serving.constants import ServingConstants
from ...cost_models.serving.pool import Pool
from .promises import ROUNDING, Promises, largest_load, priced
from .search import Fleet
from .space import Site, Space

TIE = 1e-9  # relative: prices that differ by less are the same
_AT_ONCE = 512  # pairs that are priced before the bounds are looked at again


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
    cache_bytes: Array  # [instance] of a prompt of mean length on a GPU
    long_bytes: Array  # [instance] of the longest prompt that is promised anything
    most: Array  # [row] load that no pair with it exceeds; infinite where the load is given

    def pool(self, rows: Ints) -> Pool:
        return self.columns.rows(self.instance[rows], self.number[rows].astype(float))

    def fleet(self, row: int) -> Fleet:
        return self.stand_of(int(self.instance[row]), int(self.number[row]))

    def stand_of(self, instance: int, number: int) -> Fleet:
        return Fleet(site=self.space.site, instance=self.space.instances[instance], instances=number,
                     least=self.space.least)  # fmt: skip


@dataclass(frozen=True)
class Pair:
    """Rows of two sides."""

    price: float  # of an hour or of all of a day; without a load minus the load that it carries
    prefill: Fleet
    decode: Fleet
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
        site, same = prefill.space.site, prefill.space.site is decode.space.site
        one, other = (side.space.site.usd_per_gpu_hour or 0.0 if rented else 1.0 for side in (prefill, decode))
        return cls(prefill, decode, site.num_gpus if same else None, _bandwidth(site) if same else between_bw,
                   (one, other))  # fmt: skip

    def combinations(self, first: Ints, second: Ints) -> int:
        """Pairs of rows with so many GPUs each that there are GPUs for."""
        if self.budget is None:
            return len(first) * len(second)
        return int(np.searchsorted(np.sort(second), self.budget - first, side="right").sum())

    def transfer_s(self, instance: Ints | int, rows: Ints) -> Array:
        """The transfer of a prompt's cache, from prefill instances to rows that decode, mean."""
        sent = np.maximum(self.prefill.cache_bytes[instance], self.decode.cache_bytes[self.decode.instance[rows]])
        return np.asarray(sent / self.bandwidth)

    def long_transfer_s(self, instance: Ints | int, rows: Ints) -> Array:
        """As `transfer_s`, of the longest prompt that is promised anything."""
        sent = np.maximum(self.prefill.long_bytes[instance], self.decode.long_bytes[self.decode.instance[rows]])
        return np.asarray(sent / self.bandwidth)


def _bandwidth(site: Site) -> float:
    """Bytes/s of a GPU to the other pool: in a node where there is one node alone, else between nodes."""
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
    """Prices by prefill layout. The seconds of the sides are those under a rate."""
    one, other = meeting.prefill, meeting.decode
    rows = np.flatnonzero(np.isfinite(other.seconds))
    for instance in np.unique(one.instance) if len(rows) else ():
        of_instance = one.instance == instance
        each = one.space.instances[instance].layout.gpus
        transfer_s = meeting.transfer_s(int(instance), rows)
        slack = promises.ttft_s - other.seconds[rows] - meeting.long_transfer_s(int(instance), rows)
        number = one.number[of_instance]
        needed = np.searchsorted(-one.seconds[of_instance], -slack, side="left") + number[0]
        most = np.full(len(rows), number[-1])
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


@dataclass(frozen=True)
class _Rows:
    """All pairs of rows that there are GPUs for and whose promises a request alone does not break."""

    first: Ints  # [pair] row that prefills
    second: Ints  # [pair] row that decodes
    transfer_s: Array
    broken: int  # pairs that are left out

    @classmethod
    def of(cls, meeting: Meeting, promises: Promises) -> _Rows:
        """The seconds of the sides are those of a request alone."""
        one, other = meeting.prefill, meeting.decode
        first, second = (grid.ravel() for grid in np.meshgrid(
            np.arange(len(one.instance)), np.arange(len(other.instance)), indexing="ij"))  # fmt: skip
        if meeting.budget is not None:
            room = one.gpus[first] + other.gpus[second] <= meeting.budget
            first, second = first[room], second[room]
        transfer_s = meeting.transfer_s(one.instance[first], second)
        long_s = meeting.long_transfer_s(one.instance[first], second)
        usable = one.seconds[first] + other.seconds[second] + long_s <= promises.ttft_s
        return cls(first[usable], second[usable], transfer_s[usable], int((~usable).sum()))

    def pools(self, meeting: Meeting, at: Ints) -> tuple[Pool, Pool]:
        return meeting.prefill.pool(self.first[at]), meeting.decode.pool(self.second[at])

    def pair(self, meeting: Meeting, at: int, price: float) -> Pair:
        return Pair(price, meeting.prefill.fleet(self.first[at]), meeting.decode.fleet(self.second[at]),
                    float(self.transfer_s[at]))  # fmt: skip


def pairs_at_once(
    meeting: Meeting, load: float, promises: Promises, constants: ServingConstants, most: float
) -> tuple[list[Pair], int]:  # fmt: skip
    """The cheapest pairs that keep the promises with so many requests at any time, none dearer than `most`, and how
    many are not known to break one.

    The seconds of the sides are those of a request alone.
    """
    rows, pairs = _Rows.of(meeting, promises), list[Pair]()
    price = (meeting.prefill.gpus[rows.first] * meeting.prices[0]
             + meeting.decode.gpus[rows.second] * meeting.prices[1])  # fmt: skip
    broken = rows.broken
    for value in np.unique(price[price <= most * (1 + TIE)]):
        at = np.flatnonzero(price == value)
        kept = _kept(rows, meeting, at, load, promises, constants)
        broken += int((~kept).sum())
        pairs = [rows.pair(meeting, int(i), float(value)) for i in at[kept]]
        if pairs:
            break
    return pairs, meeting.combinations(meeting.prefill.gpus, meeting.decode.gpus) - broken


def pairs_that_carry_most(
    meeting: Meeting, promises: Promises, constants: ServingConstants, least: float
) -> tuple[list[Pair], int]:  # fmt: skip
    """The pairs that carry most, if that is `least` or more, and how many are not known to break a promise.

    The seconds of the sides are those of a request alone.
    """
    rows = _Rows.of(meeting, promises)
    bound = np.minimum(meeting.prefill.most[rows.first], meeting.decode.most[rows.second])
    order = np.argsort(-bound, kind="stable")
    broken, carried = rows.broken, np.zeros(len(order))
    for start in range(0, len(order), _AT_ONCE):
        at = order[start : start + _AT_ONCE]
        if bound[at[0]] < least * (1 - ROUNDING):
            break
        if least > 0:
            at = at[_kept(rows, meeting, at, least * (1 - ROUNDING), promises, constants)]
        if not len(at):
            continue
        carried[at] = largest_load(*rows.pools(meeting, at), np.ones(len(at), dtype=bool), promises, constants,
                                   rows.transfer_s[at], worth=np.ones(len(at)))  # fmt: skip
        broken += int((carried[at] == 0).sum())
        least = max(least, float(carried[at].max()))
    best = np.flatnonzero((carried > 0) & (carried >= least * (1 - ROUNDING)))
    return ([rows.pair(meeting, int(i), -float(carried[i])) for i in best],
            meeting.combinations(meeting.prefill.gpus, meeting.decode.gpus) - broken)  # fmt: skip


def _kept(
    rows: _Rows, meeting: Meeting, at: Ints, load: float, promises: Promises, constants: ServingConstants
) -> Mask:  # fmt: skip
    """[of at] whether the pairs keep the promises under a load."""
    return priced(*rows.pools(meeting, at), np.ones(len(at), dtype=bool), np.full(len(at), load), promises, constants,
                  rows.transfer_s[at]).kept  # fmt: skip


def _pair(meeting: Meeting, at: _Prices, i: int) -> Pair:
    """The fewest instances of the prefill layout with one of the rows that decode."""
    prefill = meeting.prefill.stand_of(at.instance, int(at.needed[i]))
    return Pair(float(at.price[i]), prefill, meeting.decode.fleet(at.rows[i]), float(at.transfer_s[i]))
