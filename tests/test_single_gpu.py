"""benchmarks/single_gpu.py: its rows say what was run, and its table what was off. Without a GPU it is rehearsed."""

from __future__ import annotations

import gc
import importlib.util
import json
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest
from meshwright.planner.accuracy.validate import validate
from meshwright.runtime.parallel.sharding import Unit

from .runtime.fork import fork
from .snapshots import ROOT

ABOUT = {"device": "NVIDIA H200", "meshwright": "0", "torch": "0"}
GPU = "h200-sxm-141gb"


@pytest.fixture(scope="module")
def benchmark() -> ModuleType:
    spec = importlib.util.spec_from_file_location("single_gpu", ROOT / "benchmarks" / "single_gpu.py")
    if spec is None or spec.loader is None:
        raise FileNotFoundError("benchmarks/single_gpu.py")
    module = importlib.util.module_from_spec(spec)
    import sys

    sys.modules["single_gpu"] = module
    spec.loader.exec_module(module)
    return module


def planted(benchmark: ModuleType, slower: float, heavier: float) -> list[dict[str, Any]]:
    """Rows of runs that took `slower` times what is predicted, and held `heavier` times it."""
    rows = []
    for run in benchmark.wanted(rehearse=False):
        candidate = (plan := benchmark.plan_of(run, GPU)).candidates[0]
        held = candidate.memory[0].allocated_bytes * heavier
        found = {"seconds": [candidate.step_s * slower], "allocated_bytes": held}
        rows.append(benchmark.row_of(run, plan, found, ABOUT, GPU))
    return rows


def test_rows_read_back_as_the_runs_that_were_planned(benchmark: ModuleType, tmp_path: Path) -> None:
    """Every model's fields, layout and recomputation: prices and bytes of the row are those of the plan."""
    path = tmp_path / "runs.jsonl"
    path.write_text("".join(json.dumps(row) + "\n" for row in planted(benchmark, 1.0, 1.0)), encoding="utf-8")
    runs = validate([path]).rows
    assert len(runs) == 48
    for run in runs:
        assert run.step_s == pytest.approx(run.measured_step_s, rel=1e-6)
        assert run.peak_memory_bytes == pytest.approx(run.measured_peak_memory_bytes, rel=1e-6)


def test_the_table_says_how_far_off_and_what_calibration_mends(benchmark: ModuleType) -> None:
    text = benchmark.table(planted(benchmark, 1.25, 1.02))
    lines = [[cell.strip() for cell in line.split("|")] for line in text.splitlines()]
    below = [cells for cells in lines if len(cells) == 7 and cells[2].isdigit()]
    errors = {name: [float(cell) for cell in cells] for _, name, *cells, _ in below}
    assert errors["allocated"] == pytest.approx([48, 2.0, 2.0, 2.0])
    assert errors["step_s"] == pytest.approx([48, 20.0, 20.0, 20.0])
    number, median, _, _ = errors["step_s after calibrate"]
    assert number == 32
    assert median <= 1.0  # the prior keeps a twentieth of what 16 runs say
    runs = [cells for cells in lines if len(cells) == 12 and cells[-2].lstrip("+-").replace(".", "").isdigit()]
    after = {cells[1]: abs(float(cells[-2])) for cells in runs}
    dense = {name: error for name, error in after.items() if not name.startswith(benchmark.EXPERTS["name"])}
    assert len(dense) == 24
    assert max(dense.values()) <= 1.5
    assert max(after.values()) <= 3.5  # launches, a third of a step of experts, have a constant that the prior holds


def test_a_rehearsal_measures_what_the_runtime_holds_and_goes_on_after_a_stop(
    benchmark: ModuleType, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(benchmark, "REHEARSAL", {"small-2": (256, 2)})
    monkeypatch.setattr(benchmark, "REHEARSED_BATCHES", (2,))
    monkeypatch.setattr(benchmark, "RECOMPUTE", ("none", "full"))
    words = ["-o", str(tmp_path), "--rehearse"]

    def one(rank: int) -> int:
        import torch.distributed as dist

        dist.destroy_process_group()  # the benchmark makes its own
        code: int = benchmark.main(words)
        gc.collect()
        code += sum(type(found) is Unit for found in gc.get_objects())  # states of a run must not outlive it
        dist.init_process_group("gloo", rank=0, world_size=1)
        return code

    assert fork(1, one) == [0]
    rows = [json.loads(line) for line in (tmp_path / "runs.jsonl").read_text(encoding="utf-8").splitlines()]
    assert [row["id"] for row in rows] == ["small-2 dp1-mbs2-z0-rnone", "small-2 dp1-mbs2-z0-rfull"]
    for row in rows:
        assert row["predicted"]["allocated_bytes"] == pytest.approx(row["raw"]["allocated_bytes"], rel=0.01)
    rows[0]["raw"]["allocated_bytes"] = 12345
    (tmp_path / "runs.jsonl").write_text(json.dumps(rows[0]) + "\n", encoding="utf-8")
    assert fork(1, one) == [0]
    again = [json.loads(line) for line in (tmp_path / "runs.jsonl").read_text(encoding="utf-8").splitlines()]
    assert [row["raw"]["allocated_bytes"] for row in again] == [12345, rows[1]["raw"]["allocated_bytes"]]


def test_without_a_gpu_it_says_so(benchmark: ModuleType, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    import torch

    if torch.cuda.is_available():
        pytest.skip("there is a GPU")
    assert benchmark.main(["-o", str(tmp_path)]) == 2
    assert "--rehearse" in capsys.readouterr().err
