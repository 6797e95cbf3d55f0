"""Inputs as real processes, each with something of its surroundings taken away: a pipe, room on the disk, time."""

from __future__ import annotations

import os
import random
import resource
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path

from ..snapshots import UNCOMPILED, environment
from .in_process import CODES, LIMIT_S, Finding, contents, judged, lay_out, lost
from .inputs import Input, draw

# Files of a full disk: what does not fit has to leave nothing behind.
_ROOM = (0, 100, 5_000, 20_000)
_STOPPED = {signal.SIGINT: 130, signal.SIGTERM: -signal.SIGTERM, signal.SIGHUP: -signal.SIGHUP}


def run_seed(seed: int, corpus: Path, folder: Path) -> list[Finding]:
    """Findings of one seed as a process."""
    rng = random.Random(f"process {seed}")
    drawn = draw(seed, corpus)
    lay_out(corpus, folder, drawn)
    before = contents(folder)
    kinds = dict(rng.choice(_KINDS)(rng, drawn, folder))
    kinds |= dict(lost(before, contents(folder), drawn))
    return [Finding(seed, kind, drawn.words, detail) for kind, detail in kinds.items()]


def _start(words: list[str], folder: Path, before: Callable[[], None] | None = None,
           stdout: int = subprocess.PIPE) -> subprocess.Popen[str]:  # fmt: skip
    return subprocess.Popen([sys.executable, "-m", "meshwright", *words], cwd=folder, env=environment(UNCOMPILED),
                            text=True, stdin=subprocess.DEVNULL, stdout=stdout, stderr=subprocess.PIPE,
                            preexec_fn=before, encoding="utf-8", errors="replace", start_new_session=True)  # fmt: skip


def _ended(process: subprocess.Popen[str]) -> tuple[str, str] | None:
    """(stdout, stderr); None where it did not end in time, and was killed."""
    try:
        out, err = process.communicate(timeout=2 * LIMIT_S)
        return out or "", err or ""
    except subprocess.TimeoutExpired:
        os.killpg(process.pid, signal.SIGKILL)
        process.communicate()
        return None


def _plainly(rng: random.Random, drawn: Input, folder: Path) -> list[tuple[str, str]]:
    process = _start(drawn.words, folder)
    texts = _ended(process)
    return [("hang", "")] if texts is None else list(judged(process.returncode, *texts, drawn))


def _closed_pipe(rng: random.Random, drawn: Input, folder: Path) -> list[tuple[str, str]]:
    """The reader of stdout goes away after some bytes, or before the first."""
    process = _start(drawn.words, folder)
    if process.stdout is None:
        raise RuntimeError("stdout is no pipe")
    os.read(process.stdout.fileno(), rng.choice((1, 100))) if rng.random() < 0.5 else None
    process.stdout.close()
    process.stdout = None
    texts = _ended(process)
    return [("hang", "")] if texts is None else list(_with_code(process.returncode, texts[1], CODES))


def _closed_stream(rng: random.Random, drawn: Input, folder: Path) -> list[tuple[str, str]]:
    """A stream that the shell closed."""
    number = rng.choice((0, 1, 2))
    process = _start(drawn.words, folder, before=lambda: os.close(number))
    texts = _ended(process)
    return [("hang", "")] if texts is None else list(_with_code(process.returncode, texts[1], CODES))


def _full_disk(rng: random.Random, drawn: Input, folder: Path) -> list[tuple[str, str]]:
    """No file may become longer than some bytes; a write beyond is refused, as on a full disk."""
    room = rng.choice(_ROOM)

    def limit() -> None:
        signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
        resource.setrlimit(resource.RLIMIT_FSIZE, (room, room))

    process = _start(drawn.words, folder, before=limit)
    texts = _ended(process)
    return [("hang", "")] if texts is None else list(_with_code(process.returncode, texts[1], CODES))


def _full_stdout(rng: random.Random, drawn: Input, folder: Path) -> list[tuple[str, str]]:
    full = os.open("/dev/full", os.O_WRONLY)
    try:
        process = _start(drawn.words, folder, stdout=full)
        texts = _ended(process)
    finally:
        os.close(full)
    return [("hang", "")] if texts is None else list(_with_code(process.returncode, texts[1], CODES))


def _stopped(rng: random.Random, drawn: Input, folder: Path) -> list[tuple[str, str]]:
    """A signal at some moment; before Python is up it ends the process, and that is no fault of the program."""
    which = rng.choice(list(_STOPPED))
    process = _start(drawn.words, folder)
    time.sleep(rng.uniform(0.6, 2.0))
    process.send_signal(which)
    texts = _ended(process)
    if texts is None:
        return [("hang", f"after {which.name}")]
    if process.returncode == _STOPPED[which]:
        early = "KeyboardInterrupt" in texts[1] and "meshwright/__main__.py" not in texts[1]
        return [] if early else list(_with_code(process.returncode, texts[1], (_STOPPED[which],)))
    # SIGINT after the last statement ends the interpreter itself, which then dies by the signal.
    return list(_with_code(process.returncode, texts[1], (*CODES, 143, -signal.SIGINT)))


def _with_code(code: int, err: str, allowed: tuple[int, ...]) -> list[tuple[str, str]]:
    if "Traceback" in err or "Exception ignored" in err:
        return [("traceback", err.strip()[-600:])]
    return [] if code in allowed else [("exit code", f"{code}: {err.strip()[-400:]}")]


_KINDS = (_plainly, _closed_pipe, _closed_stream, _full_disk, _full_stdout, _stopped)
