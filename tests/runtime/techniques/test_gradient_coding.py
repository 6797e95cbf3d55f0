"""Gradient coding on ranks: any slow replicas leave the steps of plain data parallelism, and none is waited for."""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import replace
from itertools import combinations
from typing import Any

import numpy as np
import pytest
import torch
from meshwright.planner.targets.meshwright.techniques import CAN
from meshwright.runtime.job import Job
from meshwright.runtime.rehearsal.exchanged import planned_bytes
from meshwright.runtime.techniques.gradient_coding import GradientCoding, code, decoding
from meshwright.runtime.techniques.registry import EXCHANGES, check_device
from meshwright.runtime.trainer import Trainer

from meshwright.errors import UnsupportedError

from ..techniques_of import Adam, Model, Weights, differ, run, trained_by

NAP_S = 0.3


@pytest.mark.parametrize(("replicas", "tolerated"), [(2, 1), (3, 1), (4, 1), (4, 2), (5, 2), (6, 2), (7, 3), (8, 1)])
def test_any_replicas_that_are_left_give_the_whole_sum(replicas: int, tolerated: int) -> None:
    coefficients = code(replicas, tolerated)
    assert ((coefficients != 0).sum(1) == tolerated + 1).all()  # shares of a replica
    for slow in combinations(range(replicas), tolerated):
        fast = [each for each in range(replicas) if each not in slow]
        whole = decoding(coefficients, fast) @ coefficients[fast]
        assert np.abs(whole - 1).max() < 1e-10, slow


def held_back(until: Callable[[Trainer, int], None]) -> Callable[[Trainer, int], Any]:
    """A watch under which `until(trainer, rank)` returns before a replica computes a step. Its result: the steps in
    which the replica was in time."""

    def watch(trainer: Trainer, rank: int) -> Any:
        before = trainer.pipeline.run

        def run_slowly(batch: Any) -> Any:
            until(trainer, rank)
            return before(batch)

        trainer.pipeline.run = run_slowly  # type: ignore[method-assign]
        return lambda: trainer.exchange.steps_in_time  # type: ignore[attr-defined]

    return watch


def nap_in_turn(trainer: Trainer, rank: int) -> None:
    if trainer.exchange.index == rank:
        time.sleep(NAP_S)


def wait_for_the_others(trainer: Trainer, rank: int) -> None:
    """The last replica computes nothing before all others compute their last step; were it waited for, none would."""
    exchange = trainer.exchange
    assert isinstance(exchange, GradientCoding)
    if rank < exchange.needed:
        exchange.store.add("others in the last step", int(exchange.index == trainer.job.steps - 1))
        return
    while exchange.store.add("others in the last step", 0) < exchange.needed:
        time.sleep(0.01)


def restated(wanted: Job) -> tuple[list[Weights], list[float]]:
    """Weights and losses of steps on the whole batch."""
    model = Model(wanted)
    weights, adam, out, losses = model.start, Adam(wanted, model.start), [], []
    for step in range(wanted.steps):
        gradients, loss = model.gradients(weights, step, 0, 1)
        adam.step(weights, gradients)
        out.append(dict(weights))
        losses.append(loss)
    return out, losses


@pytest.mark.parametrize("replicas", [3, 4])
def test_trains_as_without_whoever_is_slow(replicas: int) -> None:
    """Of three the code is cyclic, of four two pairs compute the same. Each replica is slow once."""
    wanted = trained_by("gradient-coding", f"dp{replicas}-mbs1-z0-rnone", {"tolerated": 1, "window": 1}, steps=replicas)
    ran = run(wanted, held_back(nap_in_turn))
    expected, losses = restated(wanted)
    for rank in ran:
        assert rank.losses == pytest.approx(losses, abs=1e-12)
        for step in range(wanted.steps):
            assert differ(rank.weights[step], expected[step]) < 1e-10, step
    in_time = [rank.extra for rank in ran]
    assert sum(in_time) == wanted.steps * (replicas - 1)
    planned = 2 * planned_bytes(wanted)[0] * (replicas - 1)  # of the replicas that are in time; float64 for fp32
    assert sum(rank.sent[0] for rank in ran) == pytest.approx(planned, abs=0.5)
    assert sum(rank.given["send"] for rank in ran) == pytest.approx(planned, abs=0.5)


def test_keys_of_steps_that_all_have_finished_are_deleted() -> None:
    """The last replica is slow, so that keys are read late."""

    def nap(trainer: Trainer, rank: int) -> None:
        time.sleep(NAP_S if rank == 2 else 0)

    def watch(trainer: Trainer, rank: int) -> Any:
        exchange = trainer.exchange
        assert isinstance(exchange, GradientCoding)
        before = exchange.store.num_keys()
        trainer.mesh["world"].all_reduce(torch.zeros(1))  # all have counted
        held_back(nap)(trainer, rank)

        def finish() -> tuple[int, bool]:
            trainer.mesh["world"].all_reduce(torch.zeros(1))  # all have settled
            return exchange.store.num_keys() - before, exchange.store.check([exchange._key(1, 0)])

        return finish

    wanted = trained_by("gradient-coding", "dp3-mbs1-z0-rnone", {"tolerated": 1, "window": 1}, steps=12)
    assert [rank.extra for rank in run(wanted, watch)] == [(0, False)] * 3


def test_targets_that_do_not_count_are_in_no_share() -> None:
    """The loss is the mean over the targets of all replicas that are in a document."""
    wanted = trained_by("gradient-coding", "dp2-mbs1-z0-rnone", {"tolerated": 1, "window": 1}, steps=2, end_token=3)
    coded, plain = run(wanted), run(replace(wanted, technique=None))
    assert coded[0].losses == pytest.approx(plain[0].losses, abs=1e-12)
    assert differ(coded[0].weights[-1], plain[0].weights[-1]) < 1e-10


def test_the_planner_and_the_runtime_know_the_same_techniques() -> None:
    assert EXCHANGES.keys() == CAN.keys()


def test_gpus_are_refused() -> None:
    wanted = trained_by("gradient-coding", "dp2-mbs1-z0-rnone", {"tolerated": 1, "window": 1})
    check_device(wanted, "cpu")
    check_device(replace(wanted, technique=None), "cuda")
    with pytest.raises(UnsupportedError, match="tried over gloo only"):
        check_device(wanted, "cuda")


def test_a_slow_replica_is_not_waited_for() -> None:
    """One of three begins when the others are in their last step; it takes the sums of all steps."""
    wanted = trained_by("gradient-coding", "dp3-mbs1-z0-rnone", {"tolerated": 1, "window": 1})
    ran = run(wanted, held_back(wait_for_the_others))
    assert min(rank.extra for rank in ran[:2]) >= wanted.steps - 1
    assert ran[2].extra <= 1
    assert sum(rank.extra for rank in ran) == 2 * wanted.steps
    assert differ(ran[2].weights[-1], ran[0].weights[-1]) == 0.0
