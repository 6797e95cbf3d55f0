"""A run goes on where it was, under whatever layout; damaged, foreign and unwritable checkpoints are told apart."""

from __future__ import annotations

import json
import re
import resource
import subprocess
import sys
import threading
from collections.abc import Callable, Sequence
from dataclasses import replace
from itertools import product
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from meshwright.cost_models.specs.model import ModelSpec
from meshwright.runtime import reference
from meshwright.runtime.checkpoint import manifest
from meshwright.runtime.checkpoint.checkpoint import Checkpoints, Resumed, Saved, StorageError
from meshwright.runtime.checkpoint.saver import Saver
from meshwright.runtime.checkpoint.slices import Piece, boxes
from meshwright.runtime.job import Job
from meshwright.runtime.parallel.mesh import build_mesh
from meshwright.runtime.report import Event
from meshwright.runtime.status import Status
from meshwright.runtime.trainer import Step, Trainer

from meshwright.errors import InputError

from ...snapshots import ROOT, UNCOMPILED, environment, run_here
from ..fork import TIMEOUT_S, fork
from ..jobs import gpt, gpt_oss, job, llama, mixed, moe, olmo2
from ..launched import finish, start
from .kills import EVERY, kill_run, wrong

MODELS: dict[str, Callable[[], ModelSpec]] = {
    "llama": llama, "gpt": gpt, "moe": moe, "gpt_oss": gpt_oss, "olmo2": olmo2
}  # fmt: skip
OWN = "dp2-mbs1-z3-rnone"  # among strategies of embedding, layers and head
HOW: dict[str, Any] = {"global_batch": 8, "optimizer": "adamw", "learning_rate": 0.01,
                       "stack_changes": {"sharded_states": "zero"}}  # fmt: skip


@pytest.mark.parametrize("shape", [(7,), (3, 5), (2, 3, 4), (1, 6), (4, 1, 3)])
def test_boxes_are_the_run_of_elements(shape: tuple[int, ...]) -> None:
    numbers = torch.arange(torch.Size(shape).numel()).view(shape)
    for start_at, stop in product(range(numbers.numel() + 1), repeat=2):
        found = []
        for offsets, sizes in boxes(shape, start_at, stop):
            box = numbers
            for dim, (offset, size) in enumerate(zip(offsets, sizes, strict=True)):
                box = box.narrow(dim, offset, size)
            found += box.flatten().tolist()
        assert found == list(range(start_at, stop))


def trained(wanted: Job, folder: Path, to: int, *, resume: bool) -> tuple[Resumed | None, list[Step]]:
    """Trains up to step `to`, and saves after it unless it was resumed."""

    def one(rank: int) -> tuple[Resumed | None, list[Step]]:
        trainer = Trainer(wanted, build_mesh(wanted.layout, rank, Status(), TIMEOUT_S), torch.device("cpu"))
        checkpoints = Checkpoints(trainer, folder, keep=2)
        checkpoints.prepare(resume=resume)
        found = checkpoints.resume() if resume else None
        steps = [trainer.step(index) for index in range(found.step if found else 0, to)]
        if not resume:
            checkpoints.save(to)
        return found, steps

    result: tuple[Resumed | None, list[Step]] = fork(wanted.world_size, one)[0]
    return result


def saved_twice(wanted: Job, folder: Path) -> None:
    """Checkpoints of step 1 and 2."""

    def one(rank: int) -> None:
        trainer = Trainer(wanted, build_mesh(wanted.layout, rank, Status(), TIMEOUT_S), torch.device("cpu"))
        checkpoints = Checkpoints(trainer, folder, keep=2)
        for index in range(2):
            trainer.step(index)
            checkpoints.save(index + 1)

    folder.mkdir()
    fork(wanted.world_size, one)


