"""TensorBoard: event files in a folder, written by torch.utils.tensorboard."""

from __future__ import annotations

from collections.abc import Mapping

from ..job import Job

_FLUSH_S = 5  # seconds between writes to the file; torch's default of 120 would lose more with a killed run


class EventFiles:
    """One run in the folder `where`. Steps after `done` that an earlier run left there are hidden."""

    def __init__(self, where: str, job: Job, done: int) -> None:
        from torch.utils.tensorboard import SummaryWriter

        self._writer = SummaryWriter(where, purge_step=done + 1, flush_secs=_FLUSH_S)

    def write(self, step: int, values: Mapping[str, float]) -> None:
        for name, value in values.items():
            self._writer.add_scalar(name, value, step)

    def close(self) -> None:
        self._writer.close()
