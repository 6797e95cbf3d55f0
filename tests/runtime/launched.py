"""Starts `meshwright launch`, and finds its workers."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

from ..snapshots import environment

WAIT_S = 120.0


def start(*words: str) -> subprocess.Popen[str]:
    env = environment({"OMP_NUM_THREADS": "1"})
    command = [sys.executable, "-m", "meshwright", "launch", *words]
    return subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, env=env)


def finish(process: subprocess.Popen[str]) -> tuple[int, str, str]:
    try:
        out, err = process.communicate(timeout=WAIT_S)
    finally:
        process.kill()
    return process.returncode, out, err


def workers(plan: Path) -> Iterator[tuple[int, int]]:
    """(pid, rank) of the workers that train `plan`."""
    for folder in Path("/proc").glob("[0-9]*"):
        try:
            words = (folder / "cmdline").read_bytes().split(b"\0")
            variables = (folder / "environ").read_bytes().split(b"\0")
        except OSError:
            continue
        ours = b"meshwright.runtime.worker" in words and str(plan).encode() in words
        if ours and b"meshwright.runtime.agent" not in words:
            rank = next((v for v in variables if v.startswith(b"RANK=")), None)
            if rank is not None:
                yield int(folder.name), int(rank[5:])
