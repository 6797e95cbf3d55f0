"""Trains two ranks with checkpoints and kills one of them again and again; `make kill-test` does it 20 times."""

from __future__ import annotations

import os
import random
import signal
import time
from collections.abc import Sequence
from functools import partial
from pathlib import Path

import torch
from meshwright.runtime.checkpoint.manifest import PARTIAL
from meshwright.runtime.parallel.mesh import build_mesh
from meshwright.runtime.preparation import prepare
from meshwright.runtime.settings import Settings
from meshwright.runtime.status import Status
from meshwright.runtime.trainer import Trainer

from ..fork import TIMEOUT_S, fork
from ..launched import LiveRun, all_gone, workers

EVERY = 4  # steps between checkpoints
LONGEST_S = 900.0  # of a run that nobody kills, on a loaded machine

_UNINTERRUPTED: dict[str, list[float]] = {}  # losses by the content of a plan


def words_of(folder: Path, *more: str) -> list[str]:
    """Flags of a run without end that saves into `folder`."""
    return ["--steps", "1000000", "--checkpoint", str(folder), "--checkpoint-every", str(EVERY), *more]


def kill_run(plan: Path, folder: Path, num_kills: int, seed: int, *, behind: bool = False) -> tuple[LiveRun, int]:
    """A run that ended by Ctrl-C after `num_kills` kills, and how many of them came in the middle of a save.

    Every third kill comes in the middle of a save, the others at random times after a life's second step. behind: saves
    go on while it trains, and every kill comes in one that follows a good one of that life.
    """
    chance, in_save, since = random.Random(seed), 0, 0.0
    words = words_of(folder, "--max-restarts", str(num_kills), *(["--checkpoint-async"] if behind else []))
    with LiveRun(plan, *words) as run:
        for kill in range(num_kills):
            run.wait(lambda: run.steps_of_this_life >= 2)
            if behind:
                run.wait(partial(_more_than, len(run.saved), run.saved))
                since = time.time()
            pids = dict((rank, pid) for pid, rank in workers(plan))
            if behind or kill % 3 == 0:
                run.wait(partial(saving, folder, since), pause_s=0.0005)
            else:
                time.sleep(chance.uniform(0.0, 1.5))
            os.kill(pids[chance.randrange(2)], signal.SIGKILL)
            in_save += saving(folder, since)
            since = time.time()
            run.wait(partial(_more_than, kill, run.lives))
        run.wait(lambda: run.steps_of_this_life > EVERY)
        run.process.send_signal(signal.SIGINT)
        assert run.end() == 130, "".join(run.text)
    return run, in_save


def saving(folder: Path, since: float) -> bool:
    """Whether a save has begun since then, and not ended: the life before may have left half of one."""
    for path in folder.glob(PARTIAL + "step*"):
        try:
            if path.stat().st_mtime > since:
                return True
        except OSError:  # it has got its name
            continue
    return False


def _more_than(number: int, items: Sequence[int]) -> bool:
    return len(items) > number


def uninterrupted(plan: Path, steps: int) -> list[float]:
    """Losses of the same run that nobody kills, of these steps or more."""
    content = plan.read_text(encoding="utf-8")
    if len(_UNINTERRUPTED.get(content, ())) < steps:
        _UNINTERRUPTED[content] = _losses(plan, 2 * steps)  # more, so that the next run need not train again
    return _UNINTERRUPTED[content]


def _losses(plan: Path, steps: int) -> list[float]:
    job, _ = prepare(Settings(str(plan), steps=steps))

    def one(rank: int) -> list[float]:
        trainer = Trainer(job, build_mesh(job.layout, rank, Status(), TIMEOUT_S), torch.device("cpu"))
        return [trainer.step(index).loss for index in range(steps)]

    losses: list[float] = fork(job.world_size, one, timeout_s=LONGEST_S)[0]
    return losses


def wrong(run: LiveRun, *, most_lost: int) -> list[str]:
    """What a run that met a fault did wrong: more steps lost at once than `most_lost`, a torn checkpoint, an error of
    ours, a rank that is left, or losses that an uninterrupted run does not have."""
    text = "".join(run.text)
    problems = [f"printed `{word}`" for word in ("damaged", "Traceback", "our bug") if word in text]
    if not all(0 <= lost <= most_lost for lost in run.lost):
        problems.append(f"lost {max(run.lost)} steps, at most {most_lost} are allowed")
    if not all_gone(run.plan):
        problems.append("ranks are left running")
    expected = uninterrupted(run.plan, max(step for step, _ in run.steps)) if run.steps else []
    if others := [step for step, loss in run.steps if f"{expected[step - 1]:.4f}" != f"{loss:.4f}"]:
        problems.append(f"other losses than without the fault, from step {others[0]}")
    return problems
