"""examples/launch: what `emit` writes today for the plans beside it, in order by `check`, for every target."""

from __future__ import annotations

import json
import os
from pathlib import Path

import pytest
from meshwright.planner.document.reading import load_plan
from meshwright.planner.targets.check import check_files
from meshwright.planner.targets.emit import emit
from meshwright.planner.targets.registry import TARGETS

from meshwright import plan

from .snapshots import ROOT

FOLDERS = sorted(path for path in (ROOT / "examples" / "launch").glob("*/*") if path.is_dir())
MARKS = {"launch.sbatch": "slurm", "trainjob.yaml": "kubernetes", "hostfile": "hostfile", "launch_ray.py": "ray",
         "sky.yaml": "skypilot"}  # fmt: skip


def renew(folder: Path, launcher: str, request: Path) -> None:
    """Plan again what the plan there was asked for, and write its files."""
    request.write_text(json.dumps(json.loads((folder / "plan.json").read_text(encoding="utf-8"))["request"]))
    for name, content in emit(plan(request), folder.name, launcher).files.items():
        (folder / name).write_text(content, encoding="utf-8")


@pytest.mark.parametrize("folder", FOLDERS, ids=lambda path: f"{path.parent.name}-{path.name}")
def test_the_example_is_current_and_in_order(
    folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    launcher = next((name for mark, name in MARKS.items() if (folder / mark).exists()), "torchrun")
    if os.environ.get("UPDATE_SNAPSHOTS"):
        monkeypatch.chdir(tmp_path)  # a plan states the file of its request
        renew(folder, launcher, Path("request.json"))
    there = {path.name: path.read_text(encoding="utf-8") for path in folder.iterdir()}
    assert emit(load_plan(folder / "plan.json"), folder.name, launcher).files == there
    assert not check_files(there).problems


def test_every_target_and_launcher_has_an_example() -> None:
    written = {name for name, target in TARGETS.items() if target.trainer is not None}
    assert {path.name for path in FOLDERS if path.parent.name == "dense"} == written
    dense_only = {"nanotron", "maxtext"}
    assert {path.name for path in FOLDERS if path.parent.name == "moe"} == written - dense_only
    held = {path.name for folder in FOLDERS for path in folder.iterdir()}
    assert set(MARKS) <= held


def test_every_target_has_a_page() -> None:
    pages = {path.stem for path in (ROOT / "docs" / "targets").glob("*.md")}
    assert {name for name, target in TARGETS.items() if target.trainer is not None} - {"meshwright"} <= pages
