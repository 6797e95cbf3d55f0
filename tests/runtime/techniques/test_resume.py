"""Runs of a technique that go on from a checkpoint: the same weights as without a break, to the bit."""

from __future__ import annotations

import time
from pathlib import Path

import pytest
import torch
from meshwright.runtime.checkpoint.checkpoint import Checkpoints
from meshwright.runtime.job import Job
from meshwright.runtime.parallel.mesh import build_mesh
from meshwright.runtime.parallel.pipeline import Batch
from meshwright.runtime.status import Status
from meshwright.runtime.techniques.gradient_coding import GradientCoding
from meshwright.runtime.trainer import Trainer

from meshwright.errors import InputError

from ..fork import TIMEOUT_S, fork
from ..techniques_of import trained_by

NAP_S = 0.2  # of a late replica before each share
# The break is after step 3: between exchanges of NoLoCo, with a sum or a mean on its way in the others.
CASES: dict[str, tuple[str, dict[str, float]]] = {
    "noloco": ("dp4-sh2-mbs1-z1-rnone", {"period": 2}),
    "co2": ("pp2-dp2-mbs1-z0-rnone", {"period": 2}),
    "diloco": ("dp4-sh2-mbs1-z2-rnone", {"period": 4, "fragments": 2, "delay": 2}),
    "1-bit-adam": ("tp2-dp2-mbs1-z0-rnone", {"warmup": 0.34}),
}


def trainer_of(wanted: Job, rank: int) -> Trainer:
    return Trainer(wanted, build_mesh(wanted.layout, rank, Status(), TIMEOUT_S), torch.device("cpu"))


def weights_of(trainer: Trainer) -> list[torch.Tensor]:
    return [unit.master.detach().clone() for unit in trainer.units]


@pytest.mark.parametrize("name", CASES)
def test_goes_on_exactly(name: str, tmp_path: Path) -> None:
    layout_id, knobs = CASES[name]
    wanted = trained_by(name, layout_id, knobs)

    def one(rank: int) -> float:
        whole = trainer_of(wanted, rank)
        for index in range(3):
            whole.step(index)
        Checkpoints(whole, tmp_path, keep=1).save(3)
        for index in range(3, wanted.steps):
            whole.step(index)
        again = trainer_of(wanted, rank)
        assert Checkpoints(again, tmp_path, keep=1).resume().step == 3
        for index in range(3, wanted.steps):
            again.step(index)
        return max(float((a - b).abs().max()) for a, b in zip(weights_of(whole), weights_of(again), strict=True))

    assert fork(wanted.world_size, one) == [0.0] * wanted.world_size


def test_coding_goes_on_exactly_with_the_same_replicas_in_time(tmp_path: Path) -> None:
    """The sum of a step depends on who is in time by its rounding: the third replica is late in every step."""
    wanted = trained_by("gradient-coding", "dp3-mbs1-z0-rnone", {"tolerated": 1, "window": 1})

    def late(trainer: Trainer, rank: int) -> Trainer:
        before = trainer.pipeline.run

        def run(batch: Batch) -> torch.Tensor:
            time.sleep(NAP_S if rank == 2 else 0)
            return before(batch)

        trainer.pipeline.run = run  # type: ignore[method-assign]
        return trainer

    def steps(trainer: Trainer, first: int, last: int) -> list[list[int]]:
        fast = []
        for index in range(first, last):
            trainer.step(index)
            assert isinstance(trainer.exchange, GradientCoding)
            fast.append(trainer.exchange.fast)
        trainer.settle()
        return fast

    def one(rank: int) -> tuple[float, list[list[int]]]:
        whole = late(trainer_of(wanted, rank), rank)
        steps(whole, 0, 3)
        Checkpoints(whole, tmp_path, keep=1).save(3)
        fast = steps(whole, 3, wanted.steps)
        again = late(trainer_of(wanted, rank), rank)
        assert Checkpoints(again, tmp_path, keep=1).resume().step == 3
        fast += steps(again, 3, wanted.steps)
        pairs = zip(weights_of(whole), weights_of(again), strict=True)
        return max(float((a - b).abs().max()) for a, b in pairs), fast

    found = fork(wanted.world_size, one)
    assert [difference for difference, _ in found] == [0.0] * 3
    assert [fast for _, fast in found] == [[[0, 1]] * 6] * 3


def test_other_replicas_or_knobs_do_not_go_on(tmp_path: Path) -> None:
    def of(layout_id: str, period: int) -> Job:
        return trained_by("noloco", layout_id, {"period": period}, steps=1, global_batch=4)

    def save(rank: int) -> None:
        Checkpoints(trainer_of(of("dp2-mbs1-z0-rnone", 2), rank), tmp_path, keep=1).save(1)

    fork(2, save)

    def refused(rank: int) -> str:
        with pytest.raises(InputError) as error:
            Checkpoints(trainer_of(of("dp4-mbs1-z0-rnone", 3), rank), tmp_path, keep=1).resume()
        return error.value.message

    message = fork(4, refused)[0]
    assert "technique.replicas: 2 in the checkpoint, 4 now" in message
    assert "technique.noloco.period: 2.0 in the checkpoint, 3.0 now" in message
