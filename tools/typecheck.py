"""Type-check sources and tests with mypy --strict.

mypy has no notion of setuptools' `package-dir`, so the subpackages are linked into the place that they are imported
from: `.typecheck/meshwright/planner` -> `planner`. mypy is pointed at that tree (pyproject.toml): without it the check
fails instead of passing on one file.
"""

from __future__ import annotations

import shutil
import subprocess
import sys
import tomllib
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
TREE = ROOT / ".typecheck"


def build_tree() -> None:
    """Links every mapped subpackage, and every file of `meshwright/`, into `.typecheck/meshwright`."""
    mapped: dict[str, str] = tomllib.loads((ROOT / "pyproject.toml").read_text())["tool"]["setuptools"]["package-dir"]
    shutil.rmtree(TREE, ignore_errors=True)
    package = TREE / "meshwright"
    package.mkdir(parents=True)
    for path in (ROOT / mapped["meshwright"]).iterdir():
        if path.suffix in (".py", ".typed"):
            (package / path.name).symlink_to(path)
    for name, folder in mapped.items():
        if name != "meshwright":
            (package / name.removeprefix("meshwright.")).symlink_to(ROOT / folder)


def main() -> int:
    build_tree()
    return subprocess.run([sys.executable, "-m", "mypy", "--strict", *sys.argv[1:]], cwd=ROOT).returncode


if __name__ == "__main__":
    raise SystemExit(main())
