"""Trackers get what the JSON lines have, read back with the packages that show it."""

from __future__ import annotations

import json
import math
import resource
import struct
from collections import defaultdict
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from meshwright.cli.main import main
from meshwright.runtime.metrics import Metrics
from meshwright.runtime.report import event_line
from meshwright.runtime.trackers.registry import TRACKERS, checked_tracker

from meshwright.errors import MissingExtraError, UnknownNameError

from .jobs import job

_BLOCK = 1 << 15
JOB = job("dp1-mbs1-z0-rnone", predicted_step_s=0.5)
Values = dict[str, dict[int, float]]  # name -> step -> value


def step(number: int, loss: float) -> dict[str, Any]:
    return {"event": "step", "step": number, "loss": loss, "gradient_norm": 1.0, "learning_rate": 0.1, "step_s": 1.5,
            "tokens_per_s": 32.0}  # fmt: skip


def test_metrics_of_post_training_have_results_and_seconds_of_calls(tmp_path: Path) -> None:
    """A value that is not finite is null, because JSON has none."""
    metrics = Metrics(JOB, 0, tmp_path / "run.jsonl", None)
    results = {"reward": 0.25, "loss": math.inf, "gradient_norm": 1.0, "critic_loss": 0.5, "answer_len": 15.5}
    calls = {"generate": 2.0, "train-critic": 1.0, "new weights": 0.5}
    assert metrics.write({"event": "step", "step": 1, **results, "learning_rate": 0.1, "step_s": 4.0,
                          "calls": calls}) is None  # fmt: skip
    line = json.loads((tmp_path / "run.jsonl").read_text())
    assert line.pop("time") > 0
    assert line == {**results, "format_version": "1.0", "step": 1, "loss": None, "learning_rate": 0.1, "step_s": 4.0,
                    "generate_s": 2.0, "train_critic_s": 1.0, "new_weights_s": 0.5}  # fmt: skip


def trained(tracker: str, path: Path) -> Values:
    """Three steps, then the second one again from a checkpoint before it. Returns the values of the JSON lines."""
    for done, losses in ((0, (4.0, 3.5, 3.0)), (1, (3.25,))):
        metrics = Metrics(JOB, done, path, tracker)
        for number, loss in enumerate(losses, done + 1):
            metrics.write(step(number, loss))
        metrics.write({"event": "evaluation", "step": done + len(losses), "loss": 2.5 - done, "batches": 1})
        metrics.write({"event": "checkpoint", "step": done + len(losses)})
        metrics.close()
    out: Values = defaultdict(dict)
    for line in map(json.loads, path.read_text().splitlines()):
        for name, value in line.items():
            if name not in ("format_version", "step", "time") and value is not None:
                out[name][line["step"]] = value
    assert out["loss"] == {1: 4.0, 2: 3.25}
    assert out["evaluation_loss"] == {2: 1.5}
    return dict(out)


def test_tensorboard_shows_the_lines(tmp_path: Path) -> None:
    """Steps of the first time after the checkpoint are gone."""
    pytest.importorskip("tensorboard")
    from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

    lines = trained(checked_tracker(f"tensorboard={tmp_path / 'runs'}"), tmp_path / "m.jsonl")
    events = EventAccumulator(str(tmp_path / "runs"))
    events.Reload()
    shown = {name: {event.step: event.value for event in events.Scalars(name)} for name in events.Tags()["scalars"]}
    assert set(shown) == set(lines)
    for name, values in lines.items():
        assert shown[name] == pytest.approx(values), name


def records(log: bytes) -> Iterator[bytes]:
    """The records of a file of wandb: LevelDB's log format (doc/log_format.md) after a header of 7 bytes."""
    at, parts = 7, b""
    while at + 7 < len(log):
        if _BLOCK - at % _BLOCK < 7:  # no header fits into the rest of a block
            at += _BLOCK - at % _BLOCK
        length, kind = struct.unpack("<HB", log[at + 4 : at + 7])
        parts += log[at + 7 : at + 7 + length]
        at += 7 + length
        if kind in (1, 4):  # whole, or the last part
            yield parts
            parts = b""


