"""Writing files, progress, warnings."""

from __future__ import annotations

import io
import os
import re
import stat
import time
from pathlib import Path

import pytest
from meshwright.cli.console import Terminal
from meshwright.cli.files import write_file
from meshwright.cli.progress import Progress
from meshwright.cli.settings import Settings

from meshwright.errors import InputError


def test_a_file_is_written_whole(tmp_path: Path) -> None:
    path = tmp_path / "plan.json"
    write_file(path, "one\n", force=False)
    assert path.read_text() == "one\n"
    assert stat.S_IMODE(path.stat().st_mode) & 0o044
    assert [each.name for each in tmp_path.iterdir()] == ["plan.json"]


def test_an_existing_file_needs_force(tmp_path: Path) -> None:
    path = tmp_path / "plan.json"
    path.write_text("one\n")
    with pytest.raises(InputError, match="exists") as caught:
        write_file(path, "two\n", force=False)
    assert "--force" in caught.value.hint
    assert path.read_text() == "one\n"
    write_file(path, "two\n", force=True)
    assert path.read_text() == "two\n"


def test_places_that_cannot_be_written(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(InputError, match="there is no folder"):
        write_file(tmp_path / "missing" / "plan.json", "", force=False)
    with pytest.raises(InputError, match="is a folder"):
        write_file(tmp_path, "", force=False)
    monkeypatch.setattr(os, "access", lambda *_: False)  # the tests may run as root, who may write anywhere
    with pytest.raises(InputError, match="is not writable"):
        write_file(tmp_path / "plan.json", "", force=False)


def test_a_pipe_stays_a_pipe(tmp_path: Path) -> None:
    pipe = tmp_path / "pipe"
    os.mkfifo(pipe)
    reader = os.open(pipe, os.O_RDONLY | os.O_NONBLOCK)
    write_file(pipe, "plan", force=True)

    assert os.read(reader, 10) == b"plan"
    assert pipe.is_fifo()
    os.close(reader)


def test_a_full_disk_leaves_nothing_behind(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def full(*_: object) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(os, "replace", full)
    with pytest.raises(InputError, match="no space left on device"):
        write_file(tmp_path / "plan.json", "text", force=False)
    assert list(tmp_path.iterdir()) == []


class Screen(io.StringIO):
    """A stream that says it is a terminal."""

    def isatty(self) -> bool:
        return True


def test_progress_waits_half_a_second_and_leaves_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    stream, now = Screen(), [0.0]
    monkeypatch.setattr("sys.stderr", stream)
    monkeypatch.setenv("TERM", "xterm")
    monkeypatch.setattr("time.monotonic", lambda: now[0])
    with Terminal(Settings()).progress("searching") as progress:
        progress(1, 4)
        assert stream.getvalue() == ""
        now[0] = 0.6
        progress(2, 4, "best 1.2")
        assert "50%" in stream.getvalue()
        assert "best 1.2" in stream.getvalue()
        written = stream.getvalue()
        progress(3, 4)  # too soon after the last one
        assert stream.getvalue() == written
    assert stream.getvalue().endswith("\r\x1b[K")


@pytest.mark.parametrize("settings", [Settings(no_progress=True), Settings(quiet=True), Settings(json=True)])
def test_no_progress_where_it_is_not_wanted(settings: Settings, monkeypatch: pytest.MonkeyPatch) -> None:
    stream = Screen()
    monkeypatch.setattr("sys.stderr", stream)
    with Terminal(settings).progress("searching") as progress:
        progress._next_s = 0.0
        progress(1, 2)
    assert stream.getvalue() == ""


def test_no_progress_in_a_pipe(monkeypatch: pytest.MonkeyPatch) -> None:
    stream = io.StringIO()
    monkeypatch.setattr("sys.stderr", stream)
    with Terminal(Settings()).progress("searching") as progress:
        progress._next_s = 0.0
        progress(1, 2)
    assert stream.getvalue() == ""


def test_progress_of_nothing_is_no_error() -> None:
    Progress("searching", enabled=False)(0, 0)


def test_verbose_logs_instead(capsys: pytest.CaptureFixture[str]) -> None:
    with Terminal(Settings(verbose=True)).progress("searching") as progress:
        progress(1000, 4000, "best 1.2")
    assert re.fullmatch(
        r"searching: 1,000 of 4,000 best 1\.2\nsearching: \d+\.\d\d s elapsed\n", capsys.readouterr().err
    )


def test_warnings_have_the_form_of_errors(capsys: pytest.CaptureFixture[str]) -> None:
    Terminal(Settings()).warn("h100-pcie-80gb has no measurements", "run `meshwright profile`")
    Terminal(Settings(quiet=True)).warn("not said")
    assert capsys.readouterr().err == "warning: h100-pcie-80gb has no measurements\n\nhint: run `meshwright profile`\n"


def test_several_problems_are_listed(capsys: pytest.CaptureFixture[str]) -> None:
    details = {"problems": ["a.yaml, line 1, model: is missing", "a.yaml, line 2, top: must be 1 or more, is 0"]}
    Terminal(Settings()).error("invalid_input", "\n".join(details["problems"]), "fix both", details)
    assert capsys.readouterr().err == (
        "error: 2 things are wrong\n\n  a.yaml, line 1, model: is missing\n"
        "  a.yaml, line 2, top: must be 1 or more, is 0\n\nhint: fix both\n"
    )


def test_bars_fall_back_to_ascii(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("sys.stdout", io.TextIOWrapper(io.BytesIO(), encoding="latin-1"))
    assert not Terminal(Settings()).unicode
    monkeypatch.setattr("sys.stdout", io.TextIOWrapper(io.BytesIO(), encoding="UTF-8"))
    assert Terminal(Settings()).unicode


def _silent_command(monkeypatch: pytest.MonkeyPatch, settings: Settings, speak_s: float = 9.0) -> str:
    """What a command that works 0.7 s says where silence is 0.2 s long; it speaks itself after speak_s."""
    stream = io.StringIO()
    monkeypatch.setattr("sys.stderr", stream)
    monkeypatch.setattr("meshwright.planner.drivers.heartbeat.SILENCE_S", 0.2)
    terminal = Terminal(settings)
    with terminal.heartbeat("plan"), terminal.progress("searching") as progress:
        progress(3, 80, "best 1.2")
        for moment in range(7):
            time.sleep(0.1)
            if moment * 0.1 >= speak_s:
                terminal.talk("spoken")
    return stream.getvalue()


@pytest.mark.parametrize("settings", [Settings(), Settings(json=True)])
def test_no_command_is_silent_for_long_without_a_terminal(monkeypatch: pytest.MonkeyPatch, settings: Settings) -> None:
    lines = _silent_command(monkeypatch, settings).splitlines()

    assert len(lines) in (2, 3)
    assert all(re.fullmatch(r"plan: searching: 3 of 80 best 1\.2, \d s so far", line) for line in lines)


def test_a_command_that_speaks_needs_no_heartbeat(monkeypatch: pytest.MonkeyPatch) -> None:
    assert set(_silent_command(monkeypatch, Settings(), speak_s=0.0).splitlines()) == {"spoken"}


@pytest.mark.parametrize("settings", [Settings(quiet=True), Settings(no_progress=True)])
def test_no_heartbeat_where_it_is_not_wanted(monkeypatch: pytest.MonkeyPatch, settings: Settings) -> None:
    assert _silent_command(monkeypatch, settings) == ""


def test_a_command_without_a_bar_is_not_silent_on_a_terminal(monkeypatch: pytest.MonkeyPatch) -> None:
    """`launch` on a terminal: no bar, but lines of its heartbeat."""
    stream = io.StringIO()
    monkeypatch.setattr(stream, "isatty", lambda: True)
    monkeypatch.setattr("sys.stderr", stream)
    monkeypatch.setattr("meshwright.planner.drivers.heartbeat.SILENCE_S", 0.2)
    terminal = Terminal(Settings())
    with terminal.heartbeat("launch", on_terminal=True), terminal.progress("training", bar=False) as progress:
        progress(1, 10, "steps")
        time.sleep(0.5)
    assert set(stream.getvalue().splitlines()) <= {f"launch: training: 1 of 10 steps, {n} s so far" for n in (0, 1)}
    assert stream.getvalue()
