"""Deployments over the hours of a day: the instances that each hour needs."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import replace
from itertools import product

import numpy as np

from ...cost_models.arrays import Ints, Mask
from ...cost_models.serving.constants import ServingConstants
from ..document.serving_plan import HourlyService
from .pairs import TIE
from .promises import ROUNDING, Promises, priced
from .search import Deployment, fleets_pool


def over_hours(
    deployments: Sequence[Deployment], rates: Sequence[float], promises: Promises, constants: ServingConstants, *,
    rented: bool,
) -> tuple[Deployment, ...]:  # fmt: skip
    """The same layouts with the cheapest instances that keep the promises in each hour, of each pool `Stand.least` or
    more.

    rates: requests per second, none above what a deployment carries. rented: the cheapest by rent, else by GPUs.
    """
    if not deployments:
        return ()
    tried = [list(_numbers(deployment, rented=rented)) for deployment in deployments]
    row = np.repeat(np.arange(len(tried)), [len(numbers) for numbers in tried])
    numbers = [number for each in tried for number in each]
    instances = np.array([(number[0], number[-1]) for number in numbers])
    first = np.cumsum([0, *(len(each) for each in tried[:-1])])
    chosen = dict[float, list[tuple[int, ...]]]()
    for rate in set(rates):
        kept = _kept(deployments, row, instances, rate * (1 - ROUNDING), promises, constants)
        kept[first + [len(each) - 1 for each in tried]] = True  # those of the peak
        chosen[rate] = [numbers[start + int(np.argmax(kept[start : start + len(each)]))]
                        for start, each in zip(first, tried, strict=True)]  # fmt: skip
    return tuple(replace(deployment, hours=tuple(chosen[rate][i] for rate in rates))
                 for i, deployment in enumerate(deployments))  # fmt: skip


def _numbers(deployment: Deployment, *, rented: bool) -> Iterator[tuple[int, ...]]:
    """Instances of each pool, the cheapest first and those of the peak last."""
    peak = tuple(fleet.instances for fleet in deployment.fleets)
    every = [range(fleet.least, fleet.site.num_gpus // fleet.instance.layout.gpus + 1) for fleet in deployment.fleets]
    priced_numbers = [(deployment.price_of(number, rented=rented), number) for number in product(*every)]
    limit = deployment.price_of(peak, rented=rented) * (1 - TIE)
    yield from (number for price, number in sorted(priced_numbers) if price < limit)
    yield peak


def _kept(
    deployments: Sequence[Deployment], row: Ints, instances: Ints, rate: float, promises: Promises,
    constants: ServingConstants,
) -> Mask:  # fmt: skip
    """[row] whether so many instances keep the promises."""
    disaggregated = np.array([it.disaggregated for it in deployments])
    if promises.requests.arrival_scv == 1.0:  # together as `search` counts them
        each = np.array([it.largest_load / it.decode.instances for it in deployments])
        kept = each[row] * instances[:, 1] >= rate
        by_price = np.flatnonzero(disaggregated[row])
    else:
        kept, by_price = np.zeros(len(row), dtype=bool), np.arange(len(row))
    if len(by_price):
        of, number = row[by_price], instances[by_price].astype(float)
        prefill = fleets_pool([it.prefill for it in deployments]).rows(of, number[:, 0])
        decode = fleets_pool([it.decode for it in deployments]).rows(of, number[:, 1])
        transfer_s = np.array([it.transfer_s for it in deployments])[of]
        kept[by_price] = priced(prefill, decode, disaggregated[of], np.full(len(of), rate), promises, constants,
                                transfer_s).kept  # fmt: skip
    return np.asarray(kept)


def hourly_service(deployment: Deployment, rates: Sequence[float], output: float) -> HourlyService:
    """The deployment by hour. output: tokens of an answer, mean."""
    usd = None if deployment.usd_per_hour is None else deployment.price(rented=True)
    return HourlyService(
        rates=tuple(rates), instances=deployment.hours, gpu_hours=deployment.gpu_hours or 0.0,
        gpu_hours_at_peak=float(deployment.gpus * len(rates)), usd=usd,
        usd_per_mtoken=None if usd is None else usd / (sum(rates) * 3600.0 * output) * 1e6,
    )  # fmt: skip
