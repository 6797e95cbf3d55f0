"""`launch --resume` under another layout shows how long its states take to it."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest
from meshwright.cli.console import Terminal
from meshwright.cli.elastic import show_resharding
from meshwright.cli.settings import Settings as Shown
from meshwright.planner.document.plan import Plan
from meshwright.runtime.checkpoint.manifest import Manifest
from meshwright.runtime.settings import Settings

import meshwright as mw


@pytest.fixture(scope="module")
def plan() -> Plan:
    return mw.evaluate(None, "tp2-dp4-mbs1-z1-rnone", model="llama-3.2-1b", cluster="dgx-h100:1", global_batch=16,
                       seq_len=1024, target="meshwright")  # fmt: skip


def shown(plan: Plan, folder: Path, capsys: pytest.CaptureFixture[str], **changes: object) -> str:
    settings = Settings(plan="plan.json", checkpoint=str(folder), resume=True)
    show_resharding(Terminal(Shown()), plan, replace(settings, **changes))  # type: ignore[arg-type]
    captured = capsys.readouterr()
    return " ".join((captured.out + captured.err).split())


def saved(folder: Path, layout_id: str) -> None:
    (folder / "step-00000004").mkdir()
    Manifest(4, "llama-3.2-1b", layout_id, "synthetic", {}, {}).write(folder / "step-00000004")


def test_another_layout(plan: Plan, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    saved(tmp_path, "tp4-dp2-mbs1-z1-rnone")
    text = shown(plan, tmp_path, capsys)
    assert text.startswith("predicted from tp4-dp2-mbs1-z1-rnone to tp2-dp4-mbs1-z1-rnone: ")
    assert "ms in memory, gathering " in text
    assert shown(plan, tmp_path, capsys, scale_down=True) == shown(plan, tmp_path, capsys, resume=False) == ""


@pytest.mark.parametrize("layout_id", [None, "tp2-dp4-mbs1-z1-rnone", "pp2-dp4-mbs1-z1-rnone-xabc123"])
def test_nothing_where_it_stays_or_is_not_known(
    plan: Plan, tmp_path: Path, capsys: pytest.CaptureFixture[str], layout_id: str | None
) -> None:
    if layout_id is not None:
        saved(tmp_path, layout_id)
    assert shown(plan, tmp_path, capsys) == ""