@pytest.mark.parametrize(
    ("name", "before", "after"),
    [
        ("llama", "dp2-mbs1-z3-rnone-oopt", "tp2-pp2-dp1-mbs1-z0-rnone"),
        ("gpt", "tp2-pp2-dp1-mbs1-z1-rnone", "dp4-sh2-mbs2-z2-rnone-oopt"),
        ("moe", "tp2-dp2-ep4-mbs1-z1-rnone", "pp2-dp2-ep2-mbs1-z3-rnone"),
        ("moe", "dp4-ep2-etp2-mbs1-z3-rnone", "tp2-dp1-etp2-mbs2-z0-rnone"),
        ("gpt_oss", "tp2-dp1-ep2-mbs1-z0-rnone", "cp2u-dp2-mbs1-z3-rnone"),
        ("olmo2", "tp2-pp2-dp1-mbs1-z1-rnone", "dp2-mbs1-z3-rnone"),
        ("llama", "cp2r-dp2-mbs1-z3-rnone", "tp2-cp2g-dp1-mbs2-z1-rnone"),
        ("gpt", "cp4u-dp1-mbs1-z1-rnone", "cp2r-pp2-dp1-mbs1-z0-rnone"),
        ("llama", f"{OWN} tp2-dp1-mbs2-z0-rnone cp2u-dp1-mbs2-z2-rfull {OWN} {OWN} tp2-dp1-mbs2-z1-rnone",
         "pp2-dp1-mbs1-z0-rnone"),
        ("llama", "dp2-mbs1-z1-rnone", f"{OWN} {OWN} tp2-dp1-mbs2-z0-rnone {OWN} {OWN} {OWN}"),
    ],
)
def test_resumes_under_another_layout(name: str, before: str, after: str, tmp_path: Path) -> None:
    model = MODELS[name]()
    saved, resumed = ((mixed if " " in text else job)(text, model, **HOW) for text in (before, after))
    trained(saved, tmp_path, 2, resume=False)
    found, steps = trained(resumed, tmp_path, 4, resume=True)
    assert found is not None
    assert (found.step, found.layout_id) == (2, saved.layout_id)
    expected = reference.train(job("dp1-mbs1-z0-rnone", model, **HOW))
    for step, other in zip(steps, expected[2:], strict=True):
        assert step.loss == pytest.approx(other.loss, rel=1e-12)
        assert step.gradient_norm == pytest.approx(other.gradient_norm, rel=1e-10)


def test_bf16_goes_on_to_the_bit(tmp_path: Path) -> None:
    wanted = job("dp2-mbs1-z3-rnone", **{**HOW, "dtype": "bf16"})
    _, whole = trained(wanted, tmp_path / "other", 4, resume=False)
    trained(wanted, tmp_path / "this", 2, resume=False)
    _, steps = trained(wanted, tmp_path / "this", 4, resume=True)
    assert steps == whole[2:]


def truncated(folder: Path) -> None:
    path = next(folder.glob("__1_*"))
    path.write_bytes(path.read_bytes()[:100])


