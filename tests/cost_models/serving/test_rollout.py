"""Lengths of answers and the seconds of a rollout."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
from meshwright.cost_models.serving.pool import Pool
from meshwright.cost_models.serving.rollout import AnswerLengths, Rollout, phases, rollout_seconds, room
from meshwright.planner.serving.instance import Instance, InstanceLayout, pool
from meshwright.profiles.cluster.build import of_gpus
from meshwright.profiles.model.load import load_model
from meshwright.profiles.stack.engines import shipped_engines

ENGINES = shipped_engines()


def seconds(rollout: Rollout, instances: int = 1, model: str = "llama-3.2-1b") -> float:
    return float(rollout_seconds(one(instances, model), ENGINES.constants, rollout)[0])


def one(instances: int = 1, model: str = "llama-3.2-1b") -> Pool:
    cluster, engine = of_gpus("h100-sxm-80gb", 1), ENGINES.of("vllm")
    row = Instance(
        model=load_model(model)[0], gpu=cluster.gpu, levels=cluster.levels, weights="bf16", cache="bf16", engine=engine,
        host_s=ENGINES.host_s("vllm", ""), chunk_tokens=8192, max_sequences=engine.max_sequences,
        layout=InstanceLayout(tp=1, attention_dp=1, pp=1, ep=1, instances=instances),
    )  # fmt: skip
    return pool([row])


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
    assert lengths.running(np.array([470.0, 480.0])) == pytest.approx(1.0)


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


HELD = 64  # answers that the cache has room for
LENGTHS = [{"mean": 500.0}, {"mean": 500.0, "p90": 900.0}, {"mean": 500.0, "p90": 640.0}, {"mean": 500.0, "p90": 501.0},
           {"mean": 500.0, "largest": 700.0}]  # fmt: skip


@pytest.mark.parametrize("given", LENGTHS)
@pytest.mark.parametrize("waves", [0.5, 1.0, 1.001, 2.0, 4.0, 40.0])
def test_an_instance_generates_the_tokens_of_all_answers(given: dict[str, float], waves: float) -> None:
    work = Rollout(prompts=HELD * waves, samples=1, prompt=200, lengths=AnswerLengths.of(**given))
    parts = phases(work, np.array([HELD]), np.array([1.0]))
    generated = parts.iterations * parts.batch
    assert generated.sum() == pytest.approx(work.answers * work.lengths.mean, rel=2e-3)
    aged = (generated * parts.age).sum()  # the mean age of an answer is half of its length
    assert aged == pytest.approx(work.answers * work.lengths.mean_square / 2, rel=2e-2)
    assert parts.batch.max() <= HELD * (1 + 1e-9)


@pytest.mark.parametrize("given", LENGTHS)
def test_seconds_rise_without_a_jump_as_answers_wait(given: dict[str, float]) -> None:
    waves = np.array([0.999, 1.0, 1.001, 1.01, 1.5, 2.0, 2.001, 4.0, 4.001])
    lengths = AnswerLengths.of(**given)
    ends = np.array([
        phases(Rollout(prompts=HELD * wave, samples=1, prompt=200, lengths=lengths), np.array([HELD]), np.array([1.0]))
        .iterations.sum() for wave in waves])  # fmt: skip
    assert (np.diff(ends) > 0).all()
    # One more answer lengthens the rollout by itself at most: a thousandth of a wave is 0.064 of one.
    close = np.diff(waves) < 2e-3
    assert (np.diff(ends)[close] <= 0.064 * 1.05 * lengths.mean).all()


def test_waves_of_equal_answers_follow_one_another() -> None:
    work = Rollout(prompts=HELD * 40.0, samples=1, prompt=200, lengths=AnswerLengths.of(500.0, p90=501.0))
    ends = phases(work, np.array([HELD]), np.array([1.0])).iterations.sum()
    assert ends == pytest.approx(40 * 500, rel=0.02)


def test_long_answers_take_more_room_than_the_mean() -> None:
    lengths = AnswerLengths.of(500.0, p90=1100.0)
    columns, work = one(model="llama-3.1-8b"), replace(rollout(), lengths=lengths)
    met = float(columns.capacity(np.asarray(200.0), np.asarray(lengths.mean_square / lengths.mean))[0])
    assert room(columns, work)[0] == met < float(columns.capacity(np.asarray(200.0), np.asarray(500.0))[0])


def test_the_longest_answer_must_fit_whole() -> None:
    # All that the cache holds; K and V of 32 layers of 8 heads of 128, two bytes each. Half of 1.1 times would fit.
    tokens = float(one(model="llama-3.1-8b").cache_bytes[0]) / (2 * 2 * 8 * 128 * 32)
    fits, large = ({"mean": share * tokens, "p90": share * tokens * 1.001} for share in (0.9, 1.1))
    assert seconds(rollout(1, **fits), model="llama-3.1-8b") < np.inf
    assert seconds(rollout(1, **large), model="llama-3.1-8b") == np.inf


def test_weights_that_do_not_fit() -> None:
    assert seconds(rollout(), model="llama-3.1-70b") == np.inf
