"""Lengths of answers and the seconds of a rollout."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
from meshwright.cost_models.serving.rollout import AnswerLengths, Rollout, rollout_seconds
from meshwright.planner.serving.instance import Instance, InstanceLayout, pool
from meshwright.profiles.cluster.build import of_gpus
from meshwright.profiles.model.load import load_model
from meshwright.profiles.stack.engines import shipped_engines

ENGINES = shipped_engines()


def seconds(rollout: Rollout, instances: int = 1, model: str = "llama-3.2-1b") -> float:
    cluster, engine = of_gpus("h100-sxm-80gb", 1), ENGINES.of("vllm")
    row = Instance(
        model=load_model(model)[0], gpu=cluster.gpu, levels=cluster.levels, weights="bf16", cache="bf16", engine=engine,
        host_s=ENGINES.host_s("vllm", ""), chunk_tokens=8192, max_sequences=engine.max_sequences,
        layout=InstanceLayout(tp=1, attention_dp=1, pp=1, ep=1, instances=instances),
    )  # fmt: skip
    return float(rollout_seconds(pool([row]), ENGINES.constants, rollout)[0])


def rollout(prompts: float = 32, **lengths: float) -> Rollout:
    return Rollout(prompts=prompts, samples=4, prompt=200, lengths=AnswerLengths.of(**{"mean": 500.0, **lengths}))


@pytest.mark.parametrize("given", [{"mean": 500.0}, {"mean": 3200.0, "largest": 4096.0}, {"mean": 900.0, "p90": 1900.0},
                                   {"mean": 900.0, "p90": 1100.0, "largest": 1200.0}])  # fmt: skip
def test_lengths_have_the_given_moments(given: dict[str, float]) -> None:
    lengths = AnswerLengths.of(**given)
    assert lengths.mean == pytest.approx(given["mean"], rel=2e-3)
    if "p90" in given:
        assert lengths.quantile(0.9) == pytest.approx(given["p90"], rel=2e-3)
    assert lengths.longest(1e6) <= given.get("largest", np.inf)


def test_equal_lengths_have_no_tail() -> None:
    lengths = AnswerLengths.of(500.0, p90=501.0)
    assert lengths.longest(512) == pytest.approx(500, rel=0.02)
    assert lengths.running(480) == pytest.approx(1.0)


def test_the_longest_answer_dominates() -> None:
    even, uneven = seconds(rollout(p90=510)), seconds(rollout(p90=1100))
    assert uneven > 2.0 * even


def test_instances_divide_the_batch_but_not_its_longest_answer() -> None:
    one, many = seconds(rollout(512)), seconds(rollout(512), instances=64)
    longest = seconds(replace(rollout(512), prompts=8, samples=1), instances=8)
    assert longest / 2 < many < one
    assert many > one / 64


def test_answers_wait_where_the_cache_is_full() -> None:
    few, more = seconds(rollout(256), model="llama-3.1-8b"), seconds(rollout(2560), model="llama-3.1-8b")
    assert 5 * few < more < 12 * few


def test_weights_that_do_not_fit() -> None:
    assert seconds(rollout(), model="llama-3.1-70b") == np.inf
