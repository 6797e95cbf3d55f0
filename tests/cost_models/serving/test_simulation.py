"""The simulated instance: conservation, and the closed form of means and percentiles beside it."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
from meshwright.cost_models.serving.arrivals import Requests
from meshwright.cost_models.serving.lengths import Lengths, RequestLengths
from meshwright.cost_models.serving.simulation import simulate
from meshwright.planner.serving.instance import Instance, InstanceLayout, pool
from meshwright.planner.serving.promises import Promises, largest_load, priced
from meshwright.profiles.cluster.load import load_cluster
from meshwright.profiles.model.load import load_model
from meshwright.profiles.stack.engines import shipped_engines

ENGINES = shipped_engines()
CLUSTER = load_cluster("8xh100-sxm-80gb", gpu=None, num_gpus=None, exclude=())
PROMPT, OUTPUT = 2000.0, 300.0


def instance(model: str = "llama-3.1-70b", engine: str = "vllm", chunk_tokens: int = 8192, **degrees: int) -> Instance:
    layout = InstanceLayout(**{"tp": 1, "pp": 1, "ep": 1, "attention_dp": 1, "instances": 1, **degrees})
    return Instance(model=load_model(model)[0], gpu=CLUSTER.gpu, levels=CLUSTER.levels, weights="bf16", cache="bf16",
                    engine=ENGINES.of(engine), host_s=0.03, layout=layout, chunk_tokens=chunk_tokens,
                    max_sequences=1024)  # fmt: skip


EQUAL = RequestLengths.equal(PROMPT, OUTPUT)


def promises(ttft_s: float = np.inf, tpot_s: float = np.inf, share: float = 0.9, *, closed: bool = False,
             lengths: RequestLengths = EQUAL) -> Promises:  # fmt: skip
    return Promises(requests=lengths, ttft_s=ttft_s, tpot_s=tpot_s, share=share, closed=closed)


def requests(rate: float, number: int = 800, concurrency: int = 0, lengths: RequestLengths = EQUAL) -> Requests:
    return Requests(lengths=lengths, rate=rate, concurrency=concurrency, number=number, front_s=0.0)


@pytest.mark.parametrize(("row", "rate"), [
    (instance(tp=4), 1.0), (instance(tp=4), 2.5), (instance(tp=8), 5.0), (instance(tp=4, pp=2), 5.0),
    (instance(tp=2, pp=4), 1.0), (instance(tp=2, pp=4), 3.0), (instance(tp=2, pp=4, chunk_tokens=512), 2.0),
    (instance("llama-3.1-8b"), 6.0), (instance("qwen3-30b-a3b", tp=2, attention_dp=4, ep=8), 10.0),
], ids=["70b, idle", "70b, busy", "70b tp8", "70b stages", "70b four stages, idle", "70b four stages, busy",
        "70b small chunks", "8b", "experts"])  # fmt: skip
def test_the_closed_form_gives_what_the_simulated_instance_gives(row: Instance, rate: float) -> None:
    columns, together = pool([row]), np.array([False])
    capacity = float(columns.capacity(np.array([PROMPT]), np.array([OUTPUT]))[0])
    run = simulate(columns, ENGINES.constants, requests(rate), capacity)
    closed = priced(columns, columns, together, np.array([rate]), promises(), ENGINES.constants)
    assert closed.service.ttft_s[0] == pytest.approx(run.ttft_s.mean(), rel=0.25)
    assert closed.service.tpot_s[0] == pytest.approx(run.tpot_s.mean(), rel=0.15)
    assert closed.latencies.ttft_s[0] == pytest.approx(np.quantile(run.ttft_s, 0.9), rel=0.3)
    assert closed.latencies.tpot_s[0] == pytest.approx(np.quantile(run.tpot_s, 0.9), rel=0.2)


@pytest.mark.parametrize(("row", "prompt", "rate"), [
    (instance("llama-3.1-8b", engine="sglang"), 1000.0, 14.0),
    (instance("llama-3.1-8b", chunk_tokens=2048), 4000.0, 3.4), (instance(tp=4), 200.0, 24.0),
    (instance("llama-3.1-8b"), 1000.0, 14.0), (instance(tp=4), 200.0, 20.0),
], ids=["decoding stops", "chunks", "short prompts, busy", "8b", "short prompts"])  # fmt: skip
def test_short_answers_take_as_long_as_simulated(row: Instance, prompt: float, rate: float) -> None:
    columns, lengths = pool([row]), RequestLengths.equal(prompt, 100.0)
    run = simulate(columns, ENGINES.constants, requests(rate, 1200, lengths=lengths), 200.0)
    closed = priced(columns, columns, np.array([False]), np.array([rate]), promises(lengths=lengths),
                    ENGINES.constants)  # fmt: skip
    assert closed.service.tpot_s[0] == pytest.approx(run.tpot_s.mean(), rel=0.1)


@pytest.mark.parametrize(("row", "prompt", "output", "load"), [
    (instance("llama-3.1-8b", tp=4, chunk_tokens=16384), 1e6, 100.0, 0.2),
    (instance("llama-3.1-8b", tp=4, chunk_tokens=16384), 1e6, 100.0, 0.5),
    (instance("llama-3.1-8b", tp=2, pp=2, chunk_tokens=16384), 1e6, 100.0, 0.5),
    (instance(tp=4, chunk_tokens=8192), 3e4, 100.0, 0.2), (instance(tp=4, chunk_tokens=8192), 3e4, 100.0, 0.5),
    (instance(tp=4, chunk_tokens=2048), 3e4, 400.0, 0.3), (instance(tp=4), 2000.0, 10.0, 0.2),
    (instance(tp=4), 2000.0, 300.0, 0.2), (instance(tp=4), 200.0, 300.0, 0.1),
])  # fmt: skip
def test_answers_that_meet_a_long_prompt_or_none(row: Instance, prompt: float, output: float, load: float) -> None:
    """Where prompts are long beside answers, TPOT of those that meet one is far from the mean."""
    columns, lengths = pool([row]), RequestLengths.equal(prompt, output)
    few = priced(columns, columns, np.array([False]), np.array([1e-4]), promises(lengths=lengths), ENGINES.constants)
    rate = load / float(few.service.prompt_s[0])
    run = simulate(columns, ENGINES.constants, requests(rate, 400, lengths=lengths), 100.0)
    closed = priced(columns, columns, np.array([False]), np.array([rate]), promises(lengths=lengths),
                    ENGINES.constants)  # fmt: skip
    assert closed.latencies.tpot_s[0] == pytest.approx(np.quantile(run.tpot_s, 0.9), rel=0.35)


SPREAD = RequestLengths.independent(Lengths.lognormal(1000, 1250), Lengths.lognormal(200, 310))


@pytest.mark.parametrize(("row", "rate"), [
    (instance(tp=4), 1.0), (instance(tp=4), 4.0), (instance(tp=8), 9.0), (instance("llama-3.1-8b"), 10.0),
], ids=["70b, idle", "70b, busy", "70b tp8", "8b"])  # fmt: skip
def test_the_closed_form_follows_the_spread_of_lengths(row: Instance, rate: float) -> None:
    columns, together = pool([row]), np.array([False])
    run = simulate(columns, ENGINES.constants, requests(rate, 2000, lengths=SPREAD), 200.0)
    closed = priced(columns, columns, together, np.array([rate]), promises(lengths=SPREAD), ENGINES.constants)
    assert closed.service.ttft_s[0] == pytest.approx(run.ttft_s.mean(), rel=0.25)
    assert closed.service.tpot_s[0] == pytest.approx(run.tpot_s.mean(), rel=0.15)
    assert closed.latencies.ttft_s[0] == pytest.approx(np.quantile(run.ttft_s, 0.9), rel=0.25)
    assert closed.latencies.tpot_s[0] == pytest.approx(np.quantile(run.tpot_s, 0.9), rel=0.25)
    equal = RequestLengths.equal(SPREAD.prompt, SPREAD.output)
    even = priced(columns, columns, together, np.array([rate]), promises(lengths=equal), ENGINES.constants)
    evenly = simulate(columns, ENGINES.constants, requests(rate, 2000, lengths=equal), 200.0)
    longer = np.quantile(run.ttft_s, 0.9) / np.quantile(evenly.ttft_s, 0.9)
    assert closed.latencies.ttft_s[0] / even.latencies.ttft_s[0] == pytest.approx(longer, rel=0.1)


def test_a_prefilling_instance_waits_by_the_second_moment() -> None:
    """M/G/1, Pollaczek and Khinchine: the wait grows with 1 + the squared coefficient of variation of the service."""
    columns, disagg = pool([instance(tp=4)]), np.array([True])
    rate = 4.0
    run = simulate(columns, ENGINES.constants, requests(rate, 3000, lengths=SPREAD), 1e6, decodes=False)
    closed = priced(columns, columns, disagg, np.array([rate]), promises(lengths=SPREAD), ENGINES.constants)
    assert closed.latencies.ttft_s[0] - closed.service.decode_s[0] == pytest.approx(np.quantile(run.ttft_s, 0.9),
                                                                                    rel=0.2)  # fmt: skip
    lengths_scv = (float(closed.service.prompts.unlike_s[0]) / float(closed.service.prompts.more_s[0])) ** 2
    assert lengths_scv == pytest.approx(1250**2 / 1000**2 - 1, rel=0.4)


@pytest.mark.parametrize(("lengths", "tp", "pp", "chunk", "busy"), [
    (EQUAL, 1, 8, 16384, 0.4), (EQUAL, 2, 4, 8192, 0.75), (EQUAL, 1, 8, 2048, 0.75), (SPREAD, 2, 4, 8192, 0.4),
    (SPREAD, 1, 8, 16384, 0.75),
])  # fmt: skip
def test_prompts_wait_in_every_stage_of_a_pipeline(
    lengths: RequestLengths, tp: int, pp: int, chunk: int, busy: float
) -> None:  # fmt: skip
    columns, disagg = pool([instance(tp=tp, pp=pp, chunk_tokens=chunk)]), np.array([True])
    many = replace(columns, instances=np.array([1e6]))
    alone = priced(columns, many, disagg, np.array([0.01]), promises(lengths=lengths), ENGINES.constants)
    rate = busy / float(alone.service.prompt_s[0])
    run = simulate(columns, ENGINES.constants, requests(rate, 1500, lengths=lengths), 1e6, decodes=False)
    closed = priced(columns, many, disagg, np.array([rate]), promises(lengths=lengths), ENGINES.constants)
    first_s = float(closed.service.first_token_s[0])
    assert closed.service.ttft_s[0] - first_s == pytest.approx(run.ttft_s.mean(), rel=0.25)
    assert closed.latencies.ttft_s[0] - first_s == pytest.approx(np.quantile(run.ttft_s, 0.9), rel=0.3)


def test_a_trace_is_replayed_at_the_rate_that_is_asked() -> None:
    """Bursts of eight requests, a second apart: half the rate stretches the gaps, and the bursts stay."""
    arrivals = np.repeat(np.arange(100.0), 8)
    trace = RequestLengths(np.full(800, 500.0), np.full(800, 50.0), np.full(800, 1 / 800), arrivals)
    columns = pool([instance(tp=4)])
    assert trace.trace_rate == pytest.approx(799 / 99)
    bursts = simulate(columns, ENGINES.constants, requests(trace.trace_rate / 4, 400, lengths=trace), 200.0)
    smooth = simulate(columns, ENGINES.constants, requests(trace.trace_rate / 4, 400,
                      lengths=RequestLengths.equal(500, 50)), 200.0)  # fmt: skip
    assert trace.arrival_scv == pytest.approx(7, rel=0.1)
    assert np.quantile(bursts.ttft_s, 0.9) > 1.5 * np.quantile(smooth.ttft_s, 0.9)
    closed = priced(columns, columns, np.array([False]), np.array([trace.trace_rate / 4]), promises(lengths=trace),
                    ENGINES.constants)  # fmt: skip
    assert closed.service.prompts.burst[0] == pytest.approx((trace.arrival_scv + 1) / 2)
    assert closed.service.ttft_s[0] == pytest.approx(bursts.ttft_s.mean(), rel=0.1)


def test_prompts_of_a_burst_wait_for_those_before_them() -> None:
    """A chunk holds a quarter of each burst, whose sizes have a geometric distribution: scv = 2 x 16 - 1."""
    sizes = np.random.default_rng(3).geometric(1 / 16, 400)
    arrivals = np.repeat(np.cumsum(np.random.default_rng(4).exponential(4.0, 400)), sizes)
    number = len(arrivals)
    trace = RequestLengths(np.full(number, 2000.0), np.full(number, 2.0), np.full(number, 1 / number), arrivals)
    columns, rate = pool([instance(tp=8)]), trace.trace_rate / 2
    run = simulate(columns, ENGINES.constants, requests(rate, number, lengths=trace), 200.0)
    closed = priced(columns, columns, np.array([False]), np.array([rate]), promises(lengths=trace), ENGINES.constants)
    assert closed.service.ttft_s[0] == pytest.approx(run.ttft_s.mean(), rel=0.15)
    assert closed.latencies.ttft_s[0] == pytest.approx(np.quantile(run.ttft_s, 0.9), rel=0.15)


def test_prefixes_in_the_cache_spare_their_prefill() -> None:
    """80 % of the prompt is found: the closed form follows the simulated instance, and most of the prefill is gone."""
    row, hit = instance(tp=4), replace(EQUAL, prefix_hit=0.8, prefixes=1.0)
    columns, together, rate = pool([row]), np.array([False]), np.array([4.0])
    run = simulate(columns, ENGINES.constants, requests(4.0, lengths=hit), 200.0)
    closed, without = (priced(columns, columns, together, rate, promises(lengths=it), ENGINES.constants)
                       for it in (hit, EQUAL))  # fmt: skip
    assert closed.service.ttft_s[0] == pytest.approx(run.ttft_s.mean(), rel=0.25)
    assert closed.latencies.tpot_s[0] == pytest.approx(np.quantile(run.tpot_s, 0.9), rel=0.2)
    assert closed.service.prompt_s[0] < 0.35 * without.service.prompt_s[0]


def test_every_request_ends_once_and_none_before_its_prompt() -> None:
    columns = pool([instance(tp=4)])
    run = simulate(columns, ENGINES.constants, requests(2.0, number=200), 100.0)
    assert len(run.ttft_s) == 160  # the first fifth is the warm-up
    assert run.ttft_s.min() > 0.1
    assert run.tpot_s.min() > 0.01


def test_a_closed_loop_runs_as_many_as_it_has() -> None:
    """By Little's law requests per second times their time are the concurrency."""
    columns, together = pool([instance(tp=4)]), np.array([False])
    run = simulate(columns, ENGINES.constants, requests(0.0, number=300, concurrency=16), 100.0)
    closed = priced(columns, columns, together, np.array([16.0]), promises(closed=True), ENGINES.constants)
    assert closed.service.tpot_s[0] == pytest.approx(run.tpot_s.mean(), rel=0.2)


