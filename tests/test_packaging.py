"""The wheel: one top-level name, everything in it, and the same answers as the checkout."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import tomllib
import zipfile
from collections.abc import Iterator
from fnmatch import fnmatch
from pathlib import Path
from typing import Any

import pytest

from .snapshots import ROOT, environment

CONFIG: dict[str, Any] = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["tool"]["setuptools"]
MAPPED: dict[str, str] = CONFIG["package-dir"]
PLAN = ["plan", "--model", "llama-3.1-8b", "--cluster", "dgx-h100:2", "--global-batch", "512", "--json"]


def packages_on_disk() -> list[str]:
    found = []
    for package, folder in MAPPED.items():
        for init in (ROOT / folder).rglob("__init__.py"):
            inside = init.parent.relative_to(ROOT / folder).parts
            found.append(".".join((package, *inside)))
    return sorted(found)


def data_files() -> Iterator[tuple[str, str]]:
    """(package, path inside it) of every file that is not Python, in the folders of packages."""
    for package, folder in MAPPED.items():
        for path in sorted((ROOT / folder).rglob("*")):
            inside = path.relative_to(ROOT / folder)
            if path.is_file() and path.suffix not in (".py", ".pyc") and "__pycache__" not in inside.parts:
                yield package, inside.as_posix()


def matches(path: str, pattern: str) -> bool:
    """As in setuptools: `*` does not cross a folder."""
    return path.count("/") == pattern.count("/") and fnmatch(path, pattern)


def test_the_list_of_packages_equals_the_tree() -> None:
    assert sorted(CONFIG["packages"]) == packages_on_disk()


def test_every_data_file_is_declared() -> None:
    declared: dict[str, list[str]] = CONFIG["package-data"]
    missing = [
        f"{package}: {path}"
        for package, path in data_files()
        if not any(matches(path, pattern) for pattern in declared.get(package, []))
    ]
    assert not missing


def test_every_declared_pattern_matches_something() -> None:
    files = list(data_files())
    for package, patterns in CONFIG["package-data"].items():
        for pattern in patterns:
            assert any(name == package and matches(path, pattern) for name, path in files), f"{package}: {pattern}"


@pytest.fixture(scope="module")
def wheel(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Built from a copy of what belongs to the distribution, so that the checkout stays clean."""
    source = tmp_path_factory.mktemp("source")
    for name in ("pyproject.toml", "README.md", "LICENSE", "NOTICE"):
        shutil.copy(ROOT / name, source / name)
    for folder in MAPPED.values():
        shutil.copytree(ROOT / folder, source / folder, ignore=shutil.ignore_patterns("__pycache__"))
    target = tmp_path_factory.mktemp("wheel")
    command = [sys.executable, "-m", "build", "--wheel", "--no-isolation", "--outdir", str(target), str(source)]
    done = subprocess.run(command, capture_output=True, text=True)
    assert done.returncode == 0, done.stdout + done.stderr
    return next(target.glob("*.whl"))


def test_the_wheel_has_one_name_at_its_top(wheel: Path) -> None:
    names = zipfile.ZipFile(wheel).namelist()
    assert {name.split("/")[0] for name in names if ".dist-info/" not in name} == {"meshwright"}


def test_the_wheel_is_small(wheel: Path) -> None:
    assert wheel.stat().st_size < 5e6


def test_the_wheel_holds_every_file(wheel: Path) -> None:
    names = set(zipfile.ZipFile(wheel).namelist())
    expected = {f"{package.replace('.', '/')}/{path}" for package, path in data_files()}
    expected |= {
        f"{package.replace('.', '/')}/{path.relative_to(ROOT / folder).as_posix()}"
        for package, folder in MAPPED.items()
        for path in (ROOT / folder).rglob("*.py")
    }
    assert expected <= names


def test_check_wheel_contents_finds_nothing(wheel: Path) -> None:
    done = subprocess.run(
        [sys.executable, "-m", "check_wheel_contents", "--toplevel", "meshwright", str(wheel)],
        capture_output=True,
        text=True,
        cwd=ROOT,
    )
    assert done.returncode == 0, done.stdout + done.stderr


@pytest.fixture(scope="module")
def installed(wheel: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """An empty folder with nothing but the wheel in it; its dependencies come from the environment of the tests."""
    folder = tmp_path_factory.mktemp("installed")
    install = [sys.executable, "-m", "pip", "install", "-q", "--no-deps", "--no-index"]
    done = subprocess.run([*install, "--target", str(folder), str(wheel)], capture_output=True, text=True)
    assert done.returncode == 0, done.stdout + done.stderr
    return folder


def planned(folder: Path, code: str = "from meshwright.cli.main import app; app()") -> str:
    env = environment({"PYTHONPATH": str(folder)})
    done = subprocess.run(
        [sys.executable, "-P", "-c", code, *PLAN], capture_output=True, text=True, env=env, cwd=folder
    )
    assert done.returncode == 0, done.stderr
    return done.stdout


def test_the_installed_package_is_the_one_that_runs(installed: Path) -> None:
    env = environment({"PYTHONPATH": str(installed)})
    code = "import meshwright.planner.request.load as m; print(m.__file__)"
    done = subprocess.run([sys.executable, "-P", "-c", code], capture_output=True, text=True, env=env, cwd=installed)
    assert done.stdout.startswith(str(installed)), done.stderr


def test_the_wheel_plans_as_the_checkout_does(installed: Path) -> None:
    assert planned(installed) == planned(ROOT)


def test_the_console_script_is_declared(installed: Path) -> None:
    script = installed / "bin" / "meshwright"
    assert script.exists()
    assert os.access(script, os.X_OK)
