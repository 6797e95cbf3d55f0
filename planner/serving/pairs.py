"""Pairs of instances that prefill and instances that decode: the cheapest that keep the promises.

Under requests per second, the time to first token is the sum of a part that depends on the prefill instances and their
number, of an iteration of the decode instances, and of the transfer of the cache; the time per output token depends on
the decode instances alone. So both pools are priced by themselves, and every pair of them is compared.

Of requests at any time, the rate depends on both pools. So the pairs are priced, the cheapest first, until some keep
the promises. Those are left out that break one even where a request is alone, which their pools tell.
"""

from __future__ import annotations

from dataclasses import dataclass

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

    def stand(self, instance: int, number: int) -> Stand:
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


def pairs_under_rate(meeting: Meeting, promises: Promises) -> tuple[list[Pair], int]:
    """The cheapest pairs of an instance that prefills with instances that decode, and how many keep the promises.

    The seconds of the sides are those under the rate.
    """
    one, other = meeting.prefill, meeting.decode
    rows = np.flatnonzero(np.isfinite(other.seconds))
    best, least, kept = list[Pair](), np.inf, 0
    for instance in np.unique(one.instance) if len(rows) else ():
        of_instance = one.instance == instance
        each = one.space.instances[instance].layout.gpus
        transfer_s = meeting.transfer_s(int(instance), rows)
        slack = promises.ttft_s - other.seconds[rows] - transfer_s
        needed = np.searchsorted(-one.seconds[of_instance], -slack, side="left") + 1
        most = np.full(len(rows), one.number[of_instance].max())
        if meeting.budget is not None:
            most = np.minimum(most, (meeting.budget - other.gpus[rows]) // each)
        kept += int(np.maximum(most - needed + 1, 0).sum())
        cost = needed * each * meeting.prices[0] + other.gpus[rows] * meeting.prices[1]
        price = np.where(needed <= most, cost, np.inf)
        if not price.min() <= least * (1 + TIE):
            continue
        least = float(price.min())
        best += [_pair(meeting, int(instance), int(needed[i]), int(rows[i]), float(price[i]), float(transfer_s[i]))
                 for i in np.flatnonzero(price <= least * (1 + TIE)) if np.isfinite(price[i])]  # fmt: skip
    return [pair for pair in best if pair.price <= least * (1 + TIE)], kept


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
            found = [_pair(meeting, int(one.instance[first[i]]), int(one.number[first[i]]), int(second[i]),
                           float(value), float(transfer_s[i])) for i in at[kept]]  # fmt: skip
            break
    else:
        found = []
    return found, meeting.combinations(one.gpus, other.gpus) - broken


def _pair(
    meeting: Meeting, instance: int, number: int, row: int, price: float, transfer_s: float
) -> Pair:  # fmt: skip
    """Instances of a layout that prefills, and a row that decodes."""
    decode = meeting.decode
    return Pair(price, meeting.prefill.stand(instance, number),
                decode.stand(int(decode.instance[row]), int(decode.number[row])), transfer_s)  # fmt: skip