def test_a_client_sends_its_next_request_after_the_front_end() -> None:
    """One client of a slow front end, whose answer is alone on the instance: by both forms it is there half of the
    time, and two have no more in it at once than one."""
    columns, together = pool([instance("llama-3.1-8b")]), np.array([False])
    many = requests(0.0, number=300, concurrency=32, lengths=SPREAD)
    run = simulate(columns, ENGINES.constants, replace(many, front_s=5.0), 100.0)
    quick = simulate(columns, ENGINES.constants, many, 100.0)
    assert run.tpot_s.mean() < 0.9 * quick.tpot_s.mean()
    closed = priced(columns, columns, together, np.array([32.0]), promises(closed=True, lengths=SPREAD),
                    ENGINES.constants)  # fmt: skip
    assert closed.service.ttft_s[0] == pytest.approx(quick.ttft_s.mean(), rel=0.15)


def test_a_full_cache_makes_prompts_wait() -> None:
    columns = pool([instance(tp=4)])
    free, full = (simulate(columns, ENGINES.constants, requests(2.0, number=200), room) for room in (100.0, 6.0))
    assert full.ttft_s.mean() > 3 * free.ttft_s.mean()
    assert full.tpot_s.mean() < free.tpot_s.mean()


@pytest.mark.parametrize("share", [0.9, 0.95])
def test_requests_wait_for_room_before_the_cache_is_full(share: float) -> None:
    """At such a share of the stable rate three of five find no room: p90 of TTFT is 2 and 5 s, not half a second."""
    columns, together = replace(pool([instance(tp=4)]), max_sequences=np.array([30.0])), np.array([False])
    rate = share * largest_load(columns, columns, together, promises(), ENGINES.constants)
    closed = priced(columns, columns, together, rate, promises(), ENGINES.constants)
    run = simulate(columns, ENGINES.constants, requests(float(rate[0]), 4000), 30.0)
    assert closed.latencies.ttft_s[0] == pytest.approx(np.quantile(run.ttft_s, 0.9), rel=0.5)
    assert closed.service.ttft_s[0] == pytest.approx(run.ttft_s.mean(), rel=0.5)


