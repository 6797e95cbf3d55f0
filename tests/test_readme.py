"""The README keeps its promises: its screen is what the first command prints, its Python and commands run."""

from __future__ import annotations

import contextlib
import io
import os
import re
import shlex
import subprocess
import sys
from pathlib import Path

import pytest
from meshwright.cost_models.schedule_kinds import KINDS
from meshwright.profiles.io.registry import gpu_names
from meshwright.profiles.model.families import FAMILIES
from meshwright.profiles.model.load import model_names

ROOT = Path(__file__).parent.parent
README = (ROOT / "README.md").read_text(encoding="utf-8")
BLOCKS = re.findall(r"^```(\w*)\n(.*?)^```", README, flags=re.M | re.S)


def run(*arguments: str, cwd: Path) -> str:
    command = [sys.executable, "-m", "meshwright", *arguments]
    environment = {**os.environ, "PYTHONPATH": str(ROOT), "COLUMNS": "80", "PYTHONIOENCODING": "utf-8"}
    done = subprocess.run(command, cwd=cwd, env=environment, capture_output=True, encoding="utf-8", check=False)
    assert done.returncode == 0, done.stderr
    return done.stdout


def test_screen_is_what_make_plan_prints(tmp_path: Path) -> None:
    makefile = (ROOT / "Makefile").read_text(encoding="utf-8")
    line = next(line for line in makefile.splitlines() if "-m meshwright plan" in line)
    screen = run(*shlex.split(line.partition("-m meshwright ")[2]), cwd=tmp_path)
    path = ROOT / "README.md"
    if os.environ.get("UPDATE_SNAPSHOTS"):
        path.write_text(README.replace(BLOCKS[1][1], screen), encoding="utf-8")
        return

    assert BLOCKS[1][1] == screen


def test_numbers_are_those_of_the_catalogue() -> None:
    schedules = ("six", "seven", "eight", "nine")[len(KINDS) - 6]
    numbers = (f"# {len(gpu_names())} accelerators", f"catalogue ({len(model_names())} of them)",
               f"of {len(set(FAMILIES.values()))} families", f"pp with {schedules} schedules")  # fmt: skip
    assert [number for number in numbers if number not in README] == []


def test_python_runs() -> None:
    code = next(text for language, text in BLOCKS if language == "python")
    out = io.StringIO()
    with contextlib.redirect_stdout(out):
        exec(compile(code, "README.md", "exec"), {})

    assert out.getvalue().rstrip().endswith("True")


def commands() -> list[str]:
    text = next(text for _, text in BLOCKS if text.startswith("meshwright "))
    return [line.partition("#")[0].strip() for line in text.splitlines()]


@pytest.mark.parametrize("line", commands())
def test_commands_and_their_options_exist(line: str, tmp_path: Path) -> None:
    """Options are parsed before `--help` is; their plans and runs are not made."""
    assert "Usage: meshwright" in run(*shlex.split(line)[1:], "--help", cwd=tmp_path)


@pytest.mark.parametrize("link", sorted(set(re.findall(r"\]\(([\w/.-]+)\)", README))))
def test_links_exist(link: str) -> None:
    assert (ROOT / link).exists()
