"""docs/reference/systems.md has every system of the list once, and what it names is there."""

from __future__ import annotations

import sys
from pathlib import Path

import yaml

ROOT = Path(__file__).resolve().parent.parent
sys.path.insert(0, str(ROOT / "tools"))

import systems_page  # noqa: E402


def test_every_system_has_a_line_and_every_test_exists() -> None:
    rows = yaml.safe_load(systems_page.SYSTEMS.read_text(encoding="utf-8"))
    lines = systems_page.PAGE.read_text(encoding="utf-8").splitlines()

    assert len(rows) == len({row["system"] for row in rows}) == 82
    for row in rows:
        assert sum(line.startswith(f"| {row['system']} |") for line in lines) == 1
        assert {"technique", "check", "not"} & set(row)  # a check of its own, or the reason why not
        assert "check" not in row or (ROOT / row["check"]).is_file()


def test_the_page_is_written_from_the_list_and_the_checks() -> None:
    """Our values are those of the page; tests/planner/studies/test_systems.py computes each and compares it."""
    written = systems_page.written()
    page = systems_page.page(lambda check: written[check.technique, check.of])
    assert page == systems_page.PAGE.read_text(encoding="utf-8")