@pytest.mark.parametrize("engine", ["vllm", "sglang"])
def test_answers_apart_wait_for_room_where_their_engine_begins_them(engine: str) -> None:
    """The first token comes from the instance that decodes or was there before: the wait is one of TTFT or of TPOT."""
    columns, disagg = replace(pool([instance(tp=4, engine=engine)]), max_sequences=np.array([30.0])), np.array([True])
    many = replace(columns, instances=np.array([1e6]))
    rate = 0.95 * largest_load(many, columns, disagg, promises(), ENGINES.constants)
    closed = priced(many, columns, disagg, rate, promises(), ENGINES.constants)
    run = simulate(columns, ENGINES.constants, requests(float(rate[0]), 4000), 30.0, prefills=False)
    first_s = closed.service.first_token_s[0]
    assert (run.ttft_s.mean() > 0.3) == (first_s > 0.3) == (engine == "vllm")
    assert first_s == pytest.approx(run.ttft_s.mean(), rel=1.2)
    assert closed.service.tpot_s[0] == pytest.approx(run.tpot_s.mean(), rel=0.2)


def test_caches_of_long_prompts_are_sent_longer() -> None:
    """A mean transfer of 2 s is one of 3.8 s for the prompt of 1,880 tokens that nine of ten do not exceed."""
    columns, disagg, rate = pool([instance(tp=4)]), np.array([True]), np.array([0.5])
    many = replace(columns, instances=np.array([1e6]))
    closed = priced(columns, many, disagg, rate, promises(lengths=SPREAD), ENGINES.constants, np.array([2.0]))
    run = simulate(columns, ENGINES.constants, requests(0.5, 2000, lengths=SPREAD), 1e6, decodes=False)
    sent_s = 2.0 * run.prompts / SPREAD.prompt
    assert closed.latencies.ttft_s[0] == pytest.approx(np.quantile(run.ttft_s + sent_s, 0.9), rel=0.15)


