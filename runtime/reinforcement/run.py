"""One rank of a run of post-training, from its first step to its last."""

from __future__ import annotations

import json
import threading
from collections.abc import Callable
from dataclasses import replace
from functools import partial
from pathlib import Path

import torch
import torch.distributed as dist

from ..checkpoint.pretrained import Pretrained
from ..checkpoint.resuming import resumed
from ..checkpoint.saver import Saver
from ..parallel.mesh import ProcessGroupFactory
from ..report import Event, Recorder
from ..settings import Settings
from ..status import Status
from ..training import open_metrics, report, tell
from .job import RlJob
from .loop import Loop
from .states import LoopStates


def run(
    job: RlJob, device: torch.device, settings: Settings, recorder: Recorder, status: Status,
    terminated: threading.Event,
) -> bool:  # fmt: skip
    """Runs all steps, or those until a rank is signalled to end: whether it was. All ranks must call it."""
    factory = ProcessGroupFactory(job.world_size, dist.get_rank(), status, settings.collective_timeout_s)
    loop = _loop(job, factory, device, settings, recorder)
    tell({"event": "transfers", "received_bytes": loop.received_bytes()}, settings, recorder)
    saver, done = resumed(LoopStates(loop), settings, recorder)
    metrics = open_metrics(settings, job, recorder, done)
    on_event = partial(report, metrics=metrics, settings=settings, recorder=recorder)
    stopped = _steps(loop, done, saver, on_event, settings.checkpoint_every, terminated)
    if metrics is not None:
        metrics.close()
    status.set("ending")
    if loop.trainer is not None:
        loop.trainer.settle()
    tell({"event": "end"}, settings, recorder)
    if dist.get_rank() == 0 and settings.report:
        Path(settings.report).write_text(json.dumps(recorder.document(), indent=2) + "\n", encoding="utf-8")
    loop.world.all_reduce(torch.zeros(1, device=device))  # no rank leaves before the last message has arrived
    dist.destroy_process_group()
    if saver is not None:
        saver.check_saved()
    return stopped


def _loop(
    job: RlJob, factory: ProcessGroupFactory, device: torch.device, settings: Settings, recorder: Recorder
) -> Loop:  # fmt: skip
    """The loop with its initial weights."""
    goes_on = settings.checkpoint is not None
    if job.init_from is None:
        return Loop(job, factory, device, goes_on=goes_on)
    factory.status.set(f"reading the weights in {job.init_from}")
    pretrained = Pretrained(Path(job.init_from), job.model)
    loop = Loop(replace(job, init_digest=pretrained.digest), factory, device, pretrained.init_param, goes_on=goes_on)
    tell({"event": "initialised", "folder": job.init_from, **pretrained.summary(job.dtype)}, settings, recorder)
    return loop


def _steps(
    loop: Loop, done: int, saver: Saver | None, on_event: Callable[[Event], None], save_every: int,
    terminated: threading.Event,
) -> bool:  # fmt: skip
    """The steps after the first `done`, and the checkpoints between them. Whether a rank was signalled to end before
    the last step."""
    steps, stop, index = loop.job.steps, False, done - 1
    for index in range(done, steps):
        event, stop = loop.step(index, stop=terminated.is_set())
        on_event(event)
        last = stop or index + 1 == steps
        due = last or (index + 1) % save_every == 0
        for saved in () if saver is None else saver.after(index + 1, due=due):
            on_event(saved)
        if last:
            break
    for saved in () if saver is None else saver.finished(wait=True):
        on_event(saved)
    stopped = stop and index + 1 < steps
    if stopped:
        on_event({"event": "terminated", "step": index + 1})
    return stopped
