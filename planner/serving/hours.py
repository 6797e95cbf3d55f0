"""A deployment over the hours of a day: the instances that each hour needs."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import product

import numpy as np

from ...cost_models.serving.iteration import ServingConstants
from ..document.serving_plan import HourlyService
from .promises import Promises, largest_load
from .search import Deployment, Stand, stands_pool

_ROUNDING = 1e-6  # of the bisection: a load that it misses by less is kept


def over_hours(
    deployment: Deployment, rates: Sequence[float], promises: Promises, constants: ServingConstants
) -> HourlyService:  # fmt: skip
    """The fewest instances of the same layouts, one or more of each pool, that keep the promises in each hour.

    rates: requests per second, none above what the deployment carries.
    """
    numbers = sorted(product(*(range(1, stand.instances + 1) for stand in deployment.stands)),
                     key=lambda it: (_gpus(deployment, it), it))  # fmt: skip
    carried = _carried(deployment, numbers, promises, constants)
    chosen = [next((number for number, load in zip(numbers, carried, strict=True) if load >= rate * (1 - _ROUNDING)),
                   numbers[-1]) for rate in rates]  # fmt: skip
    gpu_hours = float(sum(_gpus(deployment, number) for number in chosen))
    tokens = sum(rates) * 3600.0 * promises.requests.output
    rents = [_usd(deployment, number) for number in chosen]
    usd = None if deployment.usd_per_hour is None else float(sum(rents))
    return HourlyService(
        rates=tuple(rates), instances=tuple(chosen), gpu_hours=gpu_hours,
        gpu_hours_at_peak=float(deployment.gpus * len(rates)), usd=usd,
        usd_per_mtoken=None if usd is None else usd / tokens * 1e6,
    )  # fmt: skip


def _carried(
    deployment: Deployment, numbers: Sequence[tuple[int, ...]], promises: Promises, constants: ServingConstants
) -> list[float]:  # fmt: skip
    """Largest load with so many instances of each pool."""
    if not deployment.apart and promises.requests.arrival_scv == 1.0:  # as `search` counts them
        each = deployment.largest_load / deployment.decode.instances
        return [each * number for (number,) in numbers]
    pools = [stands_pool([_with(stand, number[i]) for number in numbers]) for i, stand in enumerate(deployment.stands)]
    prefill, decode = pools[0], pools[-1]
    transfer_s = np.full(len(numbers), deployment.transfer_s)
    apart = np.full(len(numbers), deployment.apart)
    return [float(load) for load in largest_load(prefill, decode, apart, promises, constants, transfer_s)]


def _with(stand: Stand, instances: int) -> Stand:
    return Stand(site=stand.site, instance=stand.instance, instances=instances)


def _gpus(deployment: Deployment, number: tuple[int, ...]) -> int:
    return sum(stand.instance.layout.gpus * n for stand, n in zip(deployment.stands, number, strict=True))


def _usd(deployment: Deployment, number: tuple[int, ...]) -> float:
    """Rent of an hour."""
    return sum(stand.instance.layout.gpus * n * (stand.site.usd_per_gpu_hour or 0.0)
               for stand, n in zip(deployment.stands, number, strict=True))  # fmt: skip
