"""Starts `meshwright launch`, reads it while it trains, and finds its workers."""

from __future__ import annotations

import re
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import suppress
from pathlib import Path
from types import TracebackType
from typing import Self

from meshwright.runtime.status import read_all

from ..snapshots import environment

WAIT_S = 120.0
GONE_S = 20.0  # longest wait for the end of ranks that are killed
LIFE_S = 180.0  # longest wait for a line: a loaded machine takes a minute to start ranks again


def start(*words: str, inside: Sequence[str] = ()) -> subprocess.Popen[str]:
    """inside: the command that it is started by."""
    env = environment({"OMP_NUM_THREADS": "1"})
    command = [*inside, sys.executable, "-m", "meshwright", "launch", *words]
    return subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, env=env)


def finish(process: subprocess.Popen[str]) -> tuple[int, str, str]:
    try:
        out, err = process.communicate(timeout=WAIT_S)
    finally:
        process.kill()
    return process.returncode, out, err


class LiveRun:
    """A launch that is read while it trains. At the end of the block it is killed, and its ranks with it."""

    def __init__(self, plan: Path, *words: str, inside: Sequence[str] = ()) -> None:
        """inside: the command that it is started by."""
        self.plan = plan
        self.steps: list[tuple[int, float]] = []  # (step, loss) in the order of printing
        self.saved: list[int] = []  # steps of checkpoints
        self.lives: list[int] = []  # step after which each resumed life began
        self.lost: list[int] = []  # steps that each of them did again
        self.text: list[str] = []  # lines of both streams
        self.process = start(str(plan), *words, inside=inside)
        assert self.process.stdout is not None
        assert self.process.stderr is not None
        self._readers = [threading.Thread(target=self._read, args=(self.process.stdout,)),
                         threading.Thread(target=self.text.extend, args=(self.process.stderr,))]  # fmt: skip
        for reader in self._readers:
            reader.start()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        self.process.kill()
        self.end()
        self.process.communicate()

    def wait(self, until: Callable[[], bool], pause_s: float = 0.02) -> None:
        deadline = time.monotonic() + LIFE_S
        while not until():
            assert time.monotonic() < deadline, f"the run did not go on\n{''.join(self.text[-40:])}"
            time.sleep(pause_s)

    def end(self) -> int:
        """Its exit code, when all that it printed is read."""
        code = self.process.wait(LIFE_S)
        for reader in self._readers:
            reader.join()
        return code

    @property
    def steps_of_this_life(self) -> int:
        begun = self.lives[-1] if self.lives else 0
        return self.steps[-1][0] - begun if self.steps else 0

    def _read(self, lines: Iterator[str]) -> None:
        for line in lines:
            self.text.append(line)
            if step := re.match(r"step (\d+)/\d+  loss ([\d.]+)", line):
                self.steps.append((int(step[1]), float(step[2])))
            elif saved := re.match(r"checkpoint .*step-(\d+)", line):
                self.saved.append(int(saved[1]))
            elif begun := re.match(r"resumed after step (\d+)|no checkpoint yet", line):
                self.lives.append(int(begun[1] or 0))
                self.lost.append(self.steps[-1][0] - self.lives[-1] if self.steps else 0)


def workers(plan: Path) -> Iterator[tuple[int, int]]:
    """(pid, rank) of the workers that train `plan`. Each has the command of torchrun, of which it is a fork."""
    ranks = {int(state["pid"]): rank for folder in _folders(plan) for rank, state in read_all(folder).items()}
    for pid in _processes(plan):
        if pid in ranks:
            yield pid, ranks[pid]


def _processes(plan: Path) -> dict[int, list[str]]:
    """Commands of torchrun and all ranks that train `plan`, by process id."""
    found = {}
    for folder in Path("/proc").glob("[0-9]*"):
        with suppress(OSError):  # it has ended
            words = (folder / "cmdline").read_text().split("\0")
            if "meshwright.runtime.worker" in words and str(plan) in words:
                found[int(folder.name)] = words
    return found


def _folders(plan: Path) -> set[Path]:
    """Folders that the ranks write their states to."""
    return {Path(words[words.index("--run-dir") + 1]) for words in _processes(plan).values()}


def all_gone(plan: Path) -> bool:
    """Whether no process that trains `plan` is left, after a moment."""
    deadline = time.monotonic() + GONE_S
    while time.monotonic() < deadline:
        if not _processes(plan):
            return True
        time.sleep(0.1)
    return False


def parent_of(pid: int) -> int:
    """The process that started `pid`; torchrun, of a rank."""
    return int(Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[1])
