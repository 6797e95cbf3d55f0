"""Runs ranks as forks of this process: torch is imported once, so that a layout is checked in a second or two."""

from __future__ import annotations

import datetime
import importlib
import os
import pickle
import signal
import tempfile
import time
import traceback
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
from meshwright.runtime.checkpoint.checkpoint import Checkpoints
from meshwright.runtime.job import Job
from meshwright.runtime.parallel.mesh import build_mesh
from meshwright.runtime.rehearsal.memory import PeakMemory
from meshwright.runtime.status import Status
from meshwright.runtime.trainer import Step, Trainer
from torch._C._distributed_c10d import FileStore

TIMEOUT_S = 60.0
Break = Callable[[Trainer, int], None]


def fork(num_ranks: int, function: Callable[[int], Any], timeout_s: float = TIMEOUT_S) -> list[Any]:
    """What `function(rank)` returns on every rank, with torch.distributed at hand. Raises the failures of all ranks:
    one that fails closes connections of others, which may notice before they fail themselves. timeout_s: of all."""
    torch.set_num_threads(1)
    importlib.import_module("torch._dynamo")  # as an optimizer would, in every rank anew
    with tempfile.TemporaryDirectory() as folder:
        pids = {_start(rank, num_ranks, Path(folder), function): rank for rank in range(num_ranks)}
        _wait(pids, timeout_s)
        results = [pickle.loads((Path(folder) / str(rank)).read_bytes()) for rank in range(num_ranks)
                   if (Path(folder) / str(rank)).exists()]  # fmt: skip
    failures = [each for each in results if isinstance(each, str)]
    if failures or len(results) < num_ranks:
        raise RuntimeError("\n".join(failures) or f"only {len(results)} of {num_ranks} ranks ended in time")
    return [each[0] for each in results]


def _start(rank: int, num_ranks: int, folder: Path, function: Callable[[int], Any]) -> int:
    pid = os.fork()
    if pid:
        return pid
    try:
        torch.set_num_threads(1)  # a fork's thread pool is made anew by its first user, and two at once find none
        store = FileStore(str(folder / "store"), num_ranks)
        wait = datetime.timedelta(seconds=TIMEOUT_S)
        dist.init_process_group("gloo", rank=rank, world_size=num_ranks, store=store, timeout=wait)
        result: Any = (function(rank),)
    except BaseException:
        result = f"rank {rank}: {traceback.format_exc()}"
    (folder / f".{rank}").write_bytes(pickle.dumps(result))
    os.replace(folder / f".{rank}", folder / str(rank))
    os._exit(isinstance(result, str))


def _wait(pids: dict[int, int], timeout_s: float) -> None:
    """Until all have ended; 3 s after one has failed, or at the time-out, the others are killed."""
    deadline = time.monotonic() + timeout_s
    while pids:
        pid, state = _any(pids)
        if pid:
            del pids[pid]
            if state:
                deadline = min(deadline, time.monotonic() + 3.0)
        elif time.monotonic() > deadline:
            for each in pids:
                os.kill(each, signal.SIGKILL)
                os.waitpid(each, 0)
            return
        else:
            time.sleep(0.01)


def _any(pids: dict[int, int]) -> tuple[int, int]:
    for pid in pids:
        ended, state = os.waitpid(pid, os.WNOHANG)
        if ended:
            return ended, state
    return 0, 0


def run(job: Job, broken: Break | None = None, states: Path | None = None) -> list[Step]:
    """Steps of a job as rank 0 saw them. `broken(trainer, rank)` plants a fault. states: a folder for those of every
    step."""

    def one(rank: int) -> list[Step]:
        trainer = _trainer(job, rank)
        if broken is not None:
            broken(trainer, rank)
        steps = []
        for index in range(job.steps):
            steps.append(trainer.step(index))
            if states is not None:
                Checkpoints(trainer, states, job.steps).save(index + 1)
        return steps

    steps: list[Step] = fork(job.world_size, one)[0]
    return steps


def peak_bytes(job: Job) -> list[int]:
    """Peak bytes of the steps of a job, per rank. Every operation is followed, which takes half as long again."""

    def one(rank: int) -> int:
        trainer = _trainer(job, rank)
        memory = PeakMemory(trainer.tensors())
        with memory.following():
            for index in range(job.steps):
                trainer.step(index)
        return memory.peak

    return fork(job.world_size, one)


def _trainer(job: Job, rank: int) -> Trainer:
    return Trainer(job, build_mesh(job.layout, rank, Status(), TIMEOUT_S), torch.device("cpu"))
