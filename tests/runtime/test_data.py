"""Batches: the same whatever the layout, in order, from files of every kind; what is wrong with a file is said."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from meshwright.runtime import reference
from meshwright.runtime.data import open_source
from meshwright.runtime.data_flags import check_data
from meshwright.runtime.settings import Settings
from meshwright.runtime.shuffling import shuffled

from meshwright.errors import InputError

from ..snapshots import environment
from .fork import run
from .jobs import deepseek, job
from .launched import finish, start
from .model.families import logits_of


def test_synthetic_batches_depend_on_seed_and_step() -> None:
    source = open_source("synthetic", 61, 16, 8, seed=0)
    assert source.batch(0).shape == (8, 17)
    assert torch.equal(source.batch(3), open_source("synthetic", 61, 16, 8, seed=0).batch(3))
    assert not torch.equal(source.batch(0), source.batch(1))
    assert not torch.equal(source.batch(0), open_source("synthetic", 61, 16, 8, seed=1).batch(0))
    assert 0 <= int(source.batch(0).min()) <= int(source.batch(0).max()) < 61


def test_text_is_read_as_bytes(tmp_path: Path) -> None:
    path = tmp_path / "text.txt"
    path.write_bytes(bytes(range(1, 101)))  # a byte of zero is in no text
    batch = open_source(str(path), 256, 8, 2, seed=0).batch(0)
    assert batch.tolist() == [list(range(1, 10)), list(range(9, 18))]


@pytest.mark.parametrize("suffix", [".bin", ".npy"])
def test_shards_follow_one_another_and_start_again(tmp_path: Path, suffix: str) -> None:
    for name, tokens in (("a", np.arange(10)), ("b", np.arange(10, 25))):
        row = tokens.astype(np.uint16)
        if suffix == ".bin":
            row.tofile(tmp_path / f"{name}.bin")
        else:
            np.save(tmp_path / f"{name}.npy", row)
    source = open_source(str(tmp_path), 256, 8, 2, seed=0)
    assert source.batch(0).tolist() == [list(range(9)), list(range(8, 17))]
    assert source.batch(1).tolist() == [list(range(16, 25)), list(range(9))]


def test_wide_vocabularies_have_wide_shards(tmp_path: Path) -> None:
    path = tmp_path / "a.bin"
    np.arange(70_000, 70_020, dtype=np.uint32).tofile(path)
    assert open_source(str(path), 128_256, 8, 1, seed=0).batch(0)[0, 0] == 70_000


def test_what_is_wrong_is_said(tmp_path: Path) -> None:
    with pytest.raises(InputError, match="no such file"):
        open_source(str(tmp_path / "none.txt"), 256, 8, 1, seed=0)
    with pytest.raises(InputError, match="no token shards"):
        open_source(str(tmp_path), 256, 8, 1, seed=0)
    short = tmp_path / "short.txt"
    short.write_bytes(b"abc")
    with pytest.raises(InputError, match="less than one sequence"):
        open_source(str(short), 256, 8, 1, seed=0)
    np.save(tmp_path / "floats.npy", np.zeros(30))
    with pytest.raises(InputError, match="not one row of integers"):
        open_source(str(tmp_path / "floats.npy"), 256, 8, 1, seed=0)
    (tmp_path / "broken.npy").write_bytes(b"nothing")
    with pytest.raises(InputError, match=r"broken\.npy"):
        open_source(str(tmp_path / "broken.npy"), 256, 8, 1, seed=0)
    (tmp_path / "a.parquet").write_bytes(b"PAR1\x15\x04\x15\x00" + bytes(range(1, 60)))
    with pytest.raises(InputError, match=r"a\.parquet: no text: byte 7 is zero"):
        open_source(str(tmp_path / "a.parquet"), 256, 8, 1, seed=0)
    for empty in ("empty.npy", "empty.bin"):
        (tmp_path / empty).touch()
        with pytest.raises(InputError, match=f"{empty}: the file is empty"):
            open_source(str(tmp_path / empty), 256, 8, 1, seed=0)
    np.save(tmp_path / "large.npy", np.full(30, 300))
    with pytest.raises(InputError, match="token 300"):
        open_source(str(tmp_path / "large.npy"), 256, 8, 1, seed=0).batch(0)
    np.save(tmp_path / "negative.npy", np.full(30, -1))
    with pytest.raises(InputError, match="token -1, the model knows 0 to 255"):
        open_source(str(tmp_path / "negative.npy"), 256, 8, 1, seed=0).batch(0)
    (tmp_path / "odd.bin").write_bytes(b"abc" * 33)
    with pytest.raises(InputError, match=r"odd\.bin: .* not a multiple") as caught:
        open_source(str(tmp_path / "odd.bin"), 256, 8, 1, seed=0)
    assert caught.value.hint.startswith("write tokens as uint16")


@pytest.mark.slow
def test_a_wrong_token_in_the_middle_costs_no_step(two_ranks: Path, tmp_path: Path) -> None:
    """The steps before it are saved, and a corrected copy goes on from there."""
    tokens, folder = np.arange(16 * 40 + 1) % 61, tmp_path / "ckpt"
    np.save(tmp_path / "good.npy", tokens)
    tokens[16 * 8 * 3 + 5] = 61  # in the fourth batch of 8 sequences of 16
    np.save(tmp_path / "bad.npy", tokens)
    words = (str(two_ranks), "--device", "cpu", "--steps", "4", "--checkpoint", str(folder), "--max-restarts", "1")
    code, out, err = finish(start(*words, "--checkpoint-every", "2", "--data", str(tmp_path / "bad.npy")))
    assert code == 2, err
    assert "bad.npy: sequence 25 of 40 has token 61, the model knows 0 to 60" in err
    assert "`--resume` with a corrected copy as `--data`" in err
    assert sorted(path.name for path in folder.glob("step-*")) == ["step-00000002", "step-00000003"]
    code, out, err = finish(start(*words, "--resume", "--data", str(tmp_path / "good.npy")))
    assert code == 0, err
    assert "resumed after step 3" in out


@pytest.mark.slow
def test_data_of_the_model_are_beyond_a_rehearsal(plan_file: Path, tmp_path: Path) -> None:
    np.save(tmp_path / "tokens.npy", np.arange(4000))
    words = ("--device", "cpu", "--scale-down", "--steps", "1", "--data", str(tmp_path / "tokens.npy"))
    code, _, err = finish(start(str(plan_file), *words))
    assert code == 2, err
    assert "the model knows 0 to 255" in err
    assert "hint: leave out `--data`: a rehearsal scales the vocabulary down" in err


@pytest.mark.parametrize("size", [1, 2, 3, 7, 64, 1000])
def test_a_shuffle_is_a_permutation_by_its_key(size: int) -> None:
    found = [shuffled(index, size, b"0/0") for index in range(size)]
    assert sorted(found) == list(range(size))
    if size > 7:
        assert found != list(range(size))
        assert found != [shuffled(index, size, b"0/1") for index in range(size)]


def test_shuffled_epochs_have_every_sequence_once_in_another_order(tmp_path: Path) -> None:
    path = tmp_path / "a.bin"
    np.arange(81, dtype=np.uint16).tofile(path)
    first = [open_source(str(path), 256, 8, 2, seed, shuffle=True) for seed in (0, 0, 1)]
    epochs = [[row[0] for step in range(begin, begin + 5) for row in source.batch(step).tolist()]
              for source in first for begin in (0, 5)]  # fmt: skip
    assert all(sorted(epoch) == list(range(0, 80, 8)) for epoch in epochs)
    assert epochs[:2] == epochs[2:4]  # another process, which may begin anywhere
    assert epochs[0] != epochs[1]
    assert epochs[0] != epochs[4]


def test_large_shards_are_mapped(tmp_path: Path) -> None:
    """Two files of 256 MiB; a batch reads a few kB of them."""
    for name in ("a", "b"):
        with (tmp_path / f"{name}.bin").open("wb") as file:
            file.truncate(1 << 28)
    code = "import resource, sys; from meshwright.runtime.data import open_source\n"
    code += "before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss\n"
    code += "source = open_source(sys.argv[1], 256, 1024, 8, 0, shuffle=True)\n"
    code += "[source.batch(step) for step in range(20)]\n"
    code += "print(resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before)"
    command = [sys.executable, "-c", code, str(tmp_path)]
    done = subprocess.run(command, env=environment(), capture_output=True, text=True, check=True)
    assert int(done.stdout) < 30_000  # KiB


def test_a_shard_that_changes_is_refused(tmp_path: Path) -> None:
    for name in ("a", "b"):
        np.arange(40, dtype=np.uint16).tofile(tmp_path / f"{name}.bin")
    source = open_source(str(tmp_path), 256, 8, 2, seed=0)
    before = dict(source.digests())
    source.batch(0)
    np.arange(1, 41, dtype=np.uint16).tofile(tmp_path / "b.bin")
    source.batch(0)  # of the other one
    with pytest.raises(InputError, match=r"b\.bin has changed since the run opened it"):
        source.batch(3)
    after = open_source(str(tmp_path), 256, 8, 2, seed=0).digests()
    assert [name for name in before if before[name] != after[name]] == ["b.bin"]


@pytest.mark.parametrize(
    ("settings", "words"),
    [
        ({"shuffle": True}, "--shuffle: synthetic tokens are random"),
        ({"end_token": 3}, "--end-token: synthetic tokens"),
        ({"end_token": 61, "data": "x"}, "--end-token 61: the model has the tokens 0 to 60"),
        ({"end_token": -1, "data": "x"}, "--end-token -1"),
    ],
)
def test_flags_without_a_use_are_refused(settings: dict[str, Any], words: str) -> None:
    with pytest.raises(InputError, match=words):
        check_data(job("dp1-mbs1-z0-rnone"), Settings("plan.json", **settings))
    with pytest.raises(InputError, match="not with prediction of more than one token"):
        check_data(job("dp1-mbs1-z0-rnone", deepseek()), Settings("plan.json", data="x", end_token=3))


def test_what_continues_another_document_has_no_loss(tmp_path: Path) -> None:
    """Loss and gradients of a run with ends of documents, by hand from the logits of the whole model."""
    tokens = np.array([5, 6, 0, 7, 8, 0, 0, 9, 1, 2, 3, 0, 4, 5, 6, 7, 8] * 2, dtype=np.uint16)
    tokens.tofile(tmp_path / "a.bin")
    how: dict[str, Any] = {"data": str(tmp_path), "end_token": 0, "global_batch": 2, "steps": 2}
    wanted = job("dp1-mbs2-z0-rnone", **how)
    alone = reference.train(wanted)
    for layout in ("tp2-dp1-mbs2-z0-rnone", "dp2-mbs1-z3-rnone", "cp2r-dp1-mbs2-z1-rnone"):
        for step, other in zip(run(job(layout, **how)), alone, strict=True):
            assert step.loss == pytest.approx(other.loss, rel=1e-12)
            assert step.gradient_norm == pytest.approx(other.gradient_norm, rel=1e-10)
    model = reference.whole_model(wanted)
    rows = torch.from_numpy(np.stack([tokens[:17], tokens[16:33]]).astype(np.int64))
    logits = logits_of(model, rows[:, :-1]).detach()
    losses = torch.nn.functional.cross_entropy(logits.transpose(1, 2), rows[:, 1:], reduction="none")
    counted = rows[:, :-1] != 0
    assert alone[0].loss == pytest.approx(float(losses[counted].mean()), rel=1e-12)
    assert 0 < int(counted.sum()) < counted.numel()
