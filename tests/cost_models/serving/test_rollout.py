"""Lengths of answers and the seconds of a rollout."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
from meshwright.cost_models.serving.pool import Pool
from meshwright.cost_models.serving.rollout import AnswerLengths, Cache, Phases, Rollout, phases, rollout_time
from meshwright.planner.serving.instance import Instance, InstanceLayout, pool
from meshwright.profiles.cluster.build import of_gpus
from meshwright.profiles.model.load import load_model
from meshwright.profiles.stack.engines import shipped_engines

ENGINES = shipped_engines()


def seconds(rollout: Rollout, instances: int = 1, model: str = "llama-3.2-1b") -> float:
    return float(rollout_time(one(instances, model), ENGINES.constants, rollout).seconds[0])


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
    assert np.diff(lengths.within(np.array([470.0, 480.0]))) == pytest.approx(10.0)


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


HELD = 64  # answers that the cache has room for while others wait
PROMPT = 200
LENGTHS = [{"mean": 500.0}, {"mean": 500.0, "p90": 900.0}, {"mean": 500.0, "p90": 640.0}, {"mean": 500.0, "p90": 501.0},
           {"mean": 500.0, "largest": 700.0}]  # fmt: skip


def tokens(lengths: AnswerLengths) -> float:
    """The tokens in the cache of HELD answers that are met at any time, half of whose tokens have come."""
    return HELD * (PROMPT + lengths.met / 2)


def waves_of(waves: float, lengths: AnswerLengths, sequences: float = 1e9) -> Phases:
    """The phases of so many times HELD answers, with room for so many sequences."""
    cache = Cache(sequences=np.array([sequences]), share=lambda age: (PROMPT + age) / tokens(lengths))
    work = Rollout(prompts=HELD * waves, samples=1, prompt=PROMPT, lengths=lengths)
    return phases(work, cache, np.array([1.0]))


@pytest.mark.parametrize("given", LENGTHS)
@pytest.mark.parametrize("waves", [0.5, 1.0, 1.001, 2.0, 4.0, 40.0])
@pytest.mark.parametrize("sequences", [HELD / 2, HELD, 1e9])
def test_an_instance_generates_the_tokens_of_all(given: dict[str, float], waves: float, sequences: float) -> None:
    lengths = AnswerLengths.of(**given)
    parts = waves_of(waves, lengths, sequences)
    generated = parts.iterations * parts.batch
    assert generated.sum() == pytest.approx(HELD * waves * lengths.mean, rel=2e-3)
    aged = (generated * parts.age).sum()  # the mean age of an answer is half of its length
    assert aged == pytest.approx(HELD * waves * lengths.mean_square / 2, rel=2e-2)
    # Of a group that runs in part, the first tokens of a part of the lengths come: a few more than of its mean.
    assert parts.batch.max() <= sequences * 1.001
    assert (parts.batch * (PROMPT + parts.age)).max() <= tokens(lengths) * 1.001


@pytest.mark.parametrize("given", LENGTHS)
def test_seconds_rise_without_a_jump_as_answers_wait(given: dict[str, float]) -> None:
    waves = np.array([0.999, 1.0, 1.001, 1.01, 1.5, 2.0, 2.001, 4.0, 4.001])
    lengths = AnswerLengths.of(**given)
    ends = np.array([waves_of(wave, lengths, HELD).iterations.sum() for wave in waves])
    assert (np.diff(ends) >= 0).all()
    # One more answer lengthens the rollout by itself at most: a thousandth of a wave is 0.064 of one.
    close = np.diff(waves) < 2e-3
    assert (np.diff(ends)[close] <= 0.064 * 1.05 * lengths.mean).all()


def test_waves_of_equal_answers_follow_one_another() -> None:
    ends = waves_of(40.0, AnswerLengths.of(500.0, p90=501.0), HELD).iterations.sum()
    assert ends == pytest.approx(40 * 500, rel=0.02)


def test_answers_that_start_together_fit_while_they_are_short() -> None:
    """Where many answers run to the same end, the cache is full late: one more than it holds at any time waits not."""
    lengths = AnswerLengths.of(5700.0, largest=8000.0)
    assert waves_of(33 / 32, lengths).iterations.sum() == pytest.approx(8000)
    assert waves_of(2.0, lengths).iterations.sum() > 12000


def test_equal_answers_that_start_together_fill_the_cache_early() -> None:
    """At half of their length those fit that are met at any time; then half of them wait until the others end."""
    lengths = AnswerLengths.of(500.0, p90=501.0)
    fit = (PROMPT + 250) / (PROMPT + 500)
    assert waves_of(0.99 * fit, lengths).iterations.sum() == pytest.approx(500, rel=0.02)
    assert waves_of(1.0, lengths).iterations.sum() > 700


def test_long_answers_take_more_room_than_the_mean() -> None:
    lengths = AnswerLengths.of(500.0, p90=1100.0)
    columns, work = one(model="llama-3.1-8b"), replace(rollout(), lengths=lengths)
    met = float(columns.capacity(np.asarray(200.0), np.asarray(lengths.met))[0])
    held = rollout_time(columns, ENGINES.constants, work).sequences[0]
    assert met == pytest.approx(held, abs=1)
    assert held < float(columns.capacity(np.asarray(200.0), np.asarray(500.0))[0])


def test_the_longest_answer_must_fit_whole() -> None:
    # All that the cache holds; K and V of 32 layers of 8 heads of 128, two bytes each. Half of 1.1 times would fit.
    tokens = float(one(model="llama-3.1-8b").cache_bytes[0]) / (2 * 2 * 8 * 128 * 32)
    fits, large = ({"mean": share * tokens, "p90": share * tokens * 1.001} for share in (0.9, 1.1))
    assert seconds(rollout(1, **fits), model="llama-3.1-8b") < np.inf
    assert seconds(rollout(1, **large), model="llama-3.1-8b") == np.inf


def test_weights_that_do_not_fit() -> None:
    assert seconds(rollout(), model="llama-3.1-70b") == np.inf
