"""Learning rates by step: equal to those of torch's schedulers; flags that do not fit; metrics of a run and of its
continuation."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from meshwright.runtime.learning_rate import RateSchedule
from meshwright.runtime.metrics import Metrics
from meshwright.runtime.preparation import prepare
from meshwright.runtime.report import event_line
from meshwright.runtime.settings import Settings
from meshwright.runtime.trainer import Trainer
from torch.optim import lr_scheduler

from meshwright.errors import InputError

from .fork import run
from .jobs import job

PEAK, LAST, WARMUP, STEPS = 0.1, 0.01, 4, 20
AFTER = STEPS - WARMUP


def of_torch(kind: str) -> list[float]:
    optimizer = torch.optim.SGD([torch.zeros(1, requires_grad=True)], lr=PEAK)
    first = lr_scheduler.LinearLR(optimizer, 1 / WARMUP, 1.0, WARMUP - 1)
    rest: dict[str, Any] = {
        "constant": lambda: lr_scheduler.ConstantLR(optimizer, 1.0),
        "cosine": lambda: lr_scheduler.CosineAnnealingLR(optimizer, AFTER, LAST),
        "linear": lambda: lr_scheduler.LinearLR(optimizer, 1.0, LAST / PEAK, AFTER),
        "wsd": lambda: lr_scheduler.SequentialLR(
            optimizer, [lr_scheduler.ConstantLR(optimizer, 1.0),
                        lr_scheduler.LinearLR(optimizer, 1.0, LAST / PEAK, 5)], [AFTER - 5]),
    }  # fmt: skip
    rates = []
    for _ in range(WARMUP):
        rates.append(optimizer.param_groups[0]["lr"])
        optimizer.step()
        first.step()
    optimizer.param_groups[0].update(lr=PEAK, initial_lr=PEAK)
    scheduler = rest[kind]()
    for _ in range(AFTER):
        rates.append(optimizer.param_groups[0]["lr"])
        optimizer.step()
        scheduler.step()
    return rates


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("kind", ["constant", "cosine", "linear", "wsd"])
def test_rates_are_those_of_torch(kind: str) -> None:
    last, decay = (0.0 if kind == "constant" else LAST), (5 if kind == "wsd" else None)
    schedule = RateSchedule(PEAK, STEPS, kind, WARMUP, last, decay)
    schedule.check()
    assert [schedule.at(index) for index in range(STEPS)] == pytest.approx(of_torch(kind), rel=1e-9)


def test_wsd_decays_in_a_fifth() -> None:
    rates = [RateSchedule(1.0, 20, "wsd").at(index) for index in range(20)]
    assert rates == pytest.approx([1.0] * 17 + [0.75, 0.5, 0.25])


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"kind": "cosin"}, "none of constant, cosine, linear, wsd"),
        ({"last": 0.01}, "a constant rate does not decay"),
        ({"kind": "cosine", "last": 0.2}, "--min-lr 0.2: must be 0 to the learning rate, 0.1"),
        ({"kind": "cosine", "last": -1.0}, "--min-lr -1"),
        ({"kind": "cosine", "decay": 3}, "only the schedule wsd"),
        ({"kind": "wsd", "decay": 0}, "--decay-steps 0: must be 1 or more"),
        ({"kind": "cosine", "warmup": 20}, "20 steps of warmup do not fit in 20"),
        ({"kind": "wsd", "warmup": 18, "decay": 3}, "18 steps of warmup and 3 of decay do not fit in 20"),
        ({"warmup": -1}, "--warmup -1"),
        ({"warmup": 21}, "--warmup 21"),
    ],
)
def test_flags_that_do_not_fit_are_refused(changes: dict[str, Any], words: str) -> None:
    with pytest.raises(InputError, match=words):
        RateSchedule(PEAK, STEPS, **changes).check()


def test_a_parity_check_has_a_constant_rate(two_ranks: Path) -> None:
    with pytest.raises(InputError, match="trains at a constant rate"):
        prepare(Settings(str(two_ranks), scale_down=True, check_parity=True, schedule="cosine"))


def test_steps_are_taken_at_their_rates(tmp_path: Path) -> None:
    """As the optimizer of rank 1 sees them; the first step is that of a constant rate."""
    wanted = job("dp2-mbs1-z1-rnone", steps=3, rates=RateSchedule(0.3, 3, "linear"))
    seen: list[list[float]] = []

    def broken(trainer: Trainer, rank: int) -> None:
        step = trainer.optimizer.step

        def stepping(*arguments: Any) -> Any:
            seen.append([group["lr"] for group in trainer.optimizer.param_groups])
            (tmp_path / str(rank)).write_text(json.dumps(seen))
            return step(*arguments)

        trainer.optimizer.step = stepping  # type: ignore[assignment]

    scheduled = run(wanted, broken)
    rates = json.loads((tmp_path / "1").read_text())
    assert [rate for (rate,) in rates] == pytest.approx([0.3, 0.2, 0.1])
    constant = run(replace(wanted, rates=None))
    assert scheduled[1] == constant[1]
    assert scheduled[2] != constant[2]


def test_metrics_of_a_run_that_went_back(tmp_path: Path) -> None:
    path, wanted = tmp_path / "m.jsonl", job("dp1-mbs1-z0-rnone", predicted_step_s=0.5, predicted_mfu=0.4)

    def step(number: int) -> dict[str, Any]:
        return {"event": "step", "step": number, "loss": 4.0, "gradient_norm": 1.0, "learning_rate": 0.1, "step_s": 1.0,
                "tokens_per_s": 32.0, "mfu": wanted.mfu(1.0)}  # fmt: skip

    metrics = Metrics(wanted, 0, path, None)
    for number in (1, 2, 3):
        metrics.write(step(number))
    Metrics(wanted, 2, path, None).write(step(3))  # from the checkpoint of step 2
    lines = [json.loads(line) for line in path.read_text().splitlines()]
    assert [line["step"] for line in lines] == [1, 2, 3]
    assert lines[2]["tokens"] == 3 * wanted.tokens_per_step
    with path.open("a", encoding="utf-8") as file:
        file.write('{"format_version": "1.0", "st')  # as a crash of the machine leaves it
    Metrics(wanted, 3, path, None)
    assert [json.loads(line) for line in path.read_text().splitlines()] == lines
    assert (lines[0]["mfu"], lines[0]["predicted_mfu"], lines[0]["predicted_step_s"]) == (0.2, 0.4, 0.5)
    assert event_line(step(1), wanted).endswith("1 s (predicted 0.5 s)  MFU 20.0% (predicted 40.0%)")
    assert wanted.mfu(0.5) == 0.4
    assert replace(wanted, predicted_step_s=None).mfu(1.0) is None
    Metrics(wanted, 0, path, None)
    assert not path.read_text()
    path.write_text("no metrics\n")
    with pytest.raises(InputError, match="has no metrics of this run"):
        Metrics(wanted, 2, path, None)
    with pytest.raises(InputError, match="No such file"):
        Metrics(wanted, 0, tmp_path / "none" / "m.jsonl", None)
