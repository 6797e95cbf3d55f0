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
from meshwright.cost_models.layouts import CP_ALGORITHMS
from meshwright.cost_models.schedule_kinds import KINDS
from meshwright.planner.accuracy.runs import Problems, read_cases, shipped_files
from meshwright.profiles.io.registry import gpu_names, load_gpu
from meshwright.profiles.model.families import FAMILIES
from meshwright.profiles.model.load import model_names
from meshwright.profiles.rates.calibration import OTHER_FILE, SHIPPED_FILE, load_yaml
from meshwright.profiles.rates.tables import FITS_FILE

ROOT = Path(__file__).parent.parent
README = (ROOT / "README.md").read_text(encoding="utf-8")
BLOCKS = re.findall(r"^```(\w*)\n(.*?)^```", README, flags=re.M | re.S)
# Numbers that tests/planner/accuracy/test_folds.py and test_other_hardware.py compare.
OF_OTHER_TESTS = (
    "699 of them", "| 4.5 % | 6.0 % |", "| 3.3 % | 4.7 % |", "have 105 runs", "off by 6.6 % in the median"
)  # fmt: skip
# Numbers of names, and of the layout that is explained.
OF_NAMES = ("RTX 4090", "70B", "ZeRO 0-3", "Apache-2.0",
            "tensor parallelism 8, 4 pipeline stages of 5 chunks, 8 data-parallel ranks")


def run(*arguments: str, cwd: Path) -> str:
    command = [sys.executable, "-m", "meshwright", *arguments]
    environment = {**os.environ, "PYTHONPATH": str(ROOT), "COLUMNS": "80", "PYTHONIOENCODING": "utf-8"}
    done = subprocess.run(command, cwd=cwd, env=environment, capture_output=True, encoding="utf-8", check=False)
    assert done.returncode == 0, done.stderr
    return done.stdout


def shown(screen: str) -> str:
    """The lines of the screen of `plan` that the README shows."""
    paragraphs = screen.split("\n\n")
    layouts = paragraphs[3].partition("\nListed as")[0]
    bars, sources = (next(part for part in paragraphs if part.startswith(words)) for words in ("Where the", "Sources"))
    rest = "\n".join(sources.splitlines()[:4])
    return "\n\n".join([*paragraphs[:3], f"{layouts}\n...", bars, f"{rest}\n...\n"])


def test_the_picture_is_what_make_plan_prints(tmp_path: Path) -> None:
    makefile = (ROOT / "Makefile").read_text(encoding="utf-8")
    line = next(line for line in makefile.splitlines() if "-m meshwright plan" in line).removesuffix(" --force")
    command = line.partition("-m meshwright ")[2]
    assert f"meshwright {command}\n" in BLOCKS[0][1]
    screen = shown(run(*shlex.split(command), cwd=tmp_path))
    path = ROOT / "README.md"
    if os.environ.get("UPDATE_SNAPSHOTS"):
        path.write_text(README.replace(BLOCKS[1][1], screen), encoding="utf-8")
        return

    assert BLOCKS[1][1] == screen


def phrases() -> list[str]:
    """The numbers of the README that are counted here, in its words."""
    schedules = ("six", "seven", "eight", "nine")[len(KINDS) - 6]
    fitted = [name for name in load_yaml(FITS_FILE)["gemm"] if load_gpu(name).vendor == "nvidia"]
    constants = load_yaml(SHIPPED_FILE)["constants"]
    others = [value for kinds in load_yaml(OTHER_FILE)["assumptions"].values() for value in kinds.values()]
    runs = sum(1 for _ in read_cases(shipped_files(), Problems([])))
    return [
        f"# {len(gpu_names())} accelerators", f"catalogue ({len(model_names())} of them)",
        f"of {len(set(FAMILIES.values()))} families", f"pp with {schedules} schedules",
        f"cp in {('three', 'four', 'five')[len(CP_ALGORITHMS) - 3]} algorithms",
        f"tables](docs/reference/efficiencies.md) of {('nine', 'ten', 'eleven')[len(fitted) - 9]} NVIDIA GPUs",
        f"{runs} published training runs", f"of {sum(constants.values())} constants",
        f"{('six', 'seven', 'eight')[len(others) - 6]} constants",
    ]  # fmt: skip


def test_numbers_are_those_of_the_catalogue() -> None:
    assert [number for number in phrases() if number not in README] == []


def test_every_number_of_the_prose_is_one_that_a_test_holds() -> None:
    prose = re.sub(r"^```.*?^```|`[^`]*`|\]\([^)]*\)", "", README, flags=re.M | re.S)
    for known in (*phrases(), *OF_OTHER_TESTS, *OF_NAMES):
        prose = prose.replace(re.sub(r"\]\([^)]*\)", "", known), "")
    assert re.findall(r"(?<![\w-])\d[\d.,]*", prose) == []


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
