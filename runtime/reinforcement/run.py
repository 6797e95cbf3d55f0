"""One rank of a run of post-training, from its first step to its last."""

from __future__ import annotations

import json
import threading
from pathlib import Path

import torch
import torch.distributed as dist

from ..failures import TERMINATED
from ..parallel.mesh import ProcessGroupFactory
from ..report import Recorder
from ..settings import Settings
from ..status import Status
from ..training import tell
from .job import RlJob
from .loop import Loop


def run(
    job: RlJob, device: torch.device, settings: Settings, recorder: Recorder, status: Status,
    terminated: threading.Event,
) -> None:  # fmt: skip
    """Runs all steps, or those until a rank is signalled to end. All ranks must call it."""
    factory = ProcessGroupFactory(job.world_size, dist.get_rank(), status, settings.collective_timeout_s)
    loop = Loop(job, factory, device)
    for index in range(job.steps):
        event, stop = loop.step(index, stop=terminated.is_set())
        tell(event, settings, recorder)
        if stop and index + 1 < job.steps:
            tell({"event": "terminated", "step": index + 1}, settings, recorder)
            break
    else:
        stop = False
    status.set("ending")
    if loop.trainer is not None:
        loop.trainer.settle()
    tell({"event": "end"}, settings, recorder)
    if dist.get_rank() == 0 and settings.report:
        Path(settings.report).write_text(json.dumps(recorder.document(), indent=2) + "\n", encoding="utf-8")
    loop.world.all_reduce(torch.zeros(1, device=device))  # no rank leaves before the last message has arrived
    dist.destroy_process_group()
    if stop:
        status.end(TERMINATED)
