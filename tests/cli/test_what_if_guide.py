"""The guide of `what-if` and the studies keep their promises: their commands run, and print what stands there."""

from __future__ import annotations

import os
import re
import shlex
import shutil
from pathlib import Path

import pytest

from ..snapshots import ROOT, run_here

PAGES = [ROOT / "docs" / "guides" / "what-if.md", *sorted((ROOT / "examples" / "studies").glob("*.md"))]
BLOCK = re.compile(r"^```\n(.*?)^```", flags=re.MULTILINE | re.DOTALL)


@pytest.mark.slow
@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.stem)
def test_a_page_is_what_its_commands_print(page: Path, tmp_path: Path) -> None:
    """UPDATE_SNAPSHOTS=1 writes what they print into the page."""
    shutil.copytree(ROOT / "examples", tmp_path / "examples")
    printed = ""

    def rerun(block: re.Match[str]) -> str:
        nonlocal printed
        if not block[1].startswith("meshwright "):
            return f"```\n{printed}```"
        for line in block[1].splitlines():
            result = run_here(*shlex.split(line)[1:], cwd=tmp_path)
            assert result.code == 0, f"{line}\n{result.err}"
            printed = result.out.rstrip() + "\n"
        return block[0]

    text = page.read_text(encoding="utf-8")
    found = BLOCK.sub(rerun, text)
    if os.environ.get("UPDATE_SNAPSHOTS"):
        page.write_text(found, encoding="utf-8")
        return

    assert found == text
