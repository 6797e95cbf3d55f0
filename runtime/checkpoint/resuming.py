"""The start of a run: with its first step, or after a checkpoint."""

from __future__ import annotations

import os
from pathlib import Path

from ...errors import InputError
from ..report import Recorder
from ..settings import Settings
from ..training import tell
from .checkpoint import Checkpoints
from .folder_lock import hold
from .saver import Saver
from .states import States


def torchrun_restarts() -> int:
    """The number of restarts by torchrun."""
    return int(os.environ.get("TORCHELASTIC_RESTART_COUNT", "0"))


def resumed(states: States, settings: Settings, recorder: Recorder) -> tuple[Saver | None, int]:
    """The saver, if any, and the number of finished steps. Restarts by torchrun resume automatically. All ranks must
    call it. Raises InputError for a checkpoint of another run, for a folder that another run saves to, and where no
    step is left."""
    if settings.checkpoint is None:
        return None, 0
    restarts, folder = settings.restarts + torchrun_restarts(), Path(settings.checkpoint)
    checkpoints = Checkpoints(states, folder, settings.keep)
    saver = Saver(states, folder, settings.keep, behind=settings.checkpoint_async,
                  timeout_s=settings.collective_timeout_s)  # fmt: skip
    resume = settings.resume or restarts > 0
    checkpoints.prepare(resume=resume)
    if checkpoints.leads:
        hold(folder, refuses=not restarts)
    if not resume:
        return saver, 0
    start = checkpoints.resume()
    if start.step >= states.job.steps and not restarts:
        raise InputError(f"{start.folder}: step {start.step} is done, nothing is left of --steps {states.job.steps}",
                         hint=f"`--steps {start.step + states.job.steps}`: steps before it count, too")  # fmt: skip
    tell({"event": "resumed", "step": start.step, "folder": str(start.folder or ""), "layout_id": start.layout_id,
           "skipped": list(start.skipped), "restarts": restarts}, settings, recorder)  # fmt: skip
    return saver, start.step