def test_wandb_has_the_lines(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Offline: each part of the training is a run, and the second one begins after the checkpoint."""
    wandb = pytest.importorskip("wandb")
    wandb.teardown()  # a process reads the variables once
    record_type = pytest.importorskip("wandb.proto.wandb_internal_pb2").Record
    monkeypatch.setenv("WANDB_MODE", "offline")
    monkeypatch.setenv("WANDB_DIR", str(tmp_path))
    lines = trained(checked_tracker("wandb=tiny"), tmp_path / "m.jsonl")
    wandb.teardown()  # its service writes the last records after `finish` has returned
    runs: list[Values] = []
    for path in tmp_path.glob("wandb/*run-*/*.wandb"):
        runs.append(defaultdict(dict))
        for data in records(path.read_bytes()):
            record = record_type.FromString(data)
            if record.HasField("run"):  # again where something of the run has changed
                assert (record.run.project, record.run.run_group) == ("tiny", "test")
            for item in record.history.item:
                name = item.nested_key[0] if item.nested_key else item.key
                runs[-1][name][record.history.step.num] = json.loads(item.value_json)
    first, second = sorted(runs, key=lambda run: len(run["loss"]), reverse=True)
    assert first["loss"] == {1: 4.0, 2: 3.5, 3: 3.0}
    for name, values in lines.items():
        before = {step: value for step, value in first[name].items() if step == 1}
        assert {**before, **second[name]} == values, name


def test_without_an_account(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    pytest.importorskip("wandb").teardown()  # a process reads the variables once
    monkeypatch.setenv("WANDB_DIR", str(tmp_path))
    monkeypatch.setenv("WANDB_API_KEY", "no key")
    check_training_goes_on(tmp_path / "m.jsonl", "wandb=tiny", "--tracker wandb: ", "WANDB_MODE=offline")


def check_training_goes_on(path: Path, tracker: str, *words: str) -> None:
    """A tracker that does not start is a warning with these words, and the file gets its lines."""
    metrics = Metrics(JOB, 0, path, tracker)
    assert metrics.not_started is not None
    line = event_line(metrics.not_started, JOB)
    assert line.startswith("the metrics were not written: ")
    assert line.endswith("; training goes on")
    assert all(word in line for word in words), line
    assert metrics.write(step(1, 4.0)) is None
    metrics.close()
    assert json.loads(path.read_text())["loss"] == 4.0


def test_a_folder_that_cannot_be_written(tmp_path: Path) -> None:
    pytest.importorskip("tensorboard")
    (tmp_path / "file").write_text("no folder")
    check_training_goes_on(tmp_path / "m.jsonl", f"tensorboard={tmp_path / 'file' / 'runs'}", "tracker: ", "file")


def test_names_and_places(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr("meshwright.runtime.trackers.registry.find_spec", lambda name: name)
    assert checked_tracker("tensorboard") == f"tensorboard={tmp_path / 'runs'}"
    assert checked_tracker("wandb") == "wandb=meshwright"
    with pytest.raises(UnknownNameError, match="unknown tracker `tensorbord`") as unknown:
        checked_tracker("tensorbord=x")
    assert "tensorboard" in unknown.value.hint
    monkeypatch.setattr("meshwright.runtime.trackers.registry.find_spec", lambda name: None)
    for name in TRACKERS:
        with pytest.raises(MissingExtraError, match=f"--tracker {name} needs the `{name}` extra") as caught:
            checked_tracker(name)
        assert caught.value.hint == f"pip install 'meshwright[{name}]'"


def test_the_command_checks_it_before_it_starts(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    plan = Path(__file__).parents[2] / "examples" / "launch" / "dense" / "meshwright" / "plan.json"
    assert main(["launch", str(plan), "--dry-run", "--tracker", "mlflow"]) == 2
    assert "unknown tracker `mlflow`" in capsys.readouterr().err
    pytest.importorskip("tensorboard")
    assert main(["launch", str(plan), "--dry-run", "--tracker", f"tensorboard={tmp_path / 'a b'}"]) == 0
    assert f"--tracker 'tensorboard={tmp_path / 'a b'}'" in capsys.readouterr().out


def test_a_full_disk_is_reported_once_and_leaves_whole_lines(tmp_path: Path) -> None:
    """Training goes on; lines that fit later are added."""
    path = tmp_path / "m.jsonl"
    metrics = Metrics(JOB, 0, path, None)
    assert metrics.write(step(1, 4.0)) is None
    whole, limits = path.read_text(), resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (len(whole) + 20, limits[1]))  # the file system takes 20 bytes more
    try:
        found = [metrics.write(step(number, 3.0)) for number in (2, 3)]
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, limits)
    assert found[0] is not None
    assert found[0]["event"] == "not_logged"
    assert str(path) in event_line(found[0], JOB)
    assert found[1] is None
    assert path.read_text() == whole
    metrics.write(step(4, 3.0))
    assert [json.loads(line)["step"] for line in path.read_text().splitlines()] == [1, 4]
    assert Metrics(JOB, 0, Path("/dev/full"), None).write(step(1, 4.0)) is not None


def test_a_tracker_that_fails_does_not_end_the_run(tmp_path: Path) -> None:
    class Failing:
        def write(self, step: int, values: Any) -> None:
            raise RuntimeError("the service is gone")

        def close(self) -> None:
            raise RuntimeError("the service is gone")

    metrics = Metrics(JOB, 0, tmp_path / "m.jsonl", None)
    metrics.tracker = Failing()
    found = metrics.write(step(1, 4.0))
    assert found is not None
    assert event_line(found, JOB) == ("the metrics of step 1 were not written: tracker: the service is gone; training "
                                      "goes on")  # fmt: skip
    metrics.close()
    assert json.loads((tmp_path / "m.jsonl").read_text())["loss"] == 4.0
    metrics.write({"event": "evaluation", "step": 1, "loss": math.nan, "batches": 1})
    assert json.loads((tmp_path / "m.jsonl").read_text().splitlines()[1])["evaluation_loss"] is None