def test_an_engine_that_does_not_mix_stops_decoding_for_prompts() -> None:
    mixed, stopped = (simulate(pool([instance(tp=4, engine=name)]), ENGINES.constants, requests(2.0, number=300), 100.0)
                      for name in ("vllm", "sglang"))  # fmt: skip
    assert np.quantile(stopped.tpot_s, 0.5) > np.quantile(mixed.tpot_s, 0.5)


def test_latencies_grow_with_the_load() -> None:
    """The search rests on it."""
    columns, together = pool([instance(tp=4)] * 60), np.zeros(60, dtype=bool)
    load = np.linspace(0.05, 4.5, 60)
    tails = priced(columns, columns, together, load, promises(), ENGINES.constants).latencies
    assert (np.diff(tails.ttft_s) >= -1e-9).all()
    assert (np.diff(tails.tpot_s) >= -1e-9).all()


def test_the_largest_load_is_where_a_promise_breaks() -> None:
    columns, together, asked = pool([instance(tp=4)]), np.array([False]), promises(ttft_s=1.0, tpot_s=0.04)
    most = largest_load(columns, columns, together, asked, ENGINES.constants)
    inside, beyond = (priced(columns, columns, together, most * share, asked, ENGINES.constants)
                      for share in (0.999, 1.001))  # fmt: skip
    assert inside.kept[0]
    assert not beyond.kept[0]
    assert largest_load(columns, columns, together, promises(ttft_s=0.01), ENGINES.constants)[0] == 0.0
