"""Progress of the Python functions in notebooks and interactive shells."""

from __future__ import annotations

import sys

import pytest

import meshwright as mw

REQUEST = {"model": "llama-3.2-1b", "cluster": "dgx-h100:1", "global_batch": 64}


@pytest.fixture(name="shell")
def _shell(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "ps1", ">>> ", raising=False)
    monkeypatch.setattr("meshwright.planner.drivers.heartbeat.SILENCE_S", 0.0)


@pytest.mark.usefixtures("shell")
def test_lines_in_an_interactive_shell(capsys: pytest.CaptureFixture[str]) -> None:
    plan = mw.plan(**REQUEST)  # type: ignore[arg-type]
    searching = capsys.readouterr().err.splitlines()
    mw.what_if(plan, vary="gpu.peak=x0.5,x2", replan=True)
    studying = capsys.readouterr().err.splitlines()

    for lines, doing in ((searching, "searching"), (studying, "studying")):
        assert lines
        assert all(line.startswith(f"meshwright: {doing}") and line.endswith(" s so far") for line in lines)
    assert any("of 2," in line for line in studying)


def test_silence_in_a_script(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    monkeypatch.delattr(sys, "ps1", raising=False)
    monkeypatch.delitem(sys.modules, "ipykernel", raising=False)
    monkeypatch.setattr("meshwright.planner.drivers.heartbeat.SILENCE_S", 0.0)
    mw.plan(**REQUEST)  # type: ignore[arg-type]
    assert capsys.readouterr().err == ""
