"""Progress of the Python functions in notebooks and interactive shells."""

from __future__ import annotations

import sys

import pytest
from meshwright.planner.drivers.watch import interactive_progress

import meshwright as mw

REQUEST = {"model": "llama-3.2-1b", "cluster": "dgx-h100:1", "global_batch": 64}


def test_lines_in_an_interactive_shell(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    monkeypatch.setattr(sys, "ps1", ">>> ", raising=False)
    monkeypatch.setattr("meshwright.planner.drivers.watch.SILENCE_S", 0.0)
    mw.plan(**REQUEST)  # type: ignore[arg-type]
    lines = capsys.readouterr().err.splitlines()
    assert lines
    assert all(line.startswith("meshwright: ") and line.endswith(" s so far") for line in lines)


def test_silence_in_a_script(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delattr(sys, "ps1", raising=False)
    monkeypatch.delitem(sys.modules, "ipykernel", raising=False)
    assert interactive_progress() is None
