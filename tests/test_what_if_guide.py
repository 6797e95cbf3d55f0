"""docs/guides/what-if.md keeps its promises: its commands run, and print what stands there."""

from __future__ import annotations

import os
import re
import shlex
from pathlib import Path

from .snapshots import ROOT, run_here

GUIDE = ROOT / "docs" / "guides" / "what-if.md"


def test_the_guide_is_what_its_commands_print(tmp_path: Path) -> None:
    """UPDATE_SNAPSHOTS=1 writes what they print into the guide."""
    text = GUIDE.read_text(encoding="utf-8")
    printed, compared = "", 0
    for block in re.findall(r"^```\n(.*?)^```", text, flags=re.MULTILINE | re.DOTALL):
        if not block.startswith("meshwright "):
            compared += 1
            if os.environ.get("UPDATE_SNAPSHOTS"):
                text = text.replace(block, printed)
            else:
                assert block == printed
            continue
        for line in block.splitlines():
            result = run_here(*shlex.split(line)[1:], cwd=tmp_path)
            assert result.code == 0, f"{line}\n{result.err}"
            printed = result.out.rstrip() + "\n"
    if os.environ.get("UPDATE_SNAPSHOTS"):
        GUIDE.write_text(text, encoding="utf-8")

    assert compared == 5
