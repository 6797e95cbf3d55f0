"""The exact search for deployments where prompts and answers share instances.

Latencies grow with the load, and equal instances share it evenly. So a layout needs the least number of instances that
keeps the promises: every smaller number breaks one, and every larger one costs more. Under Poisson arrivals the number
is ceil(load / largest load of one instance). The arrivals of a trace are nearer to Poisson arrivals at each of more
instances, which changes what an instance carries, so every number is priced.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from ...cost_models.arrays import Array, Ints, Mask
from ...cost_models.serving.constants import ServingConstants
from ...cost_models.serving.pool import Pool
from .instance import Instance, pool
from .promises import ROUNDING, Promises, holds_a_sequence, largest_load, priced
from .space import Site, Space

_MORE = 1e-6  # relative: loads and prices that differ by less are the same


@dataclass(frozen=True, kw_only=True)
class Fleet:
    """Equal instances on a site."""

    site: Site
    instance: Instance
    instances: int
    least: int = 1  # instances that an hour of a day has at least

    @property
    def gpus(self) -> int:
        return self.instance.layout.gpus * self.instances


def fleets_pool(fleets: Sequence[Fleet]) -> Pool:
    """The instances as columns, one row a fleet."""
    instances = np.array([float(fleet.instances) for fleet in fleets])
    return pool([fleet.instance for fleet in fleets]).rows(np.arange(len(fleets)), instances)


@dataclass(frozen=True, kw_only=True)
class Deployment:
    """Instances that prefill and instances that decode; the same ones where they are together."""

    prefill: Fleet
    decode: Fleet
    largest_load: float  # that keeps the promises
    transfer_s: float = 0.0  # of a prompt's cache from pool to pool
    # [hour][fleet] instances in each hour of a day, fewer than those at its peak; empty: the load is one rate.
    hours: tuple[tuple[int, ...], ...] = ()

    @property
    def disaggregated(self) -> bool:
        return self.prefill is not self.decode

    @property
    def fleets(self) -> tuple[Fleet, ...]:
        return (self.prefill, self.decode) if self.disaggregated else (self.decode,)

    @property
    def gpus(self) -> int:
        return sum(fleet.gpus for fleet in self.fleets)

    @property
    def usd_per_hour(self) -> float | None:
        """Rent; None where that of a site is not known."""
        rents = [fleet.site.usd_per_gpu_hour for fleet in self.fleets]
        if any(rent is None for rent in rents):
            return None
        return self.price_of(tuple(fleet.instances for fleet in self.fleets), rented=True)

    @property
    def gpu_hours(self) -> float | None:
        """GPU-hours of a day; None where the load is one rate."""
        return sum(self.price_of(instances, rented=False) for instances in self.hours) if self.hours else None

    def price_of(self, instances: Sequence[int], *, rented: bool) -> float:
        """The price of an hour with so many instances of each fleet: rent, else GPUs."""
        return sum(fleet.instance.layout.gpus * number * (fleet.site.usd_per_gpu_hour or 0.0 if rented else 1.0)
                   for fleet, number in zip(self.fleets, instances, strict=True))  # fmt: skip

    def price(self, *, rented: bool) -> float:
        """The price of an hour, or of all hours of a day."""
        hours = self.hours or (tuple(fleet.instances for fleet in self.fleets),)
        return sum(self.price_of(instances, rented=rented) for instances in hours)


@dataclass(frozen=True, kw_only=True)
class DeploymentResult:
    """Deployments that keep the promises, the cheapest first, and what became of the others."""

    deployments: tuple[Deployment, ...]
    rented: bool  # the price is rent
    total: int
    by_axis: dict[str, int]
    ruled_out: dict[str, int]
    out_of_memory: int
    dominated: int  # more instances of a layout than keep the promises
    bounded: int = 0  # keep the promises and cost more than others


@dataclass(frozen=True, kw_only=True)
class Incumbent:
    """The best deployment of other searches, which this one has to beat."""

    price: float  # as `order` has it
    largest_load: float
    rented: bool  # the price is rent, else GPUs

    def cost(self, load: float | None) -> float:
        """The price; without a load minus the load that it carries."""
        return self.price if load is not None else -self.largest_load


def search(
    spaces: Sequence[Space], load: float | None, promises: Promises, constants: ServingConstants,
    incumbent: Incumbent | None = None,
) -> DeploymentResult:  # fmt: skip
    """load: of all requests; None: as much as each site carries. incumbent: no better deployments are kept."""
    ruled_out: Counter[str] = Counter()
    deployments = list[Deployment]()
    out_of_memory = dominated = bounded = 0
    for space in spaces:
        ruled_out.update(space.ruled_out)
        if not space.instances:
            continue
        columns, most = pool(space.instances), np.array(space.most, dtype=np.int64)
        fits = holds_a_sequence(columns, promises)
        out_of_memory += int((most[~fits] - space.least + 1).sum())
        if not fits.any():
            continue
        rows = np.flatnonzero(fits)
        if incumbent is not None:
            better = beats(incumbent, space, columns, rows, load, promises, constants)
            bounded += int((most[rows[~better]] - space.least + 1).sum())
            rows = rows[better]
            if not len(rows):
                continue
        number, carried = _least(space, columns, rows, load, promises, constants)
        kept = carried > 0
        fewer = number - space.least  # break a promise; without a load carry less
        ruled_out["promise"] += int(fewer.sum()) if load is not None else int(fewer[~kept].sum())
        dominated += int((most[rows] - number)[kept].sum()) + (int(fewer[kept].sum()) if load is None else 0)
        deployments += [_aggregated(space, int(rows[i]), int(number[i]), float(carried[i]))
                        for i in np.flatnonzero(kept)]  # fmt: skip
    rented = all(space.site.usd_per_gpu_hour is not None for space in spaces)
    return DeploymentResult(
        deployments=tuple(sorted(deployments, key=lambda it: order(it, load, rented=rented))), rented=rented,
        total=sum(space.total for space in spaces), by_axis=_axes(spaces),
        ruled_out={name: count for name, count in ruled_out.items() if count},
        out_of_memory=out_of_memory, dominated=dominated, bounded=bounded,
    )  # fmt: skip


def beats(
    incumbent: Incumbent, space: Space, columns: Pool, rows: Ints, load: float | None, promises: Promises,
    constants: ServingConstants,
) -> Mask:  # fmt: skip
    """[row] whether some number of instances may be better than the incumbent: the most that cost less keep the
    promises under the load, or as many as cost the same do so under more load than the incumbent carries."""
    most = np.array(space.most, dtype=np.int64)[rows]
    more = np.full(len(rows), incumbent.largest_load * (1 + _MORE))
    if load is None:
        return _kept(columns, rows, most, more, promises, constants)
    each = np.array([space.instances[row].layout.gpus for row in rows]) * (
        space.site.usd_per_gpu_hour or 0.0 if incumbent.rented else 1.0)  # fmt: skip
    equal = np.minimum(np.floor(incumbent.price / each * (1 + _MORE)), most).astype(np.int64)
    same = np.abs(equal * each / incumbent.price - 1) <= _MORE
    fewer = equal - same
    under = np.full(len(rows), load * (1 - ROUNDING))
    both = np.concatenate([rows, rows]), np.concatenate([fewer, equal]), np.concatenate([under, more])
    cheaper, carries_more = np.split(_kept(columns, *both, promises, constants), 2)
    return (cheaper & (fewer >= space.least)) | (carries_more & same & (equal >= space.least))


def _kept(
    columns: Pool, rows: Ints, instances: Ints, load: Array, promises: Promises, constants: ServingConstants
) -> Mask:  # fmt: skip
    """[row] whether so many instances keep the promises under a load."""
    pools = columns.rows(rows, np.maximum(instances, 1).astype(float))
    return priced(pools, pools, np.zeros(len(rows), dtype=bool), load, promises, constants).kept


def _aggregated(space: Space, row: int, instances: int, largest_load: float) -> Deployment:
    fleet = Fleet(site=space.site, instance=space.instances[row], instances=instances, least=space.least)
    return Deployment(prefill=fleet, decode=fleet, largest_load=largest_load)


def _least(
    space: Space, columns: Pool, rows: Ints, load: float | None, promises: Promises, constants: ServingConstants
) -> tuple[Ints, Array]:  # fmt: skip
    """[row] the least number of instances that carries the load, without a load the most that there is room for, and
    the largest load of so many; one more than there is room for and 0 where no number does."""
    most = np.array(space.most, dtype=np.int64)[rows]
    if promises.requests.arrival_scv == 1.0:
        one = _largest_of(columns, rows, np.ones_like(rows), promises, constants)
        needed = most if load is None else np.ceil(load * (1 - ROUNDING) / np.maximum(one, 1e-12))
        kept = (one > 0) & (needed <= most)
        number = np.where(kept, np.maximum(needed, space.least), most + 1).astype(np.int64)
        return number, np.where(kept, one * number, 0.0)
    number = most if load is None else _first_kept(space, columns, rows, load, promises, constants)
    carried = np.where(number <= most, _largest_of(columns, rows, number, promises, constants), 0.0)
    return np.where(carried > 0, number, most + 1), carried


def _first_kept(
    space: Space, columns: Pool, rows: Ints, load: float, promises: Promises, constants: ServingConstants
) -> Ints:  # fmt: skip
    """[row] as `_least`: prices every number under the load."""
    most = np.array(space.most, dtype=np.int64)[rows]
    every = np.array([(i, n) for i, last in enumerate(most) for n in range(space.least, last + 1)])
    row, number = every[:, 0], every[:, 1]
    pools = columns.rows(rows[row], number.astype(float))
    at = priced(pools, pools, np.zeros(len(every), dtype=bool), np.full(len(every), load * (1 - ROUNDING)), promises,
                constants)  # fmt: skip
    least = most + 1
    np.minimum.at(least, row[at.kept], number[at.kept])
    return least


def _largest_of(
    columns: Pool, rows: Ints, instances: Ints, promises: Promises, constants: ServingConstants
) -> Array:  # fmt: skip
    """[row] the largest load of so many instances."""
    pools = columns.rows(rows, instances.astype(float))
    return largest_load(pools, pools, np.zeros(len(rows), dtype=bool), promises, constants)


def order(deployment: Deployment, load: float | None, *, rented: bool) -> tuple[float, ...]:
    """The cheapest first, then those that carry most; without a load those that carry most, then the cheapest."""
    price = deployment.price(rented=rented)
    carried = round(deployment.largest_load, 9)
    rest = [value for fleet in deployment.fleets
            for value in (fleet.instance.layout.pp, fleet.instance.layout.attention_dp, fleet.instance.layout.tp,
                          fleet.instance.layout.ep, fleet.instance.chunk_tokens)]  # fmt: skip
    return (-carried, price, *rest) if load is None else (price, -carried, *rest)


def _axes(spaces: Sequence[Space]) -> dict[str, int]:
    axes: Counter[str] = Counter()
    for space in spaces:
        for name, count in space.by_axis.items():
            axes[name] = max(axes[name], count)
    return dict(axes)