def flipped(folder: Path) -> None:
    path = next(folder.glob("__0_*"))
    content = bytearray(path.read_bytes())
    content[len(content) // 2] ^= 1
    path.write_bytes(content)


def emptied(folder: Path) -> None:
    (folder / "manifest.json").write_text("")


def missing(folder: Path) -> None:
    (folder / ".metadata").unlink()


@pytest.fixture(scope="module")
def two_saved(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("saved") / "ckpt"
    saved_twice(job("dp2-mbs1-z1-rnone", **HOW), folder)
    return folder


def copied(folder: Path, to: Path) -> Path:
    for path in folder.rglob("*"):
        if path.is_file():
            target = to / path.relative_to(folder)
            target.parent.mkdir(parents=True, exist_ok=True)
            target.write_bytes(path.read_bytes())
    return to


@pytest.mark.parametrize(
    ("damage", "words"),
    [
        (truncated, r"__1_0.distcp has 100 bytes instead of [\d,]+"),
        (flipped, "__0_0.distcp is not what was saved: its SHA-256 differs"),
        (emptied, "manifest.json: JSONDecodeError"),
        (missing, ".metadata: No such file"),
    ],
)
def test_a_damaged_checkpoint_is_passed_over(
    two_saved: Path, tmp_path: Path, damage: Callable[[Path], None], words: str
) -> None:
    folder = copied(two_saved, tmp_path / "ckpt")
    damage(folder / "step-00000002")
    found, steps = trained(job("dp2-mbs1-z1-rnone", **HOW), folder, 2, resume=True)
    assert found is not None
    assert found.step == 1
    assert len(steps) == 1
    assert re.search(words, found.skipped[0])


def refusal(wanted: Job, folder: Path) -> str:
    with pytest.raises(RuntimeError) as caught:
        trained(wanted, folder, 4, resume=True)
    assert "InputError" in str(caught.value)
    return str(caught.value)


def test_when_all_are_damaged_nothing_is_trained(two_saved: Path, tmp_path: Path) -> None:
    folder = copied(two_saved, tmp_path / "ckpt")
    truncated(folder / "step-00000002")
    missing(folder / "step-00000001")
    said = refusal(job("dp2-mbs1-z1-rnone", **HOW), folder)
    assert "no checkpoint can be read" in said
    assert "step-00000002 is damaged" in said
    assert "step-00000001 is damaged" in said


def test_a_newer_format_is_refused(two_saved: Path, tmp_path: Path) -> None:
    folder = copied(two_saved, tmp_path / "ckpt")
    path = folder / "step-00000002" / manifest.NAME
    path.write_text(json.dumps({**json.loads(path.read_text()), "format_version": "2.0"}))
    assert "checkpoint format 2.0, this version reads 1.1" in refusal(job("dp2-mbs1-z1-rnone", **HOW), folder)


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"model": replace(llama(), name="other", hidden=64)},
         ["another model (tiny, not other)", "model.hidden: 32 in the checkpoint, 64 now"]),
        ({"model": llama(rope_theta=5e5)}, ["model.rope_theta: 10000.0 in the checkpoint, 500000.0 now"]),
        ({"global_batch": 16}, ["global_batch: 8 in the checkpoint, 16 now", "another run"]),
        ({"seed": 3}, ["seed: 0 in the checkpoint, 3 now"]),
    ],
)  # fmt: skip
def test_another_run_is_refused_by_its_differences(two_saved: Path, changes: dict[str, Any], words: list[str]) -> None:
    wanted = job("dp2-mbs1-z1-rnone", changes.pop("model", None), **{**HOW, **changes})
    found = manifest.Manifest.read(two_saved / "step-00000002")
    with pytest.raises(InputError) as caught:
        manifest.check_run(found, wanted, two_saved)
    assert all(each in caught.value.message for each in words), caught.value.message


def test_data_that_has_changed_is_refused(tmp_path: Path) -> None:
    data, folder = tmp_path / "data", tmp_path / "ckpt"
    data.mkdir()
    for name in ("a", "b", "c"):
        np.arange(50, dtype=np.uint16).tofile(data / f"{name}.bin")
    wanted = job("dp2-mbs1-z1-rnone", data=str(data), shuffle=True, **HOW)
    _, whole = trained(wanted, tmp_path / "whole", 4, resume=False)
    trained(wanted, folder, 2, resume=False)
    _, steps = trained(wanted, folder, 4, resume=True)
    assert steps == whole[2:]  # the order of the sequences goes on
    assert "shuffle: True in the checkpoint, none now" in refusal(replace(wanted, shuffle=False), folder)
    np.arange(1, 51, dtype=np.uint16).tofile(data / "b.bin")
    (data / "c.bin").rename(data / "d.bin")
    said = refusal(wanted, folder)
    assert "is not the data that" in said
    assert all(words in said for words in ("b.bin: changed", "c.bin: removed", "d.bin: added"))
    assert "a.bin" not in said


