"""`profile storage`: real copies and a real file here, and offloads priced by what a profile says."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
import yaml
from meshwright.profiles.cluster.load import load_cluster
from meshwright.profiles.profilers import storage
from meshwright.profiles.stack.load import load_stack
from meshwright.profiles.stack.rates import rates_for

from meshwright.errors import InputError

from ...snapshots import run_here
from ..cluster.test_device_files import cluster

MIB = 1 << 20


@pytest.fixture(autouse=True)
def small(monkeypatch: pytest.MonkeyPatch) -> None:
    """A few blocks in place of a gibibyte: what is measured is the same."""
    monkeypatch.setattr(storage, "BYTES", {True: 16 * MIB, False: 32 * MIB})


def test_it_measures_here_and_leaves_no_file(tmp_path: Path) -> None:
    out, drive = tmp_path / "storage.yaml", tmp_path / "drive"
    drive.mkdir()
    done = run_here("profile", "storage", "--device", "cpu", "--dir", str(drive), "--quick", "-o", str(out), "--json")
    assert done.code == 0, done
    rates = json.loads(done.out)["rates"]
    assert sorted(rates) == ["drive read", "drive write", "host memory"]
    assert all(1e6 < rate["median"] < 1e12 and rate["number"] == 3 for rate in rates.values())
    assert list(drive.iterdir()) == []
    written = yaml.safe_load(out.read_text())
    assert written["rates"]["host memory"] == f"{rates['host memory']['median'] / 1e9:.4g} GB/s"
    assert len(out.with_suffix(".samples.csv").read_text().splitlines()) == 4


def test_plans_price_offloads_by_it(tmp_path: Path) -> None:
    document = {"kind": "storage-profile", "gpu": "h200-sxm-141gb", "rates": {
        "host memory": "400 GB/s", "host to device": "50 GB/s", "device to host": "40 GB/s"}}  # fmt: skip
    rates = rates_for(load_cluster(cluster(tmp_path, storage=document)), load_stack("torchtitan"), "bf16")
    assert (rates.pcie_bw_bytes_per_s, rates.host_memory_bw_bytes_per_s) == (40e9, 50e9)
    document["rates"] = {"host memory": "400"}
    with pytest.raises(InputError, match="has no unit"):
        load_cluster(cluster(tmp_path, storage=document))


def test_memory_is_no_drive() -> None:
    folder = Path("/dev/shm")
    if not folder.is_dir():
        pytest.skip("no tmpfs here")
    before = set(folder.iterdir())
    done = run_here("profile", "storage", "--device", "cpu", "--dir", str(folder), "--quick")
    assert done.code == 2
    assert "no drive is behind it (tmpfs)" in done.err
    assert set(folder.iterdir()) == before


def test_bad_input_is_said(tmp_path: Path) -> None:
    for words, said in (
        (("--dir", str(tmp_path / "none")), "is no folder"),
        (("--device", "tpu"), "none of auto, cuda, cpu"),
        (("-o", str(tmp_path / "no" / "x.yaml")), "no"),
    ):
        done = run_here("profile", "storage", *words)
        assert done.code == 2
        assert said in done.err
