"""Trains two ranks with checkpoints and kills one of them again and again; `make kill-test` does it 20 times."""

from __future__ import annotations

import os
import random
import re
import signal
import threading
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path

import torch
from meshwright.runtime.checkpoint.manifest import PARTIAL
from meshwright.runtime.parallel.mesh import build_mesh
from meshwright.runtime.settings import Settings, prepare
from meshwright.runtime.status import Status
from meshwright.runtime.trainer import Trainer

from ..fork import TIMEOUT_S, fork
from ..launched import start, workers

EVERY = 4
LIFE_S = 180.0  # longest wait: a loaded machine takes a minute to start ranks again


@dataclass
class Killed:
    """What a run that was killed said: (step, loss) in the order of printing, and where each life began."""

    steps: list[tuple[int, float]] = field(default_factory=list)
    saved: list[int] = field(default_factory=list)
    lives: list[int] = field(default_factory=list)
    lost: list[int] = field(default_factory=list)  # steps since the last checkpoint, at each kill
    in_save: int = 0
    text: list[str] = field(default_factory=list)


def kill_run(plan: Path, folder: Path, num_kills: int, seed: int, *, behind: bool = False) -> Killed:
    """Every third kill comes in the middle of a save, the others at random times after a life's second step. behind:
    saves go on while it trains, and every kill comes in one that follows a good one of that life."""
    chance, found = random.Random(seed), Killed()
    process = start(str(plan), "--steps", "1000000", "--checkpoint", str(folder), "--checkpoint-every", str(EVERY),
                    "--max-restarts", str(num_kills), *(["--checkpoint-async"] if behind else []))  # fmt: skip
    assert process.stdout is not None
    assert process.stderr is not None
    readers = [threading.Thread(target=_read, args=(process.stdout, found)),
               threading.Thread(target=found.text.extend, args=(process.stderr,))]  # fmt: skip
    for reader in readers:
        reader.start()
    since = 0.0
    try:
        for kill in range(num_kills):
            _wait(lambda: _steps_of_this_life(found) >= 2, found)
            if behind:
                _wait(partial(_has_saved, found, len(found.saved)), found)
                since = time.time()
            pids = dict((rank, pid) for pid, rank in workers(plan))
            if behind or kill % 3 == 0:
                _wait(partial(_saving, folder, since), found, pause_s=0.0005)
            else:
                time.sleep(chance.uniform(0.0, 1.5))
            os.kill(pids[chance.randrange(2)], signal.SIGKILL)
            found.in_save += _saving(folder, since)
            since = time.time()
            _wait(partial(_has_lived, found, kill + 1), found)
        _wait(lambda: _steps_of_this_life(found) > EVERY, found)
        process.send_signal(signal.SIGINT)
        assert process.wait(LIFE_S) == 130, "".join(found.text)
    finally:
        process.kill()
        for reader in readers:
            reader.join()
        process.communicate()
    return found


def _read(lines: Iterator[str], found: Killed) -> None:
    for line in lines:
        found.text.append(line)
        if step := re.match(r"step (\d+)/\d+  loss ([\d.]+)", line):
            found.steps.append((int(step[1]), float(step[2])))
        elif saved := re.match(r"checkpoint .*step-(\d+)", line):
            found.saved.append(int(saved[1]))
        elif line.startswith("resumed after step "):
            begun = int(line.split()[3])
            found.lost.append(found.steps[-1][0] - begun)
            found.lives.append(begun)
        elif line.startswith("no checkpoint yet"):
            found.lost.append(found.steps[-1][0])
            found.lives.append(0)


def _saving(folder: Path, since: float) -> bool:
    """Whether a save has begun since then, and not ended: the life before may have left half of one."""
    for path in folder.glob(PARTIAL + "step*"):
        try:
            if path.stat().st_mtime > since:
                return True
        except OSError:  # it has got its name
            continue
    return False


def _has_saved(found: Killed, before: int) -> bool:
    return len(found.saved) > before


def _has_lived(found: Killed, times: int) -> bool:
    return len(found.lives) == times


def _steps_of_this_life(found: Killed) -> int:
    begun = found.lives[-1] if found.lives else 0
    return found.steps[-1][0] - begun if found.steps else 0


def _wait(until: Callable[[], bool], found: Killed, pause_s: float = 0.02) -> None:
    deadline = time.monotonic() + LIFE_S
    while not until():
        assert time.monotonic() < deadline, "the run did not go on\n" + "".join(found.text[-40:])
        time.sleep(pause_s)


def uninterrupted(plan: Path, steps: int) -> list[float]:
    """Losses of the same run that nobody kills."""
    job, _ = prepare(Settings(str(plan), steps=steps))

    def one(rank: int) -> list[float]:
        trainer = Trainer(job, build_mesh(job.layout, rank, Status(), TIMEOUT_S), torch.device("cpu"))
        return [trainer.step(index).loss for index in range(steps)]

    losses: list[float] = fork(job.world_size, one)[0]
    return losses


def check(found: Killed, plan: Path, *, behind: bool = False) -> None:
    """Every life began at a checkpoint, none was torn, at most the steps since the last one were lost, and what was
    trained is what an uninterrupted run trains. behind: a save may have taken all steps until the next one."""
    text = "".join(found.text)
    assert "damaged" not in text, text
    assert "not saved" not in text, text
    most = 2 * EVERY if behind else EVERY
    assert all(0 <= lost <= most for lost in found.lost), found
    expected = uninterrupted(plan, max(step for step, _ in found.steps))
    assert all(f"{expected[step - 1]:.4f}" == f"{loss:.4f}" for step, loss in found.steps)
