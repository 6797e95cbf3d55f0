"""`launch --resume` and `memory` under another layout show how long its states take to it."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path

import pytest
from meshwright.cli.console import Terminal
from meshwright.cli.elastic import show_resharding
from meshwright.cli.main import main
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


def test_memory_of_another_layout(plan: Plan, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    file, other = tmp_path / "plan.json", "tp4-dp2-mbs1-z1-rnone"
    file.write_text(plan.to_json(), encoding="utf-8")

    assert main(["memory", str(file), "--layout", other]) == 0
    there = " ".join(capsys.readouterr().out.split())
    assert main(["memory", str(file)]) == 0
    here = capsys.readouterr().out
    assert main(["memory", str(file), "--layout", other, "--json"]) == 0
    document = json.loads(capsys.readouterr().out)["moved"]

    assert "The states of tp2-dp4-mbs1-z1-rnone move here in " in there
    assert "move here" not in here
    assert document["from"] == "tp2-dp4-mbs1-z1-rnone"
    # From tp 2 to tp 4 each of 16 layers has two matrices of 2,048 rows in runs of a quarter: as weights, masters and
    # two moments, half of which a rank of dp 2 has.
    assert document["runs"] == 16 * 2 * 2048 * (1 + 3 / 2)
    assert document["by_copies"]["gather_s"] > 100 * document["by_kernels"]["gather_s"]