def test_a_full_disk_leaves_the_last_checkpoint(tmp_path: Path) -> None:
    """The operating system refuses rank 1 more than 20 kB per file; training goes on."""
    wanted = job("dp2-mbs1-z1-rnone", **HOW)

    def one(rank: int) -> tuple[str, float]:
        trainer = Trainer(wanted, build_mesh(wanted.layout, rank, Status(), TIMEOUT_S), torch.device("cpu"))
        checkpoints = Checkpoints(trainer, tmp_path, keep=2)
        trainer.step(0)
        checkpoints.save(1)
        before = resource.getrlimit(resource.RLIMIT_FSIZE)
        sys.dont_write_bytecode = True  # as UNCOMPILED
        if rank == 1:
            resource.setrlimit(resource.RLIMIT_FSIZE, (20_000, before[1]))
        trainer.step(1)
        with pytest.raises(StorageError) as caught:
            checkpoints.save(2)
        resource.setrlimit(resource.RLIMIT_FSIZE, before)
        loss = trainer.step(2).loss
        checkpoints.save(3)
        return str(caught.value), loss

    (reason, loss), other = fork(2, one)
    assert reason == other[0]
    assert reason.startswith("rank 1: ")
    assert "File too large" in reason
    assert loss == pytest.approx(reference.train(wanted)[2].loss, rel=1e-12)
    assert [path.name for path in manifest.saved_in(tmp_path)] == ["step-00000003", "step-00000001"]
    assert not list(tmp_path.glob(".partial*"))


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["--resume"], "--resume: checkpoints are not saved anywhere"),
        (["--max-restarts", "2"], "--max-restarts: checkpoints are not saved"),
        (["--checkpoint", "{}", "--checkpoint-every", "0"], "--checkpoint-every 0: must be 1 or more"),
        (["--checkpoint", "{}", "--keep", "1"], "--keep 1: must be 2 or more"),
        (["--checkpoint", "{}/none", "--resume"], "none: no such folder"),
        (["--checkpoint", str(ROOT / "docs"), "--resume"], "docs has no checkpoint of meshwright; it has README.md, "),
        (["--checkpoint", "{}", "--rejoin-timeout", "5"], "nothing starts again after a failure"),
        (["--checkpoint", "{}", "--elastic", "--rejoin-timeout", "-1", "--dry-run"], "--rejoin-timeout -1: must be"),
        (["--checkpoint", "{}", "--elastic", "--rejoin-timeout", "inf", "--dry-run"], "--rejoin-timeout inf: must be"),
        (["--elastic"], "--elastic: checkpoints are not saved anywhere"),
        (["--checkpoint", "{}", "--elastic", "--scale-down"], "--elastic: a rehearsal's small model depends on"),
        (["--checkpoint", "{}", "--elastic", "--order", "1f1b"], "is for the layout of this plan only"),
        (["--checkpoint", "{}", "--elastic"], "--elastic: the run has one node"),
        (["--checkpoint", "{}", "--elastic", "--nnodes", "2", "--master-addr", "x"], "the run has 2 nodes, the plan 1"),
    ],
)  # fmt: skip
def test_bad_flags(two_ranks: Path, tmp_path: Path, words: list[str], message: str) -> None:
    refused = run_here("launch", str(two_ranks), *(word.format(tmp_path) for word in words))
    assert refused.code == 2
    assert message in refused.err


