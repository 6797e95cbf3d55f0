"""The queue for room of models that fill in: closed forms against known queues and against simulated instances."""

from __future__ import annotations

from dataclasses import replace
from math import factorial

import numpy as np
import pytest
from meshwright.cost_models.serving.arrivals import Requests
from meshwright.cost_models.serving.lengths import Lengths, RequestLengths
from meshwright.cost_models.serving.load import steady_state
from meshwright.cost_models.serving.percentiles import latencies
from meshwright.cost_models.serving.pool import Pool
from meshwright.cost_models.serving.room import PassSeconds, room_queue
from meshwright.cost_models.serving.service import Load
from meshwright.cost_models.serving.simulation import simulate

from .test_passes import BARE, llada
from .test_serving import column

TOGETHER = np.array([False])
EQUAL = RequestLengths.equal(3500.0, 512.0)
UNLIKE = RequestLengths.independent(Lengths.of({3500: 1}), Lengths.of({256: 1, 768: 1}))


def opened(requests: RequestLengths, rate: float) -> Load:
    none = column(0)
    return Load.of(requests, concurrency=none + np.inf, rate=column(rate), burst_share=none, transfer_s=none)


def queue_of(seconds: list[float], rate: float, requests: RequestLengths = EQUAL) -> tuple[float, float]:
    """Share of the requests that wait, and the mean wait of all: of one pass, which takes these seconds over 1, 2, ...
    sequences."""
    points = len(seconds) ** np.linspace(0.0, 1.0, 16)
    passes = PassSeconds(points[:, None], np.interp(points, np.arange(len(seconds)) + 1.0, seconds)[:, None])
    queue = room_queue(passes, column(1), llada(), opened(requests, rate))
    return float(queue.waits.waiting[0]), float(queue.waits.mean_s[0])


def test_passes_that_take_as_long_for_all_are_several_servers() -> None:
    """Erlang's C of 5 servers at load 4, and half of its wait, since all answers take as long (Allen and Cunneen); of
    two lengths, half and one and a half of the mean, 5/8."""
    load, servers = 4.0, 5
    beyond = load**servers / factorial(servers) / (1 - load / servers)
    erlang = beyond / (sum(load**n / factorial(n) for n in range(servers)) + beyond)
    assert queue_of([1.0] * servers, load) == pytest.approx((erlang, erlang / (servers - load) / 2), rel=1e-6)
    assert queue_of([1.0] * servers, load, UNLIKE)[1] == pytest.approx(erlang / (servers - load) * 5 / 8, rel=1e-6)


def test_passes_that_take_as_many_times_as_long_are_one_server() -> None:
    """Processor sharing among at most 4: rho^4 wait, half of rho^4 / (1 - rho) (Avi-Itzhak and Halfin)."""
    assert queue_of([1.0, 2.0, 3.0, 4.0], 0.8) == pytest.approx((0.8**4, 0.8**4 / 0.2 / 2), rel=1e-6)


def stream() -> Pool:
    """Passes give a quarter of an answer; of half of the requests none is needed."""
    pool = llada(128)
    return replace(pool, max_sequences=column(40), methods=replace(pool.methods, skipped=0.5))


@pytest.mark.parametrize("share", [0.8, 0.9])
@pytest.mark.parametrize(("pool", "requests"), [
    (replace(llada(8.53, block=32), max_sequences=column(18)), EQUAL),
    (replace(llada(8.53, block=32), max_sequences=column(18)), UNLIKE),
    (stream(), EQUAL)], ids=["equal", "unlike", "similar"])  # fmt: skip
def test_near_the_stable_load_the_simulated_instance_waits_as_long(
    pool: Pool, requests: RequestLengths, share: float
) -> None:  # fmt: skip
    """80 and 90 % of the load at which all room is always taken; each mean is over 20,000 requests."""
    rate = share / float(steady_state(pool, pool, TOGETHER, opened(requests, 1.0), BARE).load_factor[0])
    load, taken = opened(requests, rate), rate * (1.0 - pool.methods.skipped)
    service = steady_state(pool, pool, TOGETHER, load, BARE)
    assert service.stable
    assert service.load_factor == pytest.approx(share)
    asked = Requests(lengths=requests, rate=taken, concurrency=0, number=20_000, front_s=float(pool.host_s[0]))
    simulated = simulate(pool, BARE, asked, float(service.capacity[0]))
    assert service.ttft_s[0] == pytest.approx(simulated.ttft_s.mean(), rel=0.2)
    tails = latencies(0.9, service, pool, pool, TOGETHER, load, requests, BARE)
    assert tails.ttft_s[0] == pytest.approx(np.quantile(simulated.ttft_s, 0.9), rel=0.2)
    assert service.output_tokens_per_s[0] == pytest.approx(rate * 512)


def test_requests_that_take_no_pass_come_beside_the_others() -> None:
    """Half of them skipped: twice the load is stable, and a request that takes passes takes as long as under half."""
    pool, plain = stream(), replace(stream(), methods=replace(stream().methods, skipped=0.0))
    some, all_of_them = (steady_state(it, it, TOGETHER, opened(EQUAL, rate), BARE)
                         for it, rate in ((pool, 2.0), (plain, 1.0)))  # fmt: skip
    assert some.load_factor == pytest.approx(all_of_them.load_factor)
    assert (some.ttft_s[0], some.tpot_s[0]) == pytest.approx((all_of_them.ttft_s[0], all_of_them.tpot_s[0]))
    assert some.output_tokens_per_s == pytest.approx(2 * all_of_them.output_tokens_per_s)


def test_beyond_the_stable_load_the_queue_grows() -> None:
    pool = replace(llada(8.53, block=32), max_sequences=column(18))
    factor = float(steady_state(pool, pool, TOGETHER, opened(EQUAL, 1.0), BARE).load_factor[0])
    assert not steady_state(pool, pool, TOGETHER, opened(EQUAL, 1.01 / factor), BARE).stable
