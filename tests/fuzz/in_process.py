"""Runs drawn inputs in this process, each under an alarm, and judges what came of them."""

from __future__ import annotations

import faulthandler
import io
import json
import os
import re
import shutil
import signal
import time
import warnings
from collections.abc import Iterator
from contextlib import chdir, contextmanager, redirect_stderr, redirect_stdout
from dataclasses import dataclass
from pathlib import Path
from typing import Any
from unittest.mock import patch

from meshwright.cli.main import main

from ..snapshots import environment
from .inputs import Input, draw

LIMIT_S = 60.0  # of a core; no drawn input takes 20 s
WAIT_S = 600.0  # by the clock
CODES = (0, 1, 2, 130)


class OverrunError(BaseException):
    """The alarm. No `except Exception` of the program may catch it."""


@dataclass(frozen=True)
class Finding:
    """One input that was not met as it should be."""

    seed: int
    kind: str
    words: list[str]
    detail: str

    def __str__(self) -> str:
        return f"seed {self.seed}: {self.kind}: meshwright {' '.join(map(repr, self.words))}\n    {self.detail}"


def run_seed(seed: int, corpus: Path, folder: Path) -> tuple[list[Finding], float]:
    """Findings and seconds of one seed; `folder` is made anew from the corpus."""
    drawn = draw(seed, corpus)
    lay_out(corpus, folder, drawn)
    before = contents(folder)
    started = time.monotonic()
    code, out, err, overrun = run(drawn.words, folder)
    seconds = time.monotonic() - started
    kinds = dict(judged(code, out, err, drawn))
    if overrun:
        kinds = {"hang": f"longer than {LIMIT_S:g} s"}
    kinds |= dict(lost(before, contents(folder), drawn))
    return [Finding(seed, kind, drawn.words, detail) for kind, detail in kinds.items()], seconds


def lay_out(corpus: Path, folder: Path, drawn: Input) -> None:
    """A fresh copy of the corpus with the damaged files in it."""
    shutil.rmtree(folder, ignore_errors=True)
    shutil.copytree(corpus, folder)
    for name, content in drawn.files.items():
        (folder / name).write_bytes(content)


def run(words: list[str], folder: Path) -> tuple[int | None, str, str, bool]:
    """(exit code, stdout, stderr, whether it overran) of a command line in a folder."""
    out, err = (io.TextIOWrapper(io.BytesIO(), encoding="utf-8", newline="\n") for _ in range(2))
    code: int | None = None
    overrun = False
    plain = patch.dict(os.environ, environment(), clear=True)
    with redirect_stdout(out), redirect_stderr(err), chdir(folder), plain, _alarm(), warnings.catch_warnings():
        warnings.simplefilter("error")
        try:
            code = main(words)
        except OverrunError:
            overrun = True
        except BaseException as error:
            err.write(f"Traceback: {type(error).__name__}: {error}\n")
    texts = []
    for stream in (out, err):
        stream.seek(0)
        texts.append(stream.read())
    return code, texts[0], texts[1], overrun


@contextmanager
def _alarm() -> Iterator[None]:
    def ring(*_: Any) -> None:
        raise OverrunError

    before = signal.signal(signal.SIGPROF, ring)
    signal.setitimer(signal.ITIMER_PROF, LIMIT_S)
    # Code that waits, or never returns to Python, takes no alarm: the process ends, and says where it was.
    faulthandler.dump_traceback_later(WAIT_S, exit=True, file=2)
    try:
        yield
    finally:
        faulthandler.cancel_dump_traceback_later()
        signal.setitimer(signal.ITIMER_PROF, 0)
        signal.signal(signal.SIGPROF, before)


def judged(code: int | None, out: str, err: str, drawn: Input) -> Iterator[tuple[str, str]]:
    """(kind, detail) of what no input may do."""
    shown = err.strip()[-400:]
    if "Traceback" in err or "Traceback" in out:
        yield "traceback", shown
    elif code == 3:
        yield "our bug", _where(err) or shown
    elif code not in CODES:
        yield "exit code", f"{code}: {shown}"
    if code in (1, 2) and not err.strip() and not out.strip() and "--quiet" not in drawn.words:
        yield "silence", f"exit code {code} without a word"
    if "--json" in drawn.words and "--" not in drawn.words and out.strip() and "-h" not in out:
        try:
            json.loads(out)
        except ValueError as error:
            if not out.startswith("Usage:"):
                yield "json", f"{error}: {out[:100]!r}"


def _where(err: str) -> str:
    """The end of the traceback that the program wrote into a file, which is removed."""
    path = re.search(r"the traceback is in (\S+)", err)
    if path is None or not Path(path[1]).exists():
        return ""
    text = Path(path[1]).read_text()
    Path(path[1]).unlink()
    lines = [line.strip() for line in text.strip().splitlines()]
    places = [line for line in lines if line.startswith("File ")]
    return f"{lines[-1]} | {places[-1] if places else ''}"


def contents(folder: Path) -> dict[str, bytes]:
    """Name -> content of all files below the folder."""
    return {str(path.relative_to(folder)): path.read_bytes() for path in sorted(folder.rglob("*")) if path.is_file()}


def lost(before: dict[str, bytes], after: dict[str, bytes], drawn: Input) -> Iterator[tuple[str, str]]:
    """(kind, detail) of files that are gone or changed without being asked for, and of temporary ones that stayed."""
    asked = drawn.written() if "--force" in drawn.words else set()
    paths = [os.path.normpath(path) for path in asked]
    hurt = [name for name, content in before.items() if after.get(name) != content
            and not any(name == path or name.startswith(f"{path}/") for path in paths)]  # fmt: skip
    if hurt:
        yield "lost file", ", ".join(hurt)
    if stayed := [name for name in after if Path(name).name.startswith(".meshwright-")]:
        yield "temporary file", ", ".join(stayed)
