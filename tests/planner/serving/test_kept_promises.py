"""No deployment is named that breaks its promise, and none is refused that keeps it."""

from __future__ import annotations

import re
from typing import Any

import numpy as np
import pytest
from meshwright.cost_models.serving.lengths import RequestLengths
from meshwright.planner.api import plan_serving
from meshwright.planner.serving.instance import pool
from meshwright.planner.serving.promises import Promises, largest, largest_load, priced
from meshwright.planner.serving.search import search
from meshwright.planner.targets.engines.emit import emit_serving

from meshwright.errors import NoFeasibleLayoutError

from .test_plan_serving import ENGINES, planned, space


def promises(prompt: float, output: float, *, closed: bool, tpot_s: float = np.inf) -> Promises:
    return Promises(requests=RequestLengths.equal(prompt, output), ttft_s=np.inf, tpot_s=tpot_s, share=0.9,
                    closed=closed)  # fmt: skip


@pytest.mark.parametrize("concurrency", [1, 3, 5, 7, 8])
def test_an_instance_has_whole_requests_of_a_closed_loop(concurrency: int) -> None:
    """Two instances share three requests as two and one: every number of instances by its fullest one."""
    asked = promises(8000, 300, closed=True, tpot_s=0.0092)
    of_model = space("llama-3.1-8b", "8xh100-sxm-80gb", {"pp": 1, "chunk_tokens": 8192})
    result = search([of_model], float(concurrency), asked, ENGINES.constants)
    least = list[int]()
    for row, most in enumerate(of_model.most):
        columns = pool([of_model.instances[row]] * most)
        fullest = np.ceil(concurrency / np.arange(1.0, most + 1))
        kept = priced(columns, columns, np.zeros(most, dtype=bool), fullest, asked, ENGINES.constants).kept
        least += [int(np.argmax(kept)) + 1] if kept.any() else []
    assert sorted(it.decode.instances for it in result.deployments) == sorted(least)
    assert any(number > 1 for number in least) == (concurrency > 1)
    assert all(it.largest_load == round(it.largest_load) >= concurrency for it in result.deployments)


def test_latencies_of_a_closed_loop_are_those_of_its_fullest_instance() -> None:
    """Three instances share ten requests as four, three and three; the mean is not as slow as four."""
    of_model = space("llama-3.1-8b", "8xh100-sxm-80gb", {"tp": 1, "pp": 1, "chunk_tokens": 8192})
    columns = pool(of_model.instances).rows(np.zeros(2, dtype=np.int64), np.full(2, 3.0))
    at = priced(columns, columns, np.zeros(2, dtype=bool), np.array([10.0, 12.0]), promises(8000, 300, closed=True),
                ENGINES.constants)  # fmt: skip
    assert at.latencies.tpot_s[0] == at.latencies.tpot_s[1]
    assert at.service.tpot_s[0] < at.service.tpot_s[1]


def test_a_closed_loop_is_as_large_as_there_is_room_for() -> None:
    of_model = space("deepseek-v3", "dgx-h200:4",
                     {"tp": 1, "pp": 1, "attention_dp": 32, "ep": 32, "chunk_tokens": 8192})  # fmt: skip
    columns, asked = pool(of_model.instances), promises(200, 100, closed=True)
    room = columns.capacity(np.array(200.0), np.array(100.0))
    assert room[0] > 12000
    assert largest_load(columns, columns, np.array([False]), asked, ENGINES.constants) == pytest.approx(room)


def test_loads_far_above_the_first_that_is_tried_are_found() -> None:
    most = np.array([0.5, 3.0, 4e4, 7e7])
    assert largest(lambda load, rows: load <= most[rows], np.ones(4)) == pytest.approx(most)


def test_an_instance_near_its_room_decodes_no_more_than_that() -> None:
    """The promise is kept up to the rate at which the cache is full, since more sequences than fit never decode."""
    of_model = space("llama-3.1-8b", "8xh100-sxm-80gb", {"tp": 1, "pp": 1, "chunk_tokens": 8192})
    columns, aggregated = pool(of_model.instances), np.array([False])
    stable = largest_load(columns, columns, aggregated, promises(2000, 300, closed=False), ENGINES.constants)
    full = priced(columns, columns, aggregated, stable, promises(2000, 300, closed=False), ENGINES.constants)
    asked = promises(2000, 300, closed=False, tpot_s=float(full.latencies.tpot_s[0]) * 1.02)
    kept = largest_load(columns, columns, aggregated, asked, ENGINES.constants)
    assert kept == pytest.approx(stable)


def test_fixed_replicas_run_in_every_hour() -> None:
    plan = planned({"model": "llama-3.1-8b", "rate": None, "hourly": "1/s,20/s", "fix": ["tp=1", "pp=1", "replicas=4"]})
    assert plan.hourly is not None
    assert plan.hourly.instances == ((4,), (4,))
    assert plan.hourly.gpu_hours == 8


def test_the_longest_request_has_to_fit() -> None:
    """Llama-3.1-8B in bf16 leaves 1.2 GiB of an RTX 4090, 9,500 tokens of 128 KiB: no room for 60,000 and their answer,
    although the mean of 6,900 has it. vLLM refuses such a request by --max-model-len."""
    asked: dict[str, Any] = {"model": "llama-3.1-8b", "cluster": "1xrtx-4090", "output": 200, "rate": "0.005/s",
                             "ttft": "60s", "percentile": 99}  # fmt: skip
    with pytest.raises(NoFeasibleLayoutError, match=r"sequence of 7\.35, the longest: 60,200 tokens"):
        plan_serving(**asked, input="1000:0.9,60000:0.1")
    plan = plan_serving(**asked, input="1000:0.9,9000:0.1")
    assert plan.best.pools[0].cache_sequences >= 1
    options = emit_serving(plan, "vllm").files
    (given,) = {result for text in options.values() for result in re.findall(r"--max-model-len[= ](\d+)", text)}
    assert int(given) >= 9200
