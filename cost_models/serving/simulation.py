"""An instance of an engine, iteration by iteration: requests arrive, wait, are prefilled or filled in, and end."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from ..arrays import Array
from .arrivals import Arrivals, Requests
from .constants import ServingConstants
from .pool import Pool
from .simulated_passes import Passes
from .simulated_pipeline import Pipeline

_WARM_UP = 0.2  # share of the requests, the first, that are not counted; nor are those that a closed loop begins with


@dataclass(frozen=True, slots=True)
class Simulated:
    """Latencies of the counted requests, seconds, [request]. Where prompts come with their caches, the time to first
    token is from then on."""

    ttft_s: Array
    tpot_s: Array
    prompts: Array  # tokens


def simulate(
    pool: Pool, constants: ServingConstants, requests: Requests, capacity: float, *, prefills: bool = True,
    decodes: bool = True, seed: int = 0,
) -> Simulated:  # fmt: skip
    """One instance. pool: one row. capacity: sequences that its caches hold."""
    generator, given = np.random.default_rng(seed), float(pool.step_tokens[0])
    if pool.methods.fills:
        lanes = float(pool.pp[0])
        arrivals = Arrivals.of(constants, requests, given, generator, lanes)
        ended = Passes(pool, constants, arrivals, max(int(capacity / lanes), 1)).run()
    else:
        arrivals = Arrivals.of(constants, requests, given, generator)
        ended = Pipeline(pool, constants, arrivals, max(int(capacity), 1), prefills, decodes).run()
    warm_up = max(int(_WARM_UP * requests.number), min(arrivals.clients, requests.number // 2))
    counted = np.array(sorted(ended)[warm_up:])
    return Simulated(counted[:, 1], counted[:, 2], counted[:, 3])
