"""A run whose gradient is nan or infinite ends before any weight is, and keeps the checkpoints before."""

from __future__ import annotations

import json
import math
from pathlib import Path

import pytest
import torch
from meshwright.runtime.failures import RunFailed
from meshwright.runtime.optimizer import finite
from meshwright.runtime.parallel.mesh import build_mesh
from meshwright.runtime.status import Status
from meshwright.runtime.trainer import Trainer

from .fork import TIMEOUT_S, fork
from .jobs import job
from .launched import finish, start


@pytest.mark.parametrize("layout", ["dp2-mbs1-z1-rnone", "pp2-dp1-mbs1-z0-rnone", "tp2-dp1-mbs1-z0-rnone"])
def test_no_weight_changes_on_any_rank(layout: str) -> None:
    """One element on one rank is infinite."""
    wanted = job(layout, steps=2)

    def one(rank: int) -> tuple[str, bool]:
        trainer = Trainer(wanted, build_mesh(wanted.layout, rank, Status(), TIMEOUT_S), torch.device("cpu"))
        trainer.step(0)
        before = [unit.master.detach().clone() for unit in trainer.units]
        forward = trainer.exchange.loss

        def broken() -> torch.Tensor:
            if rank == 1:
                trainer.units[-1].gradient[0] = math.inf  # that of the step is added to it
            return forward()

        trainer.exchange.loss = broken  # type: ignore[method-assign]
        with pytest.raises(RunFailed) as raised:
            trainer.step(1)
        return raised.value.message, all(map(torch.equal, before, (unit.master for unit in trainer.units)))

    for message, same in fork(2, one):
        assert message.startswith("step 2: the gradient norm is inf")
        assert same


def test_a_number_passes() -> None:
    assert finite(3.5, 0) == 3.5
    with pytest.raises(RunFailed, match="step 1: the gradient norm is nan"):
        finite(math.nan, 0)


@pytest.mark.slow
def test_a_launch_that_diverges_keeps_its_checkpoint(plan_file: Path, tmp_path: Path) -> None:
    report = tmp_path / "run.json"
    code, _, err = finish(start(str(plan_file), "--scale-down", "--steps", "5", "--lr", "1e30", "--checkpoint",
                                str(tmp_path / "ckpt"), "--checkpoint-every", "1", "--checkpoint-async",
                                "--report", str(report)))  # fmt: skip
    assert code == 1, err
    assert "step 2: the gradient norm is nan; no weight was updated" in err
    assert [path.name for path in (tmp_path / "ckpt").glob("step-*")] == ["step-00000001"]
    found = json.loads(report.read_text(encoding="utf-8"))
    assert [step["step"] for step in found["steps"]] == [1]
    assert found["stopped"].startswith("step 2: the gradient norm is nan")
