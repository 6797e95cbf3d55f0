"""Latencies grow with the load, on every layout: the bisection of the search rests on it."""

from __future__ import annotations

from itertools import product

import numpy as np
import pytest
from meshwright.cost_models.arrays import Array
from meshwright.cost_models.serving.arrivals import Requests
from meshwright.cost_models.serving.lengths import Lengths, RequestLengths
from meshwright.cost_models.serving.pool import Pool
from meshwright.cost_models.serving.simulation import simulate
from meshwright.planner.serving.instance import Instance, InstanceLayout, pool
from meshwright.planner.serving.promises import Priced, Promises, largest_load, priced
from meshwright.profiles.cluster.load import load_cluster
from meshwright.profiles.model.load import load_model
from meshwright.profiles.stack.engines import shipped_engines

ENGINES = shipped_engines()
CLUSTER = load_cluster("dgx-h200:2", gpu=None, num_gpus=None, exclude=())
PLAIN = RequestLengths.equal(2000, 300)
SHORT = RequestLengths.equal(200, 100)
UNLIKE = RequestLengths.independent(Lengths.lognormal(1000, 1250), Lengths.lognormal(200, 310))
LOADS = 60  # of each layout
LAYOUTS = {
    "llama-3.1-8b": ((1, 1, 1, 1), (1, 4, 1, 1)),
    "qwen3-30b-a3b": ((1, 1, 2, 2), (1, 1, 4, 4), (1, 1, 8, 8), (2, 1, 4, 8)),
    "deepseek-v3": ((1, 1, 16, 16),),
}


def instance(model: str, engine: str, degrees: tuple[int, int, int, int], chunk_tokens: int = 8192) -> Instance:
    """degrees: tp, pp, attention_dp, ep."""
    tp, pp, groups, ep = degrees
    layout = InstanceLayout(tp=tp, pp=pp, attention_dp=groups, ep=ep, instances=1)
    return Instance(model=load_model(model)[0], gpu=CLUSTER.gpu, levels=CLUSTER.levels, weights="fp8", cache="bf16",
                    engine=ENGINES.of(engine), host_s=0.03, layout=layout, chunk_tokens=chunk_tokens,
                    max_sequences=1024)  # fmt: skip


def asked(lengths: RequestLengths, *, closed: bool = False, ttft_s: float = np.inf, tpot_s: float = np.inf) -> Promises:
    return Promises(requests=lengths, ttft_s=ttft_s, tpot_s=tpot_s, share=0.9, closed=closed)


def under(columns: Pool, loads: Array, promises: Promises) -> Priced:
    """loads: [row, load]; the columns of the answer are those of all loads of the first row, then of the second."""
    rows = columns.rows(np.repeat(np.arange(len(loads)), loads.shape[1]), np.ones(loads.size))
    return priced(rows, rows, np.zeros(loads.size, dtype=bool), loads.ravel(), promises, ENGINES.constants)


# TTFT of p90 of 16 groups falls by 2 to 5 % where all of them have a prompt in every iteration, and where iterations
# without prompts take as long as those with some; TPOT by 2 % where an answer meets as many prompts, which share more.
_REGULAR = {("deepseek-v3", "vllm", True), ("deepseek-v3", "tensorrt-llm", True), ("deepseek-v3", "sglang", True),
            ("deepseek-v3", "sglang", False)}  # fmt: skip


@pytest.mark.parametrize(("model", "engine", "closed"), [
    pytest.param(*row, id=f"{row[0]}, {row[1]}, {'closed loop' if row[2] else 'rate'}",
                 marks=[pytest.mark.xfail(strict=True, reason="iterations of many groups become regular")]
                 if row in _REGULAR else [])
    for row in product(LAYOUTS, ("vllm", "sglang", "tensorrt-llm"), (False, True))
])  # fmt: skip
def test_a_promise_that_breaks_stays_broken(model: str, engine: str, closed: bool) -> None:
    _grows(pool([instance(model, engine, degrees, chunk) for degrees in LAYOUTS[model] for chunk in (2048, 8192)]),
           closed=closed)  # fmt: skip


@pytest.mark.parametrize("closed", [False, True], ids=["rate", "closed loop"])
def test_groups_in_a_pipeline(closed: bool) -> None:
    _grows(pool([instance("qwen3-30b-a3b", "sglang", (1, 2, 4, 4), chunk) for chunk in (2048, 8192)]), closed=closed)


@pytest.mark.parametrize(("model", "engine", "layouts"), [
    ("llama-3.1-8b", "vllm", ((4, 1, 1, 1),)), ("llama-3.1-70b", "vllm", ((4, 1, 1, 1),)),
    ("qwen3-30b-a3b", "vllm", ((8, 1, 1, 8),)), ("qwen3-30b-a3b", "sglang", ((8, 1, 1, 8),)),
    ("deepseek-v3", "sglang", ((8, 1, 2, 16), (16, 1, 1, 1))),
])  # fmt: skip
def test_sums_that_change_to_nccl_do_not_hide_prompts(
    model: str, engine: str, layouts: tuple[tuple[int, int, int, int], ...]
) -> None:  # fmt: skip
    _grows(pool([instance(model, engine, degrees, chunk) for degrees in layouts for chunk in (2048, 8192)]),
           closed=False)  # fmt: skip


def _grows(columns: Pool, *, closed: bool) -> None:
    together = np.zeros(len(columns.tp), dtype=bool)
    for lengths in (PLAIN, SHORT, UNLIKE):
        promises = asked(lengths, closed=closed)
        most = largest_load(columns, columns, together, promises, ENGINES.constants)
        loads = np.outer(most, np.linspace(0.02, 1.3, LOADS))
        at = under(columns, np.ceil(loads) if closed else loads, promises)
        stable = at.service.stable.reshape(loads.shape)
        assert (np.diff(stable.astype(int), axis=1) <= 0).all()
        for seconds in (at.latencies.ttft_s, at.latencies.tpot_s):
            grown = np.where(stable, seconds.reshape(loads.shape), np.inf)
            assert (grown[:, 1:] >= 0.99 * np.maximum.accumulate(grown, axis=1)[:, :-1]).all()


@pytest.mark.parametrize(("degrees", "rate"), [((1, 1, 8, 8), 16.0), ((2, 1, 4, 8), 25.0)])
def test_groups_of_attention_take_the_prompts_that_came_meanwhile(
    degrees: tuple[int, int, int, int], rate: float
) -> None:  # fmt: skip
    """An iteration with prompts of several groups takes hardly longer than one with a prompt, so the wait is for the
    rest of one iteration, and hardly grows."""
    columns, promises = pool([instance("qwen3-30b-a3b", "vllm", degrees)]), asked(PLAIN)
    asks = Requests(lengths=PLAIN, rate=rate, concurrency=0, number=5000, front_s=0.03)
    run = simulate(columns, ENGINES.constants, asks, float(columns.capacity(np.array([2000.0]), np.array([300.0]))[0]))
    at = under(columns, np.array([[rate]]), promises)
    assert at.service.ttft_s[0] == pytest.approx(run.ttft_s.mean(), rel=0.25)
    assert at.latencies.ttft_s[0] == pytest.approx(np.quantile(run.ttft_s, 0.9), rel=0.3)
    assert at.service.tpot_s[0] == pytest.approx(run.tpot_s.mean(), rel=0.15)
