"""`emit --to meshwright`: the script of a node and the plan; pure, and nothing is overwritten unasked."""

from __future__ import annotations

import json
import subprocess
from pathlib import Path

import pytest
from meshwright.cli.main import main
from meshwright.planner.document.reading import load_plan, read_plan
from meshwright.planner.targets.emit import LayoutRefusedError, emit
from meshwright.planner.targets.launchers.registry import LAUNCHERS

from meshwright.errors import InputError

from ..sample_plan import unsealed


@pytest.mark.parametrize("launcher", LAUNCHERS)
def test_scripts_of_valid_shell_and_the_plan(plan_file: Path, tmp_path: Path, launcher: str) -> None:
    found = emit(load_plan(plan_file), launcher=launcher, choice=2).files
    assert found == emit(load_plan(plan_file), launcher=launcher, choice=2).files
    assert read_plan(found["plan.json"], "plan.json") == load_plan(plan_file)
    for name in found:
        if name.endswith((".sh", ".sbatch")):
            (tmp_path / name).write_text(found[name], encoding="utf-8")
            assert subprocess.run(["sh", "-n", str(tmp_path / name)], check=False).returncode == 0
    assert "--nnodes 1 --nproc-per-node 8" in found["launch.sh"]
    assert 'meshwright.runtime.worker "$here/plan.json" --choice 2' in found["launch.sh"]


def test_what_cannot_be_written(plan_file: Path) -> None:
    plan = load_plan(plan_file)
    with pytest.raises(InputError, match="unknown launcher"):
        emit(plan, launcher="mpirun")
    with pytest.raises(InputError, match="has no layout 7"):
        emit(plan, choice=7)
    data = json.loads(plan.to_json())
    data["candidates"][0]["layout"]["precision"] = "fp16"
    data["candidates"][0]["layout_id"] += "-fp16"
    with pytest.raises(LayoutRefusedError, match="trains in bf16 or fp32") as caught:
        emit(read_plan(json.dumps(unsealed(data)), "plan.json"))
    assert caught.value.fields == ("precision",)


def test_a_folder_with_other_files_is_left_alone(
    plan_file: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    words = ["emit", str(plan_file), "-d", str(tmp_path / "job")]
    assert main(words) == 0
    assert sorted(path.name for path in (tmp_path / "job").iterdir()) == ["launch.sh", "plan.json"]
    before = {path: path.stat().st_mtime_ns for path in (tmp_path / "job").iterdir()}
    assert main([*words, "--launcher", "slurm"]) == 2
    assert "nothing was written" in capsys.readouterr().err
    assert before == {path: path.stat().st_mtime_ns for path in (tmp_path / "job").iterdir()}
    assert main([*words, "--force"]) == 0


def test_a_folder_that_cannot_be_made(plan_file: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "file").write_text("")
    assert main(["emit", str(plan_file), "-d", str(tmp_path / "file" / "job")]) == 2
    said = capsys.readouterr().err
    assert "not a directory" in said
    assert "hint: choose another folder" in said


def test_without_a_folder_it_prints(plan_file: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["emit", str(plan_file), "--launcher", "slurm"]) == 0
    assert "#SBATCH --nodes=1" in capsys.readouterr().out


def test_the_script_runs_the_plan(plan_file: Path, tmp_path: Path) -> None:
    """With a torchrun that only prints its arguments."""
    assert main(["emit", str(plan_file), "-d", str(tmp_path / "a job")]) == 0
    fake = tmp_path / "torchrun"
    fake.write_text('#!/bin/sh\nprintf "%s\\n" "$@"\n', encoding="utf-8")
    fake.chmod(0o755)
    done = subprocess.run(
        ["sh", str(tmp_path / "a job" / "launch.sh"), "--steps", "3", "--data", "two words"],
        env={"PATH": f"{tmp_path}:/usr/bin:/bin", "NODE_RANK": "0"}, capture_output=True, text=True, check=True,
    )  # fmt: skip
    words = done.stdout.splitlines()
    assert words[:4] == ["--nnodes", "1", "--nproc-per-node", "8"]
    assert words[words.index("-m") :] == [
        "-m", "meshwright.runtime.worker", str(tmp_path / "a job" / "plan.json"), "--choice", "1", "--steps", "3",
        "--data", "two words",
    ]  # fmt: skip
