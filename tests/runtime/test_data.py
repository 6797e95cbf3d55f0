"""Batches: the same whatever the layout, in order, from files of every kind; what is wrong with a file is said."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
import torch
from meshwright.runtime.data import open_source

from meshwright.errors import InputError


def test_synthetic_batches_depend_on_seed_and_step() -> None:
    source = open_source("synthetic", 61, 16, 8, seed=0)
    assert source.batch(0).shape == (8, 17)
    assert torch.equal(source.batch(3), open_source("synthetic", 61, 16, 8, seed=0).batch(3))
    assert not torch.equal(source.batch(0), source.batch(1))
    assert not torch.equal(source.batch(0), open_source("synthetic", 61, 16, 8, seed=1).batch(0))
    assert 0 <= int(source.batch(0).min()) <= int(source.batch(0).max()) < 61


def test_text_is_read_as_bytes(tmp_path: Path) -> None:
    path = tmp_path / "text.txt"
    path.write_bytes(bytes(range(100)))
    batch = open_source(str(path), 256, 8, 2, seed=0).batch(0)
    assert batch.tolist() == [list(range(9)), list(range(8, 17))]


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
    (tmp_path / "empty.bin").write_bytes(b"")
    with pytest.raises(InputError, match=r"empty\.bin: cannot mmap an empty file"):
        open_source(str(tmp_path / "empty.bin"), 256, 8, 1, seed=0)
