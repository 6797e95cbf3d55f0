"""docs/reference/cli.md says what `--help` says, and names every error code and variable."""

from __future__ import annotations

import inspect
import re
import subprocess
import sys

from meshwright.cli.main import COMMANDS
from meshwright.planner.request.load import ENVIRONMENT

from meshwright import errors

from ..snapshots import ROOT, environment

PAGE = ROOT / "docs" / "reference" / "cli.md"


def test_the_reference_is_current() -> None:
    command = [sys.executable, str(ROOT / "tools" / "gen_cli_reference.py"), "--check"]
    done = subprocess.run(command, env=environment(), capture_output=True, text=True)
    assert done.returncode == 0, done.stdout + done.stderr


def test_every_command_error_code_and_variable_is_there() -> None:
    text = PAGE.read_text(encoding="utf-8")
    for name in COMMANDS:
        assert f"\n## {name}\n" in text
    for each in vars(errors).values():
        if inspect.isclass(each) and issubclass(each, errors.MeshwrightError) and each is not errors.MeshwrightError:
            assert f"`{each.code}` | {each.exit_code}" in text
    for name in ENVIRONMENT:
        assert f"`{name}`" in text


def test_every_variable_that_the_code_reads_is_there() -> None:
    text = PAGE.read_text(encoding="utf-8")
    for folder in ("cli", "planner", "profiles"):
        for path in (ROOT / folder).rglob("*.py"):
            for name in re.findall(r"[\"'](MESHWRIGHT_[A-Z_]+)[\"']", path.read_text(encoding="utf-8")):
                assert f"`{name}`" in text, f"{name} in {path.name}"