def test_training_goes_on_behind_a_save(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The write of step 2 begins when steps 3 and 4 are done: it has the states of step 2 all the same. Then rank 1 may
    write no more than 20 kB per file."""
    wanted = job("dp2-mbs1-z1-rnone", **HOW)
    expected = [step.loss for step in reference.train(wanted)]

    def one(rank: int) -> tuple[list[Event], list[float]]:
        trainer = Trainer(wanted, build_mesh(wanted.layout, rank, Status(), TIMEOUT_S), torch.device("cpu"))
        saver = Saver(trainer, tmp_path, 2, behind=True, timeout_s=TIMEOUT_S)
        done, store = threading.Event(), Checkpoints.store

        def late(of: Checkpoints, step: int, found: Sequence[Piece]) -> Saved:
            done.wait()
            return store(of, step, found)

        monkeypatch.setattr(Checkpoints, "store", late)
        losses = [trainer.step(index).loss for index in range(2)]
        told = saver.save(2)
        losses += [trainer.step(index).loss for index in range(2, 4)]
        assert not told + saver.finished()
        done.set()
        told = saver.finished(wait=True)
        sys.dont_write_bytecode = True  # as UNCOMPILED
        if rank == 1:
            resource.setrlimit(resource.RLIMIT_FSIZE, (20_000, resource.getrlimit(resource.RLIMIT_FSIZE)[1]))
        told += saver.save(4)
        return told + saver.finished(wait=True), losses

    (told, losses), _ = fork(2, one)
    assert losses == pytest.approx(expected, rel=1e-12)
    assert [each["event"] for each in told] == ["checkpoint", "not_saved"]
    assert told[1]["reason"].startswith("rank 1: ")
    assert [path.name for path in manifest.saved_in(tmp_path)] == ["step-00000002"]
    found, steps = trained(wanted, tmp_path, 4, resume=True)
    assert found is not None
    assert found.step == 2
    assert [step.loss for step in steps] == pytest.approx(expected[2:], rel=1e-12)


def test_a_folder_to_resume_from_holds_checkpoints(two_saved: Path, tmp_path: Path) -> None:
    manifest.check_resumable(two_saved)
    manifest.check_resumable(tmp_path)  # empty: the first start of a job that always resumes
    with pytest.raises(InputError, match="is one checkpoint, not the folder") as caught:
        manifest.check_resumable(two_saved / "step-00000002")
    assert caught.value.hint == f"`--checkpoint {two_saved}`"
    with pytest.raises(InputError, match="Makefile is a file, not the folder of a run's checkpoints"):
        manifest.check_resumable(ROOT / "Makefile")
    (tmp_path / "model.safetensors").write_text("")
    with pytest.raises(InputError, match=r"no checkpoint of meshwright; it has model\.safetensors"):
        manifest.check_resumable(tmp_path)


def test_a_folder_in_use_or_unwritable_is_refused_before_training(two_saved: Path, tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")

    def one(rank: int) -> list[str]:
        wanted = job("dp1-mbs1-z0-rnone")
        trainer = Trainer(wanted, build_mesh(wanted.layout, rank, Status(), TIMEOUT_S), torch.device("cpu"))
        said = []
        for folder in (two_saved, tmp_path / "file" / "ckpt", tmp_path / "file"):
            with pytest.raises(InputError) as caught:
                Checkpoints(trainer, folder, keep=2).prepare(resume=False)
            said.append(caught.value.message)
        return said

    in_use, unwritable, a_file = fork(1, one)[0]
    assert "already holds step-00000002" in in_use
    assert "cannot save checkpoints: Not a directory" in unwritable
    assert "cannot save checkpoints: it is a file" in a_file


@pytest.mark.slow
def test_launch_saves_and_resumes(two_ranks: Path, tmp_path: Path) -> None:
    words = (str(two_ranks), "--checkpoint", str(tmp_path / "ckpt"), "--checkpoint-every", "2")
    code, out, err = finish(start(*words, "--steps", "3"))
    assert code == 0, err
    assert "step-00000002" in out
    assert "step-00000003" in out
    code, out, err = finish(start(*words, "--steps", "5", "--resume", "--report", str(tmp_path / "run.json")))
    assert code == 0, err
    assert "resumed after step 3" in out
    found = json.loads((tmp_path / "run.json").read_text(encoding="utf-8"))
    assert [step["step"] for step in found["steps"]] == [4, 5]
    assert found["resumed"][0]["step"] == 3


@pytest.mark.slow
@pytest.mark.parametrize("flags", [[], ["--checkpoint-async"], ["--max-restarts", "2"]])
def test_a_last_checkpoint_that_is_lost_is_an_error(two_ranks: Path, tmp_path: Path, flags: list[str]) -> None:
    """No file may grow over 20 kB: training runs to its end, but its weights are nowhere."""
    words = ["launch", str(two_ranks), "--checkpoint", str(tmp_path / "ckpt"), "--steps", "2", *flags]
    done = subprocess.run([sys.executable, "-m", "meshwright", *words], capture_output=True, text=True,
                          env=environment({"OMP_NUM_THREADS": "1", **UNCOMPILED}),
                          preexec_fn=lambda: resource.setrlimit(resource.RLIMIT_FSIZE, (20_000, 20_000)))  # fmt: skip
    assert done.returncode == 1, done.stderr
    assert "step 2/2" in done.stdout
    assert "error: the checkpoint of step 2 was not saved: rank " in done.stderr
    assert not manifest.saved_in(tmp_path / "ckpt")


@pytest.mark.slow
def test_killed_ranks_come_back(two_ranks: Path, tmp_path: Path) -> None:
    """One kill in the middle of a save, one between."""
    plan = tmp_path / "plan.json"
    plan.write_text(two_ranks.read_text(encoding="utf-8"), encoding="utf-8")
    run, _ = kill_run(plan, tmp_path / "ckpt", 2, seed=0)
    assert len(run.lives) == 2
    assert not wrong(run, most_lost=EVERY)
