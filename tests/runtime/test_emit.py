"""`emit --to meshwright`: a script and the plan; pure, and nothing is overwritten unasked."""

from __future__ import annotations

import json
import subprocess
from pathlib import Path

import pytest
from meshwright.cli.main import main
from meshwright.planner.emitters.meshwright import LAUNCHERS, files
from meshwright.planner.plan import load_plan, read_plan

from meshwright.errors import InputError, UnsupportedError


@pytest.mark.parametrize("launcher", LAUNCHERS)
def test_a_script_of_valid_shell_and_the_plan(plan_file: Path, tmp_path: Path, launcher: str) -> None:
    found = files(load_plan(plan_file), launcher, choice=2)
    assert found == files(load_plan(plan_file), launcher, choice=2)
    assert read_plan(found.pop("plan.json"), "plan.json") == load_plan(plan_file)
    ((name, text),) = found.items()
    path = tmp_path / name
    path.write_text(text, encoding="utf-8")
    assert subprocess.run(["sh", "-n", str(path)], check=False).returncode == 0
    assert "--nnodes 1 --nproc-per-node 8" in text
    assert "meshwright.runtime.worker plan.json --choice 2" in text


def test_what_cannot_be_written(plan_file: Path) -> None:
    plan = load_plan(plan_file)
    with pytest.raises(InputError, match="unknown launcher"):
        files(plan, "mpirun")
    with pytest.raises(InputError, match="has no layout 7"):
        files(plan, choice=7)
    data = json.loads(plan.to_json())
    data["candidates"][0]["targets"]["meshwright"] = "the runtime does not offload yet"
    with pytest.raises(UnsupportedError, match="does not offload") as caught:
        files(read_plan(json.dumps(data), "plan.json"))
    assert caught.value.hint == "`--choice 2` can"


def test_files_are_not_overwritten_unasked(
    plan_file: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    words = ["emit", str(plan_file), "-d", str(tmp_path / "job")]
    assert main(words) == 0
    assert sorted(path.name for path in (tmp_path / "job").iterdir()) == ["launch.sh", "plan.json"]
    assert main(words) == 2
    assert "`--force` overwrites it" in capsys.readouterr().err
    assert main([*words, "--force"]) == 0


def test_without_a_folder_it_prints(plan_file: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["emit", str(plan_file), "--launcher", "slurm"]) == 0
    assert "#SBATCH --nodes=1" in capsys.readouterr().out


def test_other_targets_cannot_be_written_yet(plan_file: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["emit", str(plan_file), "--to", "torchtitan"]) == 2
    assert "`--to meshwright` can" in capsys.readouterr().err
