"""The loss on other data: that of one process, under any layout, and training goes on as without it."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from meshwright.runtime import reference
from meshwright.runtime.data import open_evaluated
from meshwright.runtime.evaluation import Evaluation, evaluation_of
from meshwright.runtime.job import Job
from meshwright.runtime.parallel.mesh import build_mesh
from meshwright.runtime.report import event_line
from meshwright.runtime.status import Status
from meshwright.runtime.trainer import Step, Trainer

from meshwright.errors import InputError

from .fork import TIMEOUT_S, fork, run
from .jobs import deepseek, job, llama, moe

BATCHES = 2


@pytest.fixture(scope="module")
def data(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("data") / "a.bin"
    np.random.default_rng(0).integers(0, 61, 16 * 40).astype(np.uint16).tofile(path)
    return path


def alone(wanted: Job, data: Path) -> float:
    """The mean loss of the initial weights, in one process."""
    model = reference.whole_model(wanted)
    ahead = 1 + wanted.model.mtp_layers
    source = open_evaluated(str(data), 61, 16, wanted.global_batch, 0, ahead)
    rows = torch.cat([source.batch(index) for index in range(BATCHES)])
    with torch.no_grad():
        loss = model(*(rows[:, first : first + 16] for first in range(1 + ahead)))
    return float(loss) / (BATCHES * wanted.tokens_per_step)


@pytest.mark.parametrize(
    ("layout", "model"),
    [
        ("tp2-dp2-mbs1-z3-rfull", llama()),
        ("pp2-vpp2-dp1-mbs1-z1-rnone", llama()),
        ("pp2-zbv-dp1-mbs1-z1-rnone", llama()),
        ("tp2-cp2r-dp1-mbs1-z1-rnone", llama(tied_embeddings=True)),
        ("pp2-dp2-ep2-mbs1-z3-rnone", moe()),
        ("pp2-dp1-mbs1-z0-rnone", deepseek()),
    ],
)
def test_the_loss_is_that_of_one_process(layout: str, model: Any, data: Path) -> None:
    wanted = job(layout, model, steps=2, evaluation=Evaluation(str(data), 1, BATCHES))

    def one(rank: int) -> tuple[list[tuple[float, int]], list[Step]]:
        trainer = Trainer(wanted, build_mesh(wanted.layout, rank, Status(), TIMEOUT_S), torch.device("cpu"))
        losses, steps = [trainer.evaluate()], []
        for index in range(wanted.steps):
            steps.append(trainer.step(index))
            losses.append(trainer.evaluate())
        return losses, steps

    results = fork(wanted.world_size, one)
    assert all(losses == results[0][0] for losses, _ in results)
    assert [number for _, number in results[0][0]] == [BATCHES] * 3
    assert results[0][0][0][0] == pytest.approx(alone(wanted, data), rel=1e-12)
    assert len({loss for loss, _ in results[0][0]}) == 3  # of three weights
    assert results[0][1] == run(replace(wanted, evaluation=None))


def test_short_data_has_fewer_batches(data: Path) -> None:
    wanted = job("dp1-mbs1-z0-rnone", evaluation=Evaluation(str(data), 1, 1000))

    def one(rank: int) -> int:
        return Trainer(wanted, build_mesh(wanted.layout, rank, Status(), TIMEOUT_S), torch.device("cpu")).evaluate()[1]

    assert fork(1, one) == [39 // wanted.global_batch]


def test_what_cannot_be_evaluated_is_refused(data: Path) -> None:
    with pytest.raises(InputError, match="--eval-every 0: must be 1 or more"):
        evaluation_of(str(data), 0, 10)
    with pytest.raises(InputError, match="--eval-batches 3: there is nothing to evaluate on"):
        evaluation_of(None, 100, 3)
    assert evaluation_of(None, 100, 10) is None
    with pytest.raises(InputError, match="39 sequences, a global batch has 64"):
        open_evaluated(str(data), 61, 16, 64, 0, 1)
    with pytest.raises(InputError, match="its tokens are those of the training"):
        open_evaluated("synthetic", 61, 16, 8, 0, 1)
    wrong = np.fromfile(data, np.uint16)
    wrong[16 * 12 + 3] = 99  # in the 13th sequence
    (data.parent / "wrong").mkdir()
    wrong.tofile(data.parent / "wrong" / "a.bin")
    open_evaluated(str(data.parent / "wrong"), 61, 16, 8, 0, 1, batches=1)  # the first eight sequences
    with pytest.raises(InputError, match="wrong: sequence 13 of 39 has token 99, the model knows 0 to 60"):
        open_evaluated(str(data.parent / "wrong"), 61, 16, 8, 0, 1, batches=10)
    event = {"event": "evaluation", "step": 4, "loss": 4.25, "batches": 2, "seconds": 1.0}
    assert event_line(event, job("dp1-mbs1-z0-rnone")) == "evaluation after step 4: loss 4.2500 on 2 batches"
