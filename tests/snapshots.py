"""Runs the command line and compares what it did with files in tests/snapshots/.

`UPDATE_SNAPSHOTS=1 pytest ...` writes the files anew; look at the diff before you keep it.
"""

from __future__ import annotations

import io
import os
import pty
import re
import select
import subprocess
import sys
import tempfile
from collections.abc import Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import chdir, redirect_stderr, redirect_stdout
from dataclasses import dataclass
from pathlib import Path
from typing import TextIO
from unittest.mock import patch

from meshwright.cli.main import main

ROOT = Path(__file__).resolve().parent.parent
FOLDER = Path(__file__).with_name("snapshots")
# Environment of a process whose files may not grow: Python would keep a module that is cut short as if it were whole.
UNCOMPILED = {"PYTHONDONTWRITEBYTECODE": "1"}
_OURS = ("MESHWRIGHT_", "NO_COLOR", "FORCE_COLOR", "CLICOLOR", "TERM", "COLUMNS", "PYTHONIOENCODING", "TYPER_")


@dataclass(frozen=True)
class Result:
    """What one run left behind."""

    code: int
    out: str
    err: str

    def __str__(self) -> str:
        parts = [f"exit code: {self.code}\n"]
        for name, text in (("stdout", self.out), ("stderr", self.err)):
            if text:
                parts.append(f"----- {name} -----\n{text}")
        return normalised("".join(parts))


def normalised(text: str) -> str:
    """Without what differs from run to run: folders, times, versions of what is installed."""
    text = text.replace("\r\n", "\n").replace(str(ROOT), "[ROOT]")
    text = re.sub(rf"{re.escape(tempfile.gettempdir())}/meshwright-\w+\.txt", "[TRACEBACK]", text)
    text = re.sub(rf"{re.escape(tempfile.gettempdir())}/pytest-[^\s:,]*?/test_[^/\s]*/", "[TMP]/", text)
    return re.sub(r"\b\d+(\.\d+)? (ms|s)\b elapsed", "[TIME] elapsed", text)


def environment(extra: Mapping[str, str] | None = None) -> dict[str, str]:
    """The environment of a plain 80-column shell, whatever the one that runs the tests looks like."""
    kept = {name: value for name, value in os.environ.items() if not name.startswith(_OURS)}
    plain = {"PYTHONPATH": str(ROOT), "COLUMNS": "80", "TERM": "xterm-256color", "PYTHONUTF8": "1"}
    plain["MESHWRIGHT_NO_PROGRESS"] = "1"  # a busy machine makes any command slow enough for a line of progress
    return {**kept, **plain, **(extra or {})}


def run(
    *args: str, cwd: Path | None = None, env: Mapping[str, str] | None = None, stdin: str | None = None
) -> Result:
    """`meshwright args`, piped."""
    done = subprocess.run(
        [sys.executable, "-m", "meshwright", *args],
        cwd=cwd or ROOT,
        env=environment(env),
        input=stdin,
        stdin=subprocess.DEVNULL if stdin is None else None,
        capture_output=True,
        text=True,
        encoding="utf-8",
        timeout=120,
    )
    return Result(done.returncode, done.stdout, done.stderr)


def run_here(*args: str, cwd: Path | None = None, env: Mapping[str, str] | None = None) -> Result:
    """As `run`, in this process: ten times quicker, and warnings are errors."""
    out, err = (io.TextIOWrapper(io.BytesIO(), encoding="utf-8", newline="\n") for _ in range(2))
    code = _main(args, cwd, env, out, err)
    texts = []
    for stream in (out, err):
        stream.seek(0)
        texts.append(stream.read())
    return Result(code, *texts)


def _main(args: Sequence[str], cwd: Path | None, env: Mapping[str, str] | None, out: TextIO, err: TextIO) -> int:
    """The exit code of `meshwright args` in this process, with these streams and this plain environment."""
    plain = patch.dict(os.environ, environment(env), clear=True)
    with redirect_stdout(out), redirect_stderr(err), chdir(cwd or ROOT), plain:
        try:
            return main(args)
        except SystemExit as ended:  # of Typer, when words for a shell are shown
            return int(ended.code or 0)


def run_terminal_here(*args: str, cwd: Path | None = None, env: Mapping[str, str] | None = None) -> Result:
    """As `run_terminal`, in this process."""
    ours, theirs = pty.openpty()
    with ThreadPoolExecutor(1) as reader:
        shown = reader.submit(_read_all, ours)  # a terminal holds a few thousand characters that nobody reads
        with os.fdopen(theirs, "w", encoding="utf-8") as terminal:
            code = _main(args, cwd, env, terminal, terminal)
    os.close(ours)
    return Result(code, shown.result(), "")


def run_terminal(*args: str, cwd: Path | None = None, env: Mapping[str, str] | None = None) -> Result:
    """`meshwright args` on a terminal: both streams go to one pseudo-terminal, given back as stdout."""
    ours, theirs = pty.openpty()
    process = subprocess.Popen(
        [sys.executable, "-m", "meshwright", *args],
        cwd=cwd or ROOT,
        env=environment(env),
        stdin=theirs,
        stdout=theirs,
        stderr=theirs,
    )
    os.close(theirs)
    text = _read_all(ours)
    os.close(ours)
    return Result(process.wait(), text, "")


def _read_all(handle: int) -> str:
    chunks = []
    while select.select([handle], [], [], 120)[0]:
        try:
            chunk = os.read(handle, 65536)
        except OSError:  # Linux says so when the other end is closed
            break
        if not chunk:
            break
        chunks.append(chunk)
    return b"".join(chunks).decode("utf-8")


def check(name: str, actual: Result | str) -> None:
    """Compares with `snapshots/<name>.txt`; writes it under UPDATE_SNAPSHOTS=1."""
    path, text = FOLDER / f"{name}.txt", str(actual)
    if os.environ.get("UPDATE_SNAPSHOTS"):
        FOLDER.mkdir(exist_ok=True)
        path.write_text(text, encoding="utf-8")
    if not path.exists():
        raise AssertionError(f"no snapshot {path.name}; UPDATE_SNAPSHOTS=1 writes it\n\n{text}")
    expected = path.read_text(encoding="utf-8")
    assert text == expected, f"differs from {path.name} (UPDATE_SNAPSHOTS=1 accepts it)"
